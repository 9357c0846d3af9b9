"""Fronts of large tables: independent, tied and anti-correlated objectives."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import median_cpu_s
from simulators.core.checks import Check, print_checks
from sweeper.query import fronts

_ROWS = 10_000_000


def main() -> None:
    """Print the CPU-seconds of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    checks = [
        *(
            _timed(f"1e7 uniform rows, {width} objectives", 3.0, functools.partial(_uniform, width))
            for width in (2, 3, 4)
        ),
        _timed("1e5 anti-correlated rows, 4 objectives", 0.1, _anti_correlated),
        _timed("1e7 rows, 700,000 ties on 100 vectors", 5.0, _tied),
    ]
    print_checks(checks, as_json=chosen.json)


def _timed(
    name: str, limit: float, make: Callable[[np.random.Generator], NDArray[np.float64]]
) -> Check:
    rows = 0

    def prepare(run: int) -> Callable[[], tuple[Any, Any]]:
        nonlocal rows
        values = make(np.random.default_rng(run))
        rows = len(values)
        return functools.partial(fronts.distinct_front, values)

    (front, ties), used = median_cpu_s(prepare, runs=3)
    note = f"front of {len(front):,} vectors, {int(ties.sum()):,} rows"
    return Check(name, used, "CPU-s", limit, used <= limit, rows, note)


def _uniform(width: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Rows of independent objectives."""
    return random.random((_ROWS, width))


def _anti_correlated(random: np.random.Generator) -> NDArray[np.float64]:
    """Rows near a simplex: objectives conflict."""
    values = random.random((100_000, 4))
    values /= values.sum(axis=1, keepdims=True)
    return values + 0.08 * random.random((100_000, 4))


def _tied(random: np.random.Generator) -> NDArray[np.float64]:
    """A hundred dominating vectors, each repeated thousands of times."""
    x = np.sort(random.random(100))
    values = 1.0 + random.random((_ROWS, 2))
    where = random.choice(_ROWS, 700_000, replace=False)
    values[where] = np.column_stack([x, 1.0 - x])[random.integers(0, 100, 700_000)]
    return values


if __name__ == "__main__":
    main()
