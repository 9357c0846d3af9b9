"""Fit what engines add to kernels to whole deployments: a few constants per framework.

The time per token in the steady state is linear in all constants, so a fit is a least-squares
problem with a prior: kernels among others are as alone, to about a twentieth; gaps and host times
are some microseconds. Whole groups (a model on a GPU) are left out in turn, and each model on all
its GPUs; the constants without each are kept in files of their own. Static batches under an older
runtime are fitted along: they know paces of other architectures.

A user's own rows of one family (a model, GPU, framework and precision) become a runtime of the
user's own: measured times per token over ours say by what factor everything takes longer there. The
factor is pulled towards one as far as families are known to differ, so that a single row is not
believed entirely. The rows are kept in the file, where serving corrects loads like theirs further.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes, sha256_of, table_lines
from lab.fits.engine_columns import (
    ALIKE,
    BORROWED,
    COLUMNS,
    GAPS,
    KERNELS_OF,
    KINDS,
    PACES,
    bare,
    constants_of,
    facts_lines,
    kernels_lines,
    runtime_lines,
    scaled,
    step_columns,
)
from lab.fits.left_out import FOLDER as LEFT_OUT
from lab.fits.methods.positive_least_squares import Problem, fit, solve
from lab.fits.steady_state import by_replica, deployed_replica, steady_state
from lab.tables.deployments import SILICON, silicon
from lab.tables.rows import read_records
from lab.tables.static_batches import SESSION, STATIC, StaticBatch, static_rows
from simulators.composition.price import iteration, part_rows
from simulators.composition.replica import Replica, load_runtime
from simulators.core.errors import UserError
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.core.jit import Floats
from simulators.kernels.price import roofline_s
from simulators.serving.measured_deployments import DEFAULTS, NEEDED, Deployed, measured_deployment
from simulators.workload.llm.parallelism import stage_of
from simulators.workload.llm.step import decode_step, prefill_step
from simulators.workload.operators import Collective

FOLDER, OWN = PACKAGE / RUNTIMES.path, Path("catalog") / "runtimes"
SPLIT = "each group of a model and a GPU in turn"
OWN_SPLIT = "each row predicted by the others"

DECODE = [COLUMNS.index(name) for name in ("decode", BORROWED["decode"])]

FAMILIES_DIFFER, ROWS_DIFFER = 0.2, 0.1
"""Deviations of the logarithm of measured over predicted times, between families and within one."""


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


def fit_measured(measured: Path, _device: str) -> Iterator[Calibration]:
    """Yield a runtime of the file's name from a CSV or Parquet file of measured rows.

    Columns: model, gpu, framework, clients, prompt_tokens, output_tokens (longest lengths, drawn
    evenly from a fifth less), tpot_s; ttft_s where it was measured; and tp, ep, attention_dp,
    dtype, kv_dtype where they are not 1 and bf16.

    Raises:
        UserError: a column or a value is missing, the rows are of more than one family, or the
            runtime would take the name of a shipped one.
    """
    name = measured.stem
    if (FOLDER / f"{name}.toml").is_file():
        raise UserError(
            f"{measured}: a runtime cannot be called '{name}', for a shipped one is; give the file "
            "another name"
        )
    table = read_records(measured, NEEDED)
    rows = [measured_deployment(row) for row in table]
    families = {(row.model, row.gpu, row.framework, row.dtype) for row in rows}
    if len(families) != 1:
        raise UserError(
            f"{measured} has rows of {len(families)} families; one factor is one of a single "
            "model, GPU, framework and precision"
        )
    ratios = np.log(np.array([row.tpot_s for row in rows]) / predicted_s(rows))
    factor = float(np.exp(_believed(ratios)))
    others = np.array([_believed(np.delete(ratios, i)) for i in range(ratios.size)])
    framework = rows[0].framework
    runtime = load_runtime(framework)
    runtime = scaled(runtime, factor, deployed_replica(rows[0], runtime))
    lines = ["", "[runtime]", f'framework = "{framework}"', *facts_lines(framework)]
    lines += [f"{name} = {getattr(runtime, name):.4g}" for name in (*GAPS, *KINDS)]
    for kind in PACES:
        for device, paces in getattr(runtime, kind).items():
            lines += table_lines(f"{kind}.{device}", paces, ".4g")
    yield Calibration(
        name=name,
        tables={measured.name: sha256_of(measured)},
        is_listed=False,
        rows=len(rows),
        split=OWN_SPLIT,
        digits=3,
        error=float(np.mean(np.abs(np.expm1(others - ratios)))),
        more=[f"factor = {factor:.4g}"],
        lines=[*lines, *kernels_lines(framework), *_row_lines(table)],
    )


def _row_lines(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return measured rows as TOML."""
    lines = []
    for row in table:
        known = {name: row[name] for name in (*NEEDED, *DEFAULTS) if row.get(name) is not None}
        lines += ["", "[[measured]]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in known.items()]
    return lines


def predicted_s(rows: Sequence[Deployed]) -> Floats:
    """Return times per token in the steady state."""
    found = []
    for row in rows:
        replica = deployed_replica(row, load_runtime(row.runtime))
        steps = steady_state(replica, [row]).steps
        found.append(sum(weight * iteration(replica, step).latency_s for step, weight in steps))
    return np.concatenate(found)


def _believed(ratios: Floats) -> float:
    """Return the logarithm of the factor that some rows suggest."""
    return float(ratios.sum() / (ratios.size + (ROWS_DIFFER / FAMILIES_DIFFER) ** 2))
