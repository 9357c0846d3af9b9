"""MLPerf Tiny: predictions of a device do not use rows of the device."""

from __future__ import annotations

import numpy as np

from lab.claims.edge import CHOICES, chosen, left_out
from lab.tables.edge import System

SYSTEMS = [
    System(device, submitter, "v1", submitter)
    for device in ("a", "b", "c", "d")
    for submitter in ("one", "two")
]
DRAW = np.random.default_rng(3)
LOG = (
    np.log(1e-3) + DRAW.normal(size=(4, 1)).repeat(2, 0) + np.tile(DRAW.normal(size=(2, 3)), (4, 1))
)


def test_weight_of_a_runtime_is_chosen_without_the_device() -> None:
    other = LOG.copy()
    other[:2] = DRAW.normal(size=(2, 3))
    assert chosen(SYSTEMS, LOG, "a") == chosen(SYSTEMS, other, "a")


def test_where_runtimes_decide_the_same_runtime_counts_for_most() -> None:
    assert chosen(SYSTEMS, LOG, "a") == CHOICES[-1]
    strict, alike = (_error(choice) for choice in (CHOICES[-1], CHOICES[0]))
    assert strict < alike


def _error(choice: tuple[float, float]) -> float:
    pairs = left_out(SYSTEMS, LOG, "a", choice)
    return float(np.mean([abs(predicted / measured - 1.0) for predicted, measured in pairs]))
