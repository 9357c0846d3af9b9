"""fp32 kernels timed on one GPU, transferred to every other: with ten and fifty rows of the other.

Every ordered pair of the GPUs that fp32 calls were timed on; shapes both were timed at, of layers
of real models. The naive prediction is the better of two: time by the ratio of bandwidths, or of
FLOP/s. The second GPU's rows are the most informative ones, and leave the test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from lab.tables.kernels.fp32_kernels import read_rows
from lab.tables.rows import Rows, evenly, mape
from planning.calibrate.transfer import (
    common_shapes,
    most_informative,
    peak_ratios,
    transferred_s,
)
from simulators.catalog.gpu import load_gpu

COUNTS = (10, 50)
CLASSES = ("linear", "bmm")
FEWEST = 60
"""Shapes in common below which a pair is left out: half of them may be drawn."""


MOST = 200
"""Shapes of a pair, evenly spaced: all of them would take a minute, and say the same."""


def pairs(reference: Path) -> pl.DataFrame:
    """Return the mean error of each pair of GPUs in percent, ours and the naive one's."""
    measured, _ = read_rows(reference)
    rows = []
    for kernel in CLASSES:
        gpus = {part.gpu: part.layers for part in measured if part.kernel == kernel}
        for count in COUNTS:
            for label, ours, naive in _pairs(gpus, count):
                cells = {"kernel": kernel, "count": count, "label": label, "baseline": naive}
                rows.append({**cells, "predicted": ours, "is_worse": ours >= naive})
    return pl.DataFrame(rows)


def _pairs(by_gpu: Mapping[str, Rows], count: int) -> Iterator[tuple[str, float, float]]:
    for source, target in itertools.permutations(by_gpu, 2):
        first, second = common_shapes(by_gpu[source].sizes, by_gpu[target].sizes)
        one, other = by_gpu[source].where(first), by_gpu[target].where(second)
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
        yield (
            f"{source} to {target}",
            100.0 * mape(said, seen),
            100.0 * min(plain),
        )
