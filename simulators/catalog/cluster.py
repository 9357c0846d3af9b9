"""Clusters: equal nodes of GPUs, with links inside a node and links between nodes.

Bandwidths are data-sheet values per direction and GPU; latencies are those of one hop. The share of
a link that a collective sustains is a calibration in `collectives`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from simulators.catalog.gpu import Gpu
from simulators.catalog.sheet import fill, positive
from simulators.core.folder import CLUSTERS, read_toml

AUTO = "auto"
"""Name that selects the usual cluster of a GPU."""

PCIE, THROUGH_HOST = "pcie", "pcie_through_host"
"""Fabrics of GPUs without NVLink: peer-to-peer access, or copies through host memory."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of the link between a GPU and its peers."""

    bytes_per_s: float
    latency_s: float  # one hop of a message sent for latency
    bulk_latency_s: float  # one hop of a message sent for bandwidth


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs, as described by the vendor."""

    name: str
    gpus_per_node: int
    intra: Link  # within a node
    inter: Link  # between nodes; per GPU, so a shared network card counts by its share
    host_w: float  # largest power of a node without its GPUs
    torus_dimensions: int = 0  # of chips with direct links; `intra` is the link to one neighbour
    torus_closed: int = 0  # number of chips from which every dimension is a ring
    is_mesh: bool = False  # a link between each two GPUs of a node; `intra` is all links of a GPU
    fabric: str = ""  # between the GPUs of a node: nvlink4, pcie ...
    source: str
    aliases: tuple[str, ...] = ()

    def fabric_of(self, gpu: Gpu) -> str:
        """Return the fabric between GPUs of a node; PCIe for GPUs without NVLink ports."""
        has_no_ports = self.fabric in (PCIE, THROUGH_HOST)
        return self.fabric if gpu.link_bytes_per_s or has_no_ports else PCIE

    def link(self, ranks: int, gpu: Gpu) -> Link:
        """Return the link that limits `ranks` neighbouring GPUs, at most as fast as a GPU's port.

        >>> from simulators.catalog.gpu import load_gpu
        >>> h100 = load_gpu("h100_sxm")
        >>> dgx = load_cluster("dgx_h100")
        >>> dgx.link(8, h100).bytes_per_s, dgx.link(16, h100).bytes_per_s
        (450000000000.0, 50000000000.0)

        In a mesh, two GPUs share one of their links.

        >>> mi300x = load_gpu("mi300x")
        >>> load_cluster("mi300x_platform").link(2, mi300x).bytes_per_s
        64000000000.0
        """
        if ranks > self.gpus_per_node:
            return self.inter
        # A chip of a torus sends in both directions of each of its rings. With fewer chips than
        # `torus_closed` one ring connects all chips.
        rings = self.torus_dimensions if ranks >= self.torus_closed else 1
        inside = self.intra.bytes_per_s * (2 * rings if self.torus_dimensions else 1)
        has_ports = self.fabric not in (PCIE, THROUGH_HOST) and gpu.link_bytes_per_s > 0.0
        port = (gpu.link_bytes_per_s if has_ports else gpu.pcie_bytes_per_s) or inside
        used = max(1, ranks - 1) / (self.gpus_per_node - 1) if self.is_mesh else 1.0
        return dataclasses.replace(self.intra, bytes_per_s=used * min(inside, port))


def load_cluster(name: str) -> Cluster:
    """Return a cluster by name, alias or TOML path.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file lacks a field, or a field is invalid.
    """
    return CLUSTERS.load(name, _cluster)


def cluster_for(name: str, gpu: Gpu) -> Cluster:
    """Return a cluster by name; `auto` is the usual cluster of the GPU.

    >>> from simulators.catalog.gpu import load_gpu
    >>> cluster_for("auto", load_gpu("h100_sxm")).name
    'dgx_h100'
    """
    return load_cluster(gpu.cluster if name == AUTO else name)


def _cluster(path: Path) -> Cluster:
    cluster = fill(Cluster, read_toml(path), path, "cluster")
    positive(cluster.gpus_per_node, path, "gpus_per_node")
    for where, link in (("intra", cluster.intra), ("inter", cluster.inter)):
        positive(link.bytes_per_s, path, f"{where}.bytes_per_s")
    return cluster
