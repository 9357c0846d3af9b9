"""Fit engines' constants to whole deployments: a few per framework.

The steady-state time per token is linear in all constants, so the fit is a least-squares problem
with a prior: kernels keep their measured pace to about a twentieth; gaps and host times are some
microseconds. Each group (a model on a GPU) is left out in turn, and each model on all its GPUs; the
constants without each are stored in files of their own. Static batches under an older runtime are
fitted along: they show the paces of other architectures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.engine_columns import (
    COLUMNS,
    TRANSFERRED,
    alike,
    bare,
    constants_of,
    framework_of,
    kernels_table,
    left_out_table,
    runtime_table,
    step_columns,
)
from lab.fits.left_out import FOLDER as LEFT_OUT
from lab.fits.methods.positive_least_squares import LeastSquares, fit, solve
from lab.fits.steady_state import by_replica, deployed_replica, steady_state
from lab.tables.deployments import SILICON, silicon
from lab.tables.passes import SESSION, STATIC, StaticBatch, static_rows
from simulators.composition.price import part_rows
from simulators.composition.replica import Replica
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.core.jit import Floats
from simulators.kernels.price import roofline_s
from simulators.serving.measured_deployments import Deployed
from simulators.workload.llm.parallelism import stage_of
from simulators.workload.llm.step import decode_step, prefill_step
from simulators.workload.operators import Collective

FOLDER = PACKAGE / RUNTIMES.path
DECODE = [COLUMNS.index(name) for name in ("decode", TRANSFERRED["decode"])]


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the runtimes that are asked for, fitted together with all others."""
    rows = [row for row in silicon(reference) if not row.excluded]
    batches = static_rows(reference)
    columns, replicas = _deployed_columns(rows)
    older, theirs = static_columns(batches)
    together = np.concatenate([columns, older])
    frameworks = [row.framework for row in rows] + [SESSION] * len(batches)
    runtimes = [row.runtime for row in rows] + [SESSION] * len(batches)
    groups = [row.group for row in rows] + [row.group for row in batches]
    problem = LeastSquares(
        measured_s=np.array([r.tpot_s for r in rows] + [b.measured_s for b in batches]),
        groups=groups,
        fixed_s=together[:, COLUMNS.index("fixed")],
        constants=list(constants_of(together, replicas + theirs, runtimes)),
    )
    fitted = fit(problem)
    models = np.array([row.model for row in rows] + [""] * len(batches))
    without = dict(fitted.without) | {
        model: solve(problem, models != model) for model in sorted({row.model for row in rows})
    }
    error = fitted.held_out_s / problem.measured_s - 1.0
    for name in sorted(set(frameworks)):
        whose = framework_of(name)  # all its runtimes, as a later one may replace a group's
        named = {g for g, f in zip(groups, frameworks, strict=True) if framework_of(f) == whose}
        named |= {row.model for row in rows if row.framework == name}
        held_out = error[np.array(frameworks) == name]
        whole = Calibration(
            name=name,
            content={
                "without": {
                    group: left_out_table(name, problem.named(without[group]))
                    for group in sorted(named)
                }
            },
            tables=[SILICON, STATIC],
            rows=held_out.size,
            split="each group of a model and a GPU in turn",
            errors=held_out,
        )
        if not only or name in only:
            yield dataclasses.replace(whole, folder=LEFT_OUT / "runtimes")
        for one in (name, *alike(name)):
            if not only or one in only:
                found = runtime_table(one, problem.named(fitted.values)) | kernels_table(one)
                yield dataclasses.replace(whole, name=one, content=found)


def _deployed_columns(rows: Sequence[Deployed]) -> tuple[Floats, list[Replica]]:
    """Return the columns of a token, and the replica, of each row."""
    columns = np.zeros((len(rows), len(COLUMNS)))
    replicas: dict[int, Replica] = {}
    for indices in by_replica(rows).values():
        same = [rows[i] for i in indices]
        replica = deployed_replica(same[0], bare(same[0].runtime))
        table = [
            weight[:, None] * step_columns(replica, step)
            for step, weight in steady_state(replica, same).steps
        ]
        columns[indices] = sum(table)
        replicas |= dict.fromkeys(indices, replica)
    return columns, [replicas[i] for i in range(len(rows))]


def static_columns(rows: Sequence[StaticBatch]) -> tuple[Floats, list[Replica]]:
    """Return the columns of a whole batch, and the replica, of each row."""
    columns, replicas = np.zeros((len(rows), len(COLUMNS))), []
    for i, row in enumerate(rows):
        replica, batch = row.replica(bare(SESSION)), np.array([float(row.batch)])
        decodes = decode_step(batch, row.prompt + row.output / 2.0)
        prefill = step_columns(replica, prefill_step(batch, float(row.prompt)))
        decode = step_columns(replica, decodes)
        if not row.shares_keys:
            apart = dataclasses.replace(replica.model, kv_heads=replica.model.heads)
            unshared = step_columns(dataclasses.replace(replica, model=apart), decodes)
            decode[:, DECODE] = unshared[:, DECODE]
        columns[i] = (prefill + (row.output - 1.0) * decode)[0]
        replicas.append(replica)
    return columns, replicas


def least_s(rows: Sequence[Deployed]) -> Floats:
    """Return the roofline time of a token of loads of one replica."""
    replica = deployed_replica(rows[0], bare(rows[0].runtime))
    part, total = stage_of(replica.model, replica.cut, 0), np.zeros(len(rows))
    for step, weight in steady_state(replica, rows).steps:
        for row in part_rows(replica, step, part):
            if not isinstance(row.operator, Collective):
                least = row.operator.repeat * roofline_s(row.operator, replica.gpu)
                total += weight * np.where(np.asarray(row.seconds) > 0.0, least, 0.0)
    return total
