"""What engines add to kernels, fitted to whole deployments: a few constants per framework.

The time per token in the steady state is linear in all constants, so a fit is a least-squares
problem with a prior: kernels among others are as alone, to about a twentieth; gaps and host times
are some microseconds. Whole groups (a model on a GPU) are left out in turn, and the constants
without each are kept beside those of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulators.composition.deployments import (
    APART,
    FRAMEWORKS,
    SILICON,
    Deployed,
    SteadyState,
    by_replica,
    silicon,
    steady_state,
)
from simulators.composition.engine_columns import (
    COLUMNS,
    bare,
    constants_of,
    kernels_text,
    runtime_text,
    step_columns,
)
from simulators.composition.iteration import part_rows
from simulators.composition.overhead import RUNTIMES
from simulators.composition.positive_fit import Problem, fit
from simulators.composition.replica import Replica
from simulators.core.calibration import sha256_of, write_calibration
from simulators.core.folder import PACKAGE
from simulators.kernels.latency import roofline_s
from simulators.workload.cut import stage_of
from simulators.workload.operators import Collective

Floats = NDArray[np.float64]


def problem_of(rows: Sequence[Deployed]) -> Problem:
    """Return the linear problem of some rows."""
    columns, architectures = np.zeros((len(rows), len(COLUMNS))), [""] * len(rows)
    for indices in by_replica(rows).values():
        same = [rows[i] for i in indices]
        replica = same[0].replica(bare(same[0].framework))
        state = steady_state(replica, same, apart=same[0].framework in APART)
        columns[indices] = token_columns(replica, state)
        for i in indices:
            architectures[i] = replica.gpu.architecture
    return Problem(
        measured_s=np.array([row.tpot_s for row in rows]),
        groups=[row.group for row in rows],
        fixed_s=columns[:, COLUMNS.index("fixed")],
        constants=list(constants_of(columns, architectures, [row.framework for row in rows])),
    )


def token_columns(replica: Replica, state: SteadyState) -> Floats:
    """Return what a token takes, by column; one row per load."""
    pairs = ((state.decode, state.decode_weight), (state.prefill, state.prefill_weight))
    table = [weight[:, None] * step_columns(replica, step) for step, weight in pairs]
    return np.asarray(sum(table), np.float64)


def least_s(rows: Sequence[Deployed]) -> Floats:
    """Return what a token of loads of one replica takes by its kernels' rooflines alone."""
    replica = rows[0].replica(bare(rows[0].framework))
    state = steady_state(replica, rows, apart=rows[0].framework in APART)
    part, total = stage_of(replica.model, replica.cut, 0), np.zeros(len(rows))
    for step, weight in (
        (state.decode, state.decode_weight),
        (state.prefill, state.prefill_weight),
    ):
        for row in part_rows(replica, step, part):
            if not isinstance(row.operator, Collective):
                least = row.operator.repeat * roofline_s(row.operator, replica.gpu)
                total += weight * np.where(np.asarray(row.seconds) > 0.0, least, 0.0)
    return total


def fit_engines(reference: Path) -> None:
    """Fit the runtimes of all frameworks to the deployments of the reference folder."""
    rows = [row for row in silicon(reference) if not row.excluded]
    problem = problem_of(rows)
    fitted = fit(problem)
    error = np.abs(fitted.held_out_s / problem.measured_s - 1.0)
    for framework in FRAMEWORKS:
        own = np.array([row.framework == framework for row in rows])
        body = engine_header(reference, SILICON, "engines", error[own])
        body += runtime_text(framework, problem.constants, fitted.values)
        body += kernels_text(framework)
        for group in sorted({row.group for row in rows if row.framework == framework}):
            body += runtime_text(framework, problem.constants, fitted.without[group], group)
        write_calibration(PACKAGE / RUNTIMES.path / f"{framework}.toml", body)


def engine_header(reference: Path, table: str, command: str, error: Floats) -> str:
    """Return the provenance of a runtime whose groups were left out in turn."""
    return (
        f"# Written by `python -m simulators.composition.fit {command}`. To change a number, "
        f'change the fit.\n[provenance]\nmeasured = "{table}"\n'
        f'sha256 = "{sha256_of(reference / table)}"\nrows = {error.size}\n'
        'split = "each group of a model and a GPU in turn; [without] holds the constants"\n'
        f"held_out_rows = {error.size}\nheld_out_mape = {error.mean():.3f}\n"
    )
