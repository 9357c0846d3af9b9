"""Fit the widths of serving intervals: one part of the engine's, one from kernels and messages.

docs/explanation/deployments.md describes the fit.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.deployments import run_cache_of, run_cache_without
from lab.fits.driver import Calibration, declared, settings
from lab.fits.engines import LEFT_OUT, by_replica
from lab.fits.methods import COVERED_SHARE, grouped, interval, quantile
from lab.tables.deployments import PublicDeployment, silicon
from lab.tables.result_blocks import ResultBlock, blocks
from lab.tables.rows import evenly
from simulators.composition.replica import load_runtime
from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED
from simulators.evidence.lookup import BEST, LEVELS, NEW_ARCHITECTURE
from simulators.serving.deployment import Deployment, Hardware
from simulators.serving.measured_deployments import UNMEASURED, Width, point_of, scale
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

    row: PublicDeployment
    known: str  # evidence level of its kernels: one of KNOWN
    ratio: dict[str, float]  # measured over predicted, by metric
    pass_interval: dict[str, Ends]  # ends of the intervals of its passes, by metric


def fit_deployment_bands(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the interval widths of TTFT and TPOT, and those without each GPU."""
    seen, no_engine = list(predicted(reference)), run_cache_of(load_runtime(CONFIG.no_engine))
    unknown = [one for some in _loads(reference) for one in _predicted(no_engine, BEST, some)]
    content: dict[str, Any] = {"width": {}, "tail": {}}
    without: dict[str, Any] = {gpu: {} for gpu in sorted({one.row.gpu for one in seen})}
    errors = []
    for metric in METRICS:
        widths = widths_of(metric, seen) | widths_of(metric, unknown, lambda _: UNMEASURED)
        for engine, width in widths.items():
            content["width"].setdefault(engine, {})[metric] = asdict(width)
        for gpu, found in without.items():
            widths = widths_of(metric, [one for one in seen if one.row.gpu != gpu])
            for engine, width in widths.items():
                found.setdefault(engine, {})[metric] = asdict(width)
            tested = [one for one in seen if one.row.gpu == gpu]
            errors += [_outside(one, metric, widths[one.row.framework]) for one in tested]
    for metric, ratio in tails(reference).items():
        content["tail"][metric] = {"ends": interval(ratio)}
    whole = declared("deployment_bands", content=content, rows=len(seen), errors=errors)
    yield whole
    yield replace(whole, file=LEFT_OUT / whole.file.name, content={"without": without})


def predicted(reference: Path, known: Sequence[str] = KNOWN) -> Iterator[PredictedDeployment]:
    """Yield predictions of some loads of every replica, at each evidence level of its kernels.

    Their groups are left out of engines' constants; messages and clocks stay as measured.
    """
    for some in _loads(reference):
        for level in known:
            cache = cache_knowing(level, run_cache_without(some[0].runtime, some[0].group))
            yield from _predicted(cache, level, some)


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
        with contextlib.suppress(Infeasible, UserError):
            point = point_of(row)
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

    Engines' parts are fitted together. One multiple of the scale covers 90 % of the rows, of which
    a replica has `loads` at most; it is wider on the side to which errors are skewed on all GPUs.
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
    skew = CONFIG.shared * _skew(multiple, [(one.row.gpu, one.known) for one in seen])
    symmetric = np.abs(multiple) * np.exp(-0.5 * skew * np.sign(multiple))
    end = float(quantile(symmetric, COVERED_SHARE))
    below, above = end * math.exp(-0.5 * skew), end * math.exp(0.5 * skew)
    return {name: Width(one, below, above) for name, one in part.items()}


def _skew(off: Floats, groups: Sequence[tuple[str, str]]) -> float:
    """Return the common skew of groups: log of the upper over the lower 90 % end of errors.

    The skew is the mean over groups, shrunk by twice its standard error, since a skew that GPUs do
    not share does not transfer to the next GPU.
    """
    of_group = grouped(zip(groups, off.tolist(), strict=True), lambda pair: pair[0])
    ends = np.array([quantile([one for _, one in some], COVERED) for some in of_group.values()])
    far = np.log(np.maximum(ends * (-1.0, 1.0), CONFIG.least_side))
    skews = far[:, 1] - far[:, 0]
    if skews.size < 2:
        return 0.0
    two_errors, mean = 2.0 * float(np.std(skews, ddof=1)) / math.sqrt(skews.size), skews.mean()
    return math.copysign(max(0.0, abs(mean) - two_errors), mean)


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
