"""Steps of MLPerf Training's submissions, each under constants that never saw its submitter.

What hosts take to launch a kernel was fitted to adapters trained without graphs, of half of the
submitters, and tests the others; nothing else was fitted to any of them.

Quoted from "MLPerf Training v4.0, v4.1, v5.0, results repositories of MLCommons"; derived figures
are ours and no official results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, answered, at_most, error_line, spread
from lab.fits.training.host_launches import FIRST, SECOND, in_first_half
from lab.tables.training.mlperf_training import BERT, LORA, SUMMARY, Submission, submissions
from simulators.core.calibration import read_calibration
from simulators.core.contract import Check
from simulators.training.constants import CALIBRATION, Constants, load_constants
from simulators.training.job import check_job
from simulators.training.step import steps, work_of

NEEDS = (SUMMARY,)
LARGE, SIZES = ("llama31_405b", "gpt3"), range(256, 8192 + 1)
"""Benchmarks of the largest models, and the numbers of GPUs on which they are asked for."""

Predicted = tuple[Submission, float]


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of step times and of what growth of a submitter's systems costs."""
    rows = list(submissions(reference))
    first = in_first_half(rows)
    others = {half: of_submitters(half) for half in (FIRST, SECOND)}

    def left_out_s(row: Submission) -> float:
        return predicted_s(row, others[SECOND if row.submitter in first else FIRST])

    asked = answered("MLPerf Training", rows, left_out_s)
    found = list(zip(asked.rows, asked.answers, strict=True))
    if not found:
        yield absent("MLPerf Training", unit="%")
        return
    large = [one for one in found if one[0].benchmark in LARGE]
    for name, mine, limit in (
        ("Llama-3.1-405B and GPT-3", [one for one in large if one[0].gpus in SIZES], 10.0),
        ("GPT-3 on fewer GPUs", [one for one in large if one[0].gpus not in SIZES], None),
        ("Llama-2-70B LoRA", [one for one in found if one[0].benchmark == LORA], 15.0),
        ("BERT", [one for one in found if one[0].benchmark == BERT], 15.0),
    ):
        errors = [np.array([100.0 * (ours / row.seconds - 1.0) for row, ours in mine])]
        yield error_line(f"MLPerf Training, {name}", errors, limit, note=_by_gpu(mine))
    yield from _scaling(found, "efficiency of larger systems", 6.0)
    yield from _scaling(found, "efficiency of larger systems cut alike", None, alike=True)
    yield from asked.lines


def of_submitters(half: str) -> Constants:
    """Return the constants in use, with launches as fitted to a half of the submitters."""
    fitted = read_calibration(CALIBRATION)[half]
    return replace(load_constants(), launch_s=fitted["launch_s"])


def predicted_s(row: Submission, constants: Constants) -> float:
    """Return our step time of a system."""
    check_job(row.job)
    return float(steps(work_of(row.job, row.plans), constants).step_s[0])


def _by_gpu(found: Sequence[Predicted]) -> str:
    errors: dict[str, list[float]] = {}
    for row, ours in found:
        errors.setdefault(row.job.gpu.name, []).append(100.0 * (ours / row.seconds - 1.0))
    return ", ".join(f"{gpu} {np.mean(e):+.0f}" for gpu, e in sorted(errors.items()))


def _scaling(
    found: Sequence[Predicted], name: str, limit: float | None, *, alike: bool = False
) -> Iterator[Check]:
    """Yield how far off the efficiency of a submitter's largest system over its smallest is.

    Systems of one round are compared: between rounds the software changes, by up to 18 % of a step.
    Two that were carried over to a later round count once. Those cut `alike` have the same tensor,
    context and pipeline ranks and micro-batch.
    """
    groups: dict[tuple[str, ...], list[Predicted]] = {}
    for row, ours in found:
        sizes = (row.job.tp, row.job.cp, row.plans.pp[0], row.plans.micro_batch[0])
        cut = tuple(map(str, sizes)) if alike else ()
        for entered in row.rounds:
            group = (row.submitter, row.benchmark, row.job.gpu.name, entered, *cut)
            groups.setdefault(group, []).append((row, ours))
    points: dict[tuple[str, ...], float] = {}
    compared = set()
    for group, mine in groups.items():
        small, large = (pick(mine, key=lambda one: one[0].gpus) for pick in (min, max))
        pair = id(small[0]), id(large[0])
        if large[0].gpus > small[0].gpus and pair not in compared:
            compared.add(pair)
            ours = _rate(large[0], large[1]) / _rate(small[0], small[1])
            theirs = _rate(large[0], large[0].seconds) / _rate(small[0], small[0].seconds)
            points[group] = 100.0 * (ours - theirs)
    if points:
        worst = max(points, key=lambda group: abs(points[group]))
        signed = np.array(list(points.values()))
        note = (
            f"smallest to largest system of a submitter and round, {spread(signed)}, worst "
            f"{points[worst]:+.0f} ({worst[0]}, {worst[2]}, {worst[3]})"
        )
        value = float(np.mean(np.abs(signed)))
        yield at_most(f"MLPerf Training, {name}", value, limit, len(points), note, unit="points")


def _rate(row: Submission, seconds: float) -> float:
    """Return the sequences per second and GPU."""
    plans = row.plans
    sequences = float((plans.dp * plans.micro_batch * plans.micro_batches)[0])
    return sequences / seconds / row.gpus
