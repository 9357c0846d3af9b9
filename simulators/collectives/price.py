"""Seconds of a collective or a send among GPUs of a cluster, with interval and evidence.

The door of this room for the rooms above. Inside a node whose libraries were measured the time is
measured; over several nodes it is measured inside and modelled between, each GPU carrying its share
over its own port. Where nothing was measured, rings are modelled on the cluster's links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.cluster import Cluster
from simulators.catalog.gpu import Gpu
from simulators.collectives.closed.hierarchy import measured_s
from simulators.collectives.closed.phase_model import collectives_ns
from simulators.collectives.closed.phases import SIZE, request
from simulators.collectives.measured import NETWORKS, libraries_of
from simulators.collectives.topologies.plan import NS, Plan, plan_for
from simulators.collectives.topologies.topology import Dimension, Topology
from simulators.core.contract import LEVELS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MEASURED, FITTED, EXTRAPOLATED, UNMODELLED = range(len(LEVELS))
"""What a time rests on, as positions in `core.contract.LEVELS`."""


@dataclass(frozen=True)
class CollectiveTime:
    """Seconds for every size, their 90 % interval, and what each rests on."""

    time_s: Floats
    lo_s: Floats
    hi_s: Floats
    level: Ints  # positions in `core.contract.LEVELS`


def collective_time(
    kind: str,
    size_bytes: float | Floats,
    *,
    ranks: int,
    gpu: Gpu,
    cluster: Cluster,
    span: int = 0,
    dtype: str = "fp16",
    libraries: Sequence[str] = ("nccl",),
) -> CollectiveTime:
    """Return the seconds of a collective for a column of sizes, shaped as the column is.

    Args:
        kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, `send_recv`.
        size_bytes: buffers as nccl-tests count them: of an all-gather what a rank has in the end.
        ranks: GPUs that take part.
        gpu: which; a what-if GPU has the ports of the real one, and is extrapolated.
        cluster: what joins them.
        span: neighbouring GPUs the ranks are spread over evenly, at least `ranks`; 0 is `ranks`.
            More than a node has means as many nodes as they fill.
        dtype: precision of the numbers.
        libraries: whose collectives, the preferred first; the first that was measured counts.

    >>> from simulators.catalog.cluster import load_cluster
    >>> from simulators.catalog.gpu import load_gpu
    >>> h100, dgx = load_gpu("h100_sxm"), load_cluster("dgx_h100")
    >>> sums = collective_time("all_reduce", 2.0**20, ranks=8, gpu=h100, cluster=dgx)
    >>> bool(24e-6 < sums.time_s < 28e-6), LEVELS[int(sums.level)]
    (True, 'measured')
    """
    size = np.atleast_1d(np.asarray(size_bytes, np.float64))
    plan = _plan(ranks, max(span, ranks), cluster, gpu)
    requests = np.tile(request(kind, 1), (size.size, 1))
    requests[:, SIZE] = np.maximum(size / ranks if kind == "all_gather" else size, 1.0)
    memory = np.full(size.size, gpu.hbm_bytes_per_s)
    name = gpu.measured_as or gpu.name
    library = next((one for one in libraries if one in libraries_of(name, kind)), "")
    if ranks == 1 or (library and plan.topology.dimensions[0].ranks > 1):
        found = measured_s(
            plan, collective=kind, gpu=name, library=library, dtype=dtype,
            size_bytes=size, requests=requests, memory_bytes_per_s=memory,
        )  # fmt: skip
        time_s, lo_s, hi_s = found.time_s, found.lo_s, found.hi_s
        level = np.where(found.extrapolated | gpu.is_what_if, EXTRAPOLATED, MEASURED)
    else:
        taken = np.zeros(size.size, np.int64)
        collectives_ns(requests, memory, plan.whole[None], plan.rates[None], taken)
        time_s = lo_s = hi_s = taken / NS
        level = np.full(size.size, UNMODELLED)
    shape = np.shape(size_bytes)
    columns = time_s.reshape(shape), lo_s.reshape(shape), hi_s.reshape(shape)
    return CollectiveTime(*columns, level.reshape(shape))


def is_measured(gpu: str) -> bool:
    """Say whether libraries were measured on the nodes of a GPU."""
    return NETWORKS.has(gpu)


def _plan(ranks: int, span: int, cluster: Cluster, gpu: Gpu) -> Plan:
    """Return ranks as a switch inside a node and, beyond it, rails between nodes.

    Each node has equally many of them: the most that `span` and their number allow.
    """
    least = min(ranks, -(-span // cluster.gpus_per_node))
    nodes = next(n for n in range(least, ranks + 1) if ranks % n == 0)
    inside = ranks // nodes
    # A catalog link's latency is of a hop from GPU to GPU; a switch is crossed by two links.
    dimensions = tuple(
        Dimension(
            block="switch", ranks=n, bytes_per_s=link.bytes_per_s, latency_s=link.latency_s / 2
        )
        for n, link in ((inside, cluster.link(inside, gpu)), (nodes, cluster.inter))
    )
    name = cluster.name
    return plan_for(Topology(name=name, dimensions=dimensions[: 1 + (nodes > 1)]), "ring")
