"""Run a sweep, or go on with it: resuming is running again."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.contract import Direction
from simulators.core.errors import UserError
from sweeper import config
from sweeper.commands import summary
from sweeper.engines import Engine, load_engine
from sweeper.keys import define
from sweeper.progress import Progress, shown
from sweeper.samplers import Sampler, load_sampler
from sweeper.space import DesignSpace
from sweeper.store import FAILURES, Part, Store
from sweeper.sweep import Sweep


@dataclass(frozen=True)
class Question:
    """A composed configuration, as objects."""

    name: str
    space: DesignSpace
    objectives: Mapping[str, Direction]
    where: str | None
    sampler: Sampler
    engine: Engine
    store: Store
    written: Mapping[str, Any]


def question(composed: Mapping[str, Any]) -> Question:
    """Return what a composed configuration asks.

    Raises:
        UserError: something in it cannot be run.
    """
    space = config.space_of(composed["space"])
    objectives = config.objectives(composed["space"], space)
    sampler, engine = dict(composed["sampler"]), dict(composed["engine"])
    store = Store(
        f"{composed['outputs']}/{composed['name']}",
        define(space),
        metadata={"space": composed["name"], "objectives": json.dumps(objectives)},
    )
    return Question(
        name=composed["name"],
        space=space,
        objectives=objectives,
        where=config.where(composed["space"], space),
        sampler=_sampler(composed["space"], space, sampler.pop("name"), sampler),
        engine=load_engine(engine.pop("name"), **engine),
        store=store,
        written=composed,
    )


def _sampler(
    written: Mapping[str, Any], space: DesignSpace, name: str, options: Mapping[str, Any]
) -> Sampler:
    """Return the sampler that was chosen, or the bisection that a capacity axis asks for."""
    bisection = config.search(written, space)
    if bisection is None:
        return load_sampler(name, **options)
    if name != "grid":
        raise UserError(f"sampler={name} cannot bisect; leave the sampler out with a capacity axis")
    return bisection


def main(composed: Mapping[str, Any]) -> int:
    """Run the sweep and print its front; exit code 3 when points failed."""
    if composed["output"] not in ("text", "json"):
        raise UserError(f"output={composed['output']}: write output=text or output=json")
    asked = question(composed)
    removed = asked.space.removed()
    if sum(removed.values()) == asked.space.size:
        listed = "\n".join(f"  {count:,} removed by {text}" for text, count in removed.items())
        raise UserError(
            f"the space is empty: its constraints leave none of {asked.space.size:,} points\n"
            + listed
        )
    sweep = Sweep(
        asked.space, asked.sampler, asked.engine, asked.store, asked.objectives, asked.where
    )
    with _alone(asked.store):
        progress = Progress(total=asked.sampler.size(asked.space), objectives=asked.objectives)
        said: list[str] = []
        with shown(progress) as display:

            def say(line: str) -> None:
                said.append(line)
                display.say(line)

            if composed["failures"]["retry"] and (dropped := asked.store.forget_failures()):
                say(f"{dropped:,} points that failed before are asked again")
            say(
                f"space {asked.name}: {asked.space.size:,} points, "
                f"{len(asked.space.varied)} axes vary"
            )
            for text, count in removed.items():
                say(f"  {count:,} removed by {text}")
            before = _settled(asked.store)
            progress.total -= before
            most = composed["failures"]["max"]

            def watch(part: Part) -> None:
                display.watch(part)
                failed = sum(progress.rows[s] for s in FAILURES)
                if most is not None and failed > most:
                    raise UserError(
                        f"{failed:,} points failed, more than failures.max={most}; what was "
                        f"written is kept. Reasons: {dict(progress.reasons.most_common(3))}"
                    )

            results = sweep.run(watch, say)
    answers = summary.Answers(
        name=asked.name,
        space=asked.space,
        definition=asked.store.definition,
        objectives=asked.objectives,
        where=asked.where,
        results=results,
        folder=asked.store.results,
        removed=removed,
        evaluated=sum(progress.rows.values()),
        rows=progress.rows,
        seconds=progress.elapsed_s,
        said=tuple(said),
    )
    failure: UserError | None = None
    run_folder = _run_folder(asked.store)
    try:
        _record(asked, answers, run_folder, plot=bool(composed["plot"]))
    except UserError as error:  # a full disk, say: the answer is shown all the same
        failure = error
    if composed["output"] == "json":
        print(json.dumps({**answers.to_dict(), "run": str(run_folder)}, indent=1, default=str))
    else:
        summary.print_answers(answers, run_folder)
    if failure is not None:
        raise failure
    return 3 if any(progress.rows[s] for s in FAILURES) else 0


def _settled(store: Store) -> int:
    return sum(len(span) for span in store.finished())


@contextlib.contextmanager
def _alone(store: Store) -> Iterator[None]:
    """Refuse to run one definition of a space twice at the same time on this machine."""
    from sweeper.store import check_writable

    if "://" in store.folder:
        yield
        return
    import fcntl

    check_writable(store.folder)
    with (Path(store.folder) / f".{store.definition.id}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"this sweep is already running into {store.folder}; wait for it, or stop it"
            ) from error
        yield


def _run_folder(store: Store) -> Path:
    now = dt.datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    return Path("." if "://" in store.folder else store.folder) / "runs" / now


def _record(asked: Question, answers: summary.Answers, folder: Path, *, plot: bool) -> None:
    """Write what was asked, with what, and the front, to `runs/<time>/`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(asked.written, indent=1, default=str))
        (folder / "definition.json").write_text(asked.store.definition.to_json())
        (folder / "versions.json").write_text(json.dumps(_versions(), indent=1))
        (folder / "summary.json").write_text(json.dumps(answers.to_dict(), indent=1, default=str))
        front = answers.front
        if len(front):
            front.write_parquet(folder / "front.parquet")
            if plot and len(asked.objectives) >= 2:
                with contextlib.suppress(ModuleNotFoundError):
                    from sweeper import plots

                    plots.front(answers, folder / "front.png")
    except OSError as error:
        raise UserError(f"the results are kept, but {folder} cannot be written: {error}") from error


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


@dataclass(frozen=True)
class Answered:
    """The last run of a space."""

    space: DesignSpace
    store: Store
    objectives: Mapping[str, Direction]
    where: str | None


def latest(name: str, outputs: str) -> Answered:
    """Return the last run of a space.

    Raises:
        UserError: there was none.
    """
    from sweeper.keys import Definition

    runs = sorted(Path(outputs, name, "runs").glob("*/definition.json"))
    if not runs:
        known = sorted(p.parent.name for p in Path(outputs).glob("*/runs"))
        raise UserError(
            f"there are no results of '{name}' under {outputs}; "
            f"run  python -m sweeper +space={name}\n"
            f"Results there: {', '.join(known) or 'none'}"
        )
    stored = Definition.from_json(runs[-1].read_text())
    written = json.loads((runs[-1].parent / "config.json").read_text())["space"]
    space = stored.space()
    return Answered(
        space=space,
        store=Store(f"{outputs}/{name}", stored),
        objectives=config.objectives(written, space),
        where=config.where(written, space),
    )


def scan(name: str, outputs: str = "outputs") -> pl.LazyFrame:
    """Return all answers of the last run of a space, lazily."""
    return latest(name, outputs).store.scan()
