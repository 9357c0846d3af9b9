"""Kernels timed on one GPU, carried to every other: with no, ten and fifty rows of the other.

Every ordered pair of the GPUs that fp32 calls were timed on; shapes both were timed at, of layers
of real models. Beside each error stands the better of two naive ones: time by the ratio of
bandwidths, or of FLOP/s. The second GPU's rows are those that tell most of the others by sizes and
the first one's times, and leave the test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.claims.lines import at_most
from lab.tables.kernels.fp32_kernels import TABLES, read_rows
from lab.tables.rows import Rows, evenly, mape
from planning.calibrate.transfer import (
    common_shapes,
    most_informative,
    peak_ratios,
    transferred_s,
)
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check

NEEDS = TABLES
COUNTS = (0, 10, 50)
MEDIAN = 12.0
"""Limit in percent on the median pair of `linear`, where the second GPU has rows at all."""

CLASSES = ("linear", "bmm")
FEWEST = 60
"""Shapes in common below which a pair is left out: half of them may be drawn."""


MOST = 200
"""Shapes of a pair, evenly spaced: all of them would take a minute, and say the same."""


@dataclass(frozen=True)
class Pair:
    """Errors of one GPU's times carried to another, in percent."""

    source: str
    target: str
    ours: float
    naive: float


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the median error over pairs, and the pairs where a naive ratio is nearer."""
    measured, _ = read_rows(reference)
    for kernel in CLASSES:
        boards = {part.gpu: part.layers for part in measured if part.kernel == kernel}
        for count in COUNTS:
            if pairs := list(_pairs(boards, count)):
                yield from _lines(kernel, count, pairs)


def _lines(kernel: str, count: int, pairs: list[Pair]) -> Iterator[Check]:
    name = f"transfer, {kernel}, {count} rows of the other GPU"
    ours, naive = np.array([(pair.ours, pair.naive) for pair in pairs]).T
    bar = MEDIAN if count and kernel == "linear" else None
    note = f"median of {len(pairs)} pairs; mean {ours.mean():.1f}; naive {np.median(naive):.1f}"
    yield at_most(f"{name}: MAPE", float(np.median(ours)), bar, len(pairs), note)
    worse = [pair for pair in pairs if pair.ours >= pair.naive]
    said = ", ".join(f"{p.source} to {p.target} {p.ours:.0f}/{p.naive:.0f}" for p in worse[:3])
    limit = 0.0 if count else None
    yield at_most(f"{name}: pairs where a ratio is nearer", len(worse), limit, len(pairs), said, "")
    across = [pair.ours for pair in pairs if _vendors(pair) == ("nvidia", "amd")]
    middle = float(np.median(across)) if across else np.nan
    yield at_most(f"{name}: NVIDIA to AMD", middle, None, len(across), "median of pairs")


def _vendors(pair: Pair) -> tuple[str, str]:
    return load_gpu(pair.source).vendor, load_gpu(pair.target).vendor


def _pairs(boards: Mapping[str, Rows], count: int) -> Iterator[Pair]:
    for source, target in itertools.permutations(boards, 2):
        first, second = common_shapes(boards[source].sizes, boards[target].sizes)
        one, other = boards[source].where(first), boards[target].where(second)
        if len(other) < FEWEST:
            continue
        some = evenly(len(one), MOST)
        one, other = one.where(some), other.where(some)
        start, end = load_gpu(source), load_gpu(target)
        known = most_informative(one, count)
        said, seen = (
            transferred_s(one, start, end, other.where(known))[~known],
            other.seconds[~known],
        )
        plain = [mape(one.seconds[~known] * r, seen) for r in peak_ratios(start, end).values()]
        yield Pair(source, target, 100.0 * mape(said, seen), 100.0 * min(plain))
