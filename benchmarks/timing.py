"""CPU time of a workload, with new inputs in every run so that caches do not help."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

RUNS = 5


def median_cpu_s(prepare: Callable[[int], Callable[[], T]], runs: int = RUNS) -> tuple[T, float]:
    """Return the last result and the median CPU-seconds of several runs.

    Args:
        prepare: builds the input of a run from its number, before the clock starts, and returns
            the work to be timed. Run 0 loads and compiles, and is not counted.
        runs: counted runs.
    """
    result, spent = prepare(0)(), []
    for run in range(1, runs + 1):
        work = prepare(run)
        started = time.process_time()
        result = work()
        spent.append(time.process_time() - started)
    return result, statistics.median(spent)
