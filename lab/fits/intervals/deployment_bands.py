"""Fit how far deployments lie from predictions: what is the engine's part, what the kernels'.

Every deployment is predicted three times, its model on that GPU left out of the engine's constants:
with the GPU's kernels as measured, with them hidden, and with those of its whole architecture
hidden. For a metric the scale of its error is a part of the engine's and the reach of its passes'
interval, added by squares (`error_bands.py`); engines' parts make the double exponential likeliest,
and are the wider the fewer models on GPUs an engine was seen with. What covers nine of ten errors
on these scales is the end of the band. The power of the reach was chosen on forward passes, whose
boards were left out in turn. Errors belong to a model on a GPU under an engine, which explains 29 %
of their variance per token and 33 % of first tokens'; a GPU explains 1 %. So such groups count
alike. Each GPU is left out in turn as well: claims judge it by the
others. Of an engine that nobody measured, which has no constants, the same deployments show how far
it may be off, under the runtime of one project's host.

How much further 99th percentiles of published runs lie from ours than their means do widens the
band of a percentile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.claims.lines import answered
from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.fits.left_out import FOLDER as LEFT_OUT
from lab.fits.left_out import shelf_of, shelf_without
from lab.fits.methods.coverage import covering
from lab.fits.steady_state import by_replica
from lab.tables.deployments import SILICON, PublicDeployment, silicon
from lab.tables.result_blocks import BLOCKS, Block, blocks
from lab.tables.rows import evenly
from simulators.composition.replica import load_runtime
from simulators.core.jit import Floats
from simulators.evidence.lookup import BEST, LEVELS, NEW_ARCHITECTURE
from simulators.serving.answer.error_bands import CALIBRATION, UNMEASURED, Width, scale
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.deployment import Deployment, Hardware
from simulators.serving.measured_deployments import point_of
from simulators.serving.prices.batch_price import prices_of
from simulators.serving.prices.iteration_table import Ends
from simulators.serving.run import RunCache, run_of

FOLDER = CALIBRATION.parent
SPLIT = "engines: each group of a model and a GPU in turn; bands: each GPU in turn"

HIDDEN = LEVELS[0]
KNOWN = (BEST, HIDDEN, NEW_ARCHITECTURE)
"""How much is known of the kernels of a deployment's GPU."""

NO_ENGINE = "graphs"
"""A runtime that belongs to no framework."""

LOADS = 6
"""Of one replica that are simulated, at most."""

METRICS = ("tpot", "ttft")
TAILS = (0.05, 0.95)
"""Of measured over predicted."""

ENGINES = np.geomspace(0.01, 1.0, 201)
"""Parts of an engine that are tried, as logarithms, beside the reach of its passes."""

ROUNDS = 6
"""In which the engines' parts are found."""

NEXT = 1.0
"""Engines err more in the next group than in the `n` seen: their parts are stretched by `1 + NEXT /
n`. With GPUs left out, what intervals hold lies 3.8, 3.0, 3.0 and 3.1 points (root mean square)
off nine of ten with 0, 1, 2 and 3; the interval score falls from 10.98 to 10.87, 10.82, 10.78."""

SHARED = 0.5
"""Of a lean is believed: with GPUs left out, 0.5 and 1 score alike and 0 worse, and with 0.5 more
kinds of deployments are held nine times in ten."""

LEAST_SIDE = 0.02
"""Of the scale: errors of a GPU reach as far to either side, where all of them are on one."""


@dataclass(frozen=True)
class Seen:
    """A deployment that was measured, and what was predicted of it."""

    row: PublicDeployment
    known: str  # one of KNOWN
    ratio: dict[str, float]  # measured over predicted, by metric
    reach: dict[str, Ends]  # of the intervals of its passes


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the widths of both latencies, and those without each GPU."""
    seen, unknown = list(predicted(reference)), list(by_no_engine(reference))
    gpus = sorted({one.row.gpu for one in seen})
    lines, left_out, misses = [], [], []
    for metric in METRICS:
        lines += _lines("width", metric, widths_of(metric, seen))
        lines += _lines("width", metric, widths_of(metric, unknown, lambda _: UNMEASURED))
        for gpu in gpus:
            widths = widths_of(metric, [one for one in seen if one.row.gpu != gpu])
            left_out += _lines(f"without.{gpu}", metric, widths)
            tested = [one for one in seen if one.row.gpu == gpu]
            misses += [off_band(one, metric, widths[framework_of(one)]) for one in tested]
    for metric, ratio in tails(reference).items():
        low, high = np.quantile(ratio, TAILS)
        lines += [f"[tail.{metric}]", f"ends = [{min(low, 1.0):.4g}, {max(high, 1.0):.4g}]"]
    whole = calibration(
        CALIBRATION.stem,
        hashes(reference, [SILICON, BLOCKS]),
        rows=len(seen),
        split=SPLIT,
        held_out=np.array(misses),
        lines=lines,
    )
    yield whole
    yield replace(whole, folder=LEFT_OUT, lines=left_out)


def predicted(reference: Path, known: Sequence[str] = KNOWN) -> Iterator[Seen]:
    """Yield some loads of every replica that can be built, with its kernels as well known as asked.

    Their groups are left out of the constants of engines; messages and clocks stay as measured.
    """
    for some in _loads(reference):
        for level in known:
            shelf = shelf_knowing(level, shelf_without(some[0].runtime, some[0].group))
            yield from _answers(shelf, level, some)


def by_no_engine(reference: Path) -> Iterator[Seen]:
    """Yield the same, their kernels as measured, under no engine's constants and no server's."""
    for some in _loads(reference):
        yield from _answers(shelf_of(load_runtime(NO_ENGINE)), BEST, some)


def _loads(reference: Path) -> Iterator[list[PublicDeployment]]:
    """Yield some loads of every replica."""
    rows = [row for row in silicon(reference) if not row.excluded]
    for indices in by_replica(rows).values():
        yield [rows[indices[i]] for i in evenly(len(indices), LOADS)]


def _answers(shelf: RunCache, level: str, some: Sequence[PublicDeployment]) -> list[Seen]:
    return answered("deployments", some, functools.partial(_seen, shelf, level)).answers


def shelf_knowing(level: str, shelf: RunCache) -> RunCache:
    """Return what simulates as if no more were known of the kernels of any GPU."""
    measured = shelf.deployment

    def deployment(point: object) -> Deployment:
        found = measured(point)  # type: ignore[arg-type]
        replica = replace(found.hardware.replica, level=level)
        return replace(found, hardware=Hardware(f"{found.hardware.description} {level}", replica))

    if level != BEST:
        shelf.deployment = deployment
    return shelf


def _seen(shelf: RunCache, level: str, row: PublicDeployment) -> Seen:
    point = point_of(row)
    metrics = run_of(point, cache=shelf).metrics()
    table, _ = prices_of(point, shelf.deployment(point).hardware)
    assert metrics.tpot_mean_s is not None
    assert metrics.ttft_mean_s is not None
    ratio = {"tpot": row.tpot_s / metrics.tpot_mean_s, "ttft": row.ttft_s / metrics.ttft_mean_s}
    return Seen(row, level, ratio, dict(table.reach))


def framework_of(one: Seen) -> str:
    """Return whose engine ran a deployment."""
    return one.row.framework


def widths_of(
    metric: str, seen: Sequence[Seen], engine_of: Callable[[Seen], str] = framework_of
) -> dict[str, Width]:
    """Return the widths of a metric that deployments show, by engine.

    Engines have parts of their own, the likeliest of all deployments together, each in its turn.
    One multiple of the scale covers nine of ten, groups counted alike, further on the side to which
    errors lean on all GPUs.
    """
    off = np.log([one.ratio[metric] for one in seen])
    reaches = np.array([one.reach[metric] for one in seen])
    own = {
        name: np.array([engine_of(one) == name for one in seen]) for name in map(engine_of, seen)
    }
    scales = np.stack([scale(part, reaches) for part in ENGINES.tolist()])
    chosen = dict.fromkeys(own, 0)
    groups = {name: len({o.row.group for o in seen if engine_of(o) == name}) for name in own}
    of_all = scales[0]
    for name, rows in list(own.items()) * ROUNDS:
        tried = [np.where(rows, parts, of_all) for parts in scales]
        chosen[name] = int(np.argmin([_unlikely(off, each) for each in tried]))
        of_all = tried[chosen[name]]
    parts = {n: float(ENGINES[at]) * (1.0 + NEXT / groups[n]) for n, at in chosen.items()}
    multiple = off / scale(np.array([parts[engine_of(one)] for one in seen]), reaches)
    lean = SHARED * _lean(multiple, [(one.row.gpu, one.known) for one in seen])
    evened = np.abs(multiple) * np.exp(-0.5 * lean * np.sign(multiple))
    end = covering(evened, [(one.row.group, engine_of(one)) for one in seen])
    below, above = end * math.exp(-0.5 * lean), end * math.exp(0.5 * lean)
    return {name: Width(part, below, above) for name, part in parts.items()}


def _lean(off: Floats, groups: Sequence[tuple[str, str]]) -> float:
    """Return by how much errors reach further above than below, as the logarithm of a ratio.

    It is the mean over what was known of each GPU, less twice the error of that mean: a board may
    lie to either side, so what boards do not share says nothing of the next.
    """
    of_group: dict[tuple[str, str], list[float]] = {}
    for group, one in zip(groups, off.tolist(), strict=True):
        of_group.setdefault(group, []).append(one)
    ends = np.array([np.quantile(some, TAILS) for some in of_group.values()])
    far = np.log(np.maximum(ends * (-1.0, 1.0), LEAST_SIDE))
    leans = far[:, 1] - far[:, 0]
    if leans.size < 2:
        return 0.0
    chance = 2.0 * float(np.std(leans, ddof=1)) / math.sqrt(leans.size)
    mean = float(np.mean(leans))
    return math.copysign(max(0.0, abs(mean) - chance), mean)


def _unlikely(off: Floats, scales: Floats) -> float:
    """Return minus the mean log-likelihood of a double exponential, but for what is constant."""
    return float(np.log(np.mean(np.abs(off) / scales)) + np.mean(np.log(scales)))


def off_band(one: Seen, metric: str, width: Width) -> float:
    """Return by how much a measured time lies outside its band, as a share of the band's end."""
    low, high = width.band(one.reach[metric])
    ratio = one.ratio[metric]
    return max(0.0, low / ratio - 1.0, ratio / high - 1.0)


def _lines(title: str, metric: str, widths: Mapping[str, Width]) -> list[str]:
    lines = []
    for engine, width in widths.items():
        numbers = {"engine": width.engine, "below": width.below, "above": width.above}
        lines += table_lines(f"{title}.{engine}.{metric}", numbers, ".4g")
    return lines


def tails(reference: Path) -> dict[str, Floats]:
    """Return the 99th percentile over the mean, measured over predicted, of published runs."""
    shelf, ratios = functools.cache(shelf_without), []
    told = answered("runs", blocks(reference)[0], lambda block: run_as_published(block, shelf))
    for block, ours in zip(told.rows, told.answers, strict=True):
        percentile = block.ttft_p99_s, ours.ttft_mean_s, block.tpot_p99_s, ours.tpot_mean_s
        mean = block.ttft_s, ours.ttft_p99_s, block.tpot_s, ours.tpot_p99_s
        over = np.array(percentile, np.float64) / np.array(mean, np.float64)
        ratios.append((over[0] * over[1], over[2] * over[3]))
    columns = np.array(ratios, np.float64).T
    return {n: c[~np.isnan(c)] for n, c in zip(("ttft", "tpot"), columns, strict=True)}


def run_as_published(block: Block, shelf: Callable[[str, str], RunCache]) -> ServingMetrics:
    """Return ours of a published run, its group left out where anything was fitted to it."""
    return run_of(block.point, cache=shelf(block.point.runtime, block.group)).metrics()
