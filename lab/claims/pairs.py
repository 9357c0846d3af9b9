"""Pairs of measurements that differ in one thing."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

import numpy as np

from simulators.core.jit import Floats


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
