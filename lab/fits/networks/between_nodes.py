"""Fit the latency and efficiency of networks between nodes to large collectives over InfiniBand.

Two numbers for rings and trees and two for all-to-all exchanges minimise the mean absolute log
error; every curve has the same weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.methods.held_out import COVERED_SHARE, leave_one_out, quantile
from lab.tables.collectives import BETWEEN_NODES, NodesCurve, read_between_nodes
from simulators.catalog.cluster import Cluster, cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.collectives.library_models import (
    BETWEEN_CALIBRATION,
    EXCHANGES,
    RINGS,
    Network,
    between_s,
    family,
)
from simulators.collectives.price import collective_time
from simulators.core.jit import Floats

FOLDER = BETWEEN_CALIBRATION.parent
INFINIBAND = ("sophia", "example-cluster01")
LARGE_BYTES = 2.0**20
"""Smaller messages measure hops and host launches."""

HOPS, SHARES = np.geomspace(0.5, 32.0, 13), np.arange(0.3, 1.0 + 1e-9, 0.02)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the numbers of InfiniBand for rings and for exchanges."""
    curves = [c for c in large(read_between_nodes(reference)) if c.system.name in INFINIBAND]
    content, errors = {}, []
    for kind in (RINGS, EXCHANGES):
        mine = [curve for curve in curves if family(curve.collective) == kind]
        by_system = leave_one_out(mine, lambda curve: curve.system.name, fitted)
        off = np.concatenate([log_errors(c, network) for out, network in by_system for c in out])
        found, band = fitted(mine), np.exp(quantile(np.abs(off), COVERED_SHARE))
        content[kind] = {"hops": found.hops, "share": found.share, "band": float(band)}
        errors.append(np.expm1(off))
    yield Calibration(
        name=BETWEEN_CALIBRATION.stem,
        content=content,
        style=".3f",
        tables=[BETWEEN_NODES],
        rows=sum(curve.seconds.size for curve in curves),
        split="InfiniBand systems, each held out of the fit to the other",
        errors=np.concatenate(errors),
    )


def large(curves: Sequence[NodesCurve]) -> list[NodesCurve]:
    """Return the rows of large messages of each curve that has any."""
    kept = [(curve, curve.size_bytes >= LARGE_BYTES) for curve in curves]
    return [
        replace(curve, size_bytes=curve.size_bytes[where], seconds=curve.seconds[where])
        for curve, where in kept
        if where.any()
    ]


def fitted(curves: Sequence[NodesCurve]) -> Network:
    """Return the network with the least mean absolute log error."""
    inside = [predicted_s(curve, Network(hops=0.0, share=np.inf)) for curve in curves]

    def error(network: Network) -> float:
        each = []
        for curve, inside_s in zip(curves, inside, strict=True):
            ports_s = between_s(
                curve.collective,
                curve.size_bytes,
                curve.nodes,
                curve.ranks // curve.nodes,
                cluster_of(curve),
                network,
            )
            each.append(np.abs(np.log(np.maximum(inside_s, ports_s) / curve.seconds)).mean())
        return float(np.mean(each))

    tried = (Network(hops=float(h), share=float(s)) for h in HOPS for s in SHARES)
    return min(tried, key=error)


def log_errors(curve: NodesCurve, network: Network) -> Floats:
    """Return log(predicted / measured) of each size."""
    return np.asarray(np.log(predicted_s(curve, network) / curve.seconds), np.float64)


def predicted_s(curve: NodesCurve, network: Network | None) -> Floats:
    """Return the predicted seconds of each size; without a network, over the calibrated one."""
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
    """Return the cluster that a curve was measured on."""
    usual = cluster_for("auto", load_gpu(curve.system.gpu))
    inter = replace(usual.inter, bytes_per_s=curve.system.port_bytes_per_s)
    return replace(usual, gpus_per_node=curve.system.gpus_per_node, inter=inter)
