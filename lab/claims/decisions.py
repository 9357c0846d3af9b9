"""Choices under a latency limit, and probabilities of meeting one, on measured deployments.

A choice is among deployments of one model under one load (lengths and clients) that differ in
framework, precision and layout, on one GPU or across GPUs. The choice is the design of the highest
predicted throughput among those that are predicted to meet the limit; `ask` also requires that the
probability of meeting the limit is at least 80 %. Limits lie near quantiles of the measured
latencies of each choice, so that every limit can be met and every limit excludes something.

Other tools are judged by their stored predictions (`predictions.toml`): errors and regret.

A difference of a measured pair that differs in one recorded option is attributed to groups of facts
in the simulator (`sweeper compare OLD NEW --explain`). The groups that an option changes first
stand in `decisions.toml`: a judgement, since no table measures groups. For entries of a benchmark's
changelog, their text names the groups (`lab/fits/changelog.toml`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.claim import Cells, columns, predict
from lab.claims.deployments import (
    METRICS,
    MIN_DESIGNS,
    TPOT,
    regrets,
    throughput,
    with_intervals,
    with_recipes,
)
from lab.fits.changelog import ChangelogEntry, entries
from lab.fits.deployments import run_cache_without
from lab.fits.differences import (
    FITTED,
    HELD_OUT,
    MOST,
    Pair,
    halved_pairs,
    mixtures_without,
    public,
)
from lab.fits.differences import METRICS as MEANS
from lab.fits.methods import grouped
from lab.predictions.score import TASKS, Figures, ScoredTask, aligned, predictions
from lab.tables.deployments import PublicDeployment, database, silicon
from lab.tables.rows import Bools, Floats, evenly
from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import DEFAULT, usd_per_gpu_hours
from simulators.core.jit import Ints
from simulators.serving.attribution import RELEASE, Mixtures
from simulators.serving.measured.intervals import error_shares
from sweeper.query.attribution import UNEXPLAINED, attributed
from sweeper.query.uncertainty import probability_below, probability_smaller

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


LEVELS = {"80 %": (0.75, 0.85), "90 %": (0.85, 0.95), "95 %": (0.925, 0.975)}
"""Probabilities that count as claims of a level."""
AMONG = CHOSEN, ANY = "a choice and an alternative", "any two designs"


def better(reference: Path) -> Iterator[Cells]:
    """Yield claims that a design is truly better than another of the same choice, by level.

    Probabilities are those of certificates (`sweeper prove`), from the intervals of both
    predictions and the part of their errors that is common. `predicted` is the probability in
    percent that the design of higher predicted throughput is better; `measured` is 100 if its
    measured throughput is at least that of the other. `among`: the pairs of the design of highest
    predicted throughput, and all pairs; a claim of the former is a row of both.
    """
    rows, times, ends = _known(reference)
    rates = {name: throughput(rows, one) for name, one in times.items()}
    widths = np.log(ends[TPOT][:, 1] / ends[TPOT][:, 0]) / 2.0
    share = error_shares()["tokens_per_s"]
    for one in _choices(rows):
        worth = {name: rates[name] / one.cost for name in ("measured", "predicted")}
        for some, is_answered in _alternatives(one, np.ones(len(rows), bool)):
            if is_answered:
                continue
            ranked = some[np.argsort(-worth["predicted"][some], kind="stable")].tolist()
            for best, other in combinations(ranked, 2):
                ratio = worth["predicted"][best] / worth["predicted"][other]
                both = float(widths[best]), float(widths[other])
                claimed = 1.0 - probability_smaller(float(ratio), both, share)
                is_held = bool(worth["measured"][best] >= worth["measured"][other])
                cells = {"what": one.what, "predicted": 100.0 * claimed, "is_held": is_held}
                cells["measured"] = 100.0 * is_held
                for level, (least, most) in LEVELS.items():
                    if least <= claimed < most:
                        for among in AMONG if best == ranked[0] else (ANY,):
                            yield {**cells, "level": level, "among": among}


OF_RELEASES = FITTED, RELEASE
WORDS = dict(zip(MEANS, ("TTFT", "TPOT"), strict=True))


def one_option(reference: Path, groups: Mapping[str, Sequence[str]]) -> Iterator[Cells]:
    """Yield the attributed difference of each pair and latency, in seconds, with its interval.

    `predicted` and `measured` are the times of the new over those of the old. `is_right`: whether
    the largest likely share is that of a group that the option changes; `is_right_alone`: the same
    of shares without the likely parts of the rest; `is_unexplained`: whether the largest of those
    is the rest; `alike`: whether the simulator knows no difference. `groups`: of each option.
    """
    cache_of = functools.cache(run_cache_without)

    def answer(numbered: tuple[str, Pair]) -> Iterator[Cells]:
        half, pair = numbered
        for cells in _attributed(pair, mixtures_without(pair, cache_of), groups[pair.option]):
            yield {"option": pair.option, "half": half, **cells}

    yield from predict(halved_pairs(reference), answer)


def changelog(reference: Path) -> Iterator[Cells]:
    """Yield the attributed differences of deployments before and after a changelog's entry.

    At most `MOST` deployments of an entry, evenly. Columns are those of `one_option`; `half`:
    whether pairs of releases of the same model and GPU are among those that are fitted.
    """
    cache_of = functools.cache(run_cache_without)
    fitted = {
        pair.family for half, pair in halved_pairs(reference) if (half, pair.option) == OF_RELEASES
    }
    rows = [row for row in silicon(reference) if not row.excluded] + database(reference)

    def answer(known: tuple[ChangelogEntry, Pair]) -> Iterator[Cells]:
        entry, pair = known
        both = mixtures_without(pair, cache_of, entry.changed)
        half = FITTED if pair.family in fitted else HELD_OUT
        for cells in _attributed(pair, both, entry.groups):
            yield {"entry": f"{entry.pull}: {entry.about}", "half": half, **cells}

    def known() -> Iterator[tuple[ChangelogEntry, Pair]]:
        for entry in entries():
            found = [Pair(RELEASE, *map(public, ends)) for ends in entry.pairs(rows)]
            yield from ((entry, found[i]) for i in evenly(len(found), MOST))

    yield from predict(known(), answer)


def _attributed(pair: Pair, both: Mixtures, right: Sequence[str]) -> Iterator[Cells]:
    for one in attributed(both, [pair.old.seconds, pair.new.seconds]):
        if one.metric in WORDS:
            first, ratio = one.ranked[0], one.predicted[1] / one.predicted[0]
            explained = max(one.shares, key=lambda group: abs(one.shares[group]))
            width = math.exp(both.half_widths[one.metric])
            yield {
                "metric": WORDS[one.metric],
                "predicted": ratio,
                "lo": ratio / width,
                "hi": ratio * width,
                "is_right": first in right,
                "is_right_alone": explained in right,
                "is_unexplained": explained == UNEXPLAINED,
                "alike": one.predicted[0] == one.predicted[1],
                "measured": pair.new.seconds[one.metric] / pair.old.seconds[one.metric],
            }


Scored = tuple[str, str, ScoredTask, Figures]


def scored(reference: Path, tools: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield the predicted and measured figures of each tool, by task and kind of rows."""
    for tool, name, task, figures in _answered(reference, tools):
        for figure, measured in task.measured.items():
            for kind, which in task.kinds.items():
                where = which & ~np.isnan(figures[figure])
                if where.any():
                    cells = {"tool": tool, "task": name, "figure": figure, "rows": kind}
                    pair = {"predicted": figures[figure][where], "measured": measured[where]}
                    yield columns(**pair, **cells)


def regret(reference: Path, tools: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield percent of the best choice that each tool's choices give up."""
    for tool, name, task, figures in _answered(reference, tools):
        answered = np.all([~np.isnan(column) for column in figures.values()], axis=0)
        true, believed = task.decided_by(task.measured), task.decided_by(figures)
        for among, decisions in task.choices.items():
            lost = regrets(decisions, true, believed, task.kinds["all"] & answered)
            yield columns(predicted=lost, tool=tool, task=name, among=among)


def _answered(reference: Path, tools: Sequence[str]) -> Iterator[Scored]:
    """Yield tool, task and figures where a tool predicts a row of a task."""
    for tool in tools:
        tables = predictions(tool, reference)
        for name in TASKS:
            task = _task(reference, name)
            figures, _ = aligned(task, tables)
            if any((~np.isnan(values)).any() for values in figures.values()):
                yield tool, name, task, figures


@functools.lru_cache(maxsize=16)
def _task(reference: Path, name: str) -> ScoredTask:
    return TASKS[name][0](reference)
