"""Fit networks: links inside a node, networks between nodes, expert exchanges and KV transfers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.fits.driver import Calibration
from lab.fits.methods import COVERED_SHARE, best_share, least_log_error, leave_one_out, quantile
from lab.tables.collectives import (
    BETWEEN_NODES,
    EXCHANGES,
    NCCL,
    TRANSFERS,
    DeepEpExchange,
    NodesCurve,
    moved,
    read_between_nodes,
    read_exchanges,
)
from lab.tables.records import gpu_name
from lab.tables.rows import Record, read_records, read_table
from simulators.catalog.cluster import THROUGH_HOST, Cluster, Link, cluster_for, load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.collectives import library_models
from simulators.collectives.library_models import Network, Rates
from simulators.collectives.price import collective_time, expert_exchange_time
from simulators.core.jit import Floats
from simulators.serving.engine import kv_transfer

RingErrors = Callable[[float], Floats]
Rings = Sequence[tuple[str, int]]

NETWORK = "llm_ops/network.parquet"
NODE_LINKS = {
    "a100_dgx": ("dgx_a100", 300e9),
    "h100_dgx": ("dgx_h100", 450e9),
    "a100_pairwise_nvlink": ("pcie_server", 31.5e9),
    "h100_pairwise_nvlink": ("pcie_server", 63e9),
}
"""Cluster and data-sheet rate of the nodes of the network table. In the pairwise nodes a ring over
four GPUs crosses PCIe."""

FITTED_RINGS: dict[str, tuple[Rings, Rings]] = {
    "nvlink3": ([("a100_dgx", 2), ("a100_dgx", 8)], [("a100_dgx", 4)]),
    "nvlink4": ([("h100_dgx", 2), ("h100_dgx", 8)], [("h100_dgx", 4)]),
    "pcie": ([("a100_pairwise_nvlink", 4)], [("h100_pairwise_nvlink", 4)]),
}
"""Rings (node, GPUs) that each fabric is fitted to, and those held out."""

HOSTS: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    "rtx_pro_6000": (("0.19.0", "0.5.10", "1.3.0rc10"), (2,)),
    "l40s": (("0.14.0", "0.22.0", "0.5.10", "0.5.14"), (4, 8)),
}
"""Releases timed on GPUs without peer access, and ranks; large all-reduces are NCCL's. The first
GPU is fitted, the second held out; two of its GPUs read each other's memory even there."""

LARGE_BYTES = 2**20
"""Smaller messages were timed with the host's launch in them."""

SUSTAINED = np.arange(0.3, 1.0 + 0.005 / 2, 0.005)


def fit_sustained(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the sustained shares of links; other fabrics have the mean."""
    columns = _large_all_reduces(reference)
    fitted, held_out = {}, []
    for fabric, (train, test) in FITTED_RINGS.items():
        fitted[fabric] = [_ring_errors(columns, node, ranks) for node, ranks in train]
        held_out += [(fabric, _ring_errors(columns, node, ranks)) for node, ranks in test]
    own, *others = HOSTS
    fitted[THROUGH_HOST] = list(_through_host(reference, own))
    held_out += [(THROUGH_HOST, e) for gpu in others for e in _through_host(reference, gpu)]
    sustained = {fabric: best_share(SUSTAINED, errors) for fabric, errors in fitted.items()}
    yield Calibration(
        file=library_models.SUSTAINED_CALIBRATION,
        content={
            "sustained": {
                "other": float(np.mean([sustained[f] for f in FITTED_RINGS])),
                **sustained,
            }
        },
        style=".3f",
        tables=[NETWORK, NCCL],
        rows=sum(error(1.0).size for errors in fitted.values() for error in errors),
        split="DGX: rings of 2 and 8 fitted, 4 held out; PCIe: A100 fitted, H100 held out; "
        "through the host: two RTX PRO 6000 fitted, four and eight L40S held out",
        errors=np.expm1(np.concatenate([errors(sustained[fabric]) for fabric, errors in held_out])),
    )


def _large_all_reduces(reference: Path) -> dict[str, NDArray[Any]]:
    """Return the columns of large all-reduces within one node."""
    table = read_table(reference / NETWORK).to_pydict()
    columns = {name: np.array(values) for name, values in table.items()}
    kept = (columns["op"] == "all_reduce") & (columns["size_bytes"] >= LARGE_BYTES)
    kept &= columns["num_workers"] == columns["devices_per_node"]
    return {name: column[kept] for name, column in columns.items()}


def _through_host(reference: Path, gpu: str) -> Iterator[RingErrors]:
    """Yield the errors of large all-reduces through the host, by number of ranks."""
    releases, counts = HOSTS[gpu]
    link = load_cluster(THROUGH_HOST).link(2, load_gpu(gpu))
    table = [
        row
        for row in read_records(reference / NCCL)
        if row["collective"] == "all_reduce"
        and row["bytes"] >= LARGE_BYTES
        and gpu_name(row["gpu"]) == gpu
        and row["library_version_folder"] in releases
    ]
    for ranks in counts:
        here = [(row["bytes"], row["time_us"] * 1e-6) for row in table if row["ranks"] == ranks]
        sizes, times_s = np.array(here).T
        yield partial(_ring_log_errors, sizes, times_s, ranks, link, ranks)


def _ring_errors(table: dict[str, NDArray[Any]], node: str, ranks: int) -> RingErrors:
    """Return the errors of the all-reduces of one ring, given the sustained share."""
    here = (table["node"] == node) & (table["num_workers"] == ranks)
    measured_s = np.asarray(table["min_ms"][here] * 1e-3, np.float64)
    name, rate = NODE_LINKS[node]
    link = dataclasses.replace(load_cluster(name).intra, bytes_per_s=rate)
    sizes = np.asarray(table["size_bytes"][here], np.float64)
    return partial(_ring_log_errors, sizes, measured_s, ranks, link, 1)


def _ring_log_errors(
    sizes: Floats, times_s: Floats, ranks: int, link: Link, sharing: int, share: float
) -> Floats:
    """Return |log(predicted / measured)| of all-reduces over a link that some ranks share."""
    predicted_s = library_models.ring_s("all_reduce", sizes, ranks, link, share / sharing)
    return np.asarray(np.abs(np.log(predicted_s / times_s)), np.float64)


INFINIBAND = ("sophia", "example-cluster01")

HOPS, NETWORK_SHARES = np.geomspace(0.5, 32.0, 13), np.arange(0.3, 1.0 + 1e-9, 0.02)


def fit_between_nodes(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the numbers of InfiniBand for rings and for exchanges."""
    curves = [
        c for c in large_messages(read_between_nodes(reference)) if c.system.name in INFINIBAND
    ]
    content, errors = {}, []
    for kind in (library_models.RINGS, library_models.EXCHANGES):
        mine = [curve for curve in curves if library_models.family(curve.collective) == kind]
        by_system = leave_one_out(mine, lambda curve: curve.system.name, fit_network)
        off = np.concatenate(
            [network_log_errors(c, network) for out, network in by_system for c in out]
        )
        found, band = fit_network(mine), np.exp(quantile(np.abs(off), COVERED_SHARE))
        content[kind] = {"hops": found.hops, "share": found.share, "band": float(band)}
        errors.append(np.expm1(off))
    yield Calibration(
        file=library_models.BETWEEN_CALIBRATION,
        content=content,
        style=".3f",
        tables=[BETWEEN_NODES],
        rows=sum(curve.seconds.size for curve in curves),
        split="InfiniBand systems, each held out of the fit to the other",
        errors=np.concatenate(errors),
    )


def large_messages(curves: Sequence[NodesCurve]) -> list[NodesCurve]:
    """Return the rows of large messages of each curve that has any."""
    kept = [(curve, curve.size_bytes >= LARGE_BYTES) for curve in curves]
    return [
        replace(curve, size_bytes=curve.size_bytes[where], seconds=curve.seconds[where])
        for curve, where in kept
        if where.any()
    ]


def fit_network(curves: Sequence[NodesCurve]) -> Network:
    """Return the network with the least mean absolute log error."""
    inside = [network_s(curve, Network(hops=0.0, share=np.inf)) for curve in curves]

    def error(network: Network) -> float:
        each = []
        for curve, inside_s in zip(curves, inside, strict=True):
            ports_s = library_models.between_s(
                curve.collective,
                curve.size_bytes,
                curve.nodes,
                curve.ranks // curve.nodes,
                cluster_of(curve),
                network,
            )
            each.append(np.abs(np.log(np.maximum(inside_s, ports_s) / curve.seconds)).mean())
        return float(np.mean(each))

    tried = (Network(hops=float(h), share=float(s)) for h in HOPS for s in NETWORK_SHARES)
    return min(tried, key=error)


def network_log_errors(curve: NodesCurve, network: Network) -> Floats:
    """Return log(predicted / measured) of each size."""
    return np.asarray(np.log(network_s(curve, network) / curve.seconds), np.float64)


def network_s(curve: NodesCurve, network: Network | None) -> Floats:
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


FITTED_VERSION = "V1"
STARTS_S, EXCHANGE_SHARES = np.arange(10e-6, 60e-6, 2e-6), np.arange(0.5, 1.0 + 1e-9, 0.02)


def fit_expert_exchange(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the numbers of DeepEP's exchanges."""
    rows = [row for row in read_exchanges(reference) if row.kernel.startswith(FITTED_VERSION)]
    errors = np.concatenate([off for _, off in exchanges_left_out(rows)])
    band = float(np.exp(quantile(np.abs(errors), COVERED_SHARE)))
    yield Calibration(
        file=library_models.EXCHANGE_CALIBRATION,
        content={"exchange": {**vars(fit_rates(rows)), "band": band}},
        style=".3g",
        tables=[EXCHANGES],
        rows=len(rows),
        split="each number of ranks in turn",
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
    near_s, far_s = (
        np.array([_exchange_s(row, alone) for row in rows])
        for alone in (Rates(0.0, 1.0, np.inf), Rates(0.0, np.inf, 1.0))
    )

    def error(rates: Rates) -> float:
        wire_s = np.maximum(near_s / rates.inside, far_s / rates.between)
        return float(np.abs(np.log((rates.start_s + wire_s) / seconds)).mean())

    tried = product(STARTS_S.tolist(), EXCHANGE_SHARES.tolist(), EXCHANGE_SHARES.tolist())
    return min((Rates(*numbers) for numbers in tried), key=error)


def exchange_log_errors(rows: Sequence[DeepEpExchange], rates: Rates | None) -> Floats:
    """Return log(predicted / measured) of each row; without rates, by the calibrated ones."""
    return np.array([float(np.log(_exchange_s(row, rates) / row.seconds)) for row in rows])


def _exchange_s(row: DeepEpExchange, rates: Rates | None) -> float:
    gpu = load_gpu(row.gpu)
    found = expert_exchange_time(
        row.mode,
        row.rank_bytes,
        row.routed,
        ranks=row.ranks,
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        rates=rates,
    )
    return float(found.time_s)


LAYER_S, LINES = 1e-5, 1.0
"""Scales of the two numbers: seconds per layer, and times the cache takes at line rate."""

TRANSFER_ROUNDS = 20


def fit_kv_transfer(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the transfers of all frameworks."""
    rows = list(moved(reference))
    found = {name: fit_transfers(of_framework(rows, name)) for name in frameworks(rows)}
    numbers = {name: {"share": one.share, "layer_s": one.layer_s} for name, one in found.items()}
    numbers[kv_transfer.OTHER] = {
        field: float(np.exp(np.mean(np.log([one[field] for one in numbers.values()]))))
        for field in ("share", "layer_s")
    }
    yield Calibration(
        file=kv_transfer.CALIBRATION,
        content={"transfer": numbers},
        tables=[TRANSFERS],
        rows=len(rows),
        split="each cache predicted from the others of its framework",
        errors=np.expm1(
            [transfer_log_error(row, others) for row, others in transfers_left_out(rows)]
        ),
    )


def frameworks(rows: Sequence[Record]) -> list[str]:
    """Return the frameworks of some rows, in the order of the rows."""
    return list(dict.fromkeys(row.framework for row in rows))


def of_framework(rows: Sequence[Record], framework: str) -> list[Record]:
    """Return the rows of a framework."""
    return [row for row in rows if row.framework == framework]


def transfers_left_out(rows: Sequence[Record]) -> Iterator[tuple[Record, kv_transfer.Transfers]]:
    """Yield each row with the numbers fitted to the other rows of its framework."""
    for name in frameworks(rows):
        for [row], known in leave_one_out(of_framework(rows, name), id, fit_transfers):
            yield row, known


def transfer_log_error(row: Record, known: kv_transfer.Transfers) -> float:
    """Return log(predicted / measured) of a row."""
    return log((known.layer_s * row.layers + row.line_s / known.share) / row.transfer_s)


def fit_transfers(rows: Sequence[Record]) -> kv_transfer.Transfers:
    """Return the numbers fitted to some rows."""
    layers, line_s, measured_s = np.array(
        [(row.layers, row.line_s, row.transfer_s) for row in rows], np.float64
    ).T
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
