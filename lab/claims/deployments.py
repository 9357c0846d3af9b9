"""Claims about deployments measured in public: TTFT, TPOT, and choices among deployments.

The engine's constants are fitted without the model on the GPU, or without the model on all GPUs.
Beside our predictions stand those of aiconfigurator 0.12.0, on the rows it answers.

A decision has alternatives: designs, each with the loads it was measured under. The value of a
design is that of its best load, since an operator can choose the load of a running design; a load
that misses its deadline has no value. The regret of a choice is the measured value that the chosen
design lacks to the best one.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.claim import (
    STATISTICS,
    Cells,
    columns,
    figures,
    group_of,
    months_between,
    predict,
    together,
)
from lab.fits import deployment_bands
from lab.fits.deployments import run_cache_without, width_without
from lab.fits.engines import CONFIG as ENGINE_FITS
from lab.fits.engines import by_replica, deployed_replica
from lab.fits.methods import grouped
from lab.tables.deployments import (
    QWEN3_32B,
    QWEN3_32B_PEER,
    PublicDeployment,
    database,
    drafting,
    newer_groups,
    silicon,
    until,
)
from lab.tables.records import is_gpu, is_model
from lab.tables.result_blocks import ResultBlock, blocks
from lab.tables.rows import Bools, Floats, evenly, read_records
from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import DEFAULT, usd_per_gpu_hours
from simulators.composition.replica import load_runtime
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.measured.corrections import corrected, load_of
from simulators.serving.measured.deployments import Deployed, point_of
from simulators.serving.options import ClientConfig
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import pass_intervals
from simulators.serving.run import RunCache
from simulators.serving.simulator import simulate

AMD = "amd"
METRICS = TPOT, TTFT = "TPOT", "TTFT"
MIN_DESIGNS = 4  # designs that make a decision
DEADLINES_S = (0.025, 0.05, 0.1)  # of a token: a fast reader's, and two that allow larger batches
MAX_LOADS = 6  # of one replica that are simulated with its model left out
OWN_SHARES = (0.1, 0.5, 0.9)  # places of the rows that a user has measured, among all of a family
LEVELS = ("measured", "unmeasured", "of its architecture unmeasured")
"""Evidence about the kernels of the GPU, in the order of `deployment_bands.KNOWN`."""

GIVEN = (
    *("model", "gpu", "tp", "ep", "attention_dp", "dtype", "runtime", "arrivals", "requests"),
    *("prompt_tokens", "output_tokens", "lengths", "measurement"),
)
"""Fields of a deployment's point that are known without its launch options."""

Times = Mapping[str, Floats]
"""Mean TPOT and TTFT of rows in seconds; NaN where unknown."""


@dataclass(frozen=True)
class Decisions:
    """Choices among measured rows; each sequence has one entry per row."""

    of: Sequence[Hashable]  # the decision that the row is an alternative of
    designs: Sequence[Hashable]  # the design that the row is a load of
    worth: Callable[[Times], Floats]  # from times to the value of each row
    kinds: Sequence[str] = ()  # labels, of which the alternatives of a decision must have two

    def regrets(self, measured: Times, predicted: Times, which: Bools) -> Floats:
        """Return the regret of each decision among selected rows, in percent of the best value.

        A prediction that no alternative meets the deadline has a regret of 100 % where one does.
        """
        true, expected = self.worth(measured), self.worth(predicted)
        usable = which & ~np.isnan(true) & ~np.isnan(expected)
        rows = pl.DataFrame(
            {
                "decision": list(map(str, self.of)),
                "design": list(map(str, self.designs)),
                "kind": self.kinds or list(map(str, range(len(true)))),
                "best": true,
                "hoped": expected,
            }
        )
        designs = rows.filter(usable).group_by("decision", "design", maintain_order=True)
        choices = designs.agg(pl.col("best", "hoped").max(), pl.col("kind").first())
        chosen = pl.col("best").get(pl.col("hoped").arg_max()) * (pl.col("hoped") != 0.0).any()
        is_decision = (pl.len() >= MIN_DESIGNS) & (pl.col("kind").n_unique() > 1)
        regret = 100.0 * (1.0 - chosen / pl.col("best").max())
        found = choices.group_by("decision", maintain_order=True).agg(
            regret=regret, is_decision=is_decision & (pl.col("best") != 0.0).any()
        )
        return found.filter("is_decision")["regret"].to_numpy()


def choices(rows: Sequence[Deployed]) -> dict[str, list[Decisions]]:
    """Return choices among designs by what they are judged by.

    On one GPU, the choice is of framework, precision and layout for one load, by throughput per
    GPU. Across GPUs, the choice is also of the GPU, for one model and its lengths, one set per TPOT
    deadline: by tokens per dollar of list prices, or per joule of the GPUs' power limits, since the
    draw was not metered.
    """
    loads = [(row.model, row.gpu, row.prompt, row.output, row.clients) for row in rows]
    lengths = [(row.model, row.prompt, row.output) for row in rows]
    designs = [(row.gpu, row.framework, row.dtype, row.layout) for row in rows]
    gpus = [row.gpu for row in rows]

    def worth(deadline_s: float, cost: Floats, times: Times) -> Floats:
        rate = throughput(rows, times) / cost
        return np.where(times[TPOT] > deadline_s, 0.0 * rate, rate)

    def across_gpus(cost: Floats) -> list[Decisions]:
        worths = (functools.partial(worth, deadline_s, cost) for deadline_s in DEADLINES_S)
        return [Decisions(lengths, designs, one, gpus) for one in worths]

    tdp_w = np.array([load_gpu(gpu).tdp_w for gpu in gpus], np.float64)
    return {
        "on one GPU, throughput": [
            Decisions(loads, range(len(rows)), functools.partial(throughput, rows))
        ],
        "across GPUs, tokens per dollar": across_gpus(usd_per_gpu_hours(gpus, DEFAULT)),
        "across GPUs, tokens per joule": across_gpus(tdp_w),
    }


def regrets(
    decisions: Sequence[Decisions], measured: Times, predicted: Times, which: Bools
) -> Floats:
    """Return the regret of each decision of several sets, in percent."""
    return np.concatenate([one.regrets(measured, predicted, which) for one in decisions])


def throughput(rows: Sequence[Deployed], times: Times) -> Floats:
    """Return output tokens per second and GPU of a closed loop, from its mean times."""
    output = np.array([row.client.mean_length * row.output for row in rows])
    clients = np.array([row.clients for row in rows])
    gpus = np.array([row.layout.gpus for row in rows])
    answer_s = times[TTFT] + times[TPOT] * (output - 1.0)
    return np.asarray(clients * output / answer_s / gpus, np.float64)


def kind_pairs(
    alike: Sequence[Hashable], kinds: Sequence[str], ours: Floats, theirs: Floats
) -> tuple[Floats, Floats]:
    """Return ratios of two kinds where all else is equal, predicted and measured.

    Repeated rows are averaged geometrically. A ratio is that of the later name over the earlier.
    `alike`: what must be equal, of each row.
    """
    rows = pl.DataFrame(
        {"alike": list(map(str, alike)), "kind": kinds, "ours": ours, "theirs": theirs}
    ).filter(pl.all_horizontal(pl.col("ours", "theirs").is_finite()))
    logs = rows.group_by("alike", "kind", maintain_order=True).agg(
        pl.col("ours", "theirs").log().mean()
    )
    pairs = logs.join(logs, on="alike", maintain_order="left").filter(
        pl.col("kind") < pl.col("kind_right")
    )
    ratios = [(pairs[f"{name}_right"] - pairs[name]).exp() for name in ("ours", "theirs")]
    return ratios[0].to_numpy(), ratios[1].to_numpy()


@functools.lru_cache(maxsize=1)
def with_recipes(reference: Path) -> tuple[list[PublicDeployment], pl.DataFrame]:
    """Return feasible deployments with their launch options, and a row per metric of each."""
    return _predicted(silicon(reference), lambda row: row.group)


def _predicted(
    rows: Sequence[PublicDeployment],
    left_out: Callable[[PublicDeployment], str],
    deployed: Callable[[PublicDeployment], ServingPoint] = point_of,
) -> tuple[list[PublicDeployment], pl.DataFrame]:
    """Return the feasible deployments, and a frame with a row for each metric of each."""
    cache_of = functools.cache(run_cache_without)

    def answer(numbered: tuple[int, PublicDeployment]) -> list[Cells]:
        number, row = numbered
        metrics = simulate(deployed(row), cache_of(row.runtime, left_out(row)))
        if metrics.tpot_mean_s is None:
            return []
        cells = {
            "number": number,
            "has_peer": row.peer_tpot_s is not None,
            "gpu": row.gpu,
            "model": row.model,
            "framework": row.framework,
            "is_dense": row.is_dense,
            "is_kept": not row.excluded,
            "label": row.name,
        }
        pairs = {TPOT: (metrics.tpot_mean_s, row.tpot_s), TTFT: (metrics.ttft_mean_s, row.ttft_s)}
        peers = {TPOT: row.peer_tpot_s, TTFT: row.peer_ttft_s}
        found = figures("metric", pairs, **cells)
        return [{**one, "peer": peers[one["metric"]]} for one in found]

    frame = together(predict(enumerate(rows), answer))
    return [rows[number] for number in _of(frame, TPOT)["number"]], frame


def _of(frame: pl.DataFrame, metric: str) -> pl.DataFrame:
    return frame.filter(pl.col("metric") == metric)


def times(reference: Path) -> pl.DataFrame:
    """Return TPOT and TTFT of all deployments, the model on its GPU left out, with intervals.

    Excluded rows are among them; they are not `is_kept`.
    """
    return with_intervals(*with_recipes(reference))


@functools.lru_cache(maxsize=1)
def with_defaults(reference: Path) -> tuple[list[PublicDeployment], pl.DataFrame]:
    """Return feasible deployments with default options, and a row per metric of each."""
    return _predicted(silicon(reference), lambda row: row.group, default_point)


def default_axes(reference: Path) -> pl.DataFrame:
    """Return the same where engines have their default options; `baseline`: with recipes."""
    frame = with_intervals(*with_defaults(reference))
    recipes = with_recipes(reference)[1].select("label", "metric", baseline="predicted")
    return frame.join(recipes, on=["label", "metric"], how="left", maintain_order="left")


def own_rows(reference: Path) -> pl.DataFrame:
    """Return the same with default options, corrected by three rows of the family.

    A family has one model, GPU, dtype and runtime.
    """
    return _corrected(reference, lambda row: (row.model, row.gpu, row.dtype, row.runtime))


def rows_of_server(reference: Path) -> pl.DataFrame:
    """Return the same, corrected by three rows of a server: also one release and parallelism."""
    return _corrected(
        reference,
        lambda row: (*row.family, row.dtype, row.runtime, row.release, row.client.name, row.layout),
    )


def _corrected(reference: Path, family_of: Callable[[PublicDeployment], Hashable]) -> pl.DataFrame:
    """Return rows with default options, corrected by three rows of their family.

    The three rows are not tested. In the order of prompt lengths and clients, they are at 10, 50
    and 90 % of the family's rows that are not excluded.
    """
    rows, frame = with_defaults(reference)
    families: dict[Hashable, list[int]] = {}
    for i, row in enumerate(rows):
        families.setdefault(family_of(row), []).append(i)
    loads = [load_of(row) for row in rows]
    parts = []
    for metric in METRICS:
        ours = _of(frame, metric)
        ratio = (ours["measured"] / ours["predicted"]).to_numpy()
        factor = np.full(len(rows), np.nan)
        for members in families.values():
            kept = [i for i in members if not rows[i].excluded]
            kept.sort(key=lambda i: (loads[i].prompt, loads[i].clients, loads[i]))
            places = {round(share * (len(kept) - 1)) for share in OWN_SHARES}
            known = [kept[i] for i in sorted(places) if kept]
            others = [i for i in members if i not in known]
            if len(known) == len(OWN_SHARES) and others:
                seen = [(loads[i], float(ratio[i])) for i in known]
                factor[others] = corrected(seen, [loads[i] for i in others], metric)
        scaled = pl.col("predicted") * pl.Series(factor)
        parts.append(ours.with_columns(predicted=scaled.fill_nan(None)))
    return with_intervals(rows, together(parts))


def headlines(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield all deployments by what is known of them: `given` names it."""
    ways = {
        "default options": default_axes,
        "launch recipes": times,
        "three own rows": own_rows,
        "three rows of a server": rows_of_server,
    }
    for given, frame in ways.items():
        yield frame(reference).with_columns(given=pl.lit(given))


def exclusions(reference: Path) -> Iterator[Cells]:
    """Yield the excluded rows, with the reason."""
    for row in silicon(reference):
        if row.excluded:
            yield {"reason": row.excluded, "predicted": 1}


def default_point(row: PublicDeployment) -> ServingPoint:
    """Return the point of a deployment by model, precision, GPU, parallelism, load and runtime."""
    known = point_of(row)
    return ServingPoint(
        **{name: getattr(known, name) for name in GIVEN},
        kv_dtype="bf16" if known.dtype == "bf16" else "fp8",
        client=ClientConfig(frontend=known.client.frontend),
        scheduling=replace(known.scheduling, poll_interval=0),  # rules of the release
    )


def default_axes_excess(reference: Path) -> Iterator[Cells]:
    """Yield by how many points errors with default axes exceed those with launch recipes."""
    frame = default_axes(reference).filter(pl.col("predicted").is_not_null() & pl.col("is_kept"))
    for metric, statistic in ((TPOT, "mean"), (TTFT, "median")):
        rows, error = _of(frame, metric), STATISTICS[statistic]
        mine, best = rows.select(error("predicted"), error("baseline").alias("baseline")).row(0)
        yield {"metric": metric, "statistic": statistic, "predicted": mine - best}


def with_intervals(rows: Sequence[PublicDeployment], frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with the ends of 90 % prediction intervals, fitted to other GPUs."""
    ends = {metric: np.empty((len(rows), 2)) for metric in METRICS}
    for indices in by_replica(rows).values():
        row = rows[indices[0]]
        reach = pass_intervals(deployed_replica(row, load_runtime(row.runtime)))
        for metric, bands in ends.items():
            name = metric.lower()
            bands[indices] = width_without(row.gpu, row.framework, name).interval(reach[name])
    frames = [
        _of(frame, metric).with_columns(
            lo=pl.Series(bands[:, 0]) * pl.col("predicted"),
            hi=pl.Series(bands[:, 1]) * pl.col("predicted"),
        )
        for metric, bands in ends.items()
    ]
    return together([*frames, frame.filter(pl.col("metric").is_null())])


def model_left_out(reference: Path) -> pl.DataFrame:
    """Return TPOT and TTFT of some loads of each replica, the model left out on all GPUs."""
    kept = [row for row in with_recipes(reference)[0] if not row.excluded]
    some = [kept[at[i]] for at in by_replica(kept).values() for i in evenly(len(at), MAX_LOADS)]
    return with_intervals(*_predicted(some, lambda row: row.model))


def newer_releases(reference: Path) -> pl.DataFrame:
    """Return TPOT and TTFT of the newest third of each engine's rows, by date, all left out."""
    rows = [row for row in silicon(reference) if not row.excluded]
    group = {row.name: one for row, one in zip(rows, newer_groups(rows), strict=True) if one}
    newer = [row for row in rows if row.name in group]
    return with_intervals(*_predicted(newer, lambda row: group[row.name]))


def qwen3_32b(reference: Path) -> pl.DataFrame:
    """Return TPOT and TTFT of Qwen3-32B on H100, measured by NVIDIA; no fit has seen the model."""
    rows = silicon(reference, QWEN3_32B, QWEN3_32B_PEER)
    return _predicted([row for row in rows if not row.excluded], lambda row: row.group)[1]


def on_amd(reference: Path) -> Iterator[Cells]:
    """Yield TPOT and TTFT on AMD's GPUs, the model left out of the engine's constants.

    The constants of AMD's GPUs are fitted to TPOT of the rows of `database`; no fit of them has
    seen the models of `documentation`.
    """
    cache_of = functools.cache(run_cache_without)
    rows = [("database", row, point_of(row)) for row in database(reference, AMD)]
    printed = [one for one in blocks(reference)[0] if load_gpu(one.point.gpu).vendor == AMD]
    more = [("documentation", one, one.point) for one in printed]
    tested: list[tuple[str, Deployed | ResultBlock, ServingPoint]] = [*rows, *more]
    for source, row, point in tested:
        found = simulate(point, cache_of(point.runtime, point.model))
        for metric in METRICS:
            cells = {"source": source, "metric": metric, "model": point.model, "gpu": point.gpu}
            yield {**cells, **_measured_and_predicted(found, row, metric)}


def speculative(reference: Path) -> Iterator[Cells]:
    """Yield TPOT and TTFT of deployments with multi-token prediction.

    The acceptance length is the model's published one. No fit has seen these rows; the engine's
    constants are fitted without the model on the GPU.
    """
    cache_of = functools.cache(run_cache_without)
    for row in drafting(reference):
        found = simulate(point_of(row), cache_of(row.runtime, row.group))
        for metric in METRICS:
            cells = {"metric": metric, "framework": row.framework, "is_kept": not row.excluded}
            yield {**cells, "label": row.name, **_measured_and_predicted(found, row, metric)}


def _measured_and_predicted(
    found: ServingMetrics, row: Deployed | ResultBlock, metric: str
) -> Cells:
    """Return the figures of a metric: of means, or of medians where they were measured."""
    is_median = isinstance(row, PublicDeployment) and row.is_median
    name, measured = metric.lower(), getattr(row, f"{metric.lower()}_s")
    mean, low, high = (getattr(found, f"{name}_mean_s{end}") for end in ("", "_lo", "_hi"))
    predicted = getattr(found, f"{name}_p50_s") if is_median else mean
    ends = {"lo": predicted * low / mean, "hi": predicted * high / mean}
    return {"predicted": predicted, "measured": measured, **ends}


def precisions(reference: Path) -> pl.DataFrame:
    """Return throughput ratios, by TPOT, of one deployment in two precisions."""
    rows, frame = with_recipes(reference)
    kept = [row for row in rows if not row.excluded]
    alike = [
        (row.model, row.gpu, row.framework, row.layout, row.clients, row.prompt, row.output)
        for row in kept
    ]
    frame = frame.filter("is_kept")
    ours, theirs = (1.0 / _column(frame, TPOT, name) for name in ("predicted", "measured"))
    predicted, measured = kind_pairs(alike, [row.family[3] for row in kept], ours, theirs)
    return columns(predicted=predicted, measured=measured)


def decisions(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield regrets of choices by our predictions and by the other tool's, in percent.

    `is_answered`: the choice is among the rows that the other tool answers.
    """
    rows, frame = with_recipes(reference)
    known = {
        name: {metric: _column(frame, metric, name) for metric in METRICS}
        for name in ("measured", "predicted", "peer")
    }
    kept = np.array([not row.excluded for row in rows])
    answered = kept & ~np.isnan(known["peer"][TPOT])
    for what, among in choices(rows).items():
        ours, both, theirs = (
            regrets(among, known["measured"], known[name], which)
            for name, which in (("predicted", kept), ("predicted", answered), ("peer", answered))
        )
        yield columns(what=what, is_answered=False, predicted=ours)
        yield columns(what=what, is_answered=True, predicted=both, peer=theirs)


def _column(frame: pl.DataFrame, metric: str, name: str) -> Floats:
    return _of(frame, metric)[name].cast(pl.Float64).to_numpy()


def by_level(reference: Path) -> Iterator[Cells]:
    """Yield TPOT and TTFT by evidence about the GPU's kernels, with intervals and deadlines.

    Engine constants are fitted without the model on the GPU, the interval to other GPUs. `met_90`:
    whether the deadline is met that the prediction meets with a probability of 90 %.
    """
    levels = dict(zip(deployment_bands.KNOWN, LEVELS, strict=True))
    for one in deployment_bands.predicted(reference):
        for metric in METRICS:
            name = metric.lower()
            low, high = width_without(one.row.gpu, one.row.framework, name).interval(
                one.pass_interval[name]
            )
            ratio = one.ratio[name]  # measured over predicted
            values = {"predicted": 1.0, "measured": ratio, "lo": low, "hi": high}
            cells = {"metric": metric, "level": levels[one.known], "gpu": one.row.gpu}
            yield {**cells, **values, "met_90": ratio <= high ** -math.log10(2.0 * 0.1)}


def unknown_names(
    reference: Path, tables: Mapping[str, Sequence[str]], language_models: Sequence[str]
) -> Iterator[Cells]:
    """Yield whether the catalog lacks the model or the GPU of each measured deployment.

    `tables`: by table, the columns that name a model and a GPU. `language_models`: beginnings of
    names of MLPerf's language models; others are left out.
    """
    for table, names in tables.items():
        for record in read_records(reference / table, names):
            model, gpu = (record[name] or "unnamed" for name in names)
            if not table.startswith("mlperf/") or model.startswith(tuple(language_models)):
                yield {"predicted": not (is_model(model) and is_gpu(gpu))}


def later_deployments(reference: Path, rows: int) -> Iterator[Cells]:
    """Yield TPOT of deployments measured after each day.

    At most `rows` for each day and number of months, and at most two loads of a replica among them,
    in the order of the hashes of their names. Rows of InferenceX's database have medians.
    """
    kept = _dated(reference)
    for day in ENGINE_FITS.days:

        def since(row: PublicDeployment, day: str = day) -> str:
            return group_of(months_between(day, row.measured or ""))

        def answer(row: PublicDeployment, day: str = day) -> Cells:
            found = simulate(point_of(row), _cache_before(day, row.runtime, row.gpu))
            names = ("tpot_mean_s", "tpot_mean_s_lo", "tpot_mean_s_hi")
            mean_s, low_s, high_s = (float(getattr(found, name)) for name in names)
            share = float(found.tpot_p50_s or mean_s) / mean_s if row.is_median else 1.0
            return {
                "day": day,
                "months": months_between(day, row.measured or ""),
                "since": since(row),
                "framework": row.framework,
                "label": row.name,
                "predicted": share * mean_s,
                "measured": row.tpot_s,
                "lo": share * low_s,
                "hi": share * high_s,
            }

        later = [row for row in kept if (row.measured or "") >= day]
        for some in grouped(later, since).values():
            yield from predict(_spread(some, rows), answer)


def _dated(reference: Path) -> list[PublicDeployment]:
    """Return the rows with a date: those of the tables, and later ones of the database."""
    kept = [row for row in silicon(reference) if not row.excluded and row.measured]
    last = max(row.measured or "" for row in kept)
    known = [row for row in database(reference, "nvidia") if (row.measured or "") > last]
    return kept + [row for row in known if not row.excluded]


@functools.lru_cache(maxsize=64)
def _cache_before(day: str, runtime: str, gpu: str) -> RunCache:
    cache = run_cache_without(runtime, until(day))
    cache.width_of = functools.partial(width_without, gpu)
    return cache


def _spread(rows: list[PublicDeployment], count: int) -> list[PublicDeployment]:
    spread = [rows[at[i]] for at in by_replica(rows).values() for i in evenly(len(at), 2)]
    return sorted(spread, key=lambda row: hashlib.sha256(row.name.encode()).hexdigest())[:count]
