"""The answers to a space as its store holds them: the front, its knee, counts, units.

What was asked, with what, and what came of it is kept in `outputs/<space>/runs/<time>/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.columns import schema_of
from simulators.core.contract import Notes, Simulator, load_simulator
from simulators.core.errors import UserError
from simulators.core.questions import CarriesLoad
from sweeper.query.pareto import knee, pareto_front, unstated
from sweeper.report.tables import write_text
from sweeper.space.design_space import DesignSpace, completed
from sweeper.space.objectives import Objectives, objectives, where
from sweeper.store.keys import SHOWN, Definition, keys
from sweeper.store.store import Store
from sweeper.units import human

KNEE = "knee"
"""The word that stands for the key of the front's knee."""


@dataclass(frozen=True)
class Answers:
    """The last run of a space: what was asked, and the answers to it."""

    name: str
    space: DesignSpace
    store: Store
    wanted: Objectives
    where: str | None  # the condition designs on the front must meet
    folder: Path  # of the run

    @functools.cached_property
    def simulator(self) -> Simulator:
        """What answered."""
        return load_simulator(self.space.simulator)

    @functools.cached_property
    def results(self) -> pl.LazyFrame:
        """All rows."""
        return self.store.scan()

    @functools.cached_property
    def objectives(self) -> Objectives:
        """The objectives that some design states; of a GPU without a price none states a cost."""
        silent = unstated(self.results, self.wanted, where=self.where)
        return {n: d for n, d in self.wanted.items() if n not in silent} or self.wanted

    @functools.cached_property
    def front(self) -> pl.DataFrame:
        """The Pareto front with the designs' keys."""
        return self.named(pareto_front(self.results, self.objectives, where=self.where))

    @functools.cached_property
    def knee(self) -> int:
        """The row of the front that is recommended."""
        return knee(self.front, self.objectives)

    @property
    def best(self) -> dict[str, Any]:
        """The design at the knee."""
        return self.front.row(self.knee, named=True)

    @functools.cached_property
    def status(self) -> dict[str, int]:
        """Rows by status."""
        counted = self.results.group_by(pl.col("status").cast(pl.String)).len().collect()
        return dict(sorted(counted.rows()))

    @functools.cached_property
    def reasons(self) -> dict[str, int]:
        """Rows that are not `ok` by the word their reason begins with, the most frequent first."""
        word = pl.col("reason").cast(pl.String).str.split(":").list.first()
        counted = self.results.filter(pl.col("reason").is_not_null()).group_by(word).len().collect()
        return dict(sorted(counted.rows(), key=lambda row: -row[1]))

    @functools.cached_property
    def units(self) -> dict[str, str]:
        """The unit of each axis and metric."""
        fields = [*self.space.schema, *schema_of(self.simulator.metrics)]
        return {f.name: f.metadata[b"unit"].decode() for f in fields}

    @property
    def load(self) -> tuple[str, str] | None:
        """The axis that is the load a design carries and the metric that grows with it, if any."""
        found = self.simulator
        return (found.load, found.throughput) if isinstance(found, CarriesLoad) else None

    @property
    def notes(self) -> Sequence[str]:
        """What the simulator adds below a table of its results."""
        return self.simulator.notes(self.space.axes) if isinstance(self.simulator, Notes) else ()

    def human(self, name: str, value: Any) -> str:
        """Return a value of a column as a person would write it."""
        return human(value, self.units.get(name, ""))

    def scaled(self, name: str, value: Any) -> str:
        """Return the same, but whole numbers of objectives scaled as real ones are."""
        return self.human(name, real(value) if name in self.objectives else value)

    def choices(self, row: Mapping[str, Any]) -> list[str]:
        """Return what a design chooses on each axis that varies."""
        return [f"{a}={self.human(a, row[a])}" for a in self.space.varied]

    def named(self, designs: pl.DataFrame) -> pl.DataFrame:
        """Return designs with their keys in front."""
        return designs.insert_column(0, keys(self.store.definition, designs))

    def design(self, prefix: str) -> tuple[str, dict[str, Any]]:
        """Return the whole key and the row of the design whose key begins so, or of the `knee`."""
        if prefix == KNEE:
            if self.front.is_empty():
                raise UserError("no design qualifies, so there is no knee")
            row = {n: v for n, v in self.best.items() if n != "equivalents"}
            return row.pop("key"), row
        rows = self.results.collect()
        named = keys(self.store.definition, rows)
        found = named.str.starts_with(prefix.lower()).arg_true()
        if len(found) != 1:
            what = "several keys begin" if len(found) else "no design has a key that begins"
            alike = named.filter(named.str.starts_with(prefix[:2].lower()))
            near = ", ".join(alike[:5].str.head(SHOWN))
            raise UserError(f"{what} with '{prefix}'" + (f"\nNear it: {near}" if near else ""))
        return named[found[0]], rows.row(found[0], named=True)


def point_of(simulator: Simulator, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a row that the simulator asks for."""
    return {f.name: row[f.name] for f in dataclasses.fields(simulator.point) if f.name in row}


def real(value: Any) -> Any:
    """Return a whole number as a real one, which is scaled when it is printed."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def latest(name: str, outputs: str) -> Answers:
    """Return the last run of a space."""
    runs = sorted(Path(outputs, name, "runs").glob("*/definition.json"))
    if not runs:
        known = sorted(p.parent.name for p in Path(outputs).glob("*/runs"))
        raise UserError(
            f"there are no results of '{name}' under {outputs}; "
            f"run  python -m sweeper +space={name}\n"
            f"Results there: {', '.join(known) or 'none'}"
        )
    stored, written = _asked(runs[-1])
    space = completed(stored.space())
    return Answers(
        name=name,
        space=space,
        store=Store(f"{outputs}/{name}", stored),
        wanted=objectives(written, space),
        where=where(written, space),
        folder=runs[-1].parent,
    )


def _asked(definition: Path) -> tuple[Definition, dict[str, Any]]:
    """Return the definition of a run and the space as it was written."""
    try:
        written = dict(json.loads((definition.parent / "config.json").read_text())["space"])
        return Definition.from_json(definition.read_text()), written
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{definition.parent} is damaged ({error}); delete this folder: the results are kept "
            "elsewhere, and earlier runs find them"
        ) from error


def begin(store: Store, written: Mapping[str, Any]) -> Path:
    """Write what is asked before it is answered, so that queries find a run that was stopped.

    Return the folder of the run.
    """
    now = dt.datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    folder = Path("." if "://" in store.folder else store.folder) / "runs" / now
    while folder.exists():  # another run began within the same second
        folder = folder.with_name(f"{folder.name}-again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.json", json.dumps(written, indent=1, default=str))
        write_text(folder / "versions.json", json.dumps(_versions(), indent=1))
        write_text(folder / "definition.json", store.definition.to_json())
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
    return folder


def _versions() -> dict[str, str]:
    packages = ("sweeper", "numpy", "numba", "pyarrow", "polars", "ray", "hydra-core")
    found = {"python": platform.python_version(), "command": " ".join(sys.argv)}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        here = Path(__file__).resolve().parent
        git = subprocess.run(  # noqa: S603 - a fixed command
            ["git", "-C", str(here), "rev-parse", "HEAD"],  # noqa: S607 - git where there is one
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
        found["commit"] = git.stdout.strip()
    return found
