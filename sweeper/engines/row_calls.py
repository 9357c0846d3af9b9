"""Calls of a function on columns of rows, in this process or shared among child processes.

Rows with equal keys are computed by one call. A child takes keys that it had before, whose caches
it keeps, then new ones, then those of others. The results are those of one call on all rows, if the
function answers each row for itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import UserError
from sweeper.engines.pool import LostWorker
from sweeper.engines.process import ChildProcess

Column = NDArray[Any]
_FEW = 256
"""Rows up to which a call stays in this process until children have started."""
_MOST_S = 900.0
"""Time within which a child is ready, or answers."""


@dataclass
class RowCalls:
    """Calls of the methods of one object, which is sent to each child once.

    Args:
        work: the object; its methods map columns to columns of the same length, by name.
        key: returns the key of each row, given the first column.
        workers: number of child processes; below 2 all calls are made in this process.
    """

    work: Any
    key: Callable[[Column], Column]
    workers: int = 0
    _children: list[ChildProcess] = field(default_factory=list)
    _owners: dict[int, int] = field(default_factory=dict)  # of keys: the child that had it last

    def call(self, method: str, *columns: Column) -> dict[str, Column]:
        """Return the columns that a method answers.

        Raises:
            UserError: as the method raises it.
            LostWorker: a child ended.
        """
        if self.workers < 2 or (not self._children and len(columns[0]) <= _FEW):
            return dict(getattr(self.work, method)(*columns))
        if not self._children:
            self._start()
        keys = self.key(columns[0])
        order = np.argsort(keys, kind="stable")
        values, starts = np.unique(keys[order], return_index=True)
        rows = dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True))
        found: dict[str, Column] = {}
        for key, answer in self._answers(method, columns, rows):
            for name, column in answer.items():
                if name not in found:
                    found[name] = np.empty(len(keys), np.asarray(column).dtype)
                found[name][rows[key]] = column
        return found

    def _start(self) -> None:
        for number in range(self.workers):
            child = ChildProcess(f"worker {number}", one_thread=True)
            child.send("keep", self.work, str(Path.cwd()), child.environment)
            self._children.append(child)
        for child in self._children:
            _raised(child.poll(_MOST_S))

    def _answers(
        self, method: str, columns: Sequence[Column], rows: Mapping[int, Column]
    ) -> Iterator[tuple[int, Mapping[str, Column]]]:
        """Yield the answer for each key, in any order."""
        left = sorted(rows, key=lambda key: (-len(rows[key]), key))
        busy: dict[int, int] = {}  # of children: the key

        def submit(number: int) -> None:
            owned = [key for key in left if self._owners.get(key) == number]
            key = [*owned, *(k for k in left if k not in self._owners), *left][0]
            left.remove(key)
            busy[number], self._owners[key] = key, number
            self._children[number].send("call", method, *(c[rows[key]] for c in columns))

        for number in range(min(len(self._children), len(left))):
            submit(number)
        while busy:
            ready = wait([self._children[number].pipe for number in busy])
            for number in [n for n in busy if self._children[n].pipe in ready]:
                answer = _raised(self._children[number].poll(_MOST_S))
                key = busy.pop(number)
                if left:
                    submit(number)
                yield key, answer

    def shut_down(self) -> None:
        """End the children."""
        for child in self._children:
            child.shut_down()
        self._children.clear()


def _raised(answer: Any) -> Any:
    """Return an answer; raise it if it is an error, or `LostWorker` if there is none."""
    if answer is None:
        raise LostWorker(f"no answer within {_MOST_S:g} s")
    if isinstance(answer, UserError):
        raise answer
    return answer


@contextmanager
def row_calls(
    work: Any, key: Callable[[Column], Column], workers: int | None = None
) -> Iterator[RowCalls]:
    """Return calls of an object's methods; the children are ended at the end.

    `workers`: number of child processes; None takes one per core.
    """
    calls = RowCalls(work, key, (os.cpu_count() or 1) if workers is None else workers)
    try:
        yield calls
    finally:
        calls.shut_down()
