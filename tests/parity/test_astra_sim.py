"""Cycles of collectives and of training steps equal those of ASTRA-sim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simulators.collectives.traces.operators import Operator, operators_of, read_layers
from simulators.collectives.traces.step import nodes_of
from simulators.collectives.traces.timeline import timeline
from tests.parity.astra_sim import analytic_ns, event_ns, hgx, read_runs, single_ns

COLLECTIVES = {
    "all_reduce": 57426,
    "all_gather": 44058,
    "reduce_scatter": 28950,
    "all_to_all": 114000,
}
"""Published cycles of the HGX-H100 configuration, 8 NPUs, 1 MiB (an all-gather's is a shard)."""

STEPS = ((2, 741.34, 574289), (4, 741.34, 1454270), (8, 400.0, 3307886))
"""NPUs, GB/s and published cycles of ResNet-50: the published totals mix two bandwidths."""


@pytest.mark.parametrize("collective", list(COLLECTIVES))
def test_published_cycles_of_a_collective_are_reproduced(collective: str) -> None:
    assert single_ns(hgx(8, 400.0), collective, 1 << 20) == COLLECTIVES[collective]


@pytest.mark.parametrize(("ranks", "rate", "cycles"), STEPS)
def test_published_cycles_of_a_training_step_are_reproduced(
    ranks: int, rate: float, cycles: int, reference: Path
) -> None:
    operators = operators_of(read_layers(reference / "collectives/resnet50_layers.csv"))
    plan = hgx(ranks, rate)

    def collective_ns(operator: Operator, _rank: int) -> int:
        return single_ns(plan, operator.collective, operator.size_bytes)

    assert timeline(nodes_of({0: operators}, collective_ns)).comm_total_ns == cycles


@pytest.mark.slow
def test_cycles_of_recorded_runs_equal_astra_sim(reference: Path) -> None:
    known = read_runs(reference)
    ring = np.array(["ring" in set(a.removeprefix("flat:").split(",")) for a in known.algorithm])
    events, aware, analytic = event_ns(known), known.is_aware, analytic_ns(known)

    def errors(cycles: NDArray[np.int64], which: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.abs(cycles[which] / known.finish_ns[which] - 1.0)

    without_contention = errors(analytic, ~aware)
    assert np.mean(without_contention == 0.0) >= 0.99
    assert without_contention.max() <= 0.015
    assert np.mean(errors(events, aware & ring) == 0.0) >= 0.97
    assert errors(events, aware & ~ring).max() <= 0.02
