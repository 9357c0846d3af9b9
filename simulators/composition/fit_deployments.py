"""What engines add to kernels, fitted to whole deployments: a few constants per framework.

The time per token in the steady state is linear in all constants, so a fit is a least-squares
problem with a prior: kernels among others are as alone, to about a twentieth; gaps and host times
are some microseconds. Errors are relative and count less the larger they are (soft L1). Whole
groups (a model on a GPU) are left out in turn, and the constants without each are kept beside those
of all rows. Groups count as the square root of their rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulators.composition.clocks import slowdown, throttled_s
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
from simulators.composition.iteration import part_rows
from simulators.composition.overhead import RUNTIMES, Runtime
from simulators.composition.pricing import Row, family_of
from simulators.composition.replica import Replica
from simulators.core.calibration import sha256_of, write_calibration
from simulators.core.folder import PACKAGE
from simulators.workload.cut import stage_of
from simulators.workload.operators import Collective, Column
from simulators.workload.step import Step

Floats = NDArray[np.float64]

KERNELS: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {"gemm": ("vllm", "trtllm"), "experts": ("trtllm",)},
    "trtllm": {"gemm": ("vllm", "trtllm"), "experts": ("trtllm",)},
    "sglang": {
        "gemm": ("vllm", "trtllm"), "experts": ("trtllm",),
        "prefill": ("vllm",), "decode": ("vllm",),
    },
}  # fmt: skip
"""Today's engines choose among kernels that were written for several of them (cuBLAS, CUTLASS,
DeepGEMM, TensorRT-LLM's through FlashInfer), so plain products are the fastest measured; experts
were measured in full for TensorRT-LLM alone."""

ARCHITECTURES = ("hopper", "blackwell")
FAMILIES = ("gemm", "experts", "prefill", "decode", "vector")
GAPS = ("layer_s", "host_s", "sequence_s")
KINDS = ("mixture_layer_s", "latent_layer_s", "state_layer_s")
COLUMNS = (
    "fixed", *FAMILIES, "messages", *GAPS, *KINDS,
)  # fmt: skip
"""What the time of a token is a sum of; all but `fixed` have constants."""

ROW_ERROR = 0.10
"""Rows scatter by about this much for reasons no constant explains."""

KERNELS_PACE, MESSAGES_PACE = (1.0, 0.05), (1.0, 0.3)
PRIORS = {
    "layer_s": (5e-6, 1e-5), "host_s": (3e-4, 5e-4), "sequence_s": (5e-6, 1e-5),
    "mixture_layer_s": (5e-6, 1e-5), "latent_layer_s": (5e-6, 1e-5), "state_layer_s": (5e-6, 1e-5),
}  # fmt: skip
"""Means and deviations: a launch takes some microseconds, a pass of a scheduler some hundreds."""

MANY_ROWS = 50.0
ROUNDS, SWEEPS = 8, 300


@dataclass(frozen=True)
class Constant:
    """One number to be fitted: what it multiplies, and what is known of it before."""

    name: str
    column: Floats
    mean: float
    deviation: float


@dataclass(frozen=True)
class Problem:
    """Times per token of rows, as sums of columns times constants."""

    rows: Sequence[Deployed]
    columns: Floats
    constants: tuple[Constant, ...]

    @property
    def measured_s(self) -> Floats:
        """Return the measured times."""
        return np.array([row.tpot_s for row in self.rows])

    @property
    def fixed_s(self) -> Floats:
        """Return the part of each row that no constant multiplies."""
        fixed: Floats = self.columns[:, COLUMNS.index("fixed")]
        return fixed

    def predicted_s(self, values: Floats) -> Floats:
        """Return the times under given constants."""
        design = np.stack([c.column for c in self.constants], axis=-1)
        return np.asarray(self.fixed_s + design @ values, np.float64)


def bare(framework: str) -> Runtime:
    """Return a framework's runtime that adds nothing to its kernels."""
    return Runtime(
        name=framework, framework=framework, layer_s=0.0, host_s=0.0, sequence_s=0.0,
        kernels=KERNELS[framework],
    )  # fmt: skip


def problem_of(rows: Sequence[Deployed]) -> Problem:
    """Return the linear problem of some rows."""
    columns = np.zeros((len(rows), len(COLUMNS)))
    for indices in by_replica(rows).values():
        same = [rows[i] for i in indices]
        replica = same[0].replica(bare(same[0].framework))
        state = steady_state(replica, same, apart=same[0].framework in APART)
        columns[indices] = token_columns(replica, state)
    return Problem(rows, columns, tuple(_constants(rows, columns)))


def token_columns(replica: Replica, state: SteadyState) -> Floats:
    """Return what a token takes, by column; one row per load."""
    pairs = ((state.decode, state.decode_weight), (state.prefill, state.prefill_weight))
    table = [weight[:, None] * _step_columns(replica, step) for step, weight in pairs]
    return np.asarray(sum(table), np.float64)


def _step_columns(replica: Replica, step: Step) -> Floats:
    """Return what a step takes, by column; one row per load."""
    part = stage_of(replica.model, replica.cut, 0)
    size = np.asarray(step.decodes, np.float64).size
    table = {name: np.zeros(size) for name in COLUMNS}
    share = slowdown(replica.gpu)
    for row in part_rows(replica, step, part):
        for name, seconds in _columns_of(row, replica, share):
            table[name] += seconds
    counts: dict[str, Column] = {
        "layer_s": part.layers,
        "host_s": 1.0,
        "sequence_s": step.prefills + step.decodes,
        "mixture_layer_s": part.expert_layers,
        "latent_layer_s": part.layers * replica.model.is_latent,
        "state_layer_s": replica.model.state_layers,
    }
    for name, count in counts.items():
        table[name] += count
    return np.stack([table[name] for name in COLUMNS], axis=-1)


def _columns_of(row: Row, replica: Replica, share: float) -> Iterator[tuple[str, Floats]]:
    """Yield the columns an operator adds to, and its seconds in each."""
    seconds, operator = np.asarray(row.seconds, np.float64), row.operator
    if isinstance(operator, Collective):
        yield "messages", seconds
        return
    present = seconds > 0.0
    throttled = operator.repeat * np.asarray(throttled_s(operator, replica.gpu, share))
    yield "fixed", np.where(present, throttled, 0.0)
    yield family_of(operator), np.where(present, seconds - throttled, 0.0)


def _constants(rows: Sequence[Deployed], columns: Floats) -> Iterator[Constant]:
    """Yield the constants: paces by architecture, gaps by framework, gaps of kinds of layers."""
    column = {name: columns[:, i] for i, name in enumerate(COLUMNS)}
    architecture = np.array([row.replica(bare(row.framework)).gpu.architecture for row in rows])
    framework = np.array([row.framework for row in rows])
    for name in ARCHITECTURES:
        here = architecture == name
        for family in FAMILIES:
            yield Constant(f"{name}.{family}", column[family] * here, *KERNELS_PACE)
        yield Constant(f"{name}.messages", column["messages"] * here, *MESSAGES_PACE)
    for name in FRAMEWORKS:
        for gap in GAPS:
            yield Constant(f"{name}.{gap}", column[gap] * (framework == name), *PRIORS[gap])
    for kind in KINDS:
        yield Constant(kind, column[kind], *PRIORS[kind])


def solve(problem: Problem, train: NDArray[np.bool_]) -> Floats:
    """Return the constants fitted to some of the rows, none of them negative."""
    design = np.stack([c.column for c in problem.constants], axis=-1)[train]
    measured, fixed = problem.measured_s[train], problem.fixed_s[train] / problem.measured_s[train]
    scaled = design / measured[:, None]
    mean = np.array([c.mean for c in problem.constants])
    deviation = np.array([c.deviation for c in problem.constants])
    weight = group_weights([row.group for row in problem.rows])[train] / ROW_ERROR
    soft, linear = np.ones(measured.size), np.ones(measured.size)
    values = mean
    for _ in range(ROUNDS):
        w = weight * soft * linear
        a = np.concatenate([scaled * w[:, None] * deviation, np.eye(mean.size)])
        b = np.concatenate([w * (1.0 - fixed), mean / deviation])
        values = non_negative(a, b) * deviation
        ratio = np.maximum(fixed + scaled @ values, 1e-3)
        error = np.log(ratio)
        soft = (1.0 + (weight * error) ** 2) ** -0.25
        # The residual is log(ratio), not ratio - 1.
        linear = np.where(np.abs(ratio - 1.0) > 1e-6, np.abs(error / (ratio - 1.0 + 1e-12)), 1.0)
    return np.asarray(values, np.float64)


def non_negative(a: Floats, b: Floats) -> Floats:
    """Return the x of least |a x - b| without negative entries, by descent along each in turn.

    >>> non_negative(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -3.0]))
    array([2., 0.])
    """
    square, right = a.T @ a, a.T @ b
    x = np.zeros(right.size)
    for _ in range(SWEEPS):
        for i in range(x.size):
            x[i] = max(0.0, x[i] + (right[i] - square[i] @ x) / square[i, i])
    return x


def group_weights(groups: Sequence[str]) -> Floats:
    """Return weights under which a group counts as the square root of its rows."""
    _, index, count = np.unique(np.array(groups), return_inverse=True, return_counts=True)
    return np.asarray((MANY_ROWS / count[index]) ** 0.25, np.float64)


@dataclass(frozen=True)
class Fitted:
    """The constants of all rows, and of all but each group; what they say of the group left out."""

    problem: Problem
    values: Floats
    without: Mapping[str, Floats]
    held_out_s: Floats


def fit(rows: Sequence[Deployed]) -> Fitted:
    """Return the constants of rows that are not excluded."""
    problem = problem_of(rows)
    groups = np.array([row.group for row in rows])
    without, held_out = {}, np.empty(len(rows))
    for group in np.unique(groups):
        inside = groups == group
        without[str(group)] = solve(problem, ~inside)
        held_out[inside] = problem.predicted_s(without[str(group)])[inside]
    return Fitted(problem, solve(problem, np.ones(len(rows), bool)), without, held_out)


def fit_engines(reference: Path) -> None:
    """Fit the runtimes of all frameworks to the deployments of the reference folder."""
    rows = [row for row in silicon(reference) if not row.excluded]
    fitted = fit(rows)
    error = np.abs(fitted.held_out_s / fitted.problem.measured_s - 1.0)
    for framework in FRAMEWORKS:
        own = np.array([row.framework == framework for row in rows])
        groups = sorted({row.group for row in rows if row.framework == framework})
        body = (
            "# Written by `python -m simulators.composition.fit engines`. To change a number, "
            "change the fit.\n[provenance]\n"
            f'measured = "{SILICON}"\nsha256 = "{sha256_of(reference / SILICON)}"\n'
            f"rows = {int(own.sum())}\n"
            'split = "each group of a model and a GPU in turn; [without] holds the constants"\n'
            f"held_out_rows = {int(own.sum())}\nheld_out_mape = {error[own].mean():.3f}\n"
        )
        body += _tables(framework, fitted.problem, fitted.values, "")
        kernels = ", ".join(
            f"{family} = [{', '.join(map(_quoted, whose))}]"
            for family, whose in KERNELS[framework].items()
        )
        body += "\n[kernels]\n" + kernels.replace("], ", "]\n") + "\n"
        for group in groups:
            values = fitted.without[group]
            body += _tables(framework, fitted.problem, values, f'without."{group}".')
        write_calibration(PACKAGE / RUNTIMES.path / f"{framework}.toml", body)


def _tables(framework: str, problem: Problem, values: Floats, prefix: str) -> str:
    """Return the numbers of one framework as TOML."""
    value = {c.name: v for c, v in zip(problem.constants, values, strict=True)}
    own = {gap: value[f"{framework}.{gap}"] for gap in GAPS} | {k: value[k] for k in KINDS}
    text = f'\n[{prefix}runtime]\nframework = "{framework}"\n'
    text += "".join(f"{name} = {number:.4g}\n" for name, number in own.items())
    for architecture in ARCHITECTURES:
        text += f"\n[{prefix}paces.{architecture}]\n"
        for family in (*FAMILIES, "messages"):
            text += f"{family} = {value[f'{architecture}.{family}']:.4g}\n"
    return text


def _quoted(name: str) -> str:
    return f'"{name}"'


def scaled(runtime: Runtime, factor: float) -> Runtime:
    """Return a runtime under which everything takes a factor longer."""
    paces = {
        name: {f: factor * runtime.pace(name, f) for f in (*FAMILIES, "messages")}
        for name in {*ARCHITECTURES, *runtime.paces}
    }
    gaps = {name: factor * getattr(runtime, name) for name in (*GAPS, *KINDS)}
    return dataclasses.replace(runtime, paces=paces, **gaps)
