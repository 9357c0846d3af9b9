"""Collective times as other packages request them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import load_gpu, what_if
from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.library_models import Network
from simulators.collectives.measured import busbw_factor
from simulators.collectives.price import CollectiveTime, collective_time
from simulators.core.columns import DATASHEET, EXTRAPOLATED, FITTED, MEASURED

SIZES = np.array([2.0**12, 2.0**20, 2.0**28])
H100, DGX = load_gpu("h100_sxm"), load_cluster("dgx_h100")


def summed(ranks: int, **given: object) -> CollectiveTime:
    asked = {"gpu": H100, "cluster": DGX} | given
    return collective_time("all_reduce", SIZES, ranks=ranks, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize(("cluster", "gpu"), [("dgx_h100", "h100_sxm"), ("dgx_v100", "v100_sxm")])
def test_larger_buffers_take_longer_on_every_cluster(kind: str, cluster: str, gpu: str) -> None:
    for ranks in (2, 8, 12, 16):
        found = collective_time(
            kind, SIZES, ranks=ranks, cluster=load_cluster(cluster), gpu=load_gpu(gpu)
        )
        assert np.all(np.diff(found.time_s) > 0.0)
        assert np.all((found.lo_s <= found.time_s) & (found.time_s <= found.hi_s))


def test_collective_time_reports_evidence() -> None:
    assert set(summed(8).level) == {MEASURED}
    assert set(summed(6).level) == {EXTRAPOLATED}
    assert set(summed(16).level) == {FITTED}  # networks between nodes were measured, not this one
    h200 = {"gpu": load_gpu("h200_sxm"), "cluster": load_cluster("hgx_h200")}
    assert set(summed(8, **h200).level) == {EXTRAPOLATED}
    assert summed(8, **h200).time_s.tolist() == summed(8).time_s.tolist()
    doubled = what_if(H100, bandwidth_scale=2.0)
    assert set(summed(8, gpu=doubled).level) == {EXTRAPOLATED}
    v100 = {"gpu": load_gpu("v100_sxm"), "cluster": load_cluster("dgx_v100")}
    assert set(summed(8, **v100).level) == {DATASHEET}


def test_two_gpus_of_a_mesh_share_one_link() -> None:
    mi300x, platform = load_gpu("mi300x"), load_cluster("mi300x_platform")
    size = 2.0**28
    for kind, ranks, links in (("all_reduce", 2, 1), ("all_reduce", 4, 3), ("send_recv", 8, 1)):
        found = collective_time(kind, size, ranks=ranks, gpu=mi300x, cluster=platform)
        least_s = size * busbw_factor(kind, ranks) / (links * 64e9)
        assert least_s < float(found.time_s) < 2.0 * least_s


def test_bridges_join_pairs_of_pcie_gpus() -> None:
    for gpu in map(load_gpu, ("h200_nvl", "h100_nvl", "h100_pcie", "a100_pcie_80gb", "a40")):
        plain, bridged = (
            collective_time(
                "all_reduce", 2.0**27, ranks=2, gpu=gpu, cluster=load_cluster(name)
            ).time_s
            for name in ("pcie_server", "nvlink_pairs")
        )
        assert bridged < 0.8 * plain


def test_small_messages_beyond_the_measured_ranks_are_not_slower_than_large_ones() -> None:
    gb200, rack = load_gpu("gb200"), load_cluster("gb200_nvl72")
    sizes = 2.0 ** np.arange(10, 31)
    found = collective_time("all_reduce", sizes, ranks=72, gpu=gb200, cluster=rack)
    assert np.all(np.diff(found.time_s) >= 0.0)


def test_network_between_nodes_is_slower_than_inside_a_node() -> None:
    assert np.all(summed(16).time_s > summed(8).time_s)
    assert np.all(summed(8, span=64).time_s > summed(8).time_s)


def test_large_multi_node_all_reduce_is_bound_by_the_slowest_port() -> None:
    ideal = Network(hops=1.0, share=1.0)
    slow = replace(DGX, inter=replace(DGX.inter, bytes_per_s=1e10))
    found = collective_time("all_reduce", 2.0**34, ranks=16, gpu=H100, cluster=slow, network=ideal)
    each_sends = 2.0 * 15.0 / 16.0 * 2.0**34 / 8.0
    assert float(found.time_s) == pytest.approx(each_sends / 1e10, rel=1e-3)


def test_first_measured_library_of_the_list_is_used() -> None:
    own = summed(8, libraries=("none", "trtllm", "nccl"), dtype="bf16")
    assert own.time_s[0] < 0.5 * summed(8).time_s[0]
    assert np.all(summed(8, libraries=("none", "nccl")).time_s == summed(8).time_s)


def test_column_of_sizes_keeps_shape() -> None:
    one = collective_time("send_recv", 1e6, ranks=2, gpu=H100, cluster=DGX, span=16)
    assert one.time_s.shape == one.level.shape == ()
    assert summed(1).time_s.tolist() == [0.0, 0.0, 0.0]
