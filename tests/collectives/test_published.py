"""The table that ASTRA-sim's users know, and cases worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.collectives.events.run import simulate
from simulators.collectives.phase_model import collectives_ns
from simulators.collectives.topologies.plan import plan_of
from tests.parity.astra_sim import request

PUBLISHED_NS = {
    "all_reduce": 57_426,
    "all_gather": 44_058,
    "reduce_scatter": 28_950,
    "all_to_all": 114_000,
}
"""ASTRA-sim, HGX-H100 configuration, 8 NPUs, 1 MiB (an all-gather's is a shard): cycles."""

# The same configuration without contention.
UNAWARE_NS = {
    "all_reduce": 55_222,
    "all_gather": 34_908,
    "reduce_scatter": 27_810,
    "all_to_all": 109_668,
}


@pytest.mark.parametrize("collective", list(PUBLISHED_NS))
def test_published_astra_sim_table_is_reproduced_exactly(collective: str) -> None:
    plan = plan_of("hgx_h100", "ring")
    found = simulate(plan, request(collective, 1 << 20), 3.35e12)
    assert found.finish_ns == PUBLISHED_NS[collective]


@pytest.mark.parametrize("collective", list(UNAWARE_NS))
def test_published_table_without_contention_is_reproduced(collective: str) -> None:
    plan = plan_of("hgx_h100", "ring")
    out = np.zeros(1, np.int64)
    collectives_ns(
        request(collective, 1 << 20)[None],
        np.array([3.35e12]),
        plan.whole[None],
        plan.rates[None],
        out,
    )
    assert out[0] == UNAWARE_NS[collective]


def test_switch_message_pays_latency_and_serialization_twice() -> None:
    # 1000 bytes at 1 byte/ns over two links of 500 ns, 10 ns before and 10 ns after.
    plan = plan_of("switch:2", "ring", 1e9, 500e-9)
    asked = request("send_recv", 1000, splits=1, active=1)
    assert simulate(plan, asked, 3.35e12).finish_ns == 10 + 2 * (1000 + 500) + 10


def test_in_network_reduction_moves_half_the_bytes_of_a_ring() -> None:
    times = []
    for algorithm in ("in_network", "ring"):
        plan = plan_of("switch:256", algorithm, 1e11, 0.0)
        asked = request("all_reduce", 1 << 30, splits=1, active=1, endpoint_ns=0)
        out = np.zeros(1, np.int64)
        collectives_ns(asked[None], np.array([1e18]), plan.whole[None], plan.rates[None], out)
        times.append(int(out[0]))
    assert times[1] / times[0] == pytest.approx(2.0, rel=0.01)
