"""What other rooms ask of this one."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import load_gpu, what_if
from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.pricing import collective_time
from simulators.core.errors import Infeasible

SIZES = np.array([2.0**12, 2.0**20, 2.0**28])


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("cluster", "gpu"), [("dgx_h100", "h100_sxm"), ("dgx_v100", "v100_sxm")])
def test_larger_buffers_take_longer_on_any_cluster(collective: str, cluster: str, gpu: str) -> None:
    for ranks in (2, 8, 16):
        answer = collective_time(
            collective=collective, size_bytes=SIZES, ranks=ranks,
            cluster=load_cluster(cluster), gpu=load_gpu(gpu),
        )  # fmt: skip
        assert np.all(np.diff(answer.time_s) > 0.0)
        assert answer.calibrated == (gpu == "h100_sxm" and ranks <= 8)


def test_the_network_between_nodes_is_slower_than_the_one_inside() -> None:
    near, far = (
        collective_time(
            collective="all_reduce", size_bytes=SIZES, ranks=ranks,
            cluster=load_cluster("dgx_h100"), gpu=load_gpu("h100_sxm"),
        ).time_s
        for ranks in (8, 16)
    )  # fmt: skip
    assert np.all(far > near)


def test_a_gpu_of_ones_imagination_is_marked_as_extrapolated() -> None:
    gpu = what_if(load_gpu("h100_sxm"), bandwidth_scale=2.0)
    answer = collective_time(
        collective="all_reduce", size_bytes=SIZES, ranks=8, cluster=load_cluster("dgx_h100"),
        gpu=gpu,
    )  # fmt: skip
    assert answer.extrapolated.all()


def test_ranks_fill_whole_nodes() -> None:
    with pytest.raises(Infeasible, match="nodes_not_filled"):
        collective_time(
            collective="all_reduce", size_bytes=SIZES, ranks=12,
            cluster=load_cluster("dgx_h100"), gpu=load_gpu("h100_sxm"),
        )  # fmt: skip
