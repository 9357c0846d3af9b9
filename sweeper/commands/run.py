"""Run, resume or plan a sweep."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from simulators.core.columns import schema_of
from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from sweeper.configuration import Configuration
from sweeper.engines import Say, options_of
from sweeper.engines.chunks import hinted
from sweeper.engines.process import probed
from sweeper.engines.task import Task
from sweeper.report.answers import answers_to
from sweeper.report.progress import Progress, shown
from sweeper.report.run_folder import begin, demote, write_manifest, write_progress
from sweeper.report.summary import Ended, print_ended
from sweeper.report.tables import write_text
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch, width
from sweeper.space.shipped_files import conf
from sweeper.space.space_file import completed, parse_space
from sweeper.store.store import FAILURES, Part, alone, answered_elsewhere, count_allowed
from sweeper.sweep import Sweep
from sweeper.text import counted, duration, human

_PATIENCE_S, _MOST_S = 0.2, 10.0
"""Time for which points are timed, and the largest time for a long sweep."""
_LONG_S, _TIMED = 10.0, 8
"""Remaining time from which a faster choice is offered, and the designs that are timed before."""
_COUNTED = 1 << 26
"""The largest batch that is counted exactly."""
_BYTES = {"double": 8, "int64": 8, "bool": 1, "string": 2}
"""Bytes of a stored value by type, before compression (strings are stored as codes)."""


class RequestedSweep(NamedTuple):
    """A composed configuration, its sweep, and a faster choice to offer where it takes long."""

    name: str
    sweep: Sweep
    written: Mapping[str, Any]
    faster: str = ""


def requested_sweep(words: list[str]) -> RequestedSweep:
    """Return the sweep that command-line overrides describe."""
    from sweeper.commands.overrides import compose  # here, since it loads Hydra

    asked = Configuration.from_dict(compose(words))
    return RequestedSweep(asked.name, asked.sweep(), asked.to_dict())


def grid_sweep(name: str, space: Mapping[str, Any], *, outputs: str, engine: str) -> RequestedSweep:
    """Return the sweep of the grid of a space with an engine; other settings are the usual ones."""
    import yaml  # type: ignore[import-untyped]  # comes with omegaconf, without stubs

    usual = yaml.safe_load((conf() / "config.yaml").read_text(encoding="utf-8"))
    del usual["defaults"]
    options = dataclasses.asdict(options_of(engine)())
    asked = Configuration.from_dict(
        usual
        | {
            "name": name,
            "space": completed(space, parse_space(space)),
            "engine": {"name": engine, **options},
            "outputs": outputs,
        }
    )
    return RequestedSweep(asked.name, asked.sweep(), asked.to_dict())


def main(words: list[str]) -> int:
    """Run the sweep and print its front.

    The exit code is 3 if points failed, and 1 if no point is feasible.
    """
    asked = requested_sweep(words)
    as_json = asked.written["output"] == "json"
    if not as_json and asked.written["output"] != "text":
        raise UserError(f"output={asked.written['output']}: write output=text or output=json")
    ended = sweep(asked)
    failure: UserError | None = None
    try:
        _write(ended, plot=asked.written["plot"])
    except UserError as error:  # for example a full disk: the answer is printed nevertheless
        failure = error
    if as_json:
        found = {**ended.to_dict(), "run": str(ended.answers.folder)}
        print(json.dumps(found, indent=1, default=str))
    else:
        print_ended(ended)
    if failure is not None:
        raise failure
    return 3 if ended.failed else 0 if ended.is_feasible else 1


def sweep(asked: RequestedSweep) -> Ended:
    """Run a sweep, and return its answers."""
    space, store = asked.sweep.space, asked.sweep.store
    removed = space.removed()
    if sum(removed.values()) == space.size:
        listed = "\n".join(f"  {line}" for line in space.counts.in_words)
        raise UserError(
            f"the space is empty: the constraints remove all {space.size:,} points\n{listed}"
        )
    with alone(store):
        picked = min(asked.sweep.sampler.size(space), space.size - sum(removed.values()))
        folder = begin(store, {**asked.written, "points": picked})
        try:
            ended = _run_with_progress(asked, folder)
        except UserError:
            if not store.finished() and not len(store.answered(space)):
                # An empty run would hide an earlier run.
                shutil.rmtree(folder, ignore_errors=True)
            raise
    if ended.is_feasible:
        return ended
    demoted = demote(folder)
    return dataclasses.replace(ended, answers=dataclasses.replace(ended.answers, folder=demoted))


def _run_with_progress(asked: RequestedSweep, folder: Path) -> Ended:
    """Run a sweep, show and store its progress, and return its answers."""
    sweep, space, store = asked.sweep, asked.sweep.space, asked.sweep.store
    allowed = space.size - sum(space.removed().values())
    progress = Progress(min(sweep.sampler.size(space), allowed), sweep.objectives)
    with shown(progress) as display:
        monitor = _Monitor(
            asked,
            folder,
            progress,
            count=display.watch,
            print_line=display.say,
            allowed=allowed,
        )
        if asked.written["failures"]["retry"] and (dropped := store.forget_failures()):
            monitor.say(f"retrying {dropped:,} points that failed before")
        vary = f"{len(space.varied)} ax{'is varies' if len(space.varied) == 1 else 'es vary'}"
        monitor.say(f"space {asked.name}: {counted(space.size, 'point')}, {vary}")
        for line in space.counts.in_words:
            monitor.say(f"  {line}")
        sweep.run(monitor.watch, monitor.say, monitor.expect)
        progress.total = progress.done
    write_manifest(folder, store.manifest())
    rows = dict(progress.rows)
    write_progress(folder, {"answered": progress.answered, "to_do": progress.total, "rows": rows})
    return Ended(
        answers=answers_to(parse_space(asked.written["space"]), space, store, folder, asked.name),
        evaluated=progress.done,
        failed=sum(progress.rows[s] for s in FAILURES),
        seconds=progress.elapsed_s,
        said=tuple(monitor.said),
    )


class _Monitor:
    """Updates the progress of a running sweep; stops the sweep after too many failed points."""

    def __init__(
        self,
        asked: RequestedSweep,
        folder: Path,
        progress: Progress,
        *,
        count: Callable[[Part], None],
        print_line: Say,
        allowed: int,
    ) -> None:
        self.said: list[str] = []
        self._asked, self._folder, self._allowed = asked, folder, allowed
        self._progress, self._count, self._print_line = progress, count, print_line
        self._selected = progress.total  # points that the sampler may select
        self._rounds, self._is_offered = 0, False

    def say(self, line: str) -> None:
        """Print a message above the progress, and keep it for the summary."""
        self.said.append(line)
        self._print_line(line)

    def watch(self, part: Part) -> None:
        """Count the points of a finished part.

        Raises:
            UserError: more points failed than `failures.max`.
        """
        self._count(part)
        self._offer_faster()
        progress, most_failed = self._progress, self._asked.written["failures"]["max"]
        failed = sum(progress.rows[s] for s in FAILURES)
        if most_failed is not None and failed > most_failed:
            raise UserError(
                f"{failed:,} points failed, more than failures.max={most_failed}; stored "
                f"results are kept. Reasons: {dict(progress.reasons.most_common(3))}"
            )

    def expect(self, picked: Sequence[Batch], fresh: Sequence[Batch], later: int | None) -> None:
        """Update the expected number of points before a round of the sweep."""
        self._rounds += 1
        space, progress = self._asked.sweep.space, self._progress
        chosen, left = (_allowed_of(space, batches, self._allowed) for batches in (picked, fresh))
        if later is not None:
            progress.answered += chosen - left
            progress.total = progress.done + left + later
        elif chosen >= self._selected:
            progress.answered, progress.total = max(self._selected - left, 0), left
        # The size of a search is a guess, which a round can exceed.
        progress.total = max(progress.total, progress.done + left)
        write_progress(self._folder, {"answered": progress.answered, "to_do": progress.total})
        if progress.answered and later is None:
            self.say(
                f"{counted(progress.answered, 'design')} stored already, "
                f"{progress.total:,} to simulate"
            )

    def _offer_faster(self) -> None:
        """Offer the faster choice once, if the remaining time is long."""
        progress, faster = self._progress, self._asked.faster
        left_s = progress.left_s or 0.0
        # The first two rounds of a search say how many designs follow.
        is_known = self._rounds > 2 and progress.done >= _TIMED
        if faster and not self._is_offered and is_known and left_s > _LONG_S:
            self._is_offered = True
            self.say(
                f"{progress.done:,} of about {progress.total:,} designs done, about "
                f"{duration(left_s)} left; faster, less exact: {faster}"
            )


def _write(ended: Ended, *, plot: bool) -> None:
    answers, folder = ended.answers, ended.answers.folder
    try:
        summary = msgspec.json.encode(ended.to_dict(), enc_hook=str)
        write_text(folder / "summary.json", msgspec.json.format(summary, indent=1).decode())
        if len(answers.front):
            answers.front.write_parquet(folder / "front.parquet")
            if plot and len(answers.objectives) >= 2:
                with contextlib.suppress(ModuleNotFoundError):  # matplotlib is an extra
                    from sweeper.report import plots

                    plots.draw("front", answers.usual, folder / "front.png")
    except OSError as error:
        raise UserError(f"the results are kept, but {folder} cannot be written: {error}") from error


def plan(words: list[str]) -> int:
    """Print the points, constraints, stored rows, run time and result size of a sweep."""
    asked = requested_sweep(words)
    sweep, space = asked.sweep, asked.sweep.space
    removed = space.removed()
    allowed = space.size - sum(removed.values())
    picked = min(sweep.sampler.size(space), allowed)
    todo = _to_do(sweep, picked)
    elsewhere = min(answered_elsewhere(sweep.store, space), todo)
    answered, todo = picked - todo, todo - elsewhere
    # A slow simulator estimates its time itself: timing points would take too long.
    task = Task(space, sweep.store, sweep.objectives, sweep.where, sweep.limits)
    estimate = (
        (hinted(space, picked) or probed(task, picked, _PATIENCE_S, _MOST_S)) if todo else None
    )
    work_s = estimate.point_s * (space.size if picked == allowed else picked) if estimate else 0.0
    work_s *= todo / max(picked, 1)
    bytes_each = sum(
        _BYTES[str(f.type)] for f in schema_of(load_simulator(space.simulator).metrics)
    )
    cores = os.cpu_count() or 1
    axes = {name: len(set(space.axes[name])) for name in space.varied}
    if asked.written["output"] == "json":
        found = {
            "space": asked.name,
            "points": space.size,
            "axes": axes,
            "removed": dict(removed),
            "picked": picked,
            "answered": answered,
            "answered_elsewhere": elsewhere,
            "to_do": todo,
            "probes": estimate.probes if estimate else 0,
            "cpu_s": work_s,
            "wall_s": work_s / cores,
            "bytes": todo * bytes_each,
        }
        print(json.dumps(found, indent=1))
        return 0
    print(f"space {asked.name}: {space.size:,} points of the simulator '{space.simulator}'")
    for name, size in axes.items():
        print(f"  {name} × {size}")
    for line in space.counts.in_words:
        print(f"  {line}")
    by_others = f", {elsewhere:,} stored by sweeps of other spaces" if elsewhere else ""
    print(
        f"{picked:,} points selected: {answered:,} stored already{by_others}, {todo:,} to simulate"
    )
    if estimate:
        how = f"{estimate.probes} points timed" if estimate.probes else "the simulator's estimate"
        how = f"timing points: {estimate.stopped}" if estimate.stopped else how
        print(
            f"About {duration(work_s)} of CPU ({how}: {human(work_s / todo, 's')} each), "
            f"{duration(work_s / cores)} on {cores} cores, "
            f"at most {human(float(todo * bytes_each), 'bytes')} of results"
        )
    return 0


def _to_do(sweep: Sweep, picked: int) -> int:
    space, store = sweep.space, sweep.store
    if not store.parts():
        return picked
    first = list(next(iter(sweep.picks.rounds(space, store.scan)), ()))
    if sum(map(len, first)) < picked:  # a search selects later points from earlier results
        settled = sum(_allowed(space, span) for span in store.finished())
        return max(picked - settled - len(store.answered(space)), 0)
    return sum(_allowed(space, batch) for batch in store.missing(space, first))


def _allowed_of(space: DesignSpace, batches: Sequence[Batch], allowed: int) -> int:
    if sum(map(len, batches)) == space.size:
        return allowed
    return sum(_allowed(space, batch) for batch in batches)


def _allowed(space: DesignSpace, batch: Batch) -> int:
    """Return the number of points in a batch that meet the constraints.

    A very long batch is estimated from the share in the whole space.
    """
    if space.constraints and len(batch) > _COUNTED:
        within = width(batch) * (space.size - sum(space.removed().values())) // space.size
        return max(within - (width(batch) - len(batch)), 0)  # the batch leaves out stored points
    return count_allowed(space, batch)
