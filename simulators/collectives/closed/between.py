"""Time of a collective over several nodes, by NCCL's rings and trees, each GPU using its own port.

A ring goes through all GPUs of a node and on to the next: a link between nodes carries what one of
the GPUs carries of a ring over all ranks, and every GPU's port is in a ring of its own. A double
binary tree (Sanders et al., 2009) sends all of a buffer up and down, in as many hops between nodes
as its height. NCCL estimates both, by three protocols, and takes the fastest, as here (NCCL 2.19,
src/graph/tuning.cc: starts, hops and shares of the link). How long hops between nodes take over
that, and how much of its data sheet a network sustains, is fitted to clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.catalog.cluster import Cluster
from simulators.collectives.closed.protocols import PROTOCOLS, Protocol
from simulators.collectives.measured import busbw_factor
from simulators.core.calibration import read_calibration
from simulators.core.folder import PACKAGE, once
from simulators.core.jit import Floats

CALIBRATION = PACKAGE / "collectives" / "calibration" / "between_nodes.toml"

RINGS, EXCHANGES = "rings", "exchanges"
"""What is passed on by rings and trees, and what every node sends to every other."""

TREE_HOP, TREE_SHARE = 2.0, 0.92
"""Of a tree: its hop between nodes over a ring's, and the share of the link it fills over a
ring's."""


@dataclass(frozen=True)
class Network:
    """What a network between nodes was measured to do."""

    hops: float  # time of a hop over that of NCCL's estimate
    share: float  # of the data sheet's bandwidth, for large messages
    band: float = 2.0  # nine of ten messages are within this factor


SIMPLE = Protocol(start_s=8.4e-6, is_bulk=True, share=1.0, hop=3.5)
"""The protocol of large messages: a hop takes 14 us where one of LL128 takes 4."""


def family(kind: str) -> str:
    """Return whether a collective is passed on or exchanged."""
    return EXCHANGES if kind in ("all_to_all", "send_recv") else RINGS


def between_s(
    kind: str, size_bytes: Floats, nodes: int, inside: int, cluster: Cluster, network: Network
) -> Floats:
    """Return the seconds of a collective of `inside` GPUs of each node, by their ports alone.

    >>> from simulators.catalog.cluster import load_cluster
    >>> dgx, ideal = load_cluster("dgx_h100"), Network(hops=1.0, share=1.0)
    >>> size = np.array([1e6])
    >>> many, few = (between_s("all_reduce", size, n, 8, dgx, ideal) for n in (256, 2))
    >>> bool(many < 8 * few)  # a tree: 128 times as many nodes, eight times as many hops
    True
    """
    if family(kind) == EXCHANGES or kind == "broadcast":
        ranks, crosses, apart = nodes, 1.0, 0
    else:
        ranks, crosses, apart = nodes * inside, 1.0 / inside, (inside - 1) * nodes
    around = 1 if kind == "send_recv" else nodes - 1
    passes = 2 if kind == "all_reduce" else 1
    moved = size_bytes * crosses * busbw_factor(kind, ranks)
    rate = cluster.inter.bytes_per_s * network.share
    least = np.full(np.shape(size_bytes), np.inf)
    for protocol in (*PROTOCOLS, SIMPLE):
        hop_s, near_s = (
            protocol.hop * (link.bulk_latency_s if protocol.is_bulk else link.latency_s)
            for link in (cluster.inter, cluster.intra)
        )
        hop_s *= network.hops
        latency_s = protocol.start_s + passes * (around * hop_s + apart * near_s)
        least = np.minimum(least, latency_s + moved / (rate * protocol.share))
        if kind == "all_reduce":
            high = np.ceil(np.log2(nodes)) * TREE_HOP
            latency_s = protocol.start_s + 2.0 * (high * hop_s + (inside - 1) * near_s)
            wire_s = 2.0 * size_bytes * crosses / (rate * protocol.share * TREE_SHARE)
            least = np.minimum(least, latency_s + wire_s)
    return np.asarray(least, np.float64)


def network_between(kind: str) -> Network:
    """Return what InfiniBand was measured to do between nodes, for a collective."""
    return Network(**once(read_calibration, CALIBRATION)[family(kind)])
