"""Claims about training: step times, scaling, context parallel rings, and published set-ups.

Quoted from "MLPerf Training v4.0, v4.1, v5.0, v6.0, results repositories of MLCommons"; derived
figures are no official results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from lab.claims.claim import Cells, figures, group_of, months_between, predict, together
from lab.fits import training as fits
from lab.scenarios import find
from lab.tables.rows import Record, read_records
from lab.tables.training import FACTS, TrainingSubmission, iterations, submissions
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.calibration import read_calibration
from simulators.core.columns import batch_of
from simulators.training import job as jobs
from simulators.training.communication import cp_comm_s
from simulators.training.job import Job
from simulators.training.memory import RESERVED_BYTES, rank_memory
from simulators.training.operator_prices import ATTENTION, SCORES, pieces
from simulators.training.operators import FORWARD, INPUTS
from simulators.training.pipeline import ends_s
from simulators.training.point import TrainingPoint
from simulators.training.schedule import ONE_F_ONE_B, sorted_tasks
from simulators.training.simulator import SIMULATOR
from simulators.training.step import steps, work_of

RINGS = "training_modern/ring_attention_8gpu.parquet"


def efficiencies(
    reference: Path, model: str, gpus: Mapping[str, str], sequence: int, cp: int
) -> Iterator[Cells]:
    """Yield the efficiency of context parallel rings: the share of one GPU's speed that is kept.

    Measured: flash attention's time on one GPU, divided by `cp`, over the time of the ranks. Both
    sides of the predicted ratio use the model's kernels, so the claim judges the balance of ranks
    and the part of the KV transfer that attention does not hide. `gpus`: catalog names of the
    table's systems.
    """
    for row in read_records(reference / RINGS, api="batch"):
        gpu = load_gpu(gpus[row.gpus])
        for exchange in ("ring", "zigzag"):
            job = Job(
                model=load_model(model),
                gpu=gpu,
                cluster=cluster_for("auto", gpu),
                sequence=sequence,
                cp=cp,
                attention=jobs.FLASH,
                context_exchange=exchange,
            )
            phases = (FORWARD, INPUTS) if "bwd" in row["pass"] else (FORWARD,)
            alone_s = sum(_attention_s(replace(job, cp=1), phases))
            predicted = alone_s / cp / sum(_attention_s(job, phases))
            measured = row[f"{exchange}_iter_s"] / row.ideal_iter_s
            yield {"exchange": exchange, "predicted": predicted, "measured": measured}


def _attention_s(job: Job, phases: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of a layer's attention on one rank, and of exposed KV transfers."""
    one = np.ones(1)
    seconds = pieces(job, one)["dense"].seconds
    kernels_s, exposed_s = 0.0, 0.0
    for phase, sent in zip(phases, cp_comm_s(job, one), strict=False):
        attention_s = float(seconds[phase, ATTENTION][0])
        kernels_s += attention_s + float(seconds.get((phase, SCORES), np.zeros(1))[0])
        exposed_s += max(0.0, float(sent[0]) - attention_s)
    return kernels_s, exposed_s


def plans(reference: Path) -> Iterator[Cells]:
    """Yield seconds and peak bytes of Sailor's plans, from layers timed alone on each kind of GPU.

    The kernel model is not used. Each cluster has two fitted quantities, the latency and bandwidth
    of gradient sums, and one of memory besides weights, gradients, optimizer states and
    activations. Both are fitted to every second plan and tested on the others, both ways.
    """
    known = list(iterations(reference))
    for cluster in dict.fromkeys(plan.cluster for plan in known):
        mine = [plan for plan in known if plan.cluster == cluster]
        for half in range(2):
            fitted, tested = mine[half::2], mine[1 - half :: 2]
            sizes = np.array([[1.0, _ring_bytes(plan)] for plan in fitted])
            sync_s = np.array([plan.grad_sync_s for plan in fitted])
            found, *_ = np.linalg.lstsq(sizes, sync_s, rcond=None)
            latency_s, s_per_byte = (max(0.0, float(value)) for value in found)
            base = float(np.median([plan.peak_mem_bytes - plan.held_bytes for plan in fitted]))
            for plan in tested:
                step_s = _step_s(plan, latency_s + s_per_byte * _ring_bytes(plan))
                cells = {"cluster": cluster, "micro_batch": plan.mbs}
                pairs = {
                    "time": (step_s, plan.iter_time_s),
                    "memory": (plan.held_bytes + base, plan.peak_mem_bytes),
                }
                yield from figures("metric", pairs, **cells)


def _ring_bytes(plan: Record) -> float:
    return float(2.0 * (plan.dp - 1) / plan.dp * plan.gradient_bytes)


def _step_s(plan: Record, sync_s: float) -> float:
    """Return the seconds of a step under 1F1B, without the time of activation transfers."""
    pp = len(plan.stages)
    passes = [(forward, backward, 0.0, backward) for forward, backward, _ in plan.stages]
    tasks = sorted_tasks(ONE_F_ONE_B, pp, 1, plan.micro_batches)
    [end_s] = ends_s(pp, tasks, np.array([passes]), np.zeros(1))
    return float(end_s + max(update for _, _, update in plan.stages) + sync_s)


def measured_steps(reference: Path) -> Iterator[Cells]:
    """Yield training steps of papers, recipes and frameworks, one row per step and split.

    Each split leaves out a GPU, a model, a release or a source; each row is predicted with the
    constants fitted to rows of other folds and other plans. The baseline is the median MFU of the
    fitted rows of the precision, if possible of the same source; the other tool is Calculon.
    Sources used by no fit are predicted with the constants in use; `split` is then "source".
    """
    table = read_calibration(jobs.CALIBRATION)
    used = jobs.constants_of(table["step"])
    rows = [one for one in fits.priced_steps(reference) if not one.step.is_flagged]
    fitting = [one for one in rows if one.step.source in fits.FITTED_SOURCES]
    held_out: dict[str, list[tuple[str, float, float | None]]] = {}
    for split in fits.SPLITS:
        for fold, unseen, seen in fits.left_out(fitting, split):
            constants = jobs.constants_of(table[fits.section_of(split, fold)])
            for one in unseen:
                cells = (split, fits.fastest_s(one, constants), _by_mfu(one, seen))
                held_out.setdefault(one.step.row, []).append(cells)

    def answer(one: fits.PricedSteps) -> list[Cells]:
        step = one.step
        cells = {
            "row": step.row,
            "source": step.source,
            "paper": step.group[0],
            "is_mixture": step.is_mixture,
            "is_fitted": step.source in fits.FITTED_SOURCES,
            "label": f"{step.group[1]} on {step.job.gpu.name}",
            "dtype": step.job.dtype,
            "measured": step.seconds,
            "peer": None if np.isnan(step.peer_s) else step.peer_s,
        }
        found = held_out.get(step.row, [("source", fits.fastest_s(one, used), None)])
        return [
            {
                **cells,
                "split": split,
                "predicted": predicted_s,
                "lo": used.band[0] * predicted_s,
                "hi": used.band[1] * predicted_s,
                "baseline": baseline_s,
            }
            for split, predicted_s, baseline_s in found
        ]

    return predict(rows, answer)


def published(_reference: Path) -> Iterator[Cells]:
    """Yield the figures of published runs, each with its own plan."""
    runs = FACTS.published
    points = [{"oom_limit": 1.0, **run["point"]} for run in runs]
    for run, answer in zip(runs, _answers(points), strict=True):
        predicted, gpus = answer[run["figure"]], _gpus(run["point"])
        label = f"{gpus} GPUs"
        yield {"run": run["run"], "predicted": predicted, "measured": run["value"], "label": label}


def peaks(_reference: Path) -> Iterator[Cells]:
    """Yield peak memory of published plans as PyTorch reports it, without `RESERVED_BYTES`."""
    usual = {"gpu": "h100_sxm", "zero": 3, "sequence": 8192, "cross_entropy": "eager"}
    plans = [dict(plan) for plan in FACTS.peaks["plans"]]
    measured = [plan.pop("gib") * FACTS.peaks["gib"] for plan in plans]
    points = [{**usual, "oom_limit": 1.0, **plan} for plan in plans]
    for plan, peak, answer in zip(plans, measured, _answers(points), strict=True):
        yield {
            "is_split": plan.get("tp", 1) > 1,
            "predicted": answer["memory_bytes"] - RESERVED_BYTES,
            "measured": peak,
            "label": f"{plan['model']} on {_gpus(plan)}",
        }


def _answers(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = SIMULATOR.evaluate(
        batch_of(TrainingPoint, *(vars(TrainingPoint(**point)) for point in points))
    ).to_pylist()
    return found


def _gpus(point: Mapping[str, Any]) -> int:
    return math.prod(int(point.get(name, 1)) for name in ("tp", "pp", "dp", "cp"))


def admitted(reference: Path) -> Iterator[Cells]:
    """Yield whether each measured step has a plan that fits its GPU's memory."""
    for one in fits.priced_steps(reference):
        if not one.step.is_flagged:
            needed = rank_memory(one.step.job, one.step.plans).total.min()
            has = one.step.job.gpu.hbm_bytes
            yield {"fits": needed <= has, "predicted": needed, "measured": has}


def _by_mfu(one: fits.PricedSteps, seen: Sequence[fits.PricedSteps]) -> float | None:
    """Return a step's seconds at the median MFU of fitted rows."""
    alike = [other for other in seen if other.step.job.dtype == one.step.job.dtype]
    mine = [other for other in alike if other.step.source == one.step.source] or alike
    mfus = [_ideal_s(other) / other.step.seconds for other in mine]
    return _ideal_s(one) / float(np.median(mfus)) if mfus else None


def _ideal_s(one: fits.PricedSteps) -> float:
    return one.step.useful_flops / one.step.job.gpu.peak(one.step.job.dtype)


def step_times(reference: Path) -> Iterator[Cells]:
    """Yield the seconds of a step of each MLPerf system, with the constants of other submitters.

    The time to launch a kernel without a CUDA graph was fitted to LoRA runs of half of the
    submitters; the other half tests it. Nothing else was fitted to submissions.
    """
    rows = list(submissions(reference))
    first = fits.in_first_half(rows)
    table = read_calibration(jobs.CALIBRATION)
    others = {
        half: replace(jobs.load_constants(), launch_s=table[half]["launch_s"])
        for half in (fits.FIRST, fits.SECOND)
    }

    def answer(row: TrainingSubmission) -> Cells:
        jobs.check_job(row.job)
        constants = others[fits.SECOND if row.submitter in first else fits.FIRST]
        sequences = float((row.plans.dp * row.plans.micro_batch * row.plans.micro_batches)[0])
        return {
            "predicted": float(steps(work_of(row.job, row.plans), constants).step_s.min()),
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


def scaling(reference: Path) -> pl.DataFrame:
    """Return the efficiency of each submitter's largest system over its smallest, in percent.

    Only systems of one round are compared, since software changes a step by up to 18 % between
    rounds. A pair that was carried over to a later round counts once.
    """
    systems = together(step_times(reference)).explode("rounds").sort("gpus", maintain_order=True)
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


def anchors(_reference: Path, scenarios: Sequence[str]) -> Iterator[Cells]:
    """Yield the figures of shipped scenarios, by number, with their published bands `lo` and `hi`.

    The set-ups themselves were not measured: bands are of neighbouring measurements or published
    formulas, and were written down before anything was predicted.
    """
    with TemporaryDirectory() as folder:
        for outcome in (one.answer(Path(folder)) for one in find(scenarios)):
            if not outcome.supported:
                yield {"skipped": outcome.reason}
            for figure in outcome.figures:
                low, high = figure.target.band or (-np.inf, np.inf)
                cells = {"figure": figure.name, "predicted": figure.value, "inside": figure.in_band}
                label = f"asked for {low:g} to {high:g}"
                yield {**cells, "lo": low, "hi": high, "label": label}


def later_steps(reference: Path) -> Iterator[Cells]:
    """Yield training steps of releases after each day."""
    band = jobs.constants_of(read_calibration(jobs.CALIBRATION)["step"]).band
    rows = [one for one in fits.priced_steps(reference) if one.step.source in fits.FITTED_SOURCES]
    rows = [one for one in rows if not one.step.is_flagged]
    for day in fits.CONFIG.days:
        constants = fits.constants_until(day)
        for one in fits.split_by_day(rows, day)[0]:
            predicted = fits.fastest_s(one, constants)
            months = months_between(day, one.step.day)
            yield {
                "day": day,
                "months": months,
                "since": group_of(months),
                "kind": "mixtures" if one.step.is_mixture else "dense",
                "label": f"{one.step.group[1]} on {one.step.job.gpu.name}",
                "predicted": predicted,
                "measured": one.step.seconds,
                "lo": band[0] * predicted,
                "hi": band[1] * predicted,
            }
