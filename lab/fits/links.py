"""Fit networks: links inside a node, networks between nodes, expert exchanges and KV transfers.

Every fit minimises the mean absolute log error. Groups of rows are held out in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, declared
from lab.fits.methods import (
    COVERED_SHARE,
    best_share,
    grouped,
    least_log_error,
    leave_one_out,
    quantile,
)
from lab.tables.collectives import (
    NCCL,
    DeepEpExchange,
    NodesCurve,
    moved,
    read_between_nodes,
    read_exchanges,
)
from lab.tables.records import gpu_name
from lab.tables.rows import Record, read_records
from simulators.catalog.cluster import THROUGH_HOST, Cluster, Link, cluster_for, load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.collectives import library_models
from simulators.collectives.library_models import Network, Rates
from simulators.collectives.price import collective_time, expert_exchange_time
from simulators.core.folder import read_toml
from simulators.core.jit import Floats
from simulators.serving.engine import kv_transfer

NODE_TABLE = "llm_ops/network.parquet"
RINGS = read_toml(Path(__file__).with_suffix(".toml"))

LARGE_BYTES = 2**20
"""Smaller messages measure hops and host launches."""

SUSTAINED = np.arange(0.3, 1.0 + 0.005 / 2, 0.005)
HOPS, NETWORK_SHARES = np.geomspace(0.5, 32.0, 13), np.arange(0.3, 1.0 + 1e-9, 0.02)
STARTS_S, EXCHANGE_SHARES = np.arange(10e-6, 60e-6, 2e-6), np.arange(0.5, 1.0 + 1e-9, 0.02)
"""Candidates for the numbers of links, of networks between nodes and of expert exchanges."""

INFINIBAND = ("sophia", "example-cluster01")
FITTED_VERSION = "V1"
"""Systems and version of DeepEP that are fitted."""

LAYER_S, LINES, TRANSFER_ROUNDS = 1e-5, 1.0, 20
"""Scales of seconds per layer and of times at line rate, and rounds of a fit of KV transfers."""


@dataclass(frozen=True)
class Ring:
    """Large all-reduces of one ring, whose ranks may share a link."""

    fabric: str
    size_bytes: Floats
    seconds: Floats
    ranks: int
    link: Link
    sharing: int = 1

    def log_errors(self, share: float) -> Floats:
        """Return |log(predicted / measured)| of each size, by a sustained share of the link."""
        seconds = library_models.ring_s(
            "all_reduce", self.size_bytes, self.ranks, self.link, share / self.sharing
        )
        return np.asarray(np.abs(np.log(seconds / self.seconds)), np.float64)


def fit_sustained(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the share of a link's bandwidth that a large all-reduce sustains, by fabric."""
    fitted, held_out = (list(_rings(reference, key)) for key in ("fitted_ranks", "held_out_ranks"))
    sustained = {
        fabric: best_share(SUSTAINED, [ring.log_errors for ring in fitted if ring.fabric == fabric])
        for fabric in dict.fromkeys(ring.fabric for ring in fitted)
    }
    in_nodes = dict.fromkeys(ring["fabric"] for ring in RINGS["ring"])
    other = float(np.mean([sustained[fabric] for fabric in in_nodes]))
    errors = [ring.log_errors(sustained[ring.fabric]) for ring in held_out]
    yield declared(
        "sustained",
        content={"sustained": {"other": other, **sustained}},
        rows=sum(ring.seconds.size for ring in fitted),
        errors=np.expm1(np.concatenate(errors)),
    )


def _rings(reference: Path, which: str) -> Iterator[Ring]:
    rows = read_records(reference / NODE_TABLE, op="all_reduce")
    for ring in RINGS["ring"]:
        link = replace(load_cluster(ring["cluster"]).intra, bytes_per_s=ring["bytes_per_s"])
        for ranks in ring[which]:
            times = [
                (row.size_bytes, row.min_ms * 1e-3)
                for row in rows
                if row.node == ring["node"] and row.num_workers == row.devices_per_node == ranks
            ]
            yield Ring(ring["fabric"], *_large(times), ranks, link)
    nccl = [row for row in read_records(reference / NCCL) if row.collective == "all_reduce"]
    for host in RINGS["through_host"]:
        link = load_cluster(THROUGH_HOST).link(2, load_gpu(host["gpu"]))
        for ranks in host[which]:
            times = [
                (row.bytes, row.time_us * 1e-6)
                for row in nccl
                if (row.ranks, gpu_name(row.gpu)) == (ranks, host["gpu"])
                and row.library_version_folder in host["releases"]
            ]
            yield Ring(THROUGH_HOST, *_large(times), ranks, link, sharing=ranks)


def _large(times: Sequence[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Return bytes and seconds of large messages."""
    sizes, seconds = np.array([one for one in times if one[0] >= LARGE_BYTES], np.float64).T
    return sizes, seconds


def fit_between_nodes(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield latency and efficiency of InfiniBand: two numbers for rings and two for exchanges.

    Every curve has the same weight.
    """
    curves = large_messages(read_between_nodes(reference))
    curves = [curve for curve in curves if curve.system.name in INFINIBAND]
    content, errors = {}, []
    for kind in (library_models.RINGS, library_models.EXCHANGES):
        mine = [curve for curve in curves if library_models.family(curve.collective) == kind]
        by_system = leave_one_out(mine, lambda curve: curve.system.name, fit_network)
        log_errors = [network_log_errors(one, found) for out, found in by_system for one in out]
        found, errors_of_kind = fit_network(mine), np.concatenate(log_errors)
        content[kind] = {"hops": found.hops, "share": found.share, "band": _band(errors_of_kind)}
        errors.append(np.expm1(errors_of_kind))
    yield declared(
        "between_nodes",
        content=content,
        rows=sum(curve.seconds.size for curve in curves),
        errors=np.concatenate(errors),
    )


def _band(log_errors: Floats) -> float:
    """Return the factor within which 90 % of held-out rows lie."""
    return float(np.exp(quantile(np.abs(log_errors), COVERED_SHARE)))


def large_messages(curves: Sequence[NodesCurve]) -> list[NodesCurve]:
    """Return the rows of large messages of each curve that has any."""
    kept = [(curve, curve.size_bytes >= LARGE_BYTES) for curve in curves]
    return [
        replace(curve, size_bytes=curve.size_bytes[large], seconds=curve.seconds[large])
        for curve, large in kept
        if large.any()
    ]


def fit_network(curves: Sequence[NodesCurve]) -> Network:
    """Return the network with the least mean absolute log error."""
    inside = [_network_s(curve, Network(hops=0.0, share=np.inf)) for curve in curves]

    def error(network: Network) -> float:
        each = []
        for curve, inside_s in zip(curves, inside, strict=True):
            gpus = curve.ranks // curve.nodes
            ports_s = library_models.between_s(
                curve.collective, curve.size_bytes, curve.nodes, gpus, _cluster_of(curve), network
            )
            each.append(np.abs(np.log(np.maximum(inside_s, ports_s) / curve.seconds)).mean())
        return float(np.mean(each))

    tried = (Network(hops=float(h), share=float(s)) for h in HOPS for s in NETWORK_SHARES)
    return min(tried, key=error)


def network_log_errors(curve: NodesCurve, network: Network) -> Floats:
    """Return log(predicted / measured) of each size."""
    return np.asarray(np.log(_network_s(curve, network) / curve.seconds), np.float64)


def _network_s(curve: NodesCurve, network: Network) -> Floats:
    return collective_time(
        curve.collective,
        curve.size_bytes,
        ranks=curve.ranks,
        gpu=load_gpu(curve.system.gpu),
        cluster=_cluster_of(curve),
        dtype="fp16",
        span=curve.nodes * curve.system.gpus_per_node,
        network=network,
    ).time_s


def _cluster_of(curve: NodesCurve) -> Cluster:
    usual = cluster_for("auto", load_gpu(curve.system.gpu))
    inter = replace(usual.inter, bytes_per_s=curve.system.port_bytes_per_s)
    return replace(usual, gpus_per_node=curve.system.gpus_per_node, inter=inter)


def fit_expert_exchange(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield DeepEP's start time, and the shares of both links' bandwidth that are sustained."""
    rows = [row for row in read_exchanges(reference) if row.kernel.startswith(FITTED_VERSION)]
    errors = np.concatenate([errors for _, errors in exchanges_left_out(rows)])
    yield declared(
        "expert_exchange",
        content={"exchange": {**vars(fit_rates(rows)), "band": _band(errors)}},
        rows=len(rows),
        errors=np.expm1(errors),
    )


def exchanges_left_out(
    rows: Sequence[DeepEpExchange],
) -> Iterator[tuple[list[DeepEpExchange], Floats]]:
    """Yield the rows of each number of ranks, and their log errors by a fit to the others."""
    for mine, rates in leave_one_out(rows, lambda row: row.ranks, fit_rates):
        yield mine, exchange_log_errors(mine, rates)


def fit_rates(rows: Sequence[DeepEpExchange]) -> Rates:
    """Return the rates with the least mean absolute log error."""
    seconds = np.array([row.seconds for row in rows])
    near_s = np.array([_exchange_s(row, Rates(0.0, 1.0, np.inf)) for row in rows])
    far_s = np.array([_exchange_s(row, Rates(0.0, np.inf, 1.0)) for row in rows])

    def error(rates: Rates) -> float:
        wire_s = np.maximum(near_s / rates.inside, far_s / rates.between)
        return float(np.abs(np.log((rates.start_s + wire_s) / seconds)).mean())

    tried = product(STARTS_S.tolist(), EXCHANGE_SHARES.tolist(), EXCHANGE_SHARES.tolist())
    return min((Rates(*numbers) for numbers in tried), key=error)


def exchange_log_errors(rows: Sequence[DeepEpExchange], rates: Rates) -> Floats:
    """Return log(predicted / measured) of each row."""
    return np.array([log(_exchange_s(row, rates) / row.seconds) for row in rows])


def _exchange_s(row: DeepEpExchange, rates: Rates) -> float:
    gpu = load_gpu(row.gpu)
    place: dict[str, Any] = {"ranks": row.ranks, "gpu": gpu, "cluster": cluster_for("auto", gpu)}
    found = expert_exchange_time(row.mode, row.rank_bytes, row.routed, rates=rates, **place)
    return float(found.time_s)


def fit_kv_transfer(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield seconds per layer and sustained share of line rate of each framework's connector.

    Frameworks without measurements have the geometric means of both numbers.
    """
    rows = list(moved(reference))
    numbers = {name: dict(vars(fit_transfers(some))) for name, some in by_framework(rows).items()}
    numbers[kv_transfer.OTHER] = {
        field: float(np.exp(np.mean(np.log([one[field] for one in numbers.values()]))))
        for field in ("share", "layer_s")
    }
    yield declared(
        "kv_transfer",
        content={"transfer": numbers},
        rows=len(rows),
        errors=np.expm1([transfer_log_error(*pair) for pair in transfers_left_out(rows)]),
    )


def by_framework(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the rows of each framework."""
    return grouped(rows, lambda row: str(row.framework))


def transfers_left_out(rows: Sequence[Record]) -> Iterator[tuple[Record, kv_transfer.Transfers]]:
    """Yield each row with the numbers fitted to the other rows of its framework."""
    for some in by_framework(rows).values():
        for [row], known in leave_one_out(some, id, fit_transfers):
            yield row, known


def transfer_log_error(row: Record, known: kv_transfer.Transfers) -> float:
    """Return log(predicted / measured) of a row."""
    return log((known.layer_s * row.layers + row.line_s / known.share) / row.transfer_s)


def fit_transfers(rows: Sequence[Record]) -> kv_transfer.Transfers:
    """Return the numbers fitted to some rows."""
    columns = [(row.layers, row.line_s, row.transfer_s) for row in rows]
    layers, line_s, measured_s = np.array(columns, np.float64).T
    layer_s, lines = least_log_error(
        np.stack([layers, line_s], axis=-1),
        np.zeros(len(rows)),
        measured_s,
        np.ones(len(rows)),
        scale=np.array([LAYER_S, LINES]),
        soften=np.ones_like,
        rounds=TRANSFER_ROUNDS,
    ).tolist()
    return kv_transfer.Transfers(share=1.0 / lines, layer_s=layer_s)
