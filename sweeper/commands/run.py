"""Run a sweep, or go on with it: resuming is running again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.contract import Direction
from simulators.core.errors import UserError
from sweeper import config
from sweeper.commands import record, summary
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
    answers, folder = sweep(question(composed))
    failure: UserError | None = None
    try:
        record.finish(folder, answers, plot=bool(composed["plot"]))
    except UserError as error:  # a full disk, say: the answer is shown all the same
        failure = error
    if composed["output"] == "json":
        print(json.dumps({**answers.to_dict(), "run": str(folder)}, indent=1, default=str))
    else:
        summary.print_answers(answers, folder)
    if failure is not None:
        raise failure
    return 3 if any(answers.rows.get(s) for s in FAILURES) else 0


def sweep(asked: Question) -> tuple[summary.Answers, Path]:
    """Answer a question under a live display, and return the answers and the folder of the run.

    Raises:
        UserError: the space is empty, runs already, or its folder cannot be written.
    """
    _check_not_empty(asked.space)
    with _alone(asked.store):
        folder = record.begin(asked.store, asked.written)
        try:
            return _answer(asked, asked.written["failures"]), folder
        except UserError:
            if not asked.store.finished() and not len(asked.store.answered(asked.space)):
                record.forget(folder)  # without rows it would only hide an earlier run
            raise


def _check_not_empty(space: DesignSpace) -> None:
    removed = space.removed()
    if sum(removed.values()) == space.size:
        listed = "\n".join(f"  {count:,} removed by {text}" for text, count in removed.items())
        raise UserError(
            f"the space is empty: its constraints leave none of {space.size:,} points\n{listed}"
        )


def _answer(asked: Question, failures: Mapping[str, Any]) -> summary.Answers:
    """Run the sweep under a live display."""
    space, said = asked.space, list[str]()
    progress = Progress(
        total=asked.sampler.size(space) - _settled(asked.store), objectives=asked.objectives
    )
    removed = space.removed()
    with shown(progress) as display:

        def say(line: str) -> None:
            said.append(line)
            display.say(line)

        def watch(part: Part) -> None:
            display.watch(part)
            _check_failures(progress, failures["max"])

        if failures["retry"] and (dropped := asked.store.forget_failures()):
            say(f"{dropped:,} points that failed before are asked again")
        say(f"space {asked.name}: {space.size:,} points, {len(space.varied)} axes vary")
        for text, count in removed.items():
            say(f"  {count:,} removed by {text}")
        sweep = Sweep(
            space, asked.sampler, asked.engine, asked.store, asked.objectives, asked.where
        )
        results = sweep.run(watch, say)
    return summary.Answers(
        name=asked.name,
        space=space,
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


def _check_failures(progress: Progress, most: int | None) -> None:
    failed = sum(progress.rows[s] for s in FAILURES)
    if most is not None and failed > most:
        raise UserError(
            f"{failed:,} points failed, more than failures.max={most}; what was written is kept. "
            f"Reasons: {dict(progress.reasons.most_common(3))}"
        )


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


def scan(name: str, outputs: str = "outputs") -> pl.LazyFrame:
    """Return all answers of the last run of a space, lazily."""
    return record.latest(name, outputs).store.scan()
