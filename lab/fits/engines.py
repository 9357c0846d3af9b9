"""Fit what engines add to kernels to whole deployments: a few constants per framework.

The time per token in the steady state is linear in all constants, so a fit is a least-squares
problem with a prior: kernels among others are as alone, to about a twentieth; gaps and host times
are some microseconds. Whole groups (a model on a GPU) are left out in turn, and each model on all
its GPUs; the constants without each are kept in files of their own. Static batches under an older
runtime are fitted along: they know paces of other architectures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes
from lab.fits.engine_columns import (
    ALIKE,
    BORROWED,
    COLUMNS,
    KERNELS_OF,
    bare,
    constants_of,
    kernels_lines,
    runtime_lines,
    step_columns,
)
from lab.fits.left_out import FOLDER as LEFT_OUT
from lab.fits.methods.positive_least_squares import Problem, fit, solve
from lab.fits.steady_state import by_replica, deployed_replica, steady_state
from lab.tables.deployments import SILICON, silicon
from lab.tables.static_batches import SESSION, STATIC, StaticBatch, static_rows
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
SPLIT = "each group of a model and a GPU in turn"

DECODE = [COLUMNS.index(name) for name in ("decode", BORROWED["decode"])]


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the runtimes of the frameworks that are asked for, fitted together with all others."""
    rows = [row for row in silicon(reference) if not row.excluded]
    batches = static_rows(reference)
    columns, replicas = _deployed_columns(rows)
    older, theirs = static_columns(batches)
    together = np.concatenate([columns, older])
    frameworks = [row.framework for row in rows] + [SESSION] * len(batches)
    runtimes = [row.runtime for row in rows] + [SESSION] * len(batches)
    groups = [row.group for row in rows] + [row.group for row in batches]
    problem = Problem(
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
        tail = []
        whose = KERNELS_OF[name]  # all its runtimes, as a later one may stand for a group's
        named = {g for g, f in zip(groups, frameworks, strict=True) if KERNELS_OF[f] == whose}
        named |= {row.model for row in rows if row.framework == name}
        for left_out in sorted(named):
            tail += runtime_lines(name, problem.constants, without[left_out], left_out)
        held_out = error[np.array(frameworks) == name]
        whole = calibration(
            name,
            hashes(reference, [SILICON, STATIC]),
            rows=held_out.size,
            split=SPLIT,
            held_out=held_out,
            lines=tail,
        )
        if not only or name in only:
            yield dataclasses.replace(whole, folder=LEFT_OUT / "runtimes")
        for alike in (name, *ALIKE.get(name, ())):
            if not only or alike in only:
                head = runtime_lines(alike, problem.constants, fitted.values)
                lines = [*head, *kernels_lines(alike)]
                yield dataclasses.replace(whole, name=alike, lines=lines)


def _deployed_columns(rows: Sequence[Deployed]) -> tuple[Floats, list[Replica]]:
    """Return what a token takes, by column, and the replica of each row."""
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
    """Return what whole batches take, by column, and the replica of each."""
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
    """Return what a token of loads of one replica takes by its kernels' rooflines alone."""
    replica = deployed_replica(rows[0], bare(rows[0].runtime))
    part, total = stage_of(replica.model, replica.cut, 0), np.zeros(len(rows))
    for step, weight in steady_state(replica, rows).steps:
        for row in part_rows(replica, step, part):
            if not isinstance(row.operator, Collective):
                least = row.operator.repeat * roofline_s(row.operator, replica.gpu)
                total += weight * np.where(np.asarray(row.seconds) > 0.0, least, 0.0)
    return total
