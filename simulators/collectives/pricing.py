"""What other rooms ask: how long a collective takes among neighbouring GPUs, as a column of sizes.

Inside a node, of GPUs whose libraries were measured, the answer is measured; beyond a node it is
measured inside and modelled between, each GPU carrying its share over its own port. Where nothing
was measured the algorithm that large libraries would take is modelled on the cluster's links.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.cluster import Cluster
from simulators.catalog.gpu import Gpu
from simulators.collectives.algorithms import ALL_GATHER, COLLECTIVES, IMPOSSIBLE
from simulators.collectives.analytic import collectives_ns
from simulators.collectives.hierarchy import Answer, measured_s
from simulators.collectives.measured import NETWORKS
from simulators.collectives.plan import NS, Plan, plan_for
from simulators.collectives.topology import Dimension, Topology
from simulators.core.errors import Infeasible

Floats = NDArray[np.float64]

SPLITS: Final = 4
ACTIVE: Final = 2
ENDPOINT_NS: Final = 10
"""Chunks, chunks at once and endpoint delay of modelled parts: ASTRA-sim's HGX H100 settings."""


def collective_time(
    *,
    collective: str,
    size_bytes: Floats,
    ranks: int,
    cluster: Cluster,
    gpu: Gpu,
    dtype: str = "fp16",
    library: str = "nccl",
) -> Answer:
    """Return the seconds of a collective for a column of sizes.

    Args:
        collective: one of `COLLECTIVES`.
        size_bytes: buffers as nccl-tests count them.
        ranks: neighbouring GPUs; more than a node has means whole nodes.
        cluster: what joins them.
        gpu: which.
        dtype: precision of the numbers.
        library: whose collectives.

    Raises:
        Infeasible: the ranks do not fill whole nodes.

    >>> from simulators.catalog.cluster import load_cluster
    >>> from simulators.catalog.gpu import load_gpu
    >>> answer = collective_time(
    ...     collective="all_reduce", size_bytes=np.array([2.0**20]), ranks=8,
    ...     cluster=load_cluster("dgx_h100"), gpu=load_gpu("h100_sxm"),
    ... )
    >>> bool(24e-6 < answer.time_s[0] < 28e-6), answer.calibrated
    (True, True)
    """
    plan = network_plan(ranks, cluster, gpu)
    requests = np.zeros((size_bytes.size, 8), np.int64)
    op = COLLECTIVES.index(collective)
    shard = size_bytes / ranks if op == ALL_GATHER else size_bytes
    requests[:, 1], requests[:, 2] = op, np.maximum(shard, 1.0)
    requests[:, 3:7] = SPLITS, ACTIVE, 1, ENDPOINT_NS
    memory = np.full(size_bytes.size, gpu.hbm_bytes_per_s)
    name = gpu.measured_as or gpu.name
    if ranks > 1 and name in NETWORKS.names():
        answer = measured_s(
            plan, collective=collective, gpu=name, library=library, dtype=dtype,
            size_bytes=size_bytes, requests=requests, memory_bytes_per_s=memory,
        )  # fmt: skip
        return dataclasses.replace(answer, extrapolated=answer.extrapolated | gpu.is_what_if)
    taken = np.zeros(size_bytes.size, np.int64)
    collectives_ns(requests, memory, plan.whole[None], plan.rates[None], taken)
    if (taken == IMPOSSIBLE).any():
        raise Infeasible("no_such_algorithm", f"{collective} among {ranks} ranks")
    time_s = taken / NS
    return Answer(time_s, time_s, time_s, False, np.zeros(size_bytes.shape, bool))


def network_plan(ranks: int, cluster: Cluster, gpu: Gpu) -> Plan:
    """Return neighbouring GPUs as a switch inside a node and, beyond it, rails between nodes.

    Raises:
        Infeasible: the ranks do not fill whole nodes.
    """
    inside = min(ranks, cluster.gpus_per_node)
    if ranks % inside:
        raise Infeasible(
            "nodes_not_filled", f"{ranks} ranks on nodes of {cluster.gpus_per_node} GPUs"
        )
    near = cluster.link(inside, gpu)
    # A catalog link's latency is of a hop from GPU to GPU; a switch is crossed by two links.
    dimensions = [
        Dimension(
            block="switch", ranks=inside, bytes_per_s=near.bytes_per_s, latency_s=near.latency_s / 2
        )
    ]
    if ranks > inside:
        far = cluster.inter
        dimensions.append(
            Dimension(
                block="switch",
                ranks=ranks // inside,
                bytes_per_s=far.bytes_per_s,
                latency_s=far.latency_s / 2,
            )
        )
    return plan_for(Topology(name=cluster.name, dimensions=tuple(dimensions)), "ring")
