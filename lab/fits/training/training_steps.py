"""Fit the few constants of training steps to measured ones, each line of sources weighing alike.

    loss = mean over sources of mean |log(predicted / measured)|
           + sum of prior x log(constant / where it starts)^2

Its least is found by steps of Gauss and Newton on squares that are weighed anew by their size
(Holland and Welsch, 1977), as paces of one architecture, precision and board move together. Groups
of a source, a model and a GPU are dealt to two halves; each half is fitted and tests the other,
three times over, and all are fitted for use. What hosts take to launch a kernel shows in none of
these steps; it is fitted after them, to others (`host_launches`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, hashes
from lab.fits.training.host_launches import launch_times_s
from lab.tables.training.mlperf_training import SUMMARY
from lab.tables.training.steps import (
    BRIDGE,
    DGXC,
    FOUNDRY,
    PAPERS,
    TABLES,
    MeasuredStep,
    measured_steps,
)
from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Floats
from simulators.training.constants import CALIBRATION, Constants, constants_of
from simulators.training.job import check_job
from simulators.training.memory import rank_memory
from simulators.training.step import Work, steps, work_of

FOLDER = CALIBRATION.parent
SPLITS = 3
SPLIT = "groups of source, model and GPU: half fitted, half held out, three splits both ways"
FITTED_SOURCES = (PAPERS, FOUNDRY, BRIDGE, DGXC)
PRIOR = 0.03
LOOSE_PRIOR = 0.003
LOOSE = (
    "attention.flash2_ampere",
    "attention.flash2_hopper",
    "streams.eager",
    "late",
    "step_s",
    "layer_s",
    "mixture_s",
)
"""Paces of kernels that no table has, and waits: nothing says where they should start."""

START = {
    "products.ampere": 1.0,
    "products.hopper": 1.0,
    "products.blackwell": 1.0,
    "formats.fp8": 1.0,
    "formats.fp4": 1.0,
    "boards.gb300": 1.0,
    "attention.unfused_ampere": 1.0,
    "attention.flash2_ampere": 1.0,
    "attention.flash2_hopper": 1.0,
    "attention.flash_hopper": 1.0,
    "attention.flash_blackwell": 1.0,
    "streams.fused": 1.0,
    "streams.eager": 1.0,
    "experts.bf16": 1.0,
    "experts.fp8": 1.0,
    "step_s": 2e-2,
    "layer_s": 1.5e-4,
    "mixture_s": 1e-3,
    "exposed.tensor": 0.5,
    "exposed.experts": 1.0,
    "exposed.gradients": 0.3,
    "exposed.gathered": 0.3,
    "exposed.sharded": 0.1,
    "late": 5e-3,
}
"""Where each constant starts, and what the prior holds it near."""

PROBE = 0.03
"""Logarithm by which a constant is moved to see what it does."""
REACH, LEAST_ERROR, ROUNDS, LEAST_GAIN = 0.5, 5e-3, 25, 1e-5
"""The longest step in logarithms, the error below which all weigh alike, and when it is enough."""


@dataclass(frozen=True)
class Priced:
    """A measured step and what it consists of, before any constant."""

    step: MeasuredStep
    work: Work
    fits: Floats  # 1 where a way of running it fits the memory, or where none does


def priced_steps(reference: Path) -> Iterator[Priced]:
    """Yield measured steps that the model can cut, with their work."""
    for step in measured_steps(reference):
        try:
            check_job(step.job)
            work = work_of(step.job, step.plans)
        except (Infeasible, UserError):
            continue
        room = rank_memory(step.job, step.plans).total <= step.job.gpu.hbm_bytes
        yield Priced(step, work, np.where(room | ~room.any(), 1.0, np.inf))


def fitting_steps(reference: Path) -> Iterator[Priced]:
    """Yield the steps that constants are fitted to."""
    for one in priced_steps(reference):
        if one.step.source in FITTED_SOURCES and not one.step.is_flagged:
            yield one


def predicted_s(one: Priced, numbers: Mapping[str, float]) -> float:
    """Return the step time under constants by their names."""
    return fastest_s(one, constants_of(nested(numbers)))


def fastest_s(one: Priced, constants: Constants) -> float:
    """Return the step time of the fastest way of running a measured step."""
    return float(np.min(steps(one.work, constants).step_s * one.fits))


def nested(numbers: Mapping[str, float]) -> dict[str, object]:
    """Return numbers named `table.key` as tables."""
    found: dict[str, object] = {}
    for name, value in numbers.items():
        table, _, key = name.partition(".")
        if key:
            inner = found.setdefault(table, {})
            assert isinstance(inner, dict)
            inner[key] = value
        else:
            found[table] = value
    return found


def halves(rows: Sequence[Priced], split: int) -> list[bool]:
    """Return for each step whether its group falls to the first half of a split.

    Groups of one source, one kind of model and one generation of GPUs are dealt out in turn, in an
    order that looks drawn, so that either half has some of each.
    """
    kinds: dict[tuple[str, bool, str], set[tuple[str, str, str]]] = {}
    for one in rows:
        step = one.step
        kind = (step.source, step.is_mixture, step.job.gpu.architecture)
        kinds.setdefault(kind, set()).add(step.group)
    first: set[tuple[str, str, str]] = set()
    for groups in kinds.values():
        drawn = sorted(groups, key=lambda group: _digest("|".join((*group, str(split)))))
        first.update(drawn[::2])
    return [one.step.group in first for one in rows]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the constants: for use, and of each half of each split; of launches, of submitters."""
    rows = list(fitting_steps(reference))
    whole = fitted(rows)
    launches = launch_times_s(reference, constants_of(nested(whole)))
    launch = {"launch_s": launches.pop("")}
    lines = ["", "[step]", *_lines(whole | launch)]
    errors: list[float] = []
    for split in range(SPLITS):
        in_first = halves(rows, split)
        for half in (True, False):
            numbers = fitted([r for r, first in zip(rows, in_first, strict=True) if first == half])
            errors += [
                float(np.log(one.step.seconds / predicted_s(one, numbers | launch)))
                for one, first in zip(rows, in_first, strict=True)
                if first != half
            ]
            name = f"split_{split}_{'first' if half else 'second'}"
            lines += ["", f"[{name}]", *_lines(numbers | launch)]
    low, high = np.exp(np.quantile(errors, (0.05, 0.95)))
    lines.insert(2, f"band = [{low:.3f}, {high:.3f}]")
    for name, seconds in launches.items():
        lines += ["", f"[{name}]", *_lines({"launch_s": seconds})]
    yield Calibration(
        name=CALIBRATION.stem,
        about=".",
        tables=hashes(reference, (*TABLES, SUMMARY)),
        rows=len(rows),
        split=SPLIT,
        held_out_rows=len(errors),
        error=float(np.mean(np.abs(np.expm1(-np.array(errors))))),
        lines=lines,
    )


def fitted(rows: Sequence[Priced], start: Mapping[str, float] = START) -> dict[str, float]:
    """Return the constants of least loss; shares of messages do not exceed one."""
    names = list(start)
    begin = np.log([start[name] for name in names])
    most = np.where([name.startswith("exposed") for name in names], 0.0, np.inf)
    probe = np.where(np.isfinite(most), -PROBE, PROBE)
    prior = np.array([LOOSE_PRIOR if name in LOOSE else PRIOR for name in names])
    weights = _weights(rows)

    def errors_at(where: Floats) -> Floats:
        numbers = dict(zip(names, np.exp(where).tolist(), strict=True))
        return np.array([np.log(predicted_s(one, numbers) / one.step.seconds) for one in rows])

    def loss_at(where: Floats, errors: Floats) -> float:
        return float(weights @ np.abs(errors) + prior @ (where - begin) ** 2)

    where, errors = begin, errors_at(begin)
    best = loss_at(where, errors)
    for _ in range(ROUNDS):
        moves = np.diag(probe)
        slopes = np.stack([(errors_at(where + m) - errors) / m.sum() for m in moves], axis=1)
        weighed = weights / np.maximum(np.abs(errors), LEAST_ERROR)
        curve = slopes.T @ (weighed[:, None] * slopes) + np.diag(2.0 * prior)
        slope = slopes.T @ (weighed * errors) + 2.0 * prior * (where - begin)
        step = np.clip(-np.linalg.solve(curve, slope), -REACH, REACH)
        for share in (1.0, 0.5, 0.25, 0.1):
            there = np.minimum(where + share * step, most)
            found = errors_at(there)
            if (gain := best - loss_at(there, found)) > 0.0:
                where, errors, best = there, found, best - gain
                break
        if gain < LEAST_GAIN:
            break
    return dict(zip(names, np.exp(where).tolist(), strict=True))


def _weights(rows: Sequence[Priced]) -> Floats:
    """Return the weight of each row: all sources together weigh one, and each alike."""
    kinds = [(one.step.source, one.step.is_mixture) for one in rows]
    return np.array([1.0 / (len(set(kinds)) * kinds.count(kind)) for kind in kinds])


def _lines(numbers: Mapping[str, float]) -> list[str]:
    """Return constants as TOML."""
    plain = [f"{name} = {value:.4g}" for name, value in numbers.items() if "." not in name]
    tables: dict[str, list[str]] = {}
    for name, value in numbers.items():
        table, _, key = name.partition(".")
        if key:
            tables.setdefault(table, []).append(f"{key} = {value:.4g}")
    inner = [f"{table} = {{ {', '.join(parts)} }}" for table, parts in tables.items()]
    return [*plain, *inner]
