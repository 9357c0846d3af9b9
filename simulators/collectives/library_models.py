"""Times of NCCL's rings and trees and of DeepEP's exchanges, where no library was measured.

NCCL estimates each protocol and algorithm and runs the fastest, as here (NCCL 2.19,
src/graph/tuning.cc: start-up times, hops and shares of the link). A ring all-reduce moves 2(n-1)/n
of the data over every link in 2(n-1) steps (Patarasuk and Yuan, 2009). Small messages use a
protocol with short hops that wastes most of the link, large messages one with longer hops that
fills the link.

Between nodes a ring goes through all GPUs of a node and on to the next: a link between nodes
carries as much as one GPU carries of a ring over all ranks, and every GPU's port is in a ring of
its own. A double binary tree (Sanders et al., 2009) sends a whole buffer up and down, in as many
hops between nodes as its height.

DeepEP's kernels send over links inside nodes and over network cards at once. High throughput: a
token crosses once to each node with one of its experts, and from there to each GPU with one. Low
latency: a copy for each expert goes there directly (DeepSeek, github.com/deepseek-ai/DeepEP,
README). Node-limited routing by groups of experts: DeepSeek-V3 technical report (2024), section
2.1.2. High throughput runs on a few SMs, which copy every token that a GPU receives, twice between
nodes: from the network card's buffer, and on to the GPU of its expert.

Fitted to clusters: how long hops and starts take beyond NCCL's estimate, and which share of its
data sheet a link sustains.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from simulators.catalog.cluster import THROUGH_HOST, Cluster, Link
from simulators.catalog.gpu import Gpu
from simulators.collectives.measured import Bools, busbw_factor
from simulators.core.calibration import read_calibration
from simulators.core.folder import PACKAGE, once
from simulators.core.jit import Floats

SUSTAINED_CALIBRATION = PACKAGE / "collectives" / "calibration" / "sustained.toml"


@dataclass(frozen=True)
class Protocol:
    """A protocol of NCCL: start time, hop latency, and share of the link's bandwidth."""

    start_s: float
    is_bulk: bool
    share: float
    hop: float = 1.0  # latency of a hop between nodes over the link's
    near_hop: float = 1.0  # latency of a hop inside a node over the link's
    tree_hop: float = 1.0  # latency of a hop of a tree between nodes over a ring's


PROTOCOLS = (  # of LL, 4 of 8 bytes are flags, both ways; of LL128, 120 of 128 bytes are data
    Protocol(start_s=6.6e-6, is_bulk=False, share=0.25, tree_hop=5.0 / 2.7),
    Protocol(start_s=14.0e-6, is_bulk=True, share=0.92, tree_hop=8.5 / 4.0),
)
"""NCCL's ring protocols LL and LL128."""


def ring_s(kind: str, size_bytes: Floats, ranks: int, link: Link, fraction: float) -> Floats:
    """Return the seconds of a collective on idle links that sustain a fraction of their bandwidth.

    >>> link = Link(bytes_per_s=100e9, latency_s=1e-6, bulk_latency_s=2e-6)
    >>> ring_s("send_recv", np.array([1e9]), 2, link, fraction=1.0).round(5).tolist()
    [0.01089]
    """
    around = 1 if kind == "send_recv" else ranks - 1
    steps = 2 * around if kind == "all_reduce" else around
    moved = size_bytes * busbw_factor(kind, ranks)
    times = [
        protocol.start_s
        + steps * (link.bulk_latency_s if protocol.is_bulk else link.latency_s)
        + moved / (link.bytes_per_s * fraction * protocol.share)
        for protocol in PROTOCOLS
    ]
    return np.minimum(*times)


def sustained_between() -> float:
    """Return the sustained share of a link between nodes: the mean of measured fabrics."""
    return float(read_calibration(SUSTAINED_CALIBRATION)["sustained"]["other"])


def sustained(cluster: Cluster, gpu: Gpu, ranks: int) -> tuple[float, bool]:
    """Return the sustained share of a link inside a node, and whether the fabric was measured.

    All GPUs of a host share the bandwidth of host memory. Unmeasured fabrics get the mean of the
    measured ones.
    """
    fitted = read_calibration(SUSTAINED_CALIBRATION)["sustained"]
    fabric = cluster.fabric_of(gpu)
    sharing = ranks if fabric == THROUGH_HOST else 1
    return (fitted[fabric] / sharing, True) if fabric in fitted else (sustained_between(), False)


BETWEEN_CALIBRATION = PACKAGE / "collectives" / "calibration" / "between_nodes.toml"

RINGS, EXCHANGES = "rings", "exchanges"
"""Families: collectives by rings and trees, and exchanges between all pairs of nodes."""

TREE_SHARE = 0.92
"""Sustained share of the link of a tree over that of a ring."""


@dataclass(frozen=True)
class Network:
    """Fitted constants of a network between nodes."""

    share: float  # of the data sheet's bandwidth, for large messages
    hops: float = 1.0  # latency of a hop over NCCL's estimate
    band: float = 2.0  # nine of ten messages are within this factor


SIMPLE = Protocol(start_s=8.4e-6, is_bulk=True, share=1.0, hop=14.0 / 4.0, near_hop=3.4 / 1.9)
"""The protocol of large messages: a hop takes 14 us between nodes, in rings and trees alike."""


def family(kind: str) -> str:
    """Return the family of a collective: `RINGS` or `EXCHANGES`."""
    return EXCHANGES if kind in ("all_to_all", "send_recv") else RINGS


def between_s(
    kind: str, size_bytes: Floats, nodes: int, inside: int, cluster: Cluster, network: Network
) -> Floats:
    """Return the seconds of the part between nodes of a collective; `inside` GPUs per node.

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
        far_s, near_s = (
            link.bulk_latency_s if protocol.is_bulk else link.latency_s
            for link in (cluster.inter, cluster.intra)
        )
        hop_s, near_s = protocol.hop * network.hops * far_s, protocol.near_hop * near_s
        latency_s = protocol.start_s + passes * (around * hop_s + apart * near_s)
        least = np.minimum(least, latency_s + moved / (rate * protocol.share))
        if kind == "all_reduce":
            high = np.ceil(np.log2(nodes)) * protocol.tree_hop
            latency_s = protocol.start_s + 2.0 * (high * hop_s + (inside - 1) * near_s)
            wire_s = 2.0 * size_bytes * crosses / (rate * protocol.share * TREE_SHARE)
            least = np.minimum(least, latency_s + wire_s)
    return np.asarray(least, np.float64)


def network_between(kind: str) -> Network:
    """Return the fitted constants of InfiniBand for a collective."""
    return Network(**once(read_calibration, BETWEEN_CALIBRATION)[family(kind)])


EXCHANGE_CALIBRATION = PACKAGE / "collectives" / "calibration" / "expert_exchange.toml"

HIGH_THROUGHPUT, LOW_LATENCY, NVLINK = "high_throughput", "low_latency", "nvlink"
"""Modes of DeepEP, and an exchange within an NVLink domain as TensorRT-LLM's: it sends a token once
to each GPU with one of its experts, at the rates of low latency."""

EXCHANGE_SMS = 20
"""SMs that DeepEP's kernels for many tokens occupy (`Buffer.num_sms`)."""


@dataclass(frozen=True)
class Routed:
    """Routing of tokens to experts; experts are distributed evenly over ranks."""

    experts: int
    top_k: int
    groups: int = 1  # of neighboring experts
    chosen: int = 1  # number of groups that the experts of a token belong to

    def reached(self, parts: int) -> float:
        """Return the mean number of equal parts of the experts that a token is sent to.

        >>> Routed(256, 8).reached(1), round(Routed(256, 8).reached(8), 2)
        (1.0, 5.29)
        >>> round(Routed(256, 8, groups=8, chosen=4).reached(8), 2)
        3.63
        """
        near = self.experts * self.chosen // self.groups
        if parts >= self.groups:
            hit = _hit(near, self.experts // parts, self.top_k)
            return parts * self.chosen / self.groups * hit
        each, size = self.groups // parts, self.experts // self.groups
        ways, total = comb(self.groups, self.chosen), 0.0
        for within in range(1, min(each, self.chosen) + 1):
            if self.chosen - within > self.groups - each:
                continue
            probability = comb(each, within) * comb(self.groups - each, self.chosen - within) / ways
            total += probability * _hit(near, within * size, self.top_k)
        return parts * total


@dataclass(frozen=True)
class Rates:
    """Start times of an exchange, and the bandwidths that its kernels sustain."""

    near_s: float  # start inside a node
    far_s: float  # start over several nodes
    inside: float  # share of a GPU's ports to GPUs of its node
    between: float  # share of a GPU's network card
    copied_bytes_per_s: float = np.inf  # by the SMs of high throughput
    band: float = 2.0  # nine of ten exchanges are within this factor


@dataclass(frozen=True)
class ExchangeTraffic:
    """Traffic of a rank in one dispatch, or one combine, under uniform routing."""

    near_s: Floats  # on its ports inside the node, at the data sheet's bandwidth
    far_s: Floats  # on its network card, at the data sheet's bandwidth
    copied_bytes: Floats  # by its SMs


def exchange_traffic(
    mode: str,
    rank_bytes: Floats,
    routed: Routed,
    *,
    ranks: int,
    inside: int,
    link_bytes_per_s: tuple[float, float],
) -> ExchangeTraffic:
    """Return the bytes that a rank moves, and their seconds on its links.

    `rank_bytes` is one copy of all tokens of a rank. The experts are on `ranks` GPUs, `inside` of
    them on one node. `link_bytes_per_s` are a GPU's links inside its node and to other nodes.
    """
    nodes, copies = ranks // inside, 0.0
    if mode == LOW_LATENCY:
        crossing = routed.top_k * (nodes - 1) / nodes
        near = routed.top_k * (inside - 1) / ranks
    else:
        crossing = routed.reached(nodes) * (nodes - 1) / nodes
        near = routed.reached(ranks) * (inside - 1) / inside
        if mode == HIGH_THROUGHPUT:
            copies = routed.reached(ranks) * (2.0 if nodes > 1 else 1.0)
    port, card = link_bytes_per_s
    return ExchangeTraffic(
        near * rank_bytes / port, crossing * rank_bytes / card, copies * rank_bytes
    )


def exchange_s(traffic: ExchangeTraffic, is_far: Bools | bool, rates: Rates) -> Floats:
    """Return the seconds of exchanges; `is_far`: over several nodes."""
    links_s = np.maximum(traffic.near_s / rates.inside, traffic.far_s / rates.between)
    slower_s = np.maximum(links_s, traffic.copied_bytes / rates.copied_bytes_per_s)
    return np.asarray(np.where(is_far, rates.far_s, rates.near_s) + slower_s, np.float64)


def exchange_rates(mode: str) -> Rates:
    """Return the fitted rates of DeepEP's kernels of a mode, or those of `NVLINK`."""
    known = once(read_calibration, EXCHANGE_CALIBRATION)
    return Rates(**known[LOW_LATENCY if mode == NVLINK else mode])


def _hit(near: int, mine: int, top_k: int) -> float:
    """Return the probability that a token activates at least one of `mine` of `near` experts."""
    return 1.0 - comb(near - mine, top_k) / comb(near, top_k) if mine < near else 1.0
