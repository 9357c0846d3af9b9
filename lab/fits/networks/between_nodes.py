"""Fit what hops take and how much of its data sheet a network between nodes sustains.

Two numbers for what rings and trees pass on, two for exchanges, of large messages: over InfiniBand
for use, over each measured system for its claim. The mean |log(predicted / measured)| is least,
each curve weighing alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.tables.collectives import BETWEEN_NODES, NodesCurve, read_between_nodes
from simulators.catalog.cluster import Cluster, cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.collectives.closed.between import (
    CALIBRATION,
    EXCHANGES,
    RINGS,
    Network,
    between_s,
    family,
)
from simulators.collectives.price import collective_time
from simulators.core.jit import Floats

FOLDER = CALIBRATION.parent
INFINIBAND = ("sophia", "example-cluster01")
SPLIT = "InfiniBand systems, each held out of the fit to the other"
LARGE_BYTES = 2.0**20
"""Buffers below it are hops and the host alone; those of training are larger."""

HOPS = np.geomspace(0.5, 32.0, 13)
SHARES = np.arange(0.3, 1.0 + 1e-9, 0.02)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the numbers of InfiniBand, for what is passed on and for exchanges."""
    held_out, lines, rows = [], [], 0
    for kind in (RINGS, EXCHANGES):
        curves = [
            curve
            for curve in large(read_between_nodes(reference))
            if curve.system.name in INFINIBAND and family(curve.collective) == kind
        ]
        mine = []
        for name in INFINIBAND:
            known = fitted([curve for curve in curves if curve.system.name != name])
            mine += [log_errors(curve, known) for curve in curves if curve.system.name == name]
        found = fitted(curves)
        band = float(np.exp(np.quantile(np.abs(np.concatenate(mine)), 0.9)))
        numbers = {"hops": found.hops, "share": found.share, "band": band}
        lines += table_lines(kind, numbers, ".3f")
        held_out += mine
        rows += sum(curve.seconds.size for curve in curves)
    yield calibration(
        CALIBRATION.stem,
        hashes(reference, [BETWEEN_NODES]),
        rows=rows,
        split=SPLIT,
        held_out=np.expm1(np.concatenate(held_out)),
        lines=lines,
    )


def large(curves: Sequence[NodesCurve]) -> list[NodesCurve]:
    """Return curves of large messages alone."""
    kept = [(curve, curve.size_bytes >= LARGE_BYTES) for curve in curves]
    return [
        replace(curve, size_bytes=curve.size_bytes[where], seconds=curve.seconds[where])
        for curve, where in kept
        if where.any()
    ]


def fitted(curves: Sequence[NodesCurve]) -> Network:
    """Return the network under which some curves are off least."""
    inside = [_inside_s(curve) for curve in curves]

    def off(network: Network) -> float:
        errors = (
            np.log(np.maximum(inside_s, _between_s(curve, network)) / curve.seconds)
            for curve, inside_s in zip(curves, inside, strict=True)
        )
        return float(np.mean([np.abs(error).mean() for error in errors]))

    tried = (Network(hops=float(h), share=float(s)) for h in HOPS for s in SHARES)
    return min(tried, key=off)


def log_errors(curve: NodesCurve, network: Network) -> Floats:
    """Return log(predicted / measured) of each size."""
    return np.asarray(np.log(predicted_s(curve, network) / curve.seconds), np.float64)


def predicted_s(curve: NodesCurve, network: Network | None) -> Floats:
    """Return the price of each size over a network, or over the one in use."""
    system = curve.system
    return collective_time(
        curve.collective,
        curve.size_bytes,
        ranks=curve.ranks,
        gpu=load_gpu(system.gpu),
        cluster=cluster_of(curve),
        dtype="fp16",
        span=curve.nodes * system.gpus_per_node,
        network=network,
    ).time_s


def cluster_of(curve: NodesCurve) -> Cluster:
    """Return the machine of a curve's system."""
    usual = cluster_for("auto", load_gpu(curve.system.gpu))
    inter = replace(usual.inter, bytes_per_s=curve.system.port_bytes_per_s)
    return replace(usual, gpus_per_node=curve.system.gpus_per_node, inter=inter)


def _between_s(curve: NodesCurve, network: Network) -> Floats:
    """Return what the ports alone take."""
    inside = curve.ranks // curve.nodes
    return between_s(
        curve.collective, curve.size_bytes, curve.nodes, inside, cluster_of(curve), network
    )


def _inside_s(curve: NodesCurve) -> Floats:
    """Return what the nodes alone take: the price where ports cost nothing."""
    return predicted_s(curve, Network(hops=0.0, share=np.inf))
