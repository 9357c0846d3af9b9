"""Show the progress of a running sweep: finished designs, time left, size of the front.

A terminal shows a bar that redraws in place; a pipe gets a plain line every ten seconds.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np

from simulators.core.jit import Ints
from sweeper.query.fronts import Matrix
from sweeper.query.pareto import merge_fronts
from sweeper.space.design_space import Objectives
from sweeper.store.store import Part
from sweeper.text import duration, printable, reason_in_words

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
    answered: int = 0  # points whose answers were there already
    rows: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.perf_counter)
    _pace: list[tuple[float, int]] = field(default_factory=list)  # moments, and points done by then
    _fronts: list[tuple[Matrix, Ints]] = field(default_factory=list)

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
            self._fronts.append((part.front, part.ties))

    def front(self) -> Matrix:
        """Return the front of all finished points: distinct objective vectors."""
        if len(self._fronts) > 1:
            # A display draws from its own thread, so parts may arrive while this merges.
            merged = self._fronts[:]
            fronts, ties = zip(*merged, strict=True)
            self._fronts[: len(merged)] = [merge_fronts(fronts, ties, self.objectives)]
        return self._fronts[0][0] if self._fronts else np.empty((0, len(self.objectives)))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the sweep began."""
        return time.perf_counter() - self.started

    def line(self, width: int | None = None) -> str:
        """Return the state in one line of at most `width` characters."""
        done, rate = self.done, self._rate()  # parts may arrive meanwhile
        left = "estimating time left"
        if done >= self.total:
            left = "done"
        elif rate is not None:
            left = f"about {duration((self.total - done) / rate)} left"
        parts = [f"{done:,} of {self.total:,} designs done", left]
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
        """Return points per second over the latest third of the time; None at the start.

        The first part waits for compilers and workers, and the next ones are small; vectorised
        simulators are faster on larger parts, so only recent parts count.
        """
        pace, now = self._pace[:], time.perf_counter()
        if len(pace) < _CALIBRATING or now - pace[0][0] < _CALIBRATING_S:
            return None
        since = now - max((now - pace[0][0]) / 3, _CALIBRATING_S)
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
    """Print messages and progress as plain lines."""

    def __init__(self, progress: Progress, stream: TextIO) -> None:
        self.progress, self.stream = progress, stream
        self.drawn = time.perf_counter()

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
        """Nothing to clean up."""


class _Terminal(_Lines):
    """Print messages above a progress bar that redraws itself."""

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
        self.live.stop()
