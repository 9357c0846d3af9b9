"""Run folders `outputs/<space>/runs/<number>-<time>/`, with configuration and versions.

Numbers order the runs, since clocks differ between machines; the time is UTC. Merged runs have the
number 0, so that the latest local run stays the latest.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import json
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Required, TypedDict, TypeVar

import polars as pl
import pyarrow as pa

from simulators.core.errors import UserError
from sweeper.extras import DISTRIBUTION
from sweeper.report.tables import write_text
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Span
from sweeper.space.space_file import SpaceConfig, parse_space
from sweeper.store.keys import Definition
from sweeper.store.store import Manifest, Store
from sweeper.typed import from_json

T = TypeVar("T")

_HERE, _PROGRESS, _MANIFEST = "outputs", "progress.json", "manifest.json"
_NUMBERED = re.compile(r"(\d{6,})-")
_BROKEN = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    pa.ArrowException,
)


class _Asked(TypedDict, total=False):
    """The keys of `config.json` that sweeper reads."""

    space: Required[dict[str, Any]]
    outputs: str


class Progressed(TypedDict, total=False):
    """Progress written by the driver of a run: from its first round on, and at its end."""

    answered: Required[int]  # points with rows before the run
    to_do: Required[int]
    started_ns: int  # start of the first round, by the file system's clock
    rows: dict[str, int]  # new rows by status; written at the end


class DamagedRun(UserError):  # noqa: N818 - names the damaged object
    """The folder of a run cannot be read; results are stored elsewhere."""


def home_of(outputs: str, name: str) -> Path:
    """Return the folder of a space's runs, which is local even if results are under a URL."""
    return Path(_HERE if "://" in outputs else outputs, name)


def url_of(folder: Path) -> str:
    """Return the URL of a run's results; empty for local results."""
    written: Mapping[str, Any] = _stored(folder / "config.json", _Asked) or {}
    outputs = str(written.get("outputs", ""))
    return outputs if "://" in outputs else ""


def _stored(file: Path, kind: type[T]) -> T | None:
    """Return the content of a JSON file; None if the file cannot be read."""
    try:
        return from_json(file.read_bytes(), kind)
    except (OSError, ValueError):
        return None


def runs(outputs: str, name: str) -> list[Path]:
    """Return the folders of the runs of a space, the first run first."""
    found = [file.parent for file in (home_of(outputs, name) / "runs").glob("*/definition.json")]
    if "://" in outputs:
        found = [run for run in found if url_of(run) == outputs]
    return sorted(found, key=lambda run: (_number(run.name), run.name))


def asked(folder: Path) -> tuple[Definition, SpaceConfig]:
    """Return the definition of a run and its space.

    Raises:
        DamagedRun: a file is unreadable or invalid.
    """
    try:
        written = from_json((folder / "config.json").read_bytes(), _Asked)["space"]
        config = parse_space(written, str(folder / "config.json"))
        stored = Definition.from_json((folder / "definition.json").read_text())
        space = stored.as_defined_now
        space.batch(Span(0, min(1, len(space))))
        return stored, config
    except (*_BROKEN, UserError) as error:
        said = " ".join(str(error).split())[:200]
        raise DamagedRun(
            f"{folder} is damaged ({type(error).__name__}: {said}); delete this folder. The "
            "results are stored elsewhere and stay available to earlier runs"
        ) from error


def rows_of(store: Store, space: DesignSpace) -> pl.LazyFrame:
    """Return the rows of a run; inputs that the simulator gained later have default values."""
    rows = store.scan()
    known = set(rows.collect_schema().names())
    gained = (name for name in space.schema.names if name not in known)
    values = (pl.Series(name, space.dictionaries[name]) for name in gained)
    return rows.with_columns(pl.lit(v[0], v.dtype).alias(v.name) for v in values if len(v) == 1)


def begin(store: Store, written: Mapping[str, Any]) -> Path:
    """Write the configuration of a run before it starts, and return the folder of the run."""
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    outputs, _, name = store.folder.rpartition("/")
    home = home_of(outputs, name) / "runs"
    folder = next_run(home, now)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.json", json.dumps(written, indent=1, default=str))
        write_text(folder / "versions.json", json.dumps(_versions(), indent=1))
        write_text(folder / "definition.json", store.definition.to_json())
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
    return folder


def write_progress(folder: Path, known: Progressed) -> None:
    """Write the progress of a run."""
    if before := progress_of(folder):
        known = {**known, "started_ns": before["started_ns"]}
    write_text(folder / _PROGRESS, json.dumps(known))


def progress_of(folder: Path) -> Progressed | None:
    """Return the progress that `write_progress` wrote; None before that."""
    try:
        file = folder / _PROGRESS
        written: Progressed = {
            "started_ns": file.stat().st_mtime_ns,
            **from_json(file.read_bytes(), Progressed),
        }
    except (OSError, ValueError):
        return None
    return written


def write_manifest(folder: Path, points: Manifest) -> None:
    """Write the points that have rows at the end of a run."""
    write_text(folder / _MANIFEST, json.dumps(points))


def manifest_of(folder: Path) -> Manifest:
    """Return the points that had rows at the end of a run; none if it has not ended."""
    return _stored(folder / _MANIFEST, Manifest) or {"spans": [], "numbers": ""}


def has_ended(folder: Path) -> bool:
    """Return whether the sweep of a run has ended."""
    return "rows" in (progress_of(folder) or {}) or (folder / "summary.json").is_file()


def is_from_here(folder: Path) -> bool:
    """Return whether a run was started on this machine."""
    found = _stored(folder / "versions.json", dict[str, str]) or {}
    return found.get("host") == platform.node()


def next_run(home: Path, time: str) -> Path:
    """Return the folder of the next run in the folder `home`."""
    numbers = (_number(run.name) for run in home.iterdir()) if home.is_dir() else ()
    return home / f"{max(numbers, default=0) + 1:06d}-{time}"


def demote(folder: Path) -> Path:
    """Let a run sort before all numbered runs if there are others, and return its new folder.

    A run without a feasible design does not hide the results of an earlier run.
    """
    if len(runs(str(folder.parents[2]), folder.parents[1].name)) < 2:
        return folder
    time = folder.name.partition("-")[2]
    return folder.rename(earlier_run(folder.parent, time))


def is_demoted(folder: Path) -> bool:
    """Return whether a run sorts before all numbered runs."""
    return _number(folder.name) == 0


def earlier_run(home: Path, time: str) -> Path:
    """Return the folder of a merged run, which sorts before all own runs."""
    again = (f"-{count}" for count in itertools.count(2))
    names = (f"{0:06d}-{time}{mark}" for mark in itertools.chain([""], again))
    return next(home / name for name in names if not (home / name).exists())


def _number(run: str) -> int:
    """Return the number in the name of a run's folder; 0 for a merged run."""
    match = _NUMBERED.match(run)
    return int(match[1]) if match else 0


@functools.cache
def _versions() -> Mapping[str, str]:
    packages = (DISTRIBUTION, "numpy", "numba", "pyarrow", "polars", "ray", "hydra-core")
    found = {
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
        "host": platform.node(),
        "system": platform.platform(),
    }
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        here = Path(__file__).resolve().parent
        said = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        git = subprocess.run(  # noqa: S603 - a fixed command
            ["git", "-C", str(here), *said],  # noqa: S607 - git where there is one
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
        found["commit"] = git.stdout.strip()
    return found
