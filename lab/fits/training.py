"""Fit the constants of training steps to measured ones; every source has the same weight.

    loss = mean over sources of mean |log(predicted / measured)|
           + sum of prior x log(constant / start)^2

docs/explanation/training.md describes the fit, and that of the host's time for a launch.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import DECLARED, Calibration, declared, rounded, settings
from lab.fits.engines import LEFT_OUT
from lab.fits.methods import Label, grouped, quantile
from lab.tables import training as tables
from lab.tables.deployments import until
from lab.tables.training import LORA, MeasuredStep, TrainingSubmission
from simulators.core.calibration import read_calibration
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED
from simulators.training.job import CALIBRATION, Constants, check_job, constants_of
from simulators.training.memory import rank_memory
from simulators.training.step import Work, step_parts, work_of

CONFIG = settings(__file__)

TIMES_S = np.geomspace(5e-5, 5e-4, 117)
"""Candidates for the launch time, 2 % apart; the first of equal ones counts."""
FIRST, SECOND = "submitters_first", "submitters_second"
"""Names of the constants fitted to either half of the submitters."""


def _without_graphs(rows: Iterable[TrainingSubmission]) -> list[TrainingSubmission]:
    return [row for row in rows if row.benchmark == LORA and not row.job.layer_graphs]


def in_first_half(rows: Iterable[TrainingSubmission]) -> frozenset[str]:
    """Return the submitters of the first half; both halves have some with many GPUs per layer."""
    plain = _without_graphs(rows)
    thin = {row.submitter for row in plain if row.job.tp * row.job.cp > CONFIG.few_gpus}
    kinds = grouped({row.submitter for row in plain}, lambda name: name in thin)
    return frozenset(_first_half(kinds.values(), str))


def _first_half(kinds: Iterable[Iterable[Label]], name_of: Callable[[Label], str]) -> set[Label]:
    """Return every second label of each kind, in the order of the hashes of their names."""

    def digest(label: Label) -> str:
        return hashlib.sha256(name_of(label).encode()).hexdigest()

    return {label for labels in kinds for label in sorted(labels, key=digest)[::2]}


def launch_times_s(reference: Path, constants: Constants) -> dict[str, float]:
    """Return the launch time fitted to all systems (empty name), and to each half."""
    rows = _without_graphs(tables.submissions(reference))
    first = in_first_half(rows)
    halves = {
        "": rows,
        FIRST: [row for row in rows if row.submitter in first],
        SECOND: [row for row in rows if row.submitter not in first],
    }
    return {name: _fitted_launch_s(mine, constants) for name, mine in halves.items()}


def _fitted_launch_s(rows: Sequence[TrainingSubmission], constants: Constants) -> float:
    works = [work_of(row.job, row.plans) for row in rows]
    measured_s = np.array([row.seconds for row in rows])

    def error(seconds: float) -> float:
        tried = replace(constants, launch_s=seconds)
        ours_s = np.array([found.step_s[0] for found in step_parts(works, tried)])
        return float(np.mean(np.abs(np.log(ours_s / measured_s))))

    return float(min(TIMES_S, key=error))


FITTED_SOURCES = (tables.PAPERS, tables.FOUNDRY, tables.BRIDGE, tables.DGXC)


@dataclass(frozen=True)
class PricedSteps:
    """A measured step and its work, without constants."""

    step: MeasuredStep
    work: Work
    fits: Floats  # 1 where a way of running it fits the memory, or where none does


def priced_steps(reference: Path) -> Iterator[PricedSteps]:
    """Yield measured steps whose parallelism is supported, with their work."""
    for step in tables.measured_steps(reference):
        try:
            check_job(step.job)
            work = work_of(step.job, step.plans)
        except (Infeasible, UserError):
            continue
        fits = rank_memory(step.job, step.plans).total <= step.job.gpu.hbm_bytes
        yield PricedSteps(step, work, np.where(fits | ~fits.any(), 1.0, np.inf))


def fastest_s(one: PricedSteps, constants: Constants) -> float:
    """Return the predicted time of the fastest plan of a measured step."""
    [found] = step_parts([one.work], constants)
    return float(np.min(found.step_s * one.fits))


def nested(numbers: Mapping[str, float]) -> dict[str, object]:
    """Return constants as nested tables; `table.name` names an entry of a table."""
    found: dict[str, Any] = {}
    for name, value in numbers.items():
        *tables, key = name.split(".")
        inner = found.setdefault(tables[0], {}) if tables else found
        inner[key] = value
    return found


SPLITS: Mapping[str, Callable[[MeasuredStep], str]] = {
    "GPU": lambda step: step.job.gpu.name.partition("_")[0],
    "model": lambda step: f"fold_{_fold(step.job.model.name)}",
    "release": lambda step: step.release.replace(".", "_"),
    "source": lambda step: step.source,
}
"""Ways to hold rows out, with the fold of a step; steps without a fold are fitted by every fold.

Variants of a GPU's memory and power are one fold, models are spread over `model_folds`, and
releases are those of NVIDIA's containers.
"""


def _fold(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % int(CONFIG.model_folds)


def plan_of(step: MeasuredStep) -> tuple[object, ...]:
    """Return what twins have in common: steps that differ in release, source, or copies alone."""
    job, ranks = step.job, (step.job.tp, step.job.cp, step.job.ep, int(step.plans.pp[0]))
    return (job.model.name, SPLITS["GPU"](step), job.dtype, job.sequence, *ranks)


def left_out(
    rows: Sequence[PricedSteps], split: str
) -> Iterator[tuple[str, list[PricedSteps], list[PricedSteps]]]:
    """Yield each fold of a split with its rows, and the rows to fit: others without their twins."""
    fold_of = SPLITS[split]
    for fold, unseen in grouped(rows, lambda one: fold_of(one.step)).items():
        if fold:
            twins = {plan_of(one.step) for one in unseen}
            yield fold, unseen, [one for one in rows if plan_of(one.step) not in twins]


def section_of(split: str, fold: str) -> str:
    """Return the name of the constants of a fold in the file of constants."""
    return f"split_{split}_{fold}".lower().replace(" ", "_").replace("-", "_")


def fit_training_steps(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the constants fitted to all steps, and to those outside each fold of each split."""
    rows = [one for one in priced_steps(reference) if one.step.source in FITTED_SOURCES]
    rows = [one for one in rows if not one.step.is_flagged]
    whole = fitted_constants(rows)
    launches = launch_times_s(reference, constants_of(nested(whole)))
    launch = {"launch_s": launches.pop("")}
    content: dict[str, dict[str, object]] = {"step": nested(whole | launch)}
    errors: list[float] = []
    groups: list[str] = []
    for split in SPLITS:
        for fold, unseen, seen in left_out(rows, split):
            numbers = nested(fitted_constants(seen) | launch)
            content[section_of(split, fold)] = numbers
            constants = constants_of(numbers)
            errors += [np.log(one.step.seconds / fastest_s(one, constants)) for one in unseen]
            groups += [split] * len(unseen)
    content["step"]["band"] = rounded(np.exp(quantile(errors, COVERED, groups)), ".3f")
    content |= {name: {"launch_s": seconds} for name, seconds in launches.items()}
    fitted = declared(
        "training_steps", content=content, rows=len(rows), errors=np.expm1(-np.array(errors))
    )
    yield replace(fitted, provenance={"newest": max(one.step.day for one in rows)})


class _Noted(dict[str, float]):
    """A table of constants that notes the names that are read."""

    def __init__(self, table: Mapping[str, float]) -> None:
        super().__init__(table)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def constants_read(one: PricedSteps, start: Mapping[str, float]) -> list[str]:
    """Return the names of the constants that a step depends on; single numbers count always."""
    known = nested(start)
    tables = {name: _Noted(table) for name, table in known.items() if isinstance(table, dict)}
    fastest_s(one, constants_of(known | tables))
    read = {f"{name}.{key}" for name, table in tables.items() for key in table.read}
    return [name for name in start if "." not in name or name in read]


def fitted_constants(rows: Sequence[PricedSteps]) -> dict[str, float]:
    """Return the constants with the least loss; exposed shares of communication are at most 1."""
    start: dict[str, float] = CONFIG["start"]
    names = list(start)
    begin = np.log([start[name] for name in names])
    most = np.where([name.startswith("exposed") for name in names], 0.0, np.inf)
    probe = np.where(np.isfinite(most), -CONFIG.probe, CONFIG.probe)
    prior = np.array([CONFIG["prior"].get(name, CONFIG["prior"]["usual"]) for name in names])
    kinds = [(one.step.source, one.step.is_mixture) for one in rows]
    weights = np.array([1.0 / (len(set(kinds)) * kinds.count(kind)) for kind in kinds])

    read = [[names.index(name) for name in constants_read(one, start)] for one in rows]
    seconds: dict[bytes, dict[bytes, float]] = {}  # of equal jobs and plans, by constants read
    known = [seconds.setdefault(pickle.dumps((o.step.job, o.step.plans)), {}) for o in rows]
    measured_s = np.array([one.step.seconds for one in rows])

    def errors_at(where: Floats) -> Floats:
        numbers = dict(zip(names, np.exp(where).tolist(), strict=True))
        constants = constants_of(nested(numbers))
        for one, mine, found in zip(rows, read, known, strict=True):
            if (key := where[mine].tobytes()) not in found:
                found[key] = fastest_s(one, constants)
        ours_s = [found[where[r].tobytes()] for found, r in zip(known, read, strict=True)]
        return np.asarray(np.log(np.array(ours_s) / measured_s), np.float64)

    def loss_at(where: Floats, errors: Floats) -> float:
        return float(weights @ np.abs(errors) + prior @ (where - begin) ** 2)

    where, errors = begin, errors_at(begin)
    best = loss_at(where, errors)
    for _ in range(CONFIG.rounds):
        moves = np.diag(probe)
        slopes = np.stack([(errors_at(where + m) - errors) / m.sum() for m in moves], axis=1)
        weighed = weights / np.maximum(np.abs(errors), CONFIG.least_error)
        curve = slopes.T @ (weighed[:, None] * slopes) + np.diag(2.0 * prior)
        slope = slopes.T @ (weighed * errors) + 2.0 * prior * (where - begin)
        step = np.clip(-np.linalg.solve(curve, slope), -CONFIG.longest_step, CONFIG.longest_step)
        for share in (1.0, 0.5, 0.25, 0.1):
            there = np.minimum(where + share * step, most)
            found = errors_at(there)
            if (gain := best - loss_at(there, found)) > 0.0:
                where, errors, best = there, found, best - gain
                break
        if gain < CONFIG.least_gain:
            break
    return dict(zip(names, np.exp(where).tolist(), strict=True))


BLIND = LEFT_OUT / "training_blind.toml"


def fit_blind(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the constants of training steps fitted to the rows before each day.

    Rows whose configuration was also measured on the day or later are left out, so that no later
    row has a twin among the fitted ones.
    """
    rows = [one for one in priced_steps(reference) if one.step.source in FITTED_SOURCES]
    rows = [one for one in rows if not one.step.is_flagged]
    launch = {"launch_s": float(read_calibration(CALIBRATION)["step"]["launch_s"])}
    content, errors = {}, []
    for day in CONFIG.days:
        later, seen = split_by_day(rows, day)
        content[until(day)] = nested(fitted_constants(seen) | launch)
        constants = constants_of(content[until(day)])
        errors += [fastest_s(one, constants) / one.step.seconds - 1.0 for one in later]
    facts = {**DECLARED["blind"], "file": BLIND, "rows": len(rows)}
    yield Calibration(content=content, errors=np.array(errors), **facts)


def split_by_day(
    rows: Sequence[PricedSteps], day: str
) -> tuple[list[PricedSteps], list[PricedSteps]]:
    """Return the rows of a day and later, and older rows without their twins."""
    later = [one for one in rows if one.step.day >= day]
    twins = {plan_of(one.step) for one in later}
    older = [one for one in rows if one.step.day < day and plan_of(one.step) not in twins]
    return later, older


def constants_until(day: str) -> Constants:
    """Return the constants of training steps fitted to rows before a day of `training.toml`."""
    return constants_of(once(read_calibration, BLIND)[until(day)])
