"""Fit the widths of serving intervals: one part of the engine's, one from kernels and messages.

docs/explanation/deployments.md describes the fit.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.deployments import run_cache_of, run_cache_without
from lab.fits.driver import Calibration, declared, settings
from lab.fits.engines import LEFT_OUT, by_replica
from lab.fits.methods import COVERED_SHARE, grouped, interval, quantile
from lab.tables.deployments import PublicDeployment, database, silicon
from lab.tables.result_blocks import ResultBlock, blocks
from lab.tables.rows import evenly
from simulators.composition.replica import load_runtime
from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED
from simulators.evidence.lookup import BEST, LEVELS, NEW_ARCHITECTURE
from simulators.serving.deployment import Deployment
from simulators.serving.measured.deployments import point_of
from simulators.serving.measured.intervals import (
    OLDER_RELEASE,
    UNMEASURED,
    Width,
    combined_interval,
    engines_of,
    latency_intervals,
    scale,
    width_from,
)
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import prices_of
from simulators.serving.prices.hardware import Hardware
from simulators.serving.prices.iteration_table import Ends
from simulators.serving.run import RunCache, run_of

CONFIG = settings(__file__)

HIDDEN = LEVELS[0]
KNOWN = (BEST, HIDDEN, NEW_ARCHITECTURE)
"""Evidence levels of the kernels of a deployment's GPU."""


METRICS = ("tpot", "ttft")
ENGINES, ROUNDS = np.geomspace(0.01, 1.0, 201), 6
"""Candidates for an engine's part of the scale, and rounds of coordinate search over engines."""


@dataclass(frozen=True)
class PredictedDeployment:
    """A measured deployment and its prediction."""

    row: PublicDeployment | ResultBlock
    known: str  # evidence level of its kernels: one of KNOWN
    ratio: dict[str, float]  # measured over predicted, by metric
    pass_interval: dict[str, Ends]  # ends of the intervals of its passes, by metric


def fit_deployment_bands(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the interval widths of TTFT and TPOT, and those without each GPU."""
    seen, no_engine = list(predicted(reference)), run_cache_of(load_runtime(CONFIG.no_engine))
    unknown = [one for some in _loads(reference) for one in _predicted(no_engine, BEST, some)]
    printed = list(printed_by_older(reference))
    content: dict[str, Any] = {"width": {}, "tail": {}}
    without: dict[str, Any] = {gpu: {} for gpu in sorted({one.row.gpu for one in seen})}
    of_page: dict[str, Any] = {page: {OLDER_RELEASE: {}} for page in sorted(map(page_of, printed))}
    errors = []
    for metric in METRICS:
        widths = widths_of(metric, seen) | widths_of(metric, unknown, lambda _: UNMEASURED)
        widths |= widths_of(metric, printed, lambda _: OLDER_RELEASE)
        for engine, width in widths.items():
            content["width"].setdefault(engine, {})[metric] = asdict(width)
        for gpu, found in without.items():
            widths = widths_of(metric, [one for one in seen if one.row.gpu != gpu])
            for engine, width in widths.items():
                found.setdefault(engine, {})[metric] = asdict(width)
            tested = [one for one in seen if one.row.gpu == gpu]
            errors += [_outside(one, metric, widths[one.row.framework]) for one in tested]
        for page in of_page:
            others = [one for one in printed if page_of(one) != page]
            width = widths_of(metric, others, lambda _: OLDER_RELEASE)[OLDER_RELEASE]
            of_page[page][OLDER_RELEASE][metric] = asdict(width)
    tails = list(_tail_rows(reference))
    content["tail"] = tail_ends(tails, content["width"])
    tails_without = {
        gpu: tail_ends([one for one in tails if one.gpu != gpu], content["width"])
        for gpu in sorted({one.gpu for one in tails})
    }
    whole = declared("deployment_bands", content=content, rows=len(seen), errors=errors)
    whole = replace(whole, provenance={"tails": len(tails)})
    yield whole
    yield replace(
        whole,
        file=LEFT_OUT / whole.file.name,
        content={"without": without | of_page, "tails": tails_without},
    )


def predicted(reference: Path, known: Sequence[str] = KNOWN) -> Iterator[PredictedDeployment]:
    """Yield predictions of some loads of every replica, at each evidence level of its kernels.

    Their groups are left out of engines' constants; messages and clocks stay as measured.
    """
    for some in _loads(reference):
        for level in known:
            cache = cache_knowing(level, run_cache_without(some[0].runtime, some[0].group))
            yield from _predicted(cache, level, some)


def printed_by_older(reference: Path) -> Iterator[PredictedDeployment]:
    """Yield predictions of results in documentation under releases before the fitted ones."""
    for block in blocks(reference)[0]:
        if OLDER_RELEASE in engines_of(load_runtime(block.point.runtime)):
            cache = run_cache_without(block.point.runtime, block.group, block.decode)
            yield from _ratios(cache, BEST, block, block.point)


def page_of(one: PredictedDeployment) -> str:
    """Return the documentation page of a printed result."""
    assert isinstance(one.row, ResultBlock)
    return one.row.path


def _loads(reference: Path) -> Iterator[list[PublicDeployment]]:
    rows = [row for row in silicon(reference) if not row.excluded]
    for indices in by_replica(rows).values():
        yield [rows[indices[i]] for i in evenly(len(indices), CONFIG.loads)]


def cache_knowing(level: str, cache: RunCache) -> RunCache:
    """Return a run cache whose kernels are priced at an evidence level and no better."""
    measured = cache.deployment

    def deployment(point: object) -> Deployment:
        found = measured(point)  # type: ignore[arg-type]
        replica = replace(found.hardware.replica, level=level)
        return replace(found, hardware=Hardware(f"{found.hardware.description} {level}", replica))

    if level != BEST:
        cache.deployment = deployment
    return cache


def _predicted(
    cache: RunCache, level: str, some: Sequence[PublicDeployment]
) -> Iterator[PredictedDeployment]:
    for row in some:
        yield from _ratios(cache, level, row, point_of(row))


def _ratios(
    cache: RunCache, level: str, row: PublicDeployment | ResultBlock, point: ServingPoint
) -> Iterator[PredictedDeployment]:
    with contextlib.suppress(Infeasible, UserError):
        metrics = run_of(point, cache=cache).metrics()
        table, _ = prices_of(point, cache.deployment(point).hardware)
        ours = {"tpot": metrics.tpot_mean_s, "ttft": metrics.ttft_mean_s}
        ratio = {m: getattr(row, f"{m}_s") / seconds for m, seconds in ours.items()}
        yield PredictedDeployment(row, level, ratio, dict(table.reach))


def widths_of(
    metric: str,
    seen: Sequence[PredictedDeployment],
    engine_of: Callable[[PredictedDeployment], str] = lambda one: one.row.framework,
) -> dict[str, Width]:
    """Return the widths of a metric by engine.

    Engines' parts are fitted together. One multiple of the scale below and one above cover, on
    every GPU with rows enough to tell, all but 5 % of its rows each.
    """
    off = np.log([one.ratio[metric] for one in seen])
    pass_intervals = np.array([one.pass_interval[metric] for one in seen])
    engines = np.array([engine_of(one) for one in seen])
    names = list(dict.fromkeys(engines.tolist()))
    scales = np.stack([scale(part, pass_intervals) for part in ENGINES.tolist()])
    part, of_all = dict.fromkeys(names, 0.0), scales[0]
    for name in names * ROUNDS:
        tried = [np.where(engines == name, one, of_all) for one in scales]
        best = int(np.argmin([_negative_log_likelihood(off, one) for one in tried]))
        part[name], of_all = float(ENGINES[best]), tried[best]
    for name in names:
        groups = {one.row.group for one in seen if engine_of(one) == name}
        part[name] *= 1.0 + CONFIG.next / len(groups)
    multiple = off / scale(np.array([part[name] for name in engines.tolist()]), pass_intervals)
    of_gpu = grouped(zip(seen, multiple, strict=True), lambda pair: pair[0].row.gpu).values()
    enough = [some for some in of_gpu if len(some) * COVERED[0] >= 1.0] or [
        [*zip(seen, multiple, strict=True)]
    ]
    ends = np.array([quantile([one for _, one in some], COVERED) for some in enough])
    below, above = np.maximum((ends * (-1.0, 1.0)).max(axis=0), CONFIG.least_side).tolist()
    return {name: Width(one, below, above) for name, one in part.items()}


def _negative_log_likelihood(off: Floats, scales: Floats) -> float:
    return float(np.log(np.mean(np.abs(off) / scales)) + np.mean(np.log(scales)))


def _outside(one: PredictedDeployment, metric: str, width: Width) -> float:
    """Return the distance of a measurement from its interval, as a share of the interval's end."""
    low, high = width.interval(one.pass_interval[metric])
    return max(0.0, low / one.ratio[metric] - 1.0, one.ratio[metric] / high - 1.0)


DOCUMENTED, LISTED = "documentation", "InferenceX"
"""Sources of 99th percentiles."""

SHARES = np.linspace(0.0, 1.0, 21)


@dataclass(frozen=True)
class Tail:
    """Percentiles of a result, measured and predicted, and the intervals of its passes."""

    source: str
    gpu: str
    runtime: str
    p99: Mapping[str, float]  # measured over predicted, by metric; NaN if unknown
    spread: Mapping[str, float]  # the same of the 99th percentile over the mean
    pass_interval: Mapping[str, Ends]


def tail_ends(rows: Sequence[Tail], widths: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ends of the error of a 99th percentile over the mean, by metric.

    They are quantiles over documentation pages, whose loads differ most. Those of TPOT are scaled
    to the least share with which the intervals cover 90 % of both sources, which have equal weight.
    InferenceX's TTFT has stalls of fresh servers, and is left out.
    """
    pages = [one for one in rows if one.source == DOCUMENTED]
    found = {}
    for metric in METRICS:
        ratios = np.array([one.spread[metric] for one in pages])
        found[metric] = {"ends": interval(ratios[~np.isnan(ratios)])}
    low, high = found["tpot"]["ends"]
    covered = [(one, _mean_ends(one, "tpot", widths)) for one in rows]

    def is_enough(share: float) -> bool:
        ends = (low**share, high**share)
        inside = {
            source: np.mean(
                [_covers(one, mean, ends) for one, mean in covered if one.source == source]
            )
            for source in {one.source for one in rows}
        }
        return float(np.mean(list(inside.values()))) >= COVERED_SHARE

    share = next((share for share in SHARES.tolist() if is_enough(share)), 1.0)
    found["tpot"]["ends"] = low**share, high**share
    return found


def _mean_ends(one: Tail, metric: str, widths: Mapping[str, Any]) -> Ends:
    def width_of(engine: str, metric: str) -> Width:
        return width_from(widths[engine][metric])

    return latency_intervals(one.runtime, one.pass_interval, width_of)[metric]


def _covers(one: Tail, mean: Ends, tail: Ends) -> bool:
    low, high = combined_interval(mean, tail)
    return low <= one.p99["tpot"] <= high


def _tail_rows(reference: Path) -> Iterator[Tail]:
    cache_of = functools.cache(run_cache_without)
    for block in blocks(reference)[0]:
        cache = cache_of(block.point.runtime, block.group)
        yield from _tail(DOCUMENTED, block, block.point, cache)
    for row in database(reference):
        yield from _tail(LISTED, row, point_of(row), cache_of(row.runtime, row.model))


def _tail(
    source: str, row: ResultBlock | PublicDeployment, point: ServingPoint, cache: RunCache
) -> Iterator[Tail]:
    with contextlib.suppress(Infeasible, UserError):
        ours = run_of(point, cache=cache).metrics()
        p99, spread = {}, {}
        for metric in METRICS:
            p99_s, mean_s = getattr(ours, f"{metric}_p99_s"), getattr(ours, f"{metric}_mean_s")
            measured_s = getattr(row, f"{metric}_p99_s") or np.nan
            p99[metric] = measured_s / p99_s
            spread[metric] = p99[metric] * mean_s / getattr(row, f"{metric}_s")
        table, _ = prices_of(point, cache.deployment(point).hardware)
        if not np.isnan(p99["tpot"]):
            yield Tail(source, point.gpu, point.runtime, p99, spread, dict(table.reach))
