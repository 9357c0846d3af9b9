"""The engine that evaluates points in this process: for tests, debuggers and small sweeps.

It has no limits per point: a point that hangs or exits takes this process along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from simulators.core.jit import has_compiled
from sweeper.engines import Say
from sweeper.engines.chunks import Chunks
from sweeper.engines.task import Task, keep_freed_memory
from sweeper.space.points import Batch
from sweeper.store.store import Part


@dataclass(frozen=True)
class Inline:
    """One worker: the process itself."""

    @contextmanager
    def open(self) -> Iterator[_ThisProcess]:
        """Return this process as the pool."""
        keep_freed_memory()
        yield _ThisProcess()


@dataclass
class _ThisProcess:
    announced: bool = False
    was_compiled: bool = field(default_factory=has_compiled)

    def run(
        self, task: Task, batches: Iterable[Batch], total: int, say: Say, point_s: float = 0.0
    ) -> Iterator[Part]:
        """Evaluate one chunk after the other."""
        if not self.announced:
            self.announced = True
            say("running in this process (no per-design time limit)")
            if task.warms_up and not self.was_compiled:
                say("compiling the simulator, up to a minute (first run only)")
        chunks = Chunks(batches, total, point_s=point_s, together=task.together)
        for chunk in chunks:
            parts = list(task.answer_in_parts(chunk))
            chunks.learn_from(parts)
            yield from parts


ENGINE = Inline
