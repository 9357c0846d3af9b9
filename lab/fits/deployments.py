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

from lab.tables.deployments import SILICON, silicon
from lab.tables.static_batches import (
    SESSION,
    STATIC,
    static_columns,
    static_rows,
)
from simulators.composition.deployments import (
    APART,
    Deployed,
    SteadyState,
    by_replica,
    steady_state,
)
from simulators.composition.engine_columns import (
    ALIKE,
    COLUMNS,
    bare,
    constants_of,
    kernels_text,
    runtime_text,
    step_columns,
)
from simulators.composition.positive_fit import Problem, fit
from simulators.composition.price import part_rows
from simulators.composition.replica import Replica
from simulators.core.calibration import sha256_of, write_calibration
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.kernels.price import roofline_s
from simulators.workload.llm.parallelism import stage_of
from simulators.workload.operators import Collective

Floats = NDArray[np.float64]


def deployed_columns(rows: Sequence[Deployed]) -> tuple[Floats, list[Replica]]:
    """Return what a token takes, by column, and the replica of each row."""
    columns = np.zeros((len(rows), len(COLUMNS)))
    replicas: dict[int, Replica] = {}
    for indices in by_replica(rows).values():
        same = [rows[i] for i in indices]
        replica = same[0].replica(bare(same[0].framework))
        state = steady_state(replica, same, apart=same[0].framework in APART)
        columns[indices] = token_columns(replica, state)
        replicas |= dict.fromkeys(indices, replica)
    return columns, [replicas[i] for i in range(len(rows))]


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
    """Fit the runtimes of all frameworks to the deployments of the reference folder.

    Static batches under an older runtime are fitted along: they know paces of other architectures.
    """
    rows = [row for row in silicon(reference) if not row.excluded]
    batches = static_rows(reference)
    columns, replicas = deployed_columns(rows)
    older, theirs = static_columns(batches)
    together = np.concatenate([columns, older])
    frameworks = [row.framework for row in rows] + [SESSION] * len(batches)
    groups = [row.group for row in rows] + [row.group for row in batches]
    problem = Problem(
        measured_s=np.array([r.tpot_s for r in rows] + [b.measured_s for b in batches]),
        groups=groups,
        fixed_s=together[:, COLUMNS.index("fixed")],
        constants=list(constants_of(together, replicas + theirs, frameworks)),
    )
    fitted = fit(problem)
    error = np.abs(fitted.held_out_s / problem.measured_s - 1.0)
    for name in sorted(set(frameworks)):
        own = np.array(frameworks) == name
        head = _header(reference, error[own]) + runtime_text(name, problem.constants, fitted.values)
        tail = ""
        for group in sorted({g for g, f in zip(groups, frameworks, strict=True) if f == name}):
            tail += runtime_text(name, problem.constants, fitted.without[group], group)
        for alike in (name, *ALIKE.get(name, ())):
            body = head + kernels_text(alike) + tail
            write_calibration(PACKAGE / RUNTIMES.path / f"{alike}.toml", body)


def _header(reference: Path, error: Floats) -> str:
    """Return the provenance of a runtime whose groups were left out in turn."""
    tables = (SILICON, STATIC)
    names = ", ".join(f'"{name}"' for name in tables)
    hashes = ", ".join(f'"{sha256_of(reference / name)}"' for name in tables)
    return (
        "# Written by `python -m lab.fits.runtimes engines`. To change a number, change "
        f"the fit.\n[provenance]\nmeasured = [{names}]\nsha256 = [{hashes}]\n"
        f"rows = {error.size}\n"
        'split = "each group of a model and a GPU in turn; [without] holds the constants"\n'
        f"held_out_rows = {error.size}\nheld_out_mape = {error.mean():.3f}\n"
    )
