"""Latencies of multi-core chips equal those of stream within 10 %.

Symons et al., "Stream: Design Space Exploration of Layer-Fused DNNs on Heterogeneous Dataflow
Accelerators" (IEEE Transactions on Computers, 2025). Cycles are those of the package stream-dse
0.0.8 (with zigzag-dse 2.5.4 and numpy 1.26) for its example chip `TPU_like_quad_core` and its
example networks `fsrcnn`, `mccnn` and `resnet18_few_layers`: convolution k on core k modulo 4,
computation nodes of a whole layer (`hint_loops` empty) or of a row (`OY`, all), candidates by
latency, nothing prefetched. `hetero_quad_core` has arrays of 16 x 16 as its second and third core.

Differences: stream runs pooling and additions on cores of their own, which overlap with
convolutions when rows flow; layer by layer they take 37 % of its time for `resnet18_few_layers`,
and none here (2,870,951 cycles against 1,881,001). Where several cores stream a layer from DRAM at
once, stream takes longer, since such a node blocks the DRAM port until it ends (FSRCNN with the
channels of each layer on four cores: 186,473,864 against 72,317,857). Stream adds the loading of
operands into registers to each node. Energies are not compared: stream charges other accesses.
"""

from __future__ import annotations

import numpy as np
import pytest

from simulators.multicore.simulator import MulticorePoint, simulate
from tests.conftest import ROOT

FILES = ROOT / "tests" / "multicore" / "files"
CLOCK_HZ = 1e9
QUAD, MIXED = "tpu_like_quad_core", "hetero_quad_core"
IN_TURN, APART = "round_robin", "0,1,2,3,1,2,1,3"
CYCLES = {
    (QUAD, "fsrcnn", "layers", IN_TURN): 63_010_329,
    (QUAD, "fsrcnn", "rows", IN_TURN): 30_903_165,
    (QUAD, "mccnn", "layers", IN_TURN): 59_348_777,
    (QUAD, "mccnn", "rows", IN_TURN): 17_250_380,
    (QUAD, "resnet18_head", "rows", IN_TURN): 1_419_538,
    (MIXED, "fsrcnn", "rows", APART): 26_147_531,
}


def cycles(chip: str, network: str, pipelining: str, allocation: str) -> float:
    """Return the cycles of a network on a chip."""
    point = MulticorePoint(
        cores=str(FILES / f"{chip}.yaml"),
        network=str(FILES / f"{network}.yaml"),
        pipelining=pipelining,
        tiles=0,
        allocation=allocation,
        goal="cycles",
    )
    return simulate(point).latency_s * CLOCK_HZ


@pytest.mark.slow
def test_latencies_of_a_quad_core_are_within_ten_percent_of_stream() -> None:
    errors = [cycles(*case) / theirs - 1.0 for case, theirs in CYCLES.items()]
    assert np.abs(errors).max() <= 0.10
    assert np.abs(np.mean(errors)) <= 0.03
