"""The simulator of training: a step of a language model across GPUs, and the run of many steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.model import load_model
from simulators.catalog.price import priced_by, usd_per_gpu_hours, with_rates
from simulators.collectives.price import READS
from simulators.composition.adjustments import CLOCKS_CALIBRATION
from simulators.composition.simulator import SIMULATOR as COMPOSITION
from simulators.core.calibration import read_calibration
from simulators.core.columns import (
    FITTED,
    LEVELS,
    batch_of,
    categories,
    equal_row_groups,
    mapped,
    numbers,
    outcome,
    table_of,
)
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible
from simulators.core.fields import check_batch
from simulators.core.jit import Floats
from simulators.evidence.lookup import notes_on
from simulators.kernels import price as kernels
from simulators.kernels.energy import idle_w_of
from simulators.training.communication import LAYERS
from simulators.training.feasibility import memory_reasons, plan_reasons
from simulators.training.job import CALIBRATION, Constants, check_job, load_constants
from simulators.training.memory import RESERVED_BYTES, RankMemory, rank_memory, stage_name
from simulators.training.metrics import (
    JOB_FIELDS,
    costs_of,
    job_of,
    loading_s,
    memory_metrics,
    plans_of,
    run_metrics,
    step_metrics,
)
from simulators.training.operators import (
    FORWARD,
    INPUTS,
    RECOMPUTATIONS,
    SUMS,
    WEIGHTS,
    pass_repeats,
)
from simulators.training.point import TrainingFacts, TrainingMetrics, TrainingPoint
from simulators.training.step import (
    Steps,
    Work,
    after_loading,
    counts_of,
    pace,
    steps,
    steps_of_jobs,
    work_of,
)

PHASES = {
    FORWARD: "forward",
    INPUTS: "backward, inputs",
    WEIGHTS: "backward, weights",
    **dict.fromkeys(RECOMPUTATIONS, "recomputation"),
    SUMS: "gradient sums",
}


def explained(
    work: Work, done: Steps, memory: RankMemory, constants: Constants
) -> list[Contribution]:
    """Return the contributions to the first row's step, on a rank of a stage of mean length.

    Times add up to the step time, energies to the energy of all GPUs.
    """
    plans, job = work.plans, work.job
    gpus = int(plans.pp[0] * plans.dp[0] * job.tp * job.cp)
    rows = _kernels(work, constants, gpus)
    computing_s = sum(row.time_s for row in rows)
    messages = {
        "launches between layers": (float(done.compute_s[0]) - computing_s, "host"),
        "sums over tensor ranks": (float(done.tp_comm_s[0]), "link"),
        "keys over context ranks": (float(done.cp_comm_s[0]), "link"),
        "tokens to experts and back": (float(done.ep_comm_s[0]), "link"),
        "other stages": (float(done.bubble_s[0]), "latency"),
        "gradients and weights": (float(done.dp_comm_s[0]), "link"),
        "slowest data rank": (float(done.straggler_s[0]), "latency"),
        "optimizer": (float(done.optimizer_s[0]), "memory"),
        "batch from storage": (float(done.loading_s[0]), "host"),
    }
    waits_s = float(done.step_s[0]) - computing_s
    left_j = float(done.energy_j[0]) - sum(row.energy_j for row in rows)
    rows += [
        Contribution(
            phase="waits and messages",
            name=name,
            time_s=seconds,
            energy_j=left_j * seconds / waits_s if waits_s else 0.0,
            devices=gpus,
            bound=bound,
            level=LEVELS[FITTED],
            note=f"an idle GPU draws {idle_w_of(job.gpu):.0f} W or more",
        )
        for name, (seconds, bound) in messages.items()
        if abs(seconds) > 0.0
    ]
    place = stage_name(int(memory.rank[0]), int(plans.pp[0]))
    kept = {name: float(held[0]) for name, held in vars(memory).items() if name != "rank"}
    kept["reserved"] = RESERVED_BYTES
    return rows + [
        Contribution(phase="memory", name=name, memory_bytes=size, note=place)
        for name, size in kept.items()
        if size
    ]


def _kernels(work: Work, constants: Constants, gpus: int) -> list[Contribution]:
    plans = work.plans
    often = float(plans.micro_batches[0]) / float(plans.pp[0])
    counts, column = counts_of(work.job), int(work.which[0])
    sums: dict[tuple[str, str], list[float]] = {}
    layer = work.pieces.get("experts") or work.pieces["dense"]
    for name, piece in work.pieces.items():
        for (phase, kind), seconds in piece.seconds.items():
            times = (
                often * counts[name] * float(pass_repeats(phase, plans, is_layer=name in LAYERS)[0])
            )
            row = sums.setdefault((phase, kind), [0.0, 0.0, 0.0])
            row[0] += times * pace(constants, work, kind) * float(seconds[column])
            row[1] += gpus * times * float(piece.joules[phase, kind][column])
            row[2] += times
    return [
        Contribution(
            phase=PHASES[phase],
            name=kind.rstrip("_"),
            count=count,
            time_s=seconds_s,
            energy_j=joules,
            devices=gpus,
            bound="memory" if kind in ("streams", "scores") else "compute",
            level=LEVELS[int(np.argmax(layer.by_level[:, column]))],
        )
        for (phase, kind), (seconds_s, joules, count) in sums.items()
        if seconds_s
    ]


def _check(reason: str) -> None:
    """Raise Infeasible for the reason why a design is infeasible; empty: none."""
    if reason:
        name, _, words = reason.partition(": ")
        raise Infeasible(name, words)


@dataclass(frozen=True)
class Training:
    """The simulator of training runs."""

    name: str = "training"
    version: int = 18
    point: type = TrainingPoint
    metrics: type = TrainingMetrics
    facts: type = TrainingFacts
    rented: str = "gpu"
    priced: tuple[str, ...] = ("prices",)
    cost_needs: tuple[str, ...] = ("gpu", "tp", "pp", "dp", "cp", "run_s", "run_energy_j")
    cost_metrics: tuple[str, ...] = ("run_cost_usd", "run_carbon_g")

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the metrics of every row; rows of one job are priced together.

        Raises:
            UserError: a value is unknown.
        """
        check_batch(TrainingPoint, batch)
        constants = load_constants()
        rows = batch.num_rows
        out = {f.name: np.full(rows, np.nan) for f in fields(TrainingMetrics)}
        reasons = np.full(rows, "", object)
        shares = np.full((len(LEVELS), rows), np.nan)
        all_plans, all_sequences = plans_of(batch), numbers(batch, "batch")
        targets = numbers(batch, "target_loss").astype(np.float64)
        limits = numbers(batch, "oom_limit").astype(np.float64)
        feasible: list[tuple[NDArray[np.int64], Work, RankMemory]] = []
        for every, group in equal_row_groups(batch, JOB_FIELDS):
            job = job_of(group)
            try:
                check_job(job)
            except Infeasible as verdict:
                reasons[every] = str(verdict)
                continue
            plans, sequences = all_plans.where(every), all_sequences[every]
            reasons[every] = plan_reasons(job, plans, sequences, targets[every])
            can = reasons[every] == ""
            where, plans = every[can], plans.where(can)
            if not where.size:
                continue
            memory = rank_memory(job, plans)
            reasons[where] = memory_reasons(job, plans, memory, limits[where])
            fits = reasons[where] == ""
            if fits.any():
                work = work_of(job, plans.where(fits))
                feasible.append((where[fits], work, memory.where(fits)))
        done = steps_of_jobs([work for _, work, _ in feasible], constants)
        for (where, work, memory), even in zip(feasible, done, strict=True):
            job, plans = work.job, work.plans
            step = after_loading(even, loading_s(job, plans, batch, where), job, plans)
            found = step_metrics(job, plans, step, constants)
            found |= memory_metrics(job, plans, memory)
            found |= run_metrics(job, plans, found, batch, where)
            for name, column in found.items():
                out[name][where] = column
            shares[:, where] = step.shares
        return outcome(TrainingMetrics, out, infeasible=list(reasons), shares=shares, sparse=True)

    def rests_on(self, point: Mapping[str, Any]) -> str:  # noqa: ARG002 - one file for all designs
        """Return the day of the newest step that the constants were fitted to."""
        day = read_calibration(CALIBRATION)["provenance"].get("newest", "")
        return f"Constants: fitted to training steps measured up to {day}" if day else ""

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return the contributions to time, energy and memory of a design's step.

        Raises:
            Infeasible: the design is infeasible.
            UserError: a value is unknown.
        """
        batch = batch_of(TrainingPoint, point)
        check_batch(TrainingPoint, batch)
        [(_, group)] = equal_row_groups(batch, JOB_FIELDS)
        job, plans, constants = job_of(group), plans_of(batch), load_constants()
        check_job(job)
        sequences, target = numbers(batch, "batch"), numbers(batch, "target_loss")
        [reason] = plan_reasons(job, plans, sequences, target.astype(np.float64))
        _check(reason)
        memory = rank_memory(job, plans)
        limits = numbers(batch, "oom_limit").astype(np.float64)
        [reason] = memory_reasons(job, plans, memory, limits)
        _check(reason)
        work = work_of(job, plans)
        read_s = loading_s(job, plans, batch, np.arange(1))
        done = after_loading(steps(work, constants), read_s, job, plans)
        return explained(work, done, memory, constants)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files behind an axis value; for an empty name, the files of all points."""
        if name == "":
            return (CALIBRATION, CLOCKS_CALIBRATION, *READS)
        return COMPOSITION.reads(name, value) if name in ("model", "gpu", "cluster") else ()

    def costs(self, rows: pa.RecordBatch, prices: Mapping[str, Any]) -> Mapping[str, Floats]:
        """Return dollars, NaN where a GPU has no price, and CO2 of whole runs."""
        codes, names = categories(rows, "gpu")
        known = str(prices["prices"])
        one = {n: numbers(rows, n).astype(np.float64) for n in self.cost_needs[1:]}
        gpus = one["tp"] * one["pp"] * one["dp"] * one["cp"]
        usd = usd_per_gpu_hours(names, known)[codes]
        return costs_of(one["run_s"], one["run_energy_j"], gpus, usd, known)

    def rates(self, devices: Sequence[str], prices: Mapping[str, Any]) -> Floats:
        """Return dollars per GPU-hour; NaN without a price."""
        return usd_per_gpu_hours(devices, str(prices["prices"]))

    def priced_at(self, prices: Mapping[str, Any], rates: Mapping[str, float]) -> dict[str, Any]:
        """Return the price list with other prices of GPU-hours."""
        return {"prices": with_rates(str(prices["prices"]), rates)}

    def notes(self, axes: Mapping[str, Sequence[Any]]) -> Sequence[str]:
        """Return notes on the source of the prices and on GPUs without measurements."""
        return (*priced_by(axes["prices"], axes["gpu"]), *notes_on(axes["gpu"]))

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the facts of every row."""
        one = {n: numbers(batch, n) for n in ("tp", "pp", "dp", "cp", "batch", "sequence")}
        columns = [
            one["tp"] * one["pp"] * one["dp"] * one["cp"],
            mapped(batch, "model", lambda name: load_model(name).parameters),
            one["batch"] * one["sequence"],
            one["batch"] / (one["dp"] * numbers(batch, "micro_batch")),
        ]
        return table_of(TrainingFacts, columns)

    def warm_up(self) -> None:
        """Compile the kernel models and the pipeline."""
        kernels.warm_up()


SIMULATOR = Training()
