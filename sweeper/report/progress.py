"""The progress of a sweep, in this process or another: finished designs, time left, the front.

A terminal shows a bar that redraws in place; a pipe gets a plain line every ten seconds, even if no
part arrives. `Watch` reads the progress of another process from result files; each part is read
once.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np
import polars as pl

from simulators.core.errors import UserError
from sweeper.query.fronts import Matrix
from sweeper.query.pareto import FEASIBLE, local_front, qualifying
from sweeper.report.answers import Answers
from sweeper.report.run_folder import has_ended, is_from_here, progress_of
from sweeper.space.design_space import Objectives
from sweeper.space.sql import names_in
from sweeper.store.keys import definition_in
from sweeper.store.parquet import check, read_frame
from sweeper.store.store import Part, is_held
from sweeper.text import counted, duration, printable, reason_in_words

_REDRAW_S, _LINE_S = 0.25, 10.0
_CALIBRATING, _CALIBRATING_S = 3, 1.0
"""Parts and seconds before the rate is shown."""
_BAR = 28
_SEPARATOR = " · "


@dataclass
class Progress:
    """Finished points, and the time left at the recent rate."""

    total: int  # points to evaluate in this run
    objectives: Objectives  # of the live front
    answered: int = 0  # points with stored rows
    rows: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.perf_counter)
    _pace: list[tuple[float, int]] = field(default_factory=list)  # times, and points done by then
    _fronts: list[Matrix] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Finished points."""
        return self.rows.total()

    def add(self, part: Part) -> None:
        """Add a finished part."""
        self.rows.update(part.rows)
        self.reasons.update(part.reasons)
        self._pace.append((time.perf_counter(), self.done))
        if len(part.front):
            self._fronts.append(part.front)

    def front(self) -> Matrix:
        """Return the front of all finished points: distinct objective vectors."""
        if len(self._fronts) > 1:
            # A display draws from its own thread, so parts may arrive while this merges.
            merged = self._fronts[:]
            columns = dict(zip(self.objectives, np.concatenate(merged).T, strict=True))
            self._fronts[: len(merged)] = [local_front(columns, self.objectives)]
        return self._fronts[0] if self._fronts else np.empty((0, len(self.objectives)))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the sweep began."""
        return time.perf_counter() - self.started

    @property
    def left_s(self) -> float | None:
        """Expected seconds to the end; None before the pace is known."""
        rate = self._rate()
        return None if rate is None else max(self.total - self.done, 0) / rate

    def line(self, width: int | None = None) -> str:
        """Return the state in one line of at most `width` characters."""
        done, rate = self.done, self._rate()  # parts may arrive meanwhile
        left = "estimating time left"
        if done >= self.total:
            left = "done"
        elif rate is not None:
            left = f"about {duration((self.total - done) / rate)} left"
        parts = [f"{done:,} of {counted(self.total, 'design')} done", left]
        front = len(self.front())
        parts += [f"front {front}" if front else "no design qualifies yet"]
        parts += [f"{self.answered:,} stored before"] if self.answered else []
        parts += [f"{rate:,.0f}/s"] if rate is not None else []
        bad = {k: n for k, n in self.rows.copy().items() if k != "ok" and n}
        parts += [f"{status} {n:,}" for status, n in sorted(bad.items())]
        if reasons := self.reasons.copy():
            parts.append(
                "("
                + ", ".join(f"{reason_in_words(r)} {n:,}" for r, n in reasons.most_common(3))
                + ")"
            )
        while width is not None and len(parts) > 1 and len(_SEPARATOR.join(parts)) > width:
            parts.pop()
        return _SEPARATOR.join(parts)

    def _rate(self) -> float | None:
        """Return points per second over the latest two thirds of the time; None at the start.

        The first part waits for compilers and workers, and the next parts are small, where
        vectorised simulators are slow; so only recent parts count.
        """
        pace, now = self._pace[:], time.perf_counter()
        if len(pace) < _CALIBRATING or now - pace[0][0] < _CALIBRATING_S:
            return None
        since = now - max((now - pace[0][0]) * 2 / 3, _CALIBRATING_S)
        then, before = max((p for p in pace[:-1] if p[0] <= since), default=pace[0])
        return (pace[-1][1] - before) / (now - then) or None


@contextmanager
def shown(progress: Progress, stream: TextIO | None = None) -> Iterator[_Lines]:
    """Show the progress until the context ends, by default on standard error."""
    stream = stream or sys.stderr
    display = _Terminal(progress, stream) if stream.isatty() else _Lines(progress, stream)
    try:
        yield display
    finally:
        display.close()


class _Lines:
    def __init__(self, progress: Progress, stream: TextIO) -> None:
        self.progress, self.stream = progress, stream
        self.drawn = time.perf_counter()
        self.ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self.ended.wait(1.0):
            self.tick()

    def watch(self, part: Part) -> None:
        self.progress.add(part)
        self.tick()

    def tick(self) -> None:
        """Print the progress line if the last one is older than ten seconds."""
        if time.perf_counter() - self.drawn >= _LINE_S:
            self.drawn = time.perf_counter()
            self.say(self.progress.line())

    def say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    def close(self) -> None:
        """Stop the display."""
        self.ended.set()


class _Terminal(_Lines):
    def __init__(self, progress: Progress, stream: TextIO) -> None:
        super().__init__(progress, stream)
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        def render() -> Table:
            grid = Table.grid(padding=(0, 1))
            done, all_of_it = progress.done, max(progress.total, 1)
            bar = ProgressBar(total=all_of_it, completed=done, width=_BAR)
            grid.add_row(bar, Text(printable(progress.line(console.width - _BAR - 1))))
            return grid

        console = Console(file=getattr(stream, "unquoted", stream))  # its bar moves the cursor
        self.live = Live(get_renderable=render, console=console, refresh_per_second=1 / _REDRAW_S)
        self.live.start()

    def tick(self) -> None:
        """The bar redraws itself."""

    def say(self, line: str) -> None:
        self.live.console.print(printable(line), markup=False, highlight=False)

    def close(self) -> None:
        super().close()
        self.live.stop()


@dataclass
class Watch:
    """The progress of a run in another process, and the front of all stored rows."""

    answers: Answers
    progress: Progress = field(init=False)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        found = self.answers
        self.progress = Progress(found.points or found.space.size, found.objectives)
        # Front of earlier rows; reading a part of this run again would not change the front.
        self.progress.add(Part("", 0, {}, {}, local_front(found.front, found.objectives), 0.0))

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return has_ended(self.answers.folder)

    @property
    def stopped(self) -> bool:
        """Whether a run on this machine stopped before the end."""
        folder, store = self.answers.folder, self.answers.store
        return is_from_here(folder) and not is_held(store) and not self.ended

    def look(self) -> int:
        """Read new parts, and return their number."""
        known = progress_of(self.answers.folder)
        if known is None:  # the first round has not started
            return 0
        store, progress = self.answers.store, self.progress
        progress.answered, progress.total = known["answered"], known["to_do"]
        own = store.definition.id
        parts = store.parts(since_ns=known["started_ns"])
        new = [name for name in parts if name not in self.seen and definition_in(name) == own]
        for name in new:
            try:
                check(store.results, name)
                progress.add(self._summary(name))
            except UserError:  # being compacted, or damaged: a query reports damage
                continue
        self.seen.update(new)
        if "rows" in known:
            progress.rows = Counter(known["rows"])
        return len(new)

    def _summary(self, name: str) -> Part:
        found, wanted = self.answers, self.answers.objectives
        asked = names_in(found.where, "where") if found.where else []
        columns = list(dict.fromkeys([*wanted, *asked, "status", "reason"]))
        rows = read_frame(found.store.results, name, columns)
        good = qualifying(rows.lazy().filter(FEASIBLE), where=found.where).collect()
        reasons = Counter(text.split(":")[0] for text in rows["reason"].drop_nulls().to_list())
        status: dict[str, int] = dict(
            rows.group_by(pl.col("status").cast(pl.String)).len().iter_rows()
        )
        return Part(name, len(rows), status, reasons, local_front(good, wanted), seconds=0.0)


def state(watch: Watch) -> str:
    """Return the progress as JSON."""
    progress = watch.progress
    front = [dict(zip(watch.answers.objectives, row, strict=True)) for row in progress.front()]
    found = {
        "points": progress.total,
        "answered": progress.answered,
        "rows": dict(progress.rows),
        "stopped": watch.stopped,
        "ended": watch.ended,
        "front": front,
    }
    return json.dumps(found)
