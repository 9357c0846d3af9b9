"""Attention over eight context-parallel ranks: the share of one GPU's speed that a ring keeps.

Measured is an eighth of flash attention's time alone over that of the ranks, of the shape of
Llama-3.1-8B. Both sides of the predicted ratio use the model's kernels, so the claim judges balance
and the part of the KV transfer that attention does not hide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import predict
from lab.fits.training import (
    FIRST,
    FITTED_SOURCES,
    SECOND,
    SPLITS,
    PricedSteps,
    fastest_s,
    halves,
    in_first_half,
    priced_steps,
)
from lab.stages.profiled import timed_step_s
from lab.tables.rows import read_records
from lab.tables.training import ProfiledPlan, TrainingSubmission, iterations, submissions
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.calibration import read_calibration
from simulators.dataflow.mapping import read_yaml
from simulators.training.communication import cp_comm_s
from simulators.training.job import (
    CALIBRATION,
    FLASH,
    Constants,
    Job,
    check_job,
    constants_of,
    load_constants,
)
from simulators.training.metrics import JOB_FIELDS, job_of
from simulators.training.operators import ATTENTION, FORWARD, INPUTS, SCORES, pieces
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.simulator import SIMULATOR
from simulators.training.step import steps, work_of

TABLE = "training_modern/ring_attention_8gpu.parquet"
GPUS = {"8xA100": "a100_sxm", "8xH800": "h100_sxm"}
TOKENS, RANKS = 65_536, 8


def efficiencies(reference: Path) -> pl.DataFrame:
    """Return the predicted and measured efficiency of rings over whole batches."""
    rows = []
    for row in read_records(reference / TABLE, api="batch"):
        gpu = load_gpu(GPUS[row["gpus"]])
        for exchange in ("ring", "zigzag"):
            job = Job(
                model=load_model("llama3_1_8b"),
                gpu=gpu,
                cluster=cluster_for("auto", gpu),
                sequence=TOKENS,
                cp=RANKS,
                attention=FLASH,
                context_exchange=exchange,
            )
            ours = attention_share(job, backward="bwd" in row["pass"])
            theirs = row[f"{exchange}_iter_s"] / row["ideal_iter_s"]
            rows.append({"exchange": exchange, "predicted": ours, "measured": theirs})
    return pl.DataFrame(rows)


def attention_share(job: Job, *, backward: bool = False) -> float:
    """Return an even share of one GPU's attention time over the time of the ranks.

    Args:
        job: of which one sequence is attended to.
        backward: whether the backward pass is counted too.
    """
    alone_s = sum(_attention_s(replace(job, cp=1), backward))
    kernels_s, exposed_s = _attention_s(job, backward)
    return alone_s / job.cp / (kernels_s + exposed_s)


def _attention_s(job: Job, backward: bool) -> tuple[float, float]:
    """Return the seconds of a layer's attention on one rank, and of exposed KV transfers."""
    one = np.ones(1)
    seconds = pieces(job, one)["dense"].seconds
    phases = (FORWARD, INPUTS) if backward else (FORWARD,)
    kernels_s, exposed_s = 0.0, 0.0
    for phase, sent in zip(phases, cp_comm_s(job, one), strict=False):
        attending = float(seconds[phase, ATTENTION][0])
        kernels_s += attending + float(seconds.get((phase, SCORES), np.zeros(1))[0])
        exposed_s += max(0.0, float(sent[0]) - attending)
    return kernels_s, exposed_s


def plans(reference: Path) -> pl.DataFrame:
    """Return the predicted and measured seconds and peak bytes of each plan."""
    rows = []
    known = list(iterations(reference))
    for cluster in dict.fromkeys(plan.cluster for plan in known):
        mine = [plan for plan in known if plan.cluster == cluster]
        for half in range(2):
            fitted, tested = mine[half::2], mine[1 - half :: 2]
            latency_s, s_per_byte = _sync_of(fitted)
            base = float(np.median([plan.peak_bytes - plan.held_bytes for plan in fitted]))
            for plan in tested:
                stages = plan.with_sync(latency_s + s_per_byte * _ring_bytes(plan))
                cells = {"cluster": cluster, "micro_batch": plan.micro_batch}
                step_s = timed_step_s(stages, plan.micro_batches)
                rows += [
                    {**cells, "metric": "time", "predicted": step_s, "measured": plan.seconds},
                    {
                        **cells,
                        "metric": "memory",
                        "predicted": plan.held_bytes + base,
                        "measured": plan.peak_bytes,
                    },
                ]
    return pl.DataFrame(rows)


def _sync_of(plans: Sequence[ProfiledPlan]) -> tuple[float, float]:
    """Return the latency and the seconds per byte that fit the measured sums of gradients best."""
    sizes = np.array([[1.0, _ring_bytes(plan)] for plan in plans])
    seconds = np.array([plan.sync_s for plan in plans])
    (latency_s, s_per_byte), *_ = np.linalg.lstsq(sizes, seconds, rcond=None)
    return max(0.0, float(latency_s)), max(0.0, float(s_per_byte))


def _ring_bytes(plan: ProfiledPlan) -> float:
    """Return the bytes a rank sends when gradients are summed in a ring."""
    return 2.0 * (plan.dp - 1) / plan.dp * plan.gradient_bytes


def measured_steps(reference: Path) -> pl.DataFrame:
    """Return a row for each step and split; `lo` and `hi` are by the constants in use."""
    table = read_calibration(CALIBRATION)
    used = constants_of(table["step"])
    rows = [one for one in priced_steps(reference) if not one.step.is_flagged]
    fitting = [one for one in rows if one.step.source in FITTED_SOURCES]
    splits = [
        dict(zip((one.step.row for one in fitting), halves(fitting, split), strict=True))
        for split in range(SPLITS)
    ]

    def answer(one: PricedSteps) -> list[dict[str, Any]]:
        step, usual_s = one.step, fastest_s(one, used)
        cells = {
            "row": step.row,
            "source": step.source,
            "paper": step.group[0],
            "is_mixture": step.is_mixture,
            "is_fitted": step.source in FITTED_SOURCES,
            "label": f"{step.group[1]} on {step.job.gpu.name}",
            "measured": step.seconds,
            "lo": used.band[0] * usual_s,
            "hi": used.band[1] * usual_s,
            "peer": None if np.isnan(step.peer_s) else step.peer_s,
        }
        if step.row not in splits[0]:
            return [{**cells, "predicted": usual_s, "baseline": None}]
        return [
            {**cells, "predicted": predicted_s, "baseline": baseline_s}
            for predicted_s, baseline_s in _held_out(one, table, fitting, splits)
        ]

    return predict(rows, answer)


def _held_out(
    one: PricedSteps,
    table: Mapping[str, Any],
    fitting: Sequence[PricedSteps],
    splits: Sequence[Mapping[str, bool]],
) -> Iterator[tuple[float, float | None]]:
    """Yield the seconds of a step by the constants, and by the MFU, of each split's other half."""
    for split, in_first in enumerate(splits):
        other = not in_first[one.step.row]
        name = f"split_{split}_{'first' if other else 'second'}"
        mfu = _mfus([r for r in fitting if in_first[r.step.row] == other])
        share = mfu.get((one.step.source, one.step.job.dtype)) or mfu.get((one.step.source, ""))
        yield fastest_s(one, constants_of(table[name])), _ideal_s(one) / share if share else None


def _mfus(rows: Sequence[PricedSteps]) -> Mapping[tuple[str, str], float]:
    """Return the median MFU by source, and by source and precision."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in rows:
        for dtype in ("", one.step.job.dtype):
            found.setdefault((one.step.source, dtype), []).append(_ideal_s(one) / one.step.seconds)
    return {key: float(np.median(values)) for key, values in found.items()}


def _ideal_s(one: PricedSteps) -> float:
    """Return the seconds of a step at the peak of its precision."""
    return one.step.useful_flops / one.step.job.gpu.peak(one.step.job.dtype)


def step_times(reference: Path) -> pl.DataFrame:
    """Return the predicted and measured seconds of a step of each system."""
    rows = list(submissions(reference))
    first = in_first_half(rows)
    others = {half: _of_submitters(half) for half in (FIRST, SECOND)}

    def answer(row: TrainingSubmission) -> dict[str, Any]:
        check_job(row.job)
        constants = others[SECOND if row.submitter in first else FIRST]
        predicted_s = float(steps(work_of(row.job, row.plans), constants).step_s[0])
        sequences = float((row.plans.dp * row.plans.micro_batch * row.plans.micro_batches)[0])
        return {
            "predicted": predicted_s,
            "measured": row.seconds,
            "submission": id(row),
            "sequences_per_gpu": sequences / row.gpus,
            "rounds": list(row.rounds),
            "gpus": row.gpus,
            "submitter": row.submitter,
            "benchmark": row.benchmark,
            "gpu": row.job.gpu.name,
            "label": f"{row.submitter}, {row.gpus} {row.job.gpu.name}",
        }

    return predict(rows, answer)


def _of_submitters(half: str) -> Constants:
    """Return the constants in use, with launches as fitted to a half of the submitters."""
    fitted = read_calibration(CALIBRATION)[half]
    return replace(load_constants(), launch_s=fitted["launch_s"])


def scaling(reference: Path) -> pl.DataFrame:
    """Return the efficiency of each submitter's largest system over its smallest, in percent.

    Systems of one round are compared: between rounds the software changes, by up to 18 % of a step.
    A pair that was carried over to a later round counts once.
    """
    systems = step_times(reference).explode("rounds").sort("gpus", maintain_order=True)
    rate = {name: pl.col("sequences_per_gpu") / pl.col(name) for name in ("predicted", "measured")}
    ratios = {name: 100.0 * one.last() / one.first() for name, one in rate.items()}
    pairs = systems.group_by("submitter", "benchmark", "gpu", "rounds", maintain_order=True).agg(
        **ratios,
        small=pl.col("submission").first(),
        large=pl.col("submission").last(),
        label=pl.col("label").last(),
        grows=pl.col("gpus").last() > pl.col("gpus").first(),
    )
    return pairs.filter("grows").unique(["small", "large"], maintain_order=True)


def anchors(
    reference: Path,
    points: Mapping[str, Mapping[str, Any]],
    metrics: Mapping[str, Mapping[str, Any]],
) -> pl.DataFrame:
    """Return published metrics with their bands `lo` and `hi`, and whether they are inside.

    The set-ups themselves were not measured: bands are of neighbouring measurements or published
    formulas, and were written down before anything was predicted.

    Args:
        reference: the folder of reference tables.
        points: set-ups by name.
        metrics: by what each is called: the band's scenario and name, the column of the result, the
            set-up, and the one that it is divided by, if any.
    """
    bands = {
        (scenario["id"], target["name"]): target["band"]
        for scenario in read_yaml(reference / "scenarios.yaml")["scenarios"]
        for target in scenario["target_metrics"]
    }
    asked = {name: TrainingPoint(**fields) for name, fields in points.items()}
    answers = SIMULATOR.evaluate(batch_of(list(asked.values()))).to_pylist()
    results = dict(zip(asked, answers, strict=True))
    for name, point in asked.items():
        job = job_of({field: getattr(point, field) for field in JOB_FIELDS})
        results[name]["trained_weights"] = job.trained_share * job.model.parameters
    rows = []
    for what, metric in metrics.items():
        value = results[metric["of"]][metric["column"]]
        value /= results[metric["over"]][metric["column"]] if "over" in metric else 1.0
        low, high = map(float, bands[metric["scenario"], metric["name"]])
        value /= metric.get("unit", 1.0)
        inside = low <= value <= high
        label = f"{value:.3g} asked for {low:g} to {high:g}"
        rows.append(
            {
                "what": what,
                "predicted": value,
                "lo": low,
                "hi": high,
                "inside": inside,
                "label": label,
            }
        )
    return pl.DataFrame(rows)
