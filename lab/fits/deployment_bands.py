"""Fit the widths of serving intervals: one part of the engine's, one from kernels and messages.

docs/explanation/deployments.md describes the fit.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.deployments import run_cache_of, run_cache_without
from lab.fits.driver import Calibration, declared, settings
from lab.fits.engines import LEFT_OUT, by_replica
from lab.fits.methods import grouped, interval, quantile
from lab.tables.deployments import PublicDeployment, silicon
from lab.tables.result_blocks import ResultBlock, blocks
from lab.tables.rows import evenly
from simulators.composition.replica import load_runtime
from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED
from simulators.evidence.lookup import BEST, LEVELS, NEW_ARCHITECTURE
from simulators.serving.deployment import Deployment, Hardware
from simulators.serving.measured_deployments import (
    OLDER_RELEASE,
    UNMEASURED,
    Width,
    engines_of,
    point_of,
    scale,
)
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import prices_of
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
    for metric, ratio in tails(reference).items():
        content["tail"][metric] = {"ends": interval(ratio)}
    whole = declared("deployment_bands", content=content, rows=len(seen), errors=errors)
    yield whole
    yield replace(whole, file=LEFT_OUT / whole.file.name, content={"without": without | of_page})


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


def tails(reference: Path) -> dict[str, Floats]:
    """Return measured over predicted ratios of the 99th percentile to the mean, by metric."""
    cache = functools.cache(run_cache_without)

    def ratios(block: ResultBlock) -> Floats:
        ours = run_of(block.point, cache=cache(block.point.runtime, block.group)).metrics()
        p99 = np.array([block.ttft_p99_s, block.tpot_p99_s], np.float64)
        mean = np.array([block.ttft_s, block.tpot_s], np.float64)
        our_p99 = np.array([ours.ttft_p99_s, ours.tpot_p99_s], np.float64)
        our_mean = np.array([ours.ttft_mean_s, ours.tpot_mean_s], np.float64)
        return np.asarray(p99 / mean * our_mean / our_p99, np.float64)

    found = []
    for block in blocks(reference)[0]:
        with contextlib.suppress(Infeasible, UserError):
            found.append(ratios(block))
    columns = np.array(found).T
    return {n: c[~np.isnan(c)] for n, c in zip(("ttft", "tpot"), columns, strict=True)}
