"""The live display of a sweep: how far it is, and how the front grows.

On a terminal it redraws in place; piped, it is a plain line now and then, without control
characters.
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
from sweeper.query.pareto import merge_fronts
from sweeper.query.pareto_kernel import Matrix
from sweeper.space.objectives import Objectives
from sweeper.store.store import Part
from sweeper.units import duration

_REDRAW_S, _LINE_S = 0.25, 10.0


@dataclass
class Progress:
    """What has come back so far."""

    total: int  # points to settle in this run
    objectives: Objectives  # of the live front
    done: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.perf_counter)
    _first: tuple[int, float] | None = None
    _fronts: list[tuple[Matrix, Ints]] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Take note of a part."""
        self.done += part.points
        self.rows.update(part.rows)
        self.reasons.update(part.reasons)
        self._first = self._first or (part.points, time.perf_counter())
        if len(part.front):
            self._fronts.append((part.front, part.ties))

    def front(self) -> Matrix:
        """Return the front of everything that has come back: distinct objective vectors."""
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

    def line(self) -> str:
        """Return the state in one line."""
        done = self.done  # parts may arrive meanwhile
        rate = self._rate(done)
        timed = self._first is not None and done > self._first[0]
        left = f"{duration((self.total - done) / rate)} left" if timed else "starting"
        parts = [
            f"{done:,} of {self.total:,} points",
            f"{rate:,.0f}/s",
            left if done < self.total else "done",
            f"front {len(self.front())}",
        ]
        bad = {k: n for k, n in self.rows.copy().items() if k != "ok" and n}
        parts += [f"{status} {n:,}" for status, n in sorted(bad.items())]
        if reasons := self.reasons.copy():
            common = ", ".join(f"{r} {n:,}" for r, n in reasons.most_common(3))
            parts.append(f"({common})")
        return " · ".join(parts)

    def _rate(self, done: int) -> float:
        """Return points per second after the first part, which waited for compilers and workers."""
        points, since = self._first or (0, self.started)
        if points < done:
            return (done - points) / max(time.perf_counter() - since, 1e-9)
        return done / max(self.elapsed_s, 1e-9)


@contextmanager
def shown(progress: Progress, stream: TextIO | None = None) -> Iterator[_Lines]:
    """Show the progress, on standard error unless said otherwise, until the context ends."""
    stream = stream or sys.stderr
    display = _Terminal(progress, stream) if stream.isatty() else _Lines(progress, stream)
    try:
        yield display
    finally:
        display.close()


class _Lines:
    """Plain lines: what is said, and the progress now and then."""

    def __init__(self, progress: Progress, stream: TextIO) -> None:
        self.progress, self.stream = progress, stream
        self.drawn = time.perf_counter()

    def watch(self, part: Part) -> None:
        self.progress.add(part)
        if time.perf_counter() - self.drawn >= _LINE_S:
            self.drawn = time.perf_counter()
            self.say(self.progress.line())

    def say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    def close(self) -> None:
        """Nothing to clean up."""


class _Terminal(_Lines):
    """A bar below what is said, which redraws itself."""

    def __init__(self, progress: Progress, stream: TextIO) -> None:
        super().__init__(progress, stream)
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        def render() -> Table:
            grid = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=max(progress.total, 1), completed=progress.done, width=28)
            grid.add_row(bar, progress.line())
            return grid

        self.live = Live(
            get_renderable=render, console=Console(file=stream), refresh_per_second=1 / _REDRAW_S
        )
        self.live.start()

    def watch(self, part: Part) -> None:
        self.progress.add(part)

    def say(self, line: str) -> None:
        self.live.console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        self.live.stop()
