"""Pairs of measurements that differ in one thing: is it told to help or harm, and by how much?"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from lab.claims.lines import at_most
from lab.tables.rows import Bools
from simulators.core.contract import Check
from simulators.core.jit import Floats

WRONG, RATIO = 10.0, 20.0
"""Pairs whose direction is wrong, and the median error of their ratio, in percent."""

PLAIN = 0.02
"""Change of a throughput from which on it has a direction."""


def pair_lines(
    name: str,
    ours: Floats,
    theirs: Floats,
    note: str = "",
    limits: tuple[float | None, float | None] = (WRONG, RATIO),
) -> Iterator[Check]:
    """Yield how often a change is told to the wrong side, and how far off its size is.

    Args:
        name: of the pairs.
        ours: the second's throughput over the first's, of each pair.
        theirs: the same as measured.
        note: what else is said.
        limits: of the two lines.
    """
    told = int(np.sum(np.abs(theirs - 1.0) > PLAIN))
    share = 100.0 * float(np.sum(is_wrong(ours, theirs))) / told if told else float("nan")
    yield at_most(f"{name}, pairs: direction wrong", share, limits[0], told, note)
    errors = 100.0 * np.abs(ours / theirs - 1.0)
    middle = float(np.median(errors)) if errors.size else float("nan")
    yield at_most(f"{name}, pairs: throughput ratio", middle, limits[1], errors.size, "median")


def is_wrong(ours: Floats, theirs: Floats) -> Bools:
    """Return which pairs have a direction that is told wrongly."""
    return (np.abs(theirs - 1.0) > PLAIN) & ((ours - 1.0) * (theirs - 1.0) <= 0.0)


def kind_pairs(
    alike: Sequence[Hashable], kinds: Sequence[str], ours: Floats, theirs: Floats
) -> tuple[Floats, Floats]:
    """Return ratios, ours and theirs, of two kinds wherever all else is alike; means over repeats.

    Args:
        alike: what must be equal, of each row.
        kinds: what differs; ratios are of the later name over the earlier.
        ours: throughputs, or what goes with them.
        theirs: the same as measured.
    """
    groups: dict[Hashable, dict[str, list[int]]] = {}
    for row, (key, kind) in enumerate(zip(alike, kinds, strict=True)):
        if np.isfinite(ours[row]) and np.isfinite(theirs[row]):
            groups.setdefault(key, {}).setdefault(kind, []).append(row)
    found = [
        [
            np.exp(np.mean(np.log(v[group[b]])) - np.mean(np.log(v[group[a]])))
            for v in (ours, theirs)
        ]
        for group in groups.values()
        for a, b in itertools.combinations(sorted(group), 2)
    ]
    pairs = np.array(found, np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
