"""A collective takes latency by its steps and bandwidth by its bytes, with the better protocol.

A ring all-reduce moves 2(n-1)/n of the data over every link in 2(n-1) steps (Patarasuk and Yuan,
2009). Libraries send small messages with a protocol of short hops that wastes most of the link, and
large ones with a protocol of longer hops that fills it; they estimate both and take the faster, as
here (NCCL 2.19, src/graph/tuning.cc: latencies and shares of the link). How much of its data sheet
a link sustains is fitted.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from simulators.catalog.cluster import Cluster, Link
from simulators.catalog.gpu import Gpu
from simulators.collectives.measured import NETWORKS, measured_time
from simulators.core.calibration import read_calibration
from simulators.core.folder import PACKAGE, read_toml
from simulators.workload.operators import Collective, Column

PCIE = "pcie"
"""The fabric of a GPU without ports of its own, whatever the node offers."""

LIBRARIES = ("trtllm", "vllm", "sglang")
"""Frameworks with an all-reduce of their own for small messages, the default of kernels first."""

MEASURED = ("all_reduce",)
"""What these frameworks do not leave to NCCL."""

CALIBRATION = PACKAGE / "composition" / "calibration" / "network.toml"


@dataclass(frozen=True)
class Protocol:
    """How a message is cut and acknowledged: a start, a hop, and a share of the link."""

    start_s: float
    is_bulk: bool
    share: float


PROTOCOLS = (
    Protocol(start_s=6.6e-6, is_bulk=False, share=0.25),  # 4 of 8 bytes are flags, both ways
    Protocol(start_s=14.0e-6, is_bulk=True, share=0.92),  # 120 of 128 bytes are data
)
"""NCCL's ring protocols LL and LL128."""


@dataclass(frozen=True)
class Sustained:
    """The part of a link's data-sheet bandwidth that a large collective reaches."""

    fraction: float
    calibrated: bool


def collective_s(collective: Collective, link: Link, fraction: float) -> Column:
    """Return the seconds of one collective, alone on links of which `fraction` is sustained.

    >>> link = Link(bytes_per_s=100e9, latency_s=1e-6, bulk_latency_s=2e-6)
    >>> sent = Collective(name="x", kind="send_recv", size_bytes=1e9, ranks=2)
    >>> round(float(collective_s(sent, link, fraction=1.0)), 5)
    0.01089
    """
    steps, wire = _steps_and_wire(collective.kind, collective.ranks)
    moved = np.asarray(collective.size_bytes, np.float64) * wire
    times = [
        protocol.start_s
        + steps * (link.bulk_latency_s if protocol.is_bulk else link.latency_s)
        + moved / (link.bytes_per_s * fraction * protocol.share)
        for protocol in PROTOCOLS
    ]
    return np.minimum(*times)


def price_collective(
    collective: Collective, cluster: Cluster, gpu: Gpu, span: int, framework: str = ""
) -> tuple[Column, bool]:
    """Return the seconds of a collective on a cluster, and whether its link was measured.

    GPUs with ports of their own are wired alike wherever they are sold, so a curve measured on one
    node holds for all. Boards without them are as far apart as their host's slots, so the cluster's
    own link is priced: of two measured L40S servers one sums four times as fast as the other.

    Args:
        collective: what is exchanged.
        cluster: where.
        gpu: whose ports may be narrower than the node's links.
        span: neighbouring GPUs it reaches over; more than a node has means the network.
        framework: whose all-reduce, where it was measured there.
    """
    library, board = "", gpu.measured_as or gpu.name  # a what-if device has the real one's ports
    if collective.kind in MEASURED and span == collective.ranks and gpu.link_bytes_per_s:
        library = _library(board, framework)
    if library and span <= cluster.gpus_per_node:
        answer = measured_time(
            gpu=board,
            library=library,
            collective=collective.kind,
            dtype="fp16",
            ranks=collective.ranks,
            size_bytes=np.atleast_1d(np.asarray(collective.size_bytes, np.float64)),
        )
        return answer.time_s.reshape(np.shape(collective.size_bytes)), True
    reach = sustained(cluster, gpu, span)
    return collective_s(collective, cluster.link(span, gpu), reach.fraction), reach.calibrated


@functools.lru_cache(maxsize=256)
def _library(gpu: str, framework: str) -> str:
    """Return whose all-reduce is priced on a GPU: the framework's, else the first measured."""
    if gpu not in NETWORKS.names():
        return ""
    known = {curve["library"] for curve in read_toml(NETWORKS.find(gpu))["curve"]}
    return next((library for library in (framework, *LIBRARIES) if library in known), "")


def sustained(cluster: Cluster, gpu: Gpu, span: int) -> Sustained:
    """Return what is sustained of the link that `span` neighbouring GPUs need.

    Fabrics that were measured have their own number. An unknown one, and the network between
    nodes, get the mean of those that were.
    """
    fitted = read_calibration(CALIBRATION)["sustained"]
    is_inside = span <= cluster.gpus_per_node
    fabric = fabric_of(cluster, gpu)
    if is_inside and fabric in fitted:
        return Sustained(fitted[fabric], calibrated=True)
    return Sustained(fitted["other"], calibrated=False)


def fabric_of(cluster: Cluster, gpu: Gpu) -> str:
    """Return what joins the GPUs of a node: the node's fabric, or PCIe where a GPU has no ports."""
    return cluster.fabric if gpu.link_bytes_per_s else PCIE


@functools.lru_cache(maxsize=64)
def _steps_and_wire(kind: str, ranks: int) -> tuple[int, float]:
    """Return the steps of a ring, and the bytes on each link over the size of the buffer."""
    around = ranks - 1
    return {
        "all_reduce": (2 * around, 2.0 * around / ranks),
        "all_gather": (around, around / ranks),
        "reduce_scatter": (around, around / ranks),
        "all_to_all": (around, around / ranks),
        "send_recv": (1, 1.0),
    }[kind]
