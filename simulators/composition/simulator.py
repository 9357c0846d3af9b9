"""One forward pass of one replica: a prefill of whole prompts, or one decode iteration.

A batch passes all pipeline stages, one after another; nothing else is in flight. What many requests
do to each other is the serving simulator's question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.cluster import AUTO
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition import bands, clocks, graphs, graphs_pass, network
from simulators.composition.effects import NOTHING
from simulators.composition.explain import explained
from simulators.composition.iteration import pipeline_iterations
from simulators.composition.overhead import runtime_file
from simulators.composition.passes import (
    Columns,
    memory_of,
    pass_metrics,
    prompt_s,
    replica_of,
    step_of,
    why_not,
)
from simulators.composition.point import (
    NUMBERS,
    WORDS,
    CompositionFacts,
    CompositionMetrics,
    CompositionPoint,
)
from simulators.core.contract import (
    Contribution,
    categories,
    default_of,
    numbers,
    outcome,
    schema_of,
)
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import CLUSTERS, GPUS, MODELS
from simulators.dataflow.simulator import SIMULATOR as DATAFLOW
from simulators.kernels.simulator import SIMULATOR as KERNELS
from simulators.workload.families import draw, is_graph_model
from simulators.workload.graph import Load


@dataclass(frozen=True)
class Composition:
    """The simulator of this room."""

    name: str = "composition"
    version: int = 3
    point: type = CompositionPoint
    metrics: type = CompositionMetrics
    facts: type = CompositionFacts

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Price every row; rows of one replica are priced together."""
        rows = batch.num_rows
        out = {f.name: np.full(rows, np.nan) for f in fields(CompositionMetrics)}
        reasons = np.full(rows, "", object)
        flags = np.zeros((2, rows), bool)
        drawn = graphs_pass.drawn_rows(batch)
        for row in np.flatnonzero(drawn):
            reasons[row] = _graph_row(batch, int(row), out, flags)
        for every, group in _groups(batch):
            where = every[~drawn[every]]
            if not where.size:
                continue
            try:
                replica = replica_of(group)
                local = memory_of(replica, step_of(batch, where), batch, where)
            except Infeasible as verdict:
                reasons[where] = str(verdict)
                continue
            reasons[where] = why_not(replica, local)
            stages = pipeline_iterations(replica, step_of(batch, where))
            local |= pass_metrics(replica, step_of(batch, where), stages)
            for name, column in local.items():
                out[name][where] = column
            flags[0, where] = all(stage.calibrated for stage in stages)
            for stage in stages:
                flags[1, where] |= stage.extrapolated
        return outcome(
            CompositionMetrics,
            out,
            infeasible=list(reasons),
            calibrated=flags[0],
            extrapolated=flags[1],
        )

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the facts and calibrations behind a value; those of every point for no name."""
        if name == "":
            fitted = (network.CALIBRATION, clocks.CALIBRATION, bands.CALIBRATION)
            return (*fitted, graphs.CALIBRATION, *KERNELS.reads("", value))
        if name == "model":
            return (MODELS.find(str(value)),)
        if name == "gpu":
            usual = CLUSTERS.find(load_gpu(str(value)).cluster)
            return (*dict.fromkeys((GPUS.find(str(value)), *KERNELS.reads(name, value))), usual)
        if name == "cluster" and value != AUTO:
            return (CLUSTERS.find(str(value)),)
        if name == "runtime":
            return (runtime_file(str(value)),)
        if name == "accelerator" and value != NOTHING:
            return DATAFLOW.reads(name, value)
        return ()

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return where the time, the energy and the memory of a design go, row by row.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value nothing answers to.
        """
        batch = _batch_of(point)
        if graphs_pass.drawn_rows(batch)[0]:
            job = graphs_pass.job_of(batch.to_pylist()[0])
            return graphs_pass.explained_pass(job, graphs_pass.run(job))
        [(where, group)] = _groups(batch)
        replica, step = replica_of(group), step_of(batch, where)
        if reason := why_not(replica, memory_of(replica, step, batch, where))[0]:
            name, _, words = reason.partition(": ")
            raise Infeasible(name, words)
        host_s = float(prompt_s(replica, step)[0])
        return explained(replica, step, str(categories(batch, "phase")[1][0]), host_s)

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the facts of every row."""
        models, model_names = categories(batch, "model")
        gpus, gpu_names = categories(batch, "gpu")
        parameters = np.array([_parameters(str(name)) for name in model_names])
        memory = np.array([load_gpu(name).hbm_bytes for name in gpu_names])
        columns = [
            numbers(batch, "tp") * numbers(batch, "pp") * numbers(batch, "dp"),
            parameters[models],
            memory[gpus],
        ]
        schema = schema_of(CompositionFacts)
        arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def warm_up(self) -> None:
        """Compile what the kernels' room compiles."""
        KERNELS.warm_up()


SIMULATOR = Composition()


def _groups(batch: pa.RecordBatch) -> list[tuple[NDArray[np.int64], dict[str, Any]]]:
    """Return row numbers and common fields of rows that have the same replica."""
    named = {name: categories(batch, name) for name in WORDS}
    for name in NUMBERS:
        distinct, codes = np.unique(numbers(batch, name).astype(np.float64), return_inverse=True)
        named[name] = (codes.reshape(-1), distinct.tolist())
    # One number stands for the codes of all fields, so that rows are compared by one number.
    member = np.zeros(batch.num_rows, np.int64)
    for codes, values in named.values():
        if len(values) > 1:
            _, member = np.unique(member * len(values) + codes, return_inverse=True)
    order = np.argsort(member, kind="stable")
    ends = np.cumsum(np.bincount(member))
    return [
        (where, {name: values[int(codes[where[0]])] for name, (codes, values) in named.items()})
        for where in np.split(order, ends[:-1])
        if where.size
    ]


def _graph_row(batch: pa.RecordBatch, row: int, out: Columns, flags: NDArray[np.bool_]) -> str:
    """Write the metrics of a pass over a graph, and return why there are none."""
    try:
        job = graphs_pass.job_of(batch.slice(row, 1).to_pylist()[0])
        done = graphs_pass.run(job)
    except Infeasible as verdict:
        return str(verdict)
    for name, value in graphs_pass.metrics_of(job, done).items():
        out[name][row] = value
    flags[0, row], flags[1, row] = done.calibrated, done.extrapolated
    return ""


def _parameters(model: str) -> int:
    """Return the weights of a model, iterated or drawn."""
    drawn = is_graph_model(model)
    return draw(model, Load(batch=1)).parameters if drawn else load_model(model).parameters


def _batch_of(point: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch of one point, fields left out with their defaults.

    Raises:
        UnknownNameError: a field the point type does not have.
        UserError: a field without a default is missing.
    """
    known = {f.name: default_of(f) for f in fields(CompositionPoint)}
    for name in point:
        if name not in known:
            raise UnknownNameError("input", name, tuple(known))
    values = known | dict(point)
    if missing := [name for name, value in values.items() if value is MISSING]:
        raise UserError(f"{', '.join(missing)} missing: what is explained is one whole design")
    schema = schema_of(CompositionPoint)
    return pa.RecordBatch.from_pylist([values], schema=schema)
