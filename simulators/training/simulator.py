"""The simulator of training: a step of a language model across GPUs, and the run it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.catalog.model import load_model
from simulators.catalog.price import priced_by, usd_per_gpu_hours
from simulators.collectives.price import READS
from simulators.composition import throttling
from simulators.composition.simulator import SIMULATOR as COMPOSITION
from simulators.core.columns import LEVELS, alike, categories, mapped, numbers, outcome, table_of
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible
from simulators.core.fields import check_batch
from simulators.core.jit import Floats
from simulators.evidence.lookup import notes_on
from simulators.kernels import price as kernels
from simulators.training.constants import CALIBRATION, load_constants
from simulators.training.explain import explained
from simulators.training.job import check_job
from simulators.training.memory import rank_memory
from simulators.training.metrics import (
    JOB_FIELDS,
    costs_of,
    job_of,
    loading_s,
    memory_metrics,
    plans_of,
    run_metrics,
    step_metrics,
    too_full,
    why_not,
)
from simulators.training.point import TrainingFacts, TrainingMetrics, TrainingPoint, batch_of
from simulators.training.step import after_loading, steps, work_of


@dataclass(frozen=True)
class Training:
    """The simulator of training runs."""

    name: str = "training"
    version: int = 9
    point: type = TrainingPoint
    metrics: type = TrainingMetrics
    facts: type = TrainingFacts
    priced: tuple[str, ...] = ("prices",)
    cost_needs: tuple[str, ...] = ("gpu", "tp", "pp", "dp", "cp", "run_s", "run_energy_j")
    cost_metrics: tuple[str, ...] = ("run_cost_usd", "run_carbon_g")

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Price every row; rows that share a layer are priced together.

        Raises:
            UserError: a value means nothing.
        """
        check_batch(TrainingPoint, batch)
        constants = load_constants()
        rows = batch.num_rows
        out = {f.name: np.full(rows, np.nan) for f in fields(TrainingMetrics)}
        reasons = np.full(rows, "", object)
        shares = np.full((len(LEVELS), rows), np.nan)
        all_plans, all_sequences = plans_of(batch), numbers(batch, "batch")
        targets = numbers(batch, "target_loss").astype(np.float64)
        for every, group in alike(batch, JOB_FIELDS):
            job = job_of(group)
            try:
                check_job(job)
            except Infeasible as verdict:
                reasons[every] = str(verdict)
                continue
            plans, sequences = all_plans.where(every), all_sequences[every]
            reasons[every] = why_not(job, plans, sequences, targets[every])
            can = reasons[every] == ""
            where, plans, sequences = every[can], plans.where(can), sequences[can]
            memory = rank_memory(job, plans)
            reasons[where] = too_full(job, memory)
            fits = reasons[where] == ""
            where, plans, memory = where[fits], plans.where(fits), memory.where(fits)
            if not where.size:
                continue
            done = steps(work_of(job, plans), constants)
            done = after_loading(done, loading_s(job, plans, batch, where), job, plans)
            found = step_metrics(job, plans, done, constants)
            found |= memory_metrics(job, plans, memory)
            found |= run_metrics(job, plans, found, batch, where)
            for name, column in found.items():
                out[name][where] = column
            shares[:, where] = done.shares
        return outcome(TrainingMetrics, out, infeasible=list(reasons), shares=shares)

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return where the time, the energy and the memory of a design's step go.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value nothing answers to.
        """
        batch = batch_of([TrainingPoint(**point)])
        check_batch(TrainingPoint, batch)
        [(_, group)] = alike(batch, JOB_FIELDS)
        job, plans, constants = job_of(group), plans_of(batch), load_constants()
        check_job(job)
        sequences, target = numbers(batch, "batch"), numbers(batch, "target_loss")
        [reason] = why_not(job, plans, sequences, target.astype(np.float64))
        memory = rank_memory(job, plans)
        [reason] = [reason] if reason else too_full(job, memory)
        if reason:
            name, _, words = reason.partition(": ")
            raise Infeasible(name, words)
        work = work_of(job, plans)
        read_s = loading_s(job, plans, batch, np.arange(1))
        done = after_loading(steps(work, constants), read_s, job, plans)
        return explained(work, done, memory, constants)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the facts and calibrations behind a value; those of every point for no name."""
        if name == "":
            return (CALIBRATION, throttling.CALIBRATION, *READS)
        return COMPOSITION.reads(name, value) if name in ("model", "gpu", "cluster") else ()

    def costs(self, rows: pa.RecordBatch, prices: Mapping[str, Any]) -> Mapping[str, Floats]:
        """Return dollars, NaN where a GPU has no price, and CO2 of whole runs."""
        codes, names = categories(rows, "gpu")
        known = str(prices["prices"])
        one = {n: numbers(rows, n).astype(np.float64) for n in self.cost_needs[1:]}
        gpus = one["tp"] * one["pp"] * one["dp"] * one["cp"]
        usd = usd_per_gpu_hours(names, known)[codes]
        return costs_of(one["run_s"], one["run_energy_j"], gpus, usd, known)

    def notes(self, axes: Mapping[str, Sequence[Any]]) -> Sequence[str]:
        """Say when and by whom the prices were quoted, and of which GPUs nothing was measured."""
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
