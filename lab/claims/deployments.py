"""Deployments measured in public: times to the first and per later token, and choices among them.

Each model on its GPU is left out of the engine constants, or on all GPUs. Beside ours stand the
predictions of aiconfigurator 0.12.0, on the rows it answers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, predict, together
from lab.fits import deployment_bands
from lab.fits.deployments import run_cache_without, width_without
from lab.fits.engines import by_replica, deployed_replica
from lab.tables.deployments import QWEN3_32B, QWEN3_32B_PEER, PublicDeployment, silicon
from lab.tables.rows import Bools, Floats, evenly
from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import DEFAULT, usd_per_gpu_hours
from simulators.composition.replica import load_runtime
from simulators.serving.measured_deployments import Deployed, point_of
from simulators.serving.prices.iteration_table import everyday_reach
from simulators.serving.simulator import simulate

TPOT, TTFT = "TPOT", "TTFT"
FEWEST = 4
"""Alternatives that make a decision."""

DEADLINES_S = (0.025, 0.05, 0.1)
"""Of a token: a fast reader's, and two that leave more time for batches. Named, not fitted."""

Times = Mapping[str, Floats]
"""Mean seconds per token and to the first one, of rows; NaN where none is given."""


@dataclass(frozen=True)
class Decisions:
    """Choices among measured rows.

    Args:
        of: which decision each row is an alternative of.
        designs: which design each row is a load of.
        worth: what each row is worth by some times.
        kinds: of which the alternatives must show two, of each row; none if empty.
    """

    of: Sequence[Hashable]
    designs: Sequence[Hashable]
    worth: Callable[[Times], Floats]
    kinds: Sequence[str] = ()

    def regrets(self, measured: Times, believed: Times, which: Bools) -> Floats:
        """Return what each decision among some rows gives up, in percent.

        Whoever believes that no alternative keeps the deadline gives up everything, where one does.
        """
        true, predicted = self.worth(measured), self.worth(believed)
        usable = which & ~np.isnan(true) & ~np.isnan(predicted)
        choices: dict[Hashable, dict[Hashable, list[int]]] = {}
        for i in np.flatnonzero(usable).tolist():
            choices.setdefault(self.of[i], {}).setdefault(self.designs[i], []).append(i)
        found = []
        for designs in choices.values():
            best = np.array([true[loads].max() for loads in designs.values()])
            hoped = np.array([predicted[loads].max() for loads in designs.values()])
            kinds = {self.kinds[loads[0]] for loads in designs.values()} if self.kinds else ()
            if len(designs) < FEWEST or not best.any() or len(kinds) == 1:
                continue
            chosen = best[int(np.argmax(hoped))] if hoped.any() else 0.0
            found.append(1.0 - chosen / best.max())
        return 100.0 * np.array(found, np.float64)


def within_gpu(rows: Sequence[Deployed]) -> list[Decisions]:
    """Return choices of framework, precision and cut for one load on one GPU, by throughput."""
    loads = [(row.model, row.gpu, row.prompt, row.output, row.clients) for row in rows]
    return [Decisions(loads, range(len(rows)), lambda times: throughput(rows, times))]


def across_gpus(rows: Sequence[Deployed], cost: Floats) -> list[Decisions]:
    """Return choices of GPU, framework, precision and cut, one set for each deadline of a token.

    Args:
        rows: what was measured.
        cost: of a GPU for a while, of each row: dollars or joules; NaN where nobody states it.
    """
    lengths = [(row.model, row.prompt, row.output) for row in rows]
    designs = [(row.gpu, row.framework, row.dtype, row.layout) for row in rows]
    gpus = [row.gpu for row in rows]

    def worth(deadline_s: float) -> Callable[[Times], Floats]:
        def of(times: Times) -> Floats:
            rate = throughput(rows, times) / cost
            return np.where(times[TPOT] > deadline_s, 0.0 * rate, rate)

        return of

    return [Decisions(lengths, designs, worth(limit), gpus) for limit in DEADLINES_S]


def regrets(
    decisions: Sequence[Decisions], measured: Times, predicted: Times, which: Bools
) -> Floats:
    """Return what each decision of several sets gives up, in percent."""
    return np.concatenate([one.regrets(measured, predicted, which) for one in decisions])


def throughput(rows: Sequence[Deployed], times: Times) -> Floats:
    """Return output tokens per second and GPU of a closed loop, from its mean times."""
    output = np.array([row.client.mean_length * row.output for row in rows])
    clients = np.array([row.clients for row in rows])
    gpus = np.array([row.layout.gpus for row in rows])
    answer_s = times[TTFT] + times[TPOT] * (output - 1.0)
    return np.asarray(clients * output / answer_s / gpus, np.float64)


def usd_per_hour(rows: Sequence[Deployed]) -> Floats:
    """Return the list price of each row's GPU; NaN where there is none."""
    return usd_per_gpu_hours([row.gpu for row in rows], DEFAULT)


def power_limit_w(rows: Sequence[Deployed]) -> Floats:
    """Return the power limit of the GPU of each row: no draw was metered."""
    return np.array([load_gpu(row.gpu).tdp_w for row in rows], np.float64)


def kind_pairs(
    alike: Sequence[Hashable], kinds: Sequence[str], ours: Floats, theirs: Floats
) -> tuple[Floats, Floats]:
    """Return ratios, ours and theirs, of two kinds wherever all else is alike; means over repeats.

    Args:
        alike: what must be equal, of each row.
        kinds: what differs; ratios are of the later name over the earlier.
        ours: throughputs, or what goes with them.
        theirs: the same as measured.
    """
    groups: dict[Hashable, dict[str, list[int]]] = {}
    for row, (key, kind) in enumerate(zip(alike, kinds, strict=True)):
        if np.isfinite(ours[row]) and np.isfinite(theirs[row]):
            groups.setdefault(key, {}).setdefault(kind, []).append(row)
    found = [
        [
            np.exp(np.mean(np.log(v[group[b]])) - np.mean(np.log(v[group[a]])))
            for v in (ours, theirs)
        ]
        for group in groups.values()
        for a, b in itertools.combinations(sorted(group), 2)
    ]
    pairs = np.array(found, np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


METRICS = {TPOT: "tpot_s", TTFT: "ttft_s"}
LOADS = 6
"""Of one replica that are simulated with its model left out, at most."""

CHANCES = (0.5, 0.7, 0.9)
"""Predicted chances of meeting a deadline that are compared with the share that meets it."""

LEVELS = ("measured", "unmeasured", "of its architecture unmeasured")
"""What is known of the kernels of the GPU, in the order of the fits' levels."""


@functools.lru_cache(maxsize=1)
def _all(reference: Path) -> tuple[list[PublicDeployment], pl.DataFrame]:
    """Return the deployments with a prediction, excluded rows too, and their predictions."""
    return _predicted(silicon(reference), lambda row: row.group)


def _predicted(
    rows: Sequence[PublicDeployment], left_out: Callable[[PublicDeployment], str]
) -> tuple[list[PublicDeployment], pl.DataFrame]:
    """Return deployments that are feasible, and a frame with a row for each metric of each."""
    cache_of = functools.cache(run_cache_without)

    def answer(row: PublicDeployment) -> dict[str, float | None]:
        metrics = simulate(point_of(row), cache_of(row.runtime, left_out(row)))
        return {TPOT: metrics.tpot_mean_s, TTFT: metrics.ttft_mean_s}

    numbers = {id(row): number for number, row in enumerate(rows)}
    answers = predict(rows, answer, lambda row: {"number": numbers[id(row)]})
    known = answers.filter(pl.col(TPOT).is_not_null())
    found = [rows[number] for number in known["number"]]
    frames = [
        columns(
            metric=metric,
            predicted=known[metric].to_numpy(),
            measured=np.array([getattr(row, name) for row in found], np.float64),
            peer=[getattr(row, f"peer_{name}") for row in found],
            has_peer=[row.peer_tpot_s is not None for row in found],
            gpu=[row.gpu for row in found],
            framework=[row.framework for row in found],
            is_dense=[row.is_dense for row in found],
            is_kept=[not row.excluded for row in found],
            label=[row.name for row in found],
        )
        for metric, name in METRICS.items()
    ]
    if "skipped" in answers.columns:
        frames.append(answers.filter(pl.col("skipped").is_not_null()).select("skipped"))
    return found, together(frames)


def times(reference: Path) -> pl.DataFrame:
    """Return the times of all deployments, each model on its GPU left out, with intervals."""
    rows, frame = _all(reference)
    ends = np.empty((len(METRICS), len(rows), 2))
    for indices in by_replica(rows).values():
        row = rows[indices[0]]
        reach = everyday_reach(deployed_replica(row, load_runtime(row.runtime)))
        for bands, metric in zip(ends, map(str.lower, METRICS), strict=True):
            width = width_without(row.gpu, row.framework, metric)
            bands[indices] = width.band(reach[metric])
    low, high = (pl.Series(ends[:, :, side].ravel()) for side in (0, 1))
    known = frame.filter(pl.col("predicted").is_not_null())
    known = known.with_columns(lo=low * pl.col("predicted"), hi=high * pl.col("predicted"))
    return together([known, frame.filter(pl.col("predicted").is_null())])


def model_left_out(reference: Path) -> pl.DataFrame:
    """Return the times of some loads of each replica, its model left out on all GPUs."""
    kept = [row for row in _all(reference)[0] if not row.excluded]
    some = [kept[rows[i]] for rows in by_replica(kept).values() for i in evenly(len(rows), LOADS)]
    return _predicted(some, lambda row: row.model)[1]


def qwen3_32b(reference: Path) -> pl.DataFrame:
    """Return the times of Qwen3-32B on H100 as NVIDIA measured it: no fit has seen the model."""
    rows = silicon(reference, QWEN3_32B, QWEN3_32B_PEER)
    return _predicted([row for row in rows if not row.excluded], lambda row: row.group)[1]


def precisions(reference: Path) -> pl.DataFrame:
    """Return ratios of TPOT of one deployment in two precisions, as throughputs."""
    rows, frame = _all(reference)
    kept = np.array([not row.excluded for row in rows])
    alike = [
        (row.model, row.gpu, row.framework, row.layout, row.clients, row.prompt, row.output)
        for row in rows
        if not row.excluded
    ]
    kinds = [row.family[3] for row in rows if not row.excluded]
    ours, theirs = (1.0 / _column(frame, TPOT, name)[kept] for name in ("predicted", "measured"))
    predicted, measured = kind_pairs(alike, kinds, ours, theirs)
    return columns(predicted=predicted, measured=measured)


def decisions(reference: Path) -> pl.DataFrame:
    """Return what choices by our predictions, and by the other tool's, give up in percent.

    On one GPU and load, the choice is among frameworks, precisions and cuts, by throughput per GPU.
    Across GPUs it is for one model, its lengths and a TPOT deadline, by tokens per dollar of list
    prices, or per joule of the GPUs' power limits: what they drew was not metered.
    """
    rows, frame = _all(reference)
    among = {
        "deployments regret": within_gpu(rows),
        "deployments regret across GPUs, per dollar,": across_gpus(rows, usd_per_hour(rows)),
        "deployments regret across GPUs, per joule,": across_gpus(rows, power_limit_w(rows)),
    }
    kept = np.array([not row.excluded for row in rows])
    answered = kept & ~np.isnan(_column(frame, TPOT, "peer"))
    frames = []
    for what, choices in among.items():
        ours = _regrets(frame, choices, "predicted", kept)
        both = _regrets(frame, choices, "predicted", answered)
        theirs = _regrets(frame, choices, "peer", answered)
        frames.append(columns(what=what, predicted=ours))
        frames.append(columns(what=f"{what} peer", predicted=both, peer=theirs))
    return together(frames)


def _regrets(
    frame: pl.DataFrame, choices: Sequence[Decisions], column: str, which: Bools
) -> Floats:
    measured, believed = (
        {metric: _column(frame, metric, name) for metric in METRICS}
        for name in ("measured", column)
    )
    return regrets(choices, measured, believed, which)


def _column(frame: pl.DataFrame, metric: str, name: str) -> Floats:
    """Return a column of the rows of one metric, NaN where it is empty."""
    return frame.filter(pl.col("metric") == metric)[name].cast(pl.Float64).to_numpy()


def by_level(reference: Path) -> pl.DataFrame:
    """Return times by what is known of the GPU's kernels, with intervals and deadlines.

    The constants of the engine come from deployments without the model on the GPU, the band from
    other GPUs. `met_50` says whether a deadline was met of which the predicted chance is 50 %.
    """
    words = dict(zip(deployment_bands.KNOWN, LEVELS, strict=True))
    rows = []
    for one in deployment_bands.predicted(reference):
        for metric in deployment_bands.METRICS:
            width = width_without(one.row.gpu, one.row.framework, metric)
            low, high = width.band(one.reach[metric])
            ratio = one.ratio[metric]  # measured over predicted
            met = {f"met_{100 * c:.0f}": ratio <= _limit_of(c, low, high) for c in CHANCES}
            rows.append(
                {
                    "metric": metric.upper(),
                    "level": words[one.known],
                    "gpu": one.row.gpu,
                    "predicted": 1.0,
                    "measured": ratio,
                    "lo": low,
                    "hi": high,
                    **met,
                }
            )
    return pl.DataFrame(rows)


def _limit_of(chance: float, low: float, high: float) -> float:
    """Return the limit that is met with a chance, as a share of the prediction.

    >>> [round(_limit_of(chance, 0.5, 2.0), 3) for chance in (0.05, 0.5, 0.95)]
    [0.5, 1.0, 2.0]
    """
    end, beyond = (high, 1.0 - chance) if chance >= 0.5 else (low, chance)
    return float(end ** -math.log10(2.0 * beyond))
