"""Tokens on their way to experts."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.collectives.library_models import HIGH_THROUGHPUT, LOW_LATENCY, Rates, Routed
from simulators.collectives.price import expert_exchange_time

H800, DGX = load_gpu("h800"), load_cluster("dgx_h100")
PERFECT = Rates(near_s=0.0, far_s=0.0, inside=1.0, between=1.0)


@pytest.mark.parametrize("parts", [1, 2, 4, 8, 16, 64])
def test_expected_destination_ranks_match_random_draws(parts: int) -> None:
    rng, routed = np.random.default_rng(0), Routed(256, 8, groups=8, chosen=4)
    reached = []
    for _ in range(2000):
        groups = rng.choice(8, 4, replace=False)
        near = (groups[:, None] * 32 + np.arange(32)).ravel()
        reached.append(np.unique(rng.choice(near, 8, replace=False) * parts // 256).size)
    assert routed.reached(parts) == pytest.approx(np.mean(reached), rel=0.02)


def test_low_latency_mode_sends_one_copy_per_expert() -> None:
    found = expert_exchange_time(
        LOW_LATENCY, 1e6, Routed(256, 8), ranks=16, gpu=H800, cluster=DGX, rates=PERFECT
    )
    assert found.time_s == pytest.approx(8 * 1e6 / 2 / 50e9)  # half of them to the other node


@pytest.mark.parametrize("mode", [HIGH_THROUGHPUT, LOW_LATENCY])
def test_all_to_all_time_grows_with_nodes_and_tokens(mode: str) -> None:
    def taken(ranks: int) -> np.ndarray:
        return expert_exchange_time(
            mode, np.array([1e5, 1e7]), Routed(256, 8), ranks=ranks, gpu=H800, cluster=DGX
        ).time_s

    assert np.all(taken(8) < taken(16))
    assert np.all(taken(16) < taken(64))
    assert np.all(np.diff(taken(8)) > 0.0)


def test_node_limited_routing_is_faster() -> None:
    def taken(chosen: int) -> float:
        routed = Routed(256, 8, groups=8, chosen=chosen)
        return float(
            expert_exchange_time(
                "high_throughput", 1e7, routed, ranks=64, gpu=H800, cluster=DGX
            ).time_s
        )

    assert taken(2) < taken(4) < taken(8)
