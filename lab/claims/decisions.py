"""Choices under a latency limit, and probabilities of meeting one, on measured deployments.

A choice is among deployments of one model under one load (lengths and clients) that differ in
framework, precision and layout, on one GPU or across GPUs. The choice is the design of the highest
predicted throughput among those that are predicted to meet the limit; `ask` also requires that the
probability of meeting the limit is at least 80 %. Limits lie near quantiles of the measured
latencies of each choice, so that every limit can be met and every limit excludes something.

A difference of a measured pair that differs in one recorded option is attributed to groups of facts
in the simulator (`sweeper compare OLD NEW --explain`). The groups that an option changes first
stand in `decisions.toml`: a judgement, since no table measures groups.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.claim import Cells, predict
from lab.claims.deployments import (
    METRICS,
    MIN_DESIGNS,
    TPOT,
    throughput,
    with_intervals,
    with_recipes,
)
from lab.fits.deployments import run_cache_without
from lab.fits.differences import METRICS as MEANS
from lab.fits.differences import Pair, halved_pairs, mixtures_without
from lab.fits.methods import grouped
from lab.tables.deployments import PublicDeployment
from lab.tables.rows import Bools, Floats
from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import DEFAULT, usd_per_gpu_hours
from simulators.core.jit import Ints
from sweeper.query.attribution import UNEXPLAINED, attributed
from sweeper.query.uncertainty import probability_below

QUANTILES = (0.25, 0.5, 0.75)
"""Quantiles of the measured latencies of a choice that are limits."""

CONFIDENCE = 0.8
"""Least probability of meeting the limit; the default of `ask --confidence`."""

PLAIN, ASK = "predicted to meet it", f"{100 * CONFIDENCE:.0f} % sure, as ask requires"
DECILES, MIN_PAIRS = 10, 100
"""Parts of the probability, and the least pairs of a row and a limit of a part that is judged."""

TENTHS = tuple((np.arange(1, DECILES) / DECILES).tolist())


@dataclass(frozen=True)
class Choices:
    """Choices among rows; each sequence has one entry per row."""

    what: str  # the designs are judged by
    cost: Floats  # of a GPU; throughput per GPU is divided by this
    of: Sequence[Hashable]  # the choice that the row is an alternative of
    kinds: Sequence[
        str
    ]  # labels, of which the alternatives of a choice must have two; may be empty


@functools.lru_cache(maxsize=1)
def _known(
    reference: Path,
) -> tuple[list[PublicDeployment], dict[str, dict[str, Floats]], dict[str, Floats]]:
    """Return kept rows, their times by source, and the ends of their relative intervals."""
    rows, frame = with_recipes(reference)
    frame = with_intervals(rows, frame)
    kept = np.array([not row.excluded for row in rows])
    of = {metric: frame.filter(pl.col("metric") == metric) for metric in METRICS}
    times = {
        name: {m: of[m][name].cast(pl.Float64).to_numpy()[kept] for m in METRICS}
        for name in ("measured", "predicted", "peer")
    }
    ends = {m: (of[m].select(pl.col("lo", "hi") / pl.col("predicted"))).to_numpy() for m in METRICS}
    return (
        [row for row in rows if not row.excluded],
        times,
        {metric: both[kept] for metric, both in ends.items()},
    )


def probabilities(predicted: Floats, ends: Floats, limit: float) -> Floats:
    """Return the probability of each row to stay within a limit, as `ask` computes it."""
    pairs = zip(limit / predicted, ends.tolist(), strict=True)
    return np.array([probability_below(float(one), *both) for one, both in pairs])


def limits(measured_s: Floats, quantiles: Sequence[float]) -> list[float]:
    """Return limits near quantiles of latencies, each midway between two neighbours.

    A limit that equals a measurement would be a coin toss for its own row.

    >>> limits(np.array([1.0, 4.0, 16.0]), (0.5,))
    [8.0]
    """
    logs = np.log(np.unique(measured_s))
    between = np.exp((logs[1:] + logs[:-1]) / 2.0)
    places = np.minimum(np.asarray(quantiles) * between.size, between.size - 1).astype(np.int64)
    return [round(float(one), 12) for one in between[np.unique(places)]] if between.size else []


def _choices(rows: Sequence[PublicDeployment]) -> Iterator[Choices]:
    gpus = [row.gpu for row in rows]
    loads = [(row.model, row.prompt, row.output, row.clients) for row in rows]
    on_one = [(*load, gpu) for load, gpu in zip(loads, gpus, strict=True)]
    ones, tdp_w = np.ones(len(rows)), np.array([load_gpu(gpu).tdp_w for gpu in gpus], np.float64)
    yield Choices("on one GPU, throughput per GPU", ones, on_one, [])
    yield Choices("across GPUs, throughput per GPU", ones, loads, gpus)
    yield Choices("across GPUs, tokens per dollar", usd_per_gpu_hours(gpus, DEFAULT), loads, gpus)
    yield Choices("across GPUs, tokens per joule", tdp_w, loads, gpus)


def under_limit(reference: Path) -> Iterator[Cells]:
    """Yield, per choice, whether its measurement breaks the limit, else the throughput lost.

    `figure` names what `predicted` is, in percent: `breaks` and `unanswered` are 0 or 100, and
    `loss` is relative to the best measured design within the limit. `peer` is the other tool's
    choice among the rows that it answers; `is_answered`: our choice among these rows.
    """
    rows, times, ends = _known(reference)
    answered = ~np.isnan(times["peer"][TPOT])
    rates = {name: throughput(rows, one) for name, one in times.items()}
    for one in _choices(rows):
        worth = {name: rate / one.cost for name, rate in rates.items()}
        for some, is_answered in _alternatives(one, answered):
            value = {name: column[some] for name, column in worth.items()}
            for metric in METRICS:
                time = {name: of[metric][some] for name, of in times.items()}
                for limit in limits(time["measured"], QUANTILES):
                    meets, expected = time["measured"] <= limit, time["predicted"] <= limit
                    sure = probabilities(time["predicted"], ends[metric][some], limit) >= CONFIDENCE
                    outcome = functools.partial(_outcome, worth=value["measured"], meets=meets)
                    ours = {
                        PLAIN: outcome(expected, value["predicted"]),
                        ASK: outcome(expected & sure, value["predicted"]),
                    }
                    if is_answered:
                        del ours[ASK]
                    theirs = outcome(time["peer"] <= limit, value["peer"]) if is_answered else {}
                    cells = {"what": one.what, "metric": metric, "is_answered": is_answered}
                    for rule, figures in ours.items():
                        for figure, number in figures.items():
                            cell = {"predicted": number, "peer": theirs.get(figure)}
                            yield {**cells, **cell, "rule": rule, "figure": figure}


def _alternatives(one: Choices, answered: Bools) -> Iterator[tuple[Ints, bool]]:
    """Yield the rows of each choice, and then those that the other tool answers."""
    for members in grouped(range(len(one.of)), one.of.__getitem__).values():
        for is_answered in (False, True):
            some = np.array([i for i in members if answered[i] or not is_answered], np.int64)
            kinds = {one.kinds[i] for i in some} if one.kinds else {"", "same"}
            if some.size >= MIN_DESIGNS and len(kinds) > 1:
                yield some, is_answered


def _outcome(
    allowed: Bools, expected: Floats, *, worth: Floats, meets: Bools
) -> dict[str, float | None]:
    """Return the figures of one choice, in percent; null where they do not apply."""
    if not allowed.any():
        return {"unanswered": 100.0, "breaks": None, "loss": None}
    chosen = int(np.argmax(np.where(allowed, expected, -1.0)))
    if not meets[chosen]:
        return {"unanswered": 0.0, "breaks": 100.0, "loss": None}
    loss = 100.0 * (1.0 - worth[chosen] / worth[meets].max())
    return {"unanswered": 0.0, "breaks": 0.0, "loss": float(loss)}


def calibration(reference: Path) -> Iterator[Cells]:
    """Yield the probability of each row to meet a limit, in percent, and whether it met it.

    Limits are deciles of the measured latencies of the model and its lengths. `decile` is that of
    the probability; `is_counted`: it has at least 100 pairs of a row and a limit.
    """
    rows, times, ends = _known(reference)
    lengths = [(row.model, row.prompt, row.output) for row in rows]
    for metric in METRICS:
        found: list[tuple[float, bool]] = []
        for members in grouped(range(len(rows)), lengths.__getitem__).values():
            some = np.array(members)
            seen, ours = (times[name][metric][some] for name in ("measured", "predicted"))
            for limit in limits(seen, TENTHS):
                chance = probabilities(ours, ends[metric][some], limit)
                found += zip(chance.tolist(), (seen <= limit).tolist(), strict=True)
        part = [min(int(DECILES * chance), DECILES - 1) for chance, _ in found]
        is_counted = np.bincount(part, minlength=DECILES) >= MIN_PAIRS
        for (probability, is_met), which in zip(found, part, strict=True):
            name = f"{100 * which // DECILES} to {100 * (which + 1) // DECILES} %"
            cells = {"metric": metric, "decile": name, "is_counted": bool(is_counted[which])}
            yield {**cells, "predicted": 100.0 * probability, "measured": 100.0 * is_met}


WORDS = dict(zip(MEANS, ("TTFT", "TPOT"), strict=True))


def one_option(reference: Path, groups: Mapping[str, Sequence[str]]) -> Iterator[Cells]:
    """Yield the attributed difference of each pair and latency, in seconds, with its interval.

    `predicted` and `measured` are the times of the new over those of the old. `is_right`: whether
    the largest share is that of a group that the option changes; `is_unexplained`: whether it is
    the rest; `alike`: whether the simulator knows no difference. `groups`: of each option.
    """
    cache_of = functools.cache(run_cache_without)

    def answer(numbered: tuple[str, Pair]) -> list[Cells]:
        half, pair = numbered
        both = mixtures_without(pair, cache_of)
        found: list[Cells] = []
        for one in attributed(both, [pair.old.seconds, pair.new.seconds]):
            if one.metric in WORDS:
                first, ratio = one.ranked[0], one.predicted[1] / one.predicted[0]
                width = math.exp(both.half_widths[one.metric])
                cells = {"option": pair.option, "half": half, "metric": WORDS[one.metric]}
                ends = {"predicted": ratio, "lo": ratio / width, "hi": ratio * width}
                measured = pair.new.seconds[one.metric] / pair.old.seconds[one.metric]
                judged = {
                    "is_right": first in groups[pair.option],
                    "is_unexplained": first == UNEXPLAINED,
                    "alike": one.predicted[0] == one.predicted[1],
                }
                found.append({**cells, **ends, **judged, "measured": measured})
        return found

    yield from predict(halved_pairs(reference), answer)
