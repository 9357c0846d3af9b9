"""Seconds of a collective or a send among GPUs of a cluster, with interval and evidence.

The interface of this package to other packages. Inside a node with measured libraries the time is
measured, otherwise the time of NCCL's rings on the node's links. Over several nodes the time inside
is added to rings or trees between nodes; each GPU sends its share over its own port.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulators.catalog.cluster import AUTO, PCIE, THROUGH_HOST, Cluster, cluster_for
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.collectives.library_models import (
    BETWEEN_CALIBRATION,
    EXCHANGE_CALIBRATION,
    SUSTAINED_CALIBRATION,
    ExchangeTraffic,
    Network,
    Rates,
    Routed,
    between_s,
    exchange_rates,
    exchange_s,
    exchange_traffic,
    network_between,
    ring_s,
    sustained,
)
from simulators.collectives.measured import (
    GROWTH,
    NETWORKS,
    CollectiveTime,
    libraries_of,
    measured_time,
    over_nodes,
)
from simulators.core.columns import DATASHEET, EXTRAPOLATED, FITTED
from simulators.core.folder import GPUS
from simulators.core.jit import Floats

READS = (GROWTH, SUSTAINED_CALIBRATION, BETWEEN_CALIBRATION, EXCHANGE_CALIBRATION)
"""Calibration files of every time; `curves_behind` returns the curves of a GPU."""

FITTED_BAND, DATASHEET_BAND = 1.25, 2.0
"""90 % intervals of large messages of NCCL's rings inside a node, as factors: on fabrics with a
fitted sustained share, and on others. Data sheets of PCIe GPUs do not state peer access; without it
GPUs send through host memory, the upper end of the interval."""


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
    network: Network | None = None,
) -> CollectiveTime:
    """Return the seconds of a collective for a column of sizes, shaped as the column is.

    Sizes are buffers as in nccl-tests: for an all-gather, the final buffer of a rank. Ranks are
    spread evenly over `span` neighboring GPUs; 0: over as many GPUs as ranks. A span above a node
    fills several nodes. The first measured library counts. A what-if GPU has the ports of the real
    GPU, and is extrapolated. `network` is between nodes; by default measured InfiniBand.

    >>> from simulators.catalog.cluster import load_cluster
    >>> from simulators.core.columns import MEASURED
    >>> from simulators.catalog.gpu import load_gpu
    >>> h100, dgx = load_gpu("h100_sxm"), load_cluster("dgx_h100")
    >>> sums = collective_time("all_reduce", 2.0**20, ranks=8, gpu=h100, cluster=dgx)
    >>> bool(24e-6 < sums.time_s < 28e-6), int(sums.level) == MEASURED
    (True, True)
    """
    size = np.atleast_1d(np.asarray(size_bytes, np.float64))
    nodes, inside = _spread(ranks, max(span, ranks), cluster)

    measured = network_of(gpu, cluster)

    def timed(part: str) -> CollectiveTime:
        return _inside_node(part, size, inside, gpu, cluster, dtype, libraries, measured)

    if nodes > 1:  # a part of the buffer crosses while another goes round inside
        known = network or network_between(kind)
        time_s = between_s(kind, size, nodes, inside, cluster, known)
        lo_s, hi_s = time_s / known.band, time_s * known.band
        between = CollectiveTime(time_s, lo_s, hi_s, np.full(size.size, FITTED))
        found = over_nodes(kind, between, timed)
    else:
        found = timed(kind)
    shape = np.shape(size_bytes)
    return CollectiveTime(**{name: column.reshape(shape) for name, column in vars(found).items()})


def expert_exchange_time(
    mode: str,
    rank_bytes: float | Floats,
    routed: Routed,
    *,
    ranks: int,
    gpu: Gpu,
    cluster: Cluster,
    rates: Rates | None = None,
) -> CollectiveTime:
    """Return the seconds of DeepEP's dispatch of tokens to experts, or of its combine.

    `mode` is `high_throughput`, `low_latency` or `nvlink`; `rank_bytes` is one copy of all tokens
    of a rank, in the shape of the result. Rates default to the measured rates.

    >>> from simulators.catalog.cluster import load_cluster
    >>> h800, dgx = load_gpu("h800"), load_cluster("dgx_h100")
    >>> low = expert_exchange_time(
    ...     "low_latency", 128 * 7168 * 2.0, Routed(256, 8), ranks=64, gpu=h800, cluster=dgx
    ... )
    >>> bool(280e-6 < low.time_s < 350e-6)
    True
    """
    size, known = np.asarray(rank_bytes, np.float64), rates or exchange_rates(mode)
    traffic = expert_exchange_traffic(mode, size, routed, ranks=ranks, gpu=gpu, cluster=cluster)
    time_s = exchange_s(traffic, ranks > cluster.gpus_per_node, known)
    level = np.full(size.shape, FITTED)
    return CollectiveTime(time_s, time_s / known.band, time_s * known.band, level)


def expert_exchange_traffic(
    mode: str, rank_bytes: Floats, routed: Routed, *, ranks: int, gpu: Gpu, cluster: Cluster
) -> ExchangeTraffic:
    """Return the bytes that a rank moves in an exchange; arguments as in `expert_exchange_time`."""
    _, inside = _spread(ranks, ranks, cluster)
    ports = cluster.link(inside, gpu).bytes_per_s, cluster.inter.bytes_per_s
    return exchange_traffic(
        mode, rank_bytes, routed, ranks=ranks, inside=inside, link_bytes_per_s=ports
    )


def network_of(gpu: Gpu, cluster: Cluster) -> str:
    """Return the name of the GPU whose curves apply: itself, or one with equal port bandwidth.

    GPUs with NVLink-like ports are wired equally in every server. GPUs without ports depend on the
    slots of their host, so no curve applies: of two measured L40S servers one reduces four times as
    fast as the other. Returns an empty string without curves.

    >>> from simulators.catalog.cluster import load_cluster
    >>> network_of(load_gpu("h200_sxm"), load_cluster("hgx_h200"))
    'h100_sxm'
    """
    if not gpu.link_bytes_per_s:
        return ""
    name = gpu.measured_as or gpu.name
    return name if NETWORKS.has(name) else _relative(cluster.fabric, gpu.link_bytes_per_s)


@functools.lru_cache(maxsize=64)
def _relative(fabric: str, link_bytes_per_s: float) -> str:
    """Return the first measured GPU with this fabric and port bandwidth; empty without one."""
    for sheet in (load_gpu(name) for name in NETWORKS.names() if GPUS.has(name)):
        is_on_fabric = cluster_for(AUTO, sheet).fabric == fabric
        if is_on_fabric and sheet.link_bytes_per_s == link_bytes_per_s:
            return sheet.name
    return ""


def curves_behind(gpu: Gpu) -> tuple[Path, ...]:
    """Return the files of the measured curves behind a GPU's times."""
    name = network_of(gpu, cluster_for(AUTO, gpu))
    return (NETWORKS.find(name),) if name else ()


def _inside_node(
    kind: str,
    size: Floats,
    ranks: int,
    gpu: Gpu,
    cluster: Cluster,
    dtype: str,
    libraries: Sequence[str],
    name: str,
) -> CollectiveTime:
    """Return the time of a collective inside a node: from curves of GPU `name`, else a model."""
    known = libraries_of(name, kind) if name and ranks > 1 else ()
    library = next((one for one in libraries if one in known), "")
    if library or ranks == 1:
        timed = measured_time(
            gpu=name, library=library, collective=kind, dtype=dtype, ranks=ranks, size_bytes=size
        )
        return timed if name == gpu.name else replace(timed, level=np.full(size.size, EXTRAPOLATED))
    fraction, is_fitted = sustained(cluster, gpu, ranks)
    link = cluster.link(2 if kind == "send_recv" else ranks, gpu)
    is_on_pcie = cluster.fabric_of(gpu) == PCIE
    time_s = ring_s(kind, size, ranks, link, fraction)
    level = np.full(size.size, FITTED if is_fitted and not is_on_pcie else DATASHEET)
    band = FITTED_BAND if is_fitted else DATASHEET_BAND
    hi_s = time_s * band
    if is_on_pcie:
        through_host, _ = sustained(replace(cluster, fabric=THROUGH_HOST), gpu, ranks)
        hi_s = np.maximum(hi_s, ring_s(kind, size, ranks, link, through_host))
    return CollectiveTime(time_s, time_s / band, hi_s, level)


def _spread(ranks: int, span: int, cluster: Cluster) -> tuple[int, int]:
    """Return the number of nodes that ranks are spread over, and the ranks per node.

    All nodes have equally many ranks: the most that `span` and the number of ranks allow.
    """
    least = min(ranks, -(-span // cluster.gpus_per_node))
    nodes = next(n for n in range(least, ranks + 1) if ranks % n == 0)
    return nodes, ranks // nodes
