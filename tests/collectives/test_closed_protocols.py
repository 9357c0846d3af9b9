"""Messages: small ones pay for hops, large ones for bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.catalog.cluster import Link, cluster_for, load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.collectives.library_models import ring_s, sustained
from simulators.collectives.measured import measured_time
from simulators.collectives.price import collective_time
from simulators.core.columns import DATASHEET, FITTED

LINK = Link(bytes_per_s=450e9, latency_s=0.6e-6, bulk_latency_s=1.9e-6)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def taken(kind: str, size: float, ranks: int = 8, link: Link = LINK) -> float:
    return float(ring_s(kind, np.array([size]), ranks, link, fraction=1.0)[0])


@given(size=st.integers(1, 2**33), kind=st.sampled_from(KINDS), ranks=st.integers(2, 64))
def test_larger_message_takes_longer(size: int, kind: str, ranks: int) -> None:
    assert taken(kind, 2.0 * size, ranks) > taken(kind, float(size), ranks)


@given(kind=st.sampled_from(KINDS), ranks=st.integers(2, 64))
def test_doubling_bandwidth_halves_large_message_time(kind: str, ranks: int) -> None:
    faster = dataclasses.replace(LINK, bytes_per_s=2 * LINK.bytes_per_s)
    ratio = taken(kind, 1e12, ranks) / taken(kind, 1e12, ranks, faster)
    assert ratio == pytest.approx(2.0, rel=1e-3)


@given(size=st.floats(1e10, 1e12), ranks=st.integers(2, 64))
def test_large_all_reduce_equals_reduce_scatter_plus_all_gather(size: float, ranks: int) -> None:
    halves = taken("reduce_scatter", size, ranks) + taken("all_gather", size, ranks)
    assert halves == pytest.approx(taken("all_reduce", size, ranks), rel=1e-2)


def test_large_ring_all_reduce_moves_two_buffers_minus_one_shard() -> None:
    # 1 GB over 8 ranks: 2 * 7 / 8 GB at 450 GB/s is 3.89 ms; a protocol adds its overhead.
    assert taken("all_reduce", 1e9) == pytest.approx(3.89e-3 / 0.92, rel=0.02)


def test_tiny_all_reduce_in_a_node_takes_5_to_30_microseconds() -> None:
    assert 5e-6 < taken("all_reduce", 1e3, ranks=2) < taken("all_reduce", 1e3, ranks=8) < 3e-5


def test_link_without_measurements_is_flagged() -> None:
    h100, mi300x = load_gpu("h100_sxm"), load_gpu("mi300x")
    assert sustained(load_cluster("dgx_h100"), h100, 8)[1]
    assert sustained(load_cluster("hgx_h200"), load_gpu("h200_sxm"), 8)[1]
    assert not sustained(cluster_for("auto", mi300x), mi300x, 8)[1]


HOST_PCIE = {"gpu": load_gpu("rtx_pro_6000"), "cluster": load_cluster("pcie_through_host")}


def test_gpus_without_peer_access_share_host_memory_bandwidth() -> None:
    """Four gather 3/4 of a buffer each, two 1/2 of it: thrice as many bytes through one memory."""
    two, four = (collective_time("all_gather", 1e10, ranks=n, **HOST_PCIE).time_s for n in (2, 4))  # type: ignore[arg-type]
    assert four / two == pytest.approx(3.0, rel=1e-3)


def test_all_reduce_of_two_gpus_without_peer_access_matches_measurement() -> None:
    """20 MiB over two RTX PRO 6000: 1.309 ms, and 587 us once they read each other's memory.

    As LLMServingSim's authors timed their own server (profiler/perf/RTXPRO6000/hardware.yaml).
    """
    direct = HOST_PCIE | {"cluster": cluster_for("auto", HOST_PCIE["gpu"])}
    for where, seen_s, within in ((HOST_PCIE, 1.309e-3, 0.1), (direct, 587e-6, 0.25)):
        taken_s = collective_time("all_reduce", 20.0 * 2**20, ranks=2, **where).time_s  # type: ignore[arg-type]
        assert taken_s == pytest.approx(seen_s, rel=within)


def test_send_between_nodes_is_slower_than_inside_a_node() -> None:
    asked = {"ranks": 2, "gpu": load_gpu("h100_sxm"), "cluster": load_cluster("dgx_h100")}
    inside, across = (collective_time("send_recv", 1e8, span=n, **asked) for n in (8, 16))  # type: ignore[arg-type]
    assert float(across.time_s) > 4 * float(inside.time_s)


@pytest.mark.parametrize("name", ["l40s", "rtx_pro_6000"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_measured_pcie_servers_lie_inside_the_interval(name: str, ranks: int) -> None:
    """NCCL on eight L40S took 16 times as long as by peers, half more than through the host."""
    gpu, sizes = load_gpu(name), np.exp2(np.arange(20.0, 28.0))
    unknown, named = (
        collective_time("all_reduce", sizes, ranks=ranks, gpu=gpu, cluster=cluster)
        for cluster in (cluster_for("auto", gpu), load_cluster("pcie_through_host"))
    )
    measured = measured_time(
        gpu=name,
        library="nccl",
        collective="all_reduce",
        dtype="fp16",
        ranks=ranks,
        size_bytes=sizes,
    )
    assert set(unknown.level) == {DATASHEET}
    assert set(named.level) == {FITTED}
    assert np.median(measured.time_s / unknown.hi_s) < 1.6
    assert np.all(measured.time_s > unknown.lo_s)
