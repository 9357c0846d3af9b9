"""Fit networks: curves of collectives, links, expert exchanges and KV transfers.

One file per GPU has a curve per library, collective, precision and number of ranks. A user's own
rows have the columns `collective, dtype, ranks, bytes, time_us`, a handful per curve.
docs/explanation/collectives.md describes the fits.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits import methods
from lab.fits.driver import Calibration, chosen, declared, rounded, settings
from lab.fits.methods import COVERED_SHARE, best_share, grouped, leave_one_out, matern, quantile
from lab.tables import collectives as tables
from lab.tables.collectives import Curves, DeepEpExchange, Key, Libraries, NodesCurve
from lab.tables.records import gpu_name
from lab.tables.rows import Bools, Record, read_records
from simulators.catalog.cluster import THROUGH_HOST, Cluster, Link, cluster_for, load_cluster
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.collectives import library_models
from simulators.collectives.library_models import ExchangeTraffic, Network, Rates, exchange_s
from simulators.collectives.measured import GROWTH, OCTAVES, OWN_CALIBRATIONS, Curve, busbw_factor
from simulators.collectives.price import collective_time, expert_exchange_traffic
from simulators.core.jit import Floats, Ints
from simulators.serving.engine import kv_transfer

CONFIG = settings(__file__)


Trend = tuple[float, float]
"""Start time of a message, and bytes per second."""


def _trend_log_s(trend: Trend, octave: Floats) -> Floats:
    return np.log(trend[0] + np.exp2(octave) / trend[1])


def fit_trend(octave: Floats, log_s: Floats) -> Trend:
    """Return the trend with the least mean |log error|, by search on a grid."""
    size, seconds = np.exp2(octave), np.exp(log_s)
    starts = seconds.min() * np.linspace(0.6, 1.05, 19)
    rates = (size / seconds).max() * np.geomspace(0.8, 1.6, 29)
    plain = starts[:, None, None] + size / rates[None, :, None]
    errors = np.abs(np.log(plain) - log_s).mean(axis=2)
    best = np.unravel_index(np.argmin(errors), errors.shape)
    return float(starts[best[0]]), float(rates[best[1]])


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process: the linear trend of every curve, and a weight for every row."""

    seen: Curves
    trends: dict[int, Trend]
    weights: Floats

    def log_s(self, curve: Ints, octave: Floats) -> Floats:
        """Return log seconds at sizes of measured curves."""
        log_s = _covariance(self.seen, curve, octave) @ self.weights
        for code, trend in self.trends.items():
            mine = curve == code
            log_s[mine] += _trend_log_s(trend, octave[mine])
        return log_s


def learn(seen: Curves) -> GaussianProcess:
    """Return the process fitted to some rows."""
    residual = np.zeros_like(seen.log_s)
    trends = {}
    for code in np.unique(seen.curve).tolist():
        mine = seen.curve == code
        trends[code] = fit_trend(seen.octave[mine], seen.log_s[mine])
        residual[mine] = seen.log_s[mine] - _trend_log_s(trends[code], seen.octave[mine])
    gram = _covariance(seen, seen.curve, seen.octave)
    variance = np.full(residual.size, CONFIG.noise**2)
    for _ in range(CONFIG.rounds):
        weights = np.linalg.solve(gram + np.diag(variance), residual).astype(np.float64)
        left = weights * variance
        variance = np.maximum(
            (CONFIG.tail * CONFIG.noise**2 + left**2) / (CONFIG.tail + 1.0), CONFIG.noise**2
        )
    return GaussianProcess(seen, trends, weights)


def _covariance(seen: Curves, curve: Ints, octave: Floats) -> Floats:
    near = matern((octave[:, None] - seen.octave[None, :]) / CONFIG.length_octaves)
    labels = np.array([[collective, dtype, str(ranks)] for collective, dtype, ranks in seen.keys])
    same = labels[:, None, :] == labels[None, :, :]
    likeness = np.where(
        same, 1.0, [CONFIG.other_collective, CONFIG.other_dtype, CONFIG.other_ranks]
    ).prod(axis=2)
    alike = CONFIG.departure**2 * likeness + CONFIG.own**2 * same.all(axis=2)
    return np.asarray(near * alike[np.ix_(curve, seen.curve)], np.float64)


LEAST_BAND = 1.645 * CONFIG.noise
"""Least half-width: 90 % of the versions of a library differ by less."""


Growth = dict[str, tuple[Floats, Floats]]
"""Log ratios of times when ranks double, by GPU, each with the wire's weight."""

GROWTH_GRID = np.arange(*CONFIG.growth_grid)


def fit_collectives(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the curves of each GPU of the measured table, and `growth`."""
    table = tables.read_libraries(reference)
    for gpu in chosen(only, [*table, GROWTH.stem]):
        if gpu == GROWTH.stem:
            yield _growth(table)
        else:
            yield _curves(table[gpu], name=gpu)


def measured_collectives(measured: Path, device: str) -> Iterator[Calibration]:
    """Yield the curves of a user's own interconnect, under the name of its GPU."""
    file = OWN_CALIBRATIONS / f"{device}.toml"
    yield _curves({"nccl": tables.read_own(measured)}, file=file, tables=[measured])


def held_out_errors(measured: Curves, *, has_departures: bool = True) -> tuple[Curves, Floats]:
    """Return inner sizes with their log errors in the fold that holds them out.

    A size is held out in all precisions at once, as they were measured together.
    """
    errors = np.full(measured.curve.size, np.nan)
    for out in _folds(measured):
        errors[out] = errors_of(measured, out, has_departures=has_departures)
    inner = ~np.isnan(errors)
    return measured.take(inner), errors[inner]


def errors_of(measured: Curves, out: Bools, *, has_departures: bool = True) -> Floats:
    """Return the log errors of some rows, by stored curves of all others."""
    seen, asked = measured.take(~out), measured.take(out)
    return stored_log_s(seen, asked, has_departures=has_departures) - asked.log_s


def stored_log_s(seen: Curves, asked: Curves, *, has_departures: bool = True) -> Floats:
    """Return log seconds of rows of the same curves; without departures, `start + bytes / rate`."""
    curves, log_s = fitted_curves(seen, with_bands=False), np.empty_like(asked.log_s)
    for code in np.unique(asked.curve).tolist():
        mine, curve = asked.curve == code, curves[asked.keys[code]]
        if not has_departures:
            curve = replace(curve, departure=(0.0,))
        log_s[mine] = np.log(curve.time_s(np.exp2(asked.octave[mine])))
    return log_s


def held_out_coverage(measured: Curves) -> Bools:
    """Return a mask of the inner sizes that an interval fitted without them covers."""
    covered = [np.zeros(0, bool)]
    for out in _folds(measured):
        bands = _bands(*held_out_errors(measured.take(~out)))
        covered.append(np.abs(errors_of(measured, out)) <= bands[measured.curve[out]])
    return np.concatenate(covered)


def _folds(measured: Curves) -> Iterator[Bools]:
    fold = np.full(measured.curve.size, -1)  # of inner sizes
    shape = [(collective, ranks) for collective, _, ranks in measured.keys]
    for together in set(shape):
        mine = np.flatnonzero(np.array([one == together for one in shape])[measured.curve])
        sizes = np.unique(measured.octave[mine])
        rank = np.searchsorted(sizes, measured.octave[mine])
        is_inner = (rank > 0) & (rank < sizes.size - 1)
        fold[mine] = np.where(is_inner, rank % CONFIG.folds, -1)
    yield from (fold == held for held in range(CONFIG.folds) if (fold == held).any())


def errors_between(measured: Curves, key: Key) -> Floats:
    """Return log errors of a curve interpolated between half and twice its ranks."""
    curves = fitted_curves(measured, with_bands=False)
    half, twice = (key[0], key[1], key[2] // 2), (key[0], key[1], key[2] * 2)
    if half not in curves or twice not in curves:
        return np.zeros(0)
    mine = measured.of(key)
    wire = np.exp2(measured.octave[mine]) * busbw_factor(key[0], key[2])
    low, high = (np.log(curves[k].time_s(wire / busbw_factor(key[0], k[2]))) for k in (half, twice))
    return np.asarray((low + high) / 2.0 - measured.log_s[mine], np.float64)


@functools.lru_cache(maxsize=32)
def fitted_curves(measured: Curves, *, with_bands: bool = True) -> dict[Key, Curve]:
    """Return the curve of every collective, precision and rank count."""
    bands = _bands(*held_out_errors(measured)) if with_bands else np.zeros(len(measured.keys))
    process, curves = learn(measured), {}
    for code, trend in process.trends.items():
        key = measured.keys[code]
        octave = measured.octave[measured.of(key)]
        grid = np.arange(np.floor(octave.min()), np.ceil(octave.max()) + OCTAVES, OCTAVES)
        departure = process.log_s(np.full(grid.size, code), grid) - _trend_log_s(trend, grid)
        curves[key] = Curve(
            start_s=float(f"{trend[0]:.4g}"),
            bytes_per_s=float(f"{trend[1]:.4g}"),
            first_octave=float(grid[0]),
            departure=tuple(round(float(x), 3) for x in departure),
            band=round(float(bands[code]), 3),
            measured_from=round(float(octave.min()), 3),
            measured_to=round(float(octave.max()), 3),
        )
    return curves


def _bands(held: Curves, errors: Floats) -> Floats:
    """Return the half-width of each curve: that of the library, or its own if wider."""
    wide = max(_band(errors), LEAST_BAND)
    own = [errors[held.of(key)] for key in held.keys]
    return np.array([max(wide, _band(part)) if part.size else wide for part in own])


def _band(errors: Floats) -> float:
    return float(quantile(np.abs(errors), COVERED_SHARE)) if errors.size else 0.25


def _curves(libraries: dict[str, Curves], **fields: Any) -> Calibration:
    curves: list[dict[str, Any]] = []
    for library, measured in sorted(libraries.items()):
        for (collective, dtype, ranks), curve in fitted_curves(measured).items():
            labels = {"library": library, "collective": collective, "dtype": dtype, "ranks": ranks}
            curves.append({**labels, **vars(curve)})
    errors, simpler = (
        np.concatenate([held_out_errors(m, has_departures=full)[1] for m in libraries.values()])
        for full in (True, False)
    )
    return declared(
        "collectives",
        **fields,
        content={"curve": curves},
        rows=sum(m.curve.size for m in libraries.values()),
        errors=np.expm1(errors),
        provenance=simpler_form("start and rate alone", simpler),
    )


def simpler_form(words: str, log_errors: Floats) -> dict[str, Any]:
    """Return the provenance of the same rows held out of a form with fewer numbers."""
    return {"simpler": words, "simpler_mape": round(float(np.abs(np.expm1(log_errors)).mean()), 4)}


def doublings(table: Libraries, gpus: Sequence[str], collective: str) -> Growth:
    """Return growth from 4 to 8 ranks at equal bytes on the wire."""
    seen: Growth = {}
    for gpu in gpus:
        if (measured := table.get(gpu, {}).get("nccl")) is None:
            continue
        curves, found = fitted_curves(measured, with_bands=False), []
        for key in measured.keys:
            half = (key[0], key[1], 4)
            if key[0] == collective and key[2] == 8 and half in curves:
                mine = measured.of(key)
                wire = np.exp2(measured.octave[mine])
                wire *= busbw_factor(collective, 8) / busbw_factor(collective, 4)
                ratio = measured.log_s[mine] - np.log(curves[half].time_s(wire))
                found.append((curves[half].weight(wire), ratio))
        if found:
            weights, ratios = zip(*found, strict=True)
            seen[gpu] = np.concatenate(weights), np.concatenate(ratios)
    return seen


def smoothed(seen: Growth, weight: Floats) -> Floats:
    """Return the mean log growth of rows near each weight."""
    weights, ratios = (np.concatenate(column) for column in zip(*seen.values(), strict=True))
    near = np.exp(-0.5 * ((weight[:, None] - weights[None, :]) / CONFIG.smoothing) ** 2) + 1e-9
    return np.asarray((near * ratios).sum(axis=1) / near.sum(axis=1), np.float64)


def growth_errors(table: Libraries, gpus: Sequence[str], collective: str) -> dict[str, Floats]:
    """Return, by GPU, log errors at 8 ranks of growth fitted to the other GPUs."""
    seen = doublings(table, gpus, collective)
    return {
        gpu: smoothed({name: rows for name, rows in seen.items() if name != gpu}, weight) - ratio
        for gpu, (weight, ratio) in seen.items()
        if len(seen) > 1
    }


def growth_coverage(table: Libraries, gpus: Sequence[str], collective: str) -> Bools:
    """Return a mask of rows at 8 ranks that intervals fitted to the other GPUs cover."""
    covered = [np.zeros(0, bool)]
    for gpu, errors in growth_errors(table, gpus, collective).items():
        others = growth_errors(table, [o for o in gpus if o != gpu], collective)
        covered.append(np.abs(errors) <= _band(np.concatenate(list(others.values()))))
    return np.concatenate(covered)


def _growth(table: Libraries) -> Calibration:
    content: dict[str, Any] = {}
    on_nvlink, without = [], []
    for fabric, gpus in (("nvlink", CONFIG.nvlink), ("pcie", CONFIG.pcie)):
        content[fabric] = {}
        for collective in CONFIG.collectives:
            errors = np.concatenate(list(growth_errors(table, gpus, collective).values()))
            seen = doublings(table, gpus, collective)
            if fabric == "nvlink":
                on_nvlink.append(errors)
                without += [-ratio for _, ratio in seen.values()]
            growth = smoothed(seen, GROWTH_GRID)
            content[fabric][collective] = rounded(
                {"log_growth": growth, "band": _band(errors)}, ".3f"
            )
    held = np.concatenate(on_nvlink)
    return declared(
        "growth",
        content=content,
        rows=held.size,
        errors=np.expm1(held),
        provenance={
            "weight": GROWTH_GRID.tolist(),
            **simpler_form("no growth", np.concatenate(without)),
        },
    )


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
    tried = np.arange(*CONFIG.sustained)
    sustained = {
        fabric: best_share(tried, [ring.log_errors for ring in fitted if ring.fabric == fabric])
        for fabric in dict.fromkeys(ring.fabric for ring in fitted)
    }
    in_nodes = dict.fromkeys(ring["fabric"] for ring in CONFIG["ring"])
    other = float(np.mean([sustained[fabric] for fabric in in_nodes]))
    errors = [ring.log_errors(sustained[ring.fabric]) for ring in held_out]
    yield declared(
        "sustained",
        content={"sustained": {"other": other, **sustained}},
        rows=sum(ring.seconds.size for ring in fitted),
        errors=np.expm1(np.concatenate(errors)),
    )


def _rings(reference: Path, which: str) -> Iterator[Ring]:
    rows = read_records(reference / CONFIG.node_table, op="all_reduce")
    for ring in CONFIG["ring"]:
        link = replace(load_cluster(ring["cluster"]).intra, bytes_per_s=ring["bytes_per_s"])
        for ranks in ring[which]:
            times = [
                (row.size_bytes, row.min_ms * 1e-3)
                for row in rows
                if row.node == ring["node"] and row.num_workers == row.devices_per_node == ranks
            ]
            yield Ring(ring["fabric"], *_large(times), ranks, link)
    nccl = [row for row in read_records(reference / tables.NCCL) if row.collective == "all_reduce"]
    for host in CONFIG["through_host"]:
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
    sizes, seconds = np.array([one for one in times if one[0] >= CONFIG.large_bytes], np.float64).T
    return sizes, seconds


HOPS = tuple(np.geomspace(*CONFIG.hops).tolist())


def fit_between_nodes(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the sustained share of InfiniBand: of rings, and of exchanges.

    Every curve has the same weight. Hops take as long as NCCL estimates, as the latency of one
    system does not carry over to the other. Errors are those of large messages.
    """
    curves = without_launch_bound_messages(tables.read_between_nodes(reference))
    curves = [curve for curve in curves if curve.system.name in CONFIG.infiniband]
    content, errors, simpler = {}, [], []
    for kind in (library_models.RINGS, library_models.EXCHANGES):
        mine = [curve for curve in curves if library_models.family(curve.collective) == kind]
        by_system = leave_one_out(mine, lambda curve: curve.system.name, fit_share)
        log_errors = [network_log_errors(one, found) for out, found in by_system for one in out]
        ideal = Network(share=1.0)
        simpler += [network_log_errors(curve, ideal) for curve in mine]
        errors_of_kind = np.concatenate(log_errors)
        content[kind] = {"share": fit_share(mine).share, "band": _factor(errors_of_kind)}
        errors.append(np.expm1(errors_of_kind))
    yield declared(
        "between_nodes",
        content=content,
        rows=sum(curve.seconds.size for curve in curves),
        errors=np.concatenate(errors),
        provenance=simpler_form("NCCL's estimate", np.concatenate(simpler)),
    )


def _factor(log_errors: Floats) -> float:
    return float(np.exp(quantile(np.abs(log_errors), COVERED_SHARE)))


def without_launch_bound_messages(curves: Sequence[NodesCurve]) -> list[NodesCurve]:
    """Return the curves with large messages, without messages that measure host launches."""
    kept = [(curve, curve.size_bytes >= CONFIG.hop_bytes) for curve in curves]
    return [
        replace(curve, size_bytes=curve.size_bytes[mask], seconds=curve.seconds[mask])
        for curve, mask in kept
        if curve.size_bytes.max() >= CONFIG.large_bytes
    ]


def fit_share(curves: Sequence[NodesCurve]) -> Network:
    """Return the network with the least mean absolute log error whose hops NCCL estimates."""
    return fit_network(curves, hops=(1.0,))


def fit_network(curves: Sequence[NodesCurve], hops: Sequence[float] = HOPS) -> Network:
    """Return the network with the least mean absolute log error."""
    inside = [_network_s(curve, Network(share=np.inf, hops=0.0)) for curve in curves]

    def error(network: Network) -> float:
        each = []
        for curve, inside_s in zip(curves, inside, strict=True):
            gpus = curve.ranks // curve.nodes
            ports_s = library_models.between_s(
                curve.collective, curve.size_bytes, curve.nodes, gpus, _cluster_of(curve), network
            )
            each.append(np.abs(np.log(np.maximum(inside_s, ports_s) / curve.seconds)).mean())
        return float(np.mean(each))

    tried = product(np.arange(*CONFIG.network_shares).tolist(), hops)
    return min((Network(*numbers) for numbers in tried), key=error)


def network_log_errors(curve: NodesCurve, network: Network) -> Floats:
    """Return log(predicted / measured) of each large message."""
    is_large = curve.size_bytes >= CONFIG.large_bytes
    return np.asarray(np.log(_network_s(curve, network) / curve.seconds)[is_large], np.float64)


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
    """Yield start times of DeepEP's exchanges and the rates they sustain, by mode."""
    rows, content, errors, simpler = fitted_exchanges(reference), {}, [], []
    for mode, mine in grouped(rows, lambda row: row.mode).items():
        left_out = [found for key in STRICT for _, found, _ in exchanges_left_out(mine, key)]
        rates = fit_rates(mine)
        kept = {name: number for name, number in vars(rates).items() if name != "band"}
        if mode == library_models.LOW_LATENCY:
            del kept["copied_bytes_per_s"]  # its kernels use all SMs
        content[mode] = {**kept, "band": _factor(np.concatenate(left_out))}
        errors += left_out
        ideal = Rates(near_s=0.0, far_s=0.0, inside=1.0, between=1.0)
        simpler += [exchange_log_errors(mine, ideal)] * len(STRICT)
    yield declared(
        "expert_exchange",
        content=content,
        rows=len(rows),
        errors=np.expm1(np.concatenate(errors)),
        provenance=simpler_form("data sheet's links", np.concatenate(simpler)),
    )


LEFT_OUT: dict[str, Callable[[DeepEpExchange], object]] = {
    "ranks": lambda row: row.ranks,
    "gpu": lambda row: row.gpu,
    "source": lambda row: row.kernel.startswith(CONFIG.fitted_version),
}
"""Groups of exchanges that are left out in turn: DeepEP's own tests, of one size, are one source, a
collector of SGLang's kernels the other."""

STRICT = ("ranks", "gpu")
"""Groups whose errors without them are those of the stored file."""


def fitted_exchanges(reference: Path) -> list[DeepEpExchange]:
    """Return the exchanges of both sources that rates are fitted to."""
    own = tables.read_exchanges(reference)
    own = [row for row in own if row.kernel.startswith(CONFIG.fitted_version)]
    return [*own, *tables.read_collected(reference)]


def exchanges_left_out(
    rows: Sequence[DeepEpExchange], key: str
) -> Iterator[tuple[list[DeepEpExchange], Floats, float]]:
    """Yield the rows of each group, their log errors by a fit to other groups, and a band.

    The band holds nine of ten errors of the other groups, each by a fit without it.
    """
    known = leave_one_out(rows, LEFT_OUT[key], fit_rates)
    found = [(mine, exchange_log_errors(mine, rates)) for mine, rates in known]
    for place, (mine, errors) in enumerate(found):
        others = [other for i, (_, other) in enumerate(found) if i != place]
        yield mine, errors, _factor(np.concatenate(others))


def fit_rates(rows: Sequence[DeepEpExchange]) -> Rates:
    """Return the rates with the least mean absolute log error, of exchanges of one mode.

    One number after another is moved to its best candidate. Every number of ranks of a GPU and
    source has the same weight.
    """
    parts, seconds = _traffic(rows), np.array([row.seconds for row in rows])
    groups = [(row.kernel, row.gpu, row.ranks) for row in rows]
    counts = Counter(groups)
    weights = np.array([1.0 / counts[group] for group in groups])

    def error(rates: Rates) -> float:
        log_errors = np.log(exchange_s(*parts, rates) / seconds)
        return float(np.average(np.abs(log_errors), weights=weights))

    shares, starts_s = np.arange(*CONFIG.exchange_shares), np.arange(*CONFIG.starts_s)
    candidates = {"near_s": starts_s, "far_s": starts_s, "inside": shares, "between": shares}
    candidates["copied_bytes_per_s"] = np.arange(*CONFIG.copies)
    best = Rates(**{name: float(np.median(tried)) for name, tried in candidates.items()})
    for _, name in product(range(CONFIG.exchange_rounds), candidates):
        tried = (replace(best, **{name: value}) for value in candidates[name].tolist())
        best = min((best, *tried), key=error)
    return best


def exchange_log_errors(rows: Sequence[DeepEpExchange], rates: Rates) -> Floats:
    """Return log(predicted / measured) of each row."""
    seconds = np.array([row.seconds for row in rows])
    return np.asarray(np.log(exchange_s(*_traffic(rows), rates) / seconds), np.float64)


def _traffic(rows: Sequence[DeepEpExchange]) -> tuple[ExchangeTraffic, Bools]:
    """Return the traffic of exchanges, as columns, and a mask of those over several nodes."""
    each = [_traffic_of(row) for row in rows]
    columns = (
        np.array(column) for column in zip(*(vars(one).values() for one in each), strict=True)
    )
    is_far = np.array([row.ranks > _usual(row.gpu)[1].gpus_per_node for row in rows])
    return ExchangeTraffic(*columns), is_far


@functools.lru_cache(maxsize=8192)
def _traffic_of(row: DeepEpExchange) -> ExchangeTraffic:
    gpu, cluster = _usual(row.gpu)
    size = np.asarray(row.rank_bytes)
    return expert_exchange_traffic(
        row.mode, size, row.routed, ranks=row.ranks, gpu=gpu, cluster=cluster
    )


def _usual(name: str) -> tuple[Gpu, Cluster]:
    gpu = load_gpu(name)
    return gpu, cluster_for("auto", gpu)


def fit_kv_transfer(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield seconds per layer and sustained share of line rate of each framework's connector.

    Frameworks without measurements have the geometric means of both numbers.
    """
    rows = list(tables.moved(reference))
    of_framework = grouped(rows, lambda row: str(row.framework)).items()
    numbers = {name: dict(vars(fit_transfers(some))) for name, some in of_framework}
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


def transfers_left_out(rows: Sequence[Record]) -> Iterator[tuple[Record, kv_transfer.Transfers]]:
    """Yield each row with the numbers fitted to the other rows of its framework."""
    for some in grouped(rows, lambda row: row.framework).values():
        for [row], known in leave_one_out(some, id, fit_transfers):
            yield row, known


def transfer_log_error(row: Record, known: kv_transfer.Transfers) -> float:
    """Return log(predicted / measured) of a row."""
    return log((known.layer_s * row.layers + row.line_s / known.share) / row.transfer_s)


def fit_transfers(rows: Sequence[Record]) -> kv_transfer.Transfers:
    """Return the numbers fitted to some rows."""
    columns = [(row.layers, row.line_s, row.transfer_s) for row in rows]
    layers, line_s, measured_s = np.array(columns, np.float64).T
    layer_s, lines = methods.least_log_error(
        np.stack([layers, line_s], axis=-1),
        np.zeros(len(rows)),
        measured_s,
        np.ones(len(rows)),
        scale=np.array([CONFIG.layer_s, CONFIG.lines]),
        soften=np.ones_like,
        rounds=CONFIG.transfer_rounds,
    ).tolist()
    return kv_transfer.Transfers(share=1.0 / lines, layer_s=layer_s)
