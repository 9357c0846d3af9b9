"""Runs whose set-up and pace were published: Llama 3 405B, Nemotron-4 340B and DeepSeek-V3.

Nothing was fitted to them. Whether they fit the memory is not asked: parts of a layer run again
there, and some are kept in FP8. What a report leaves out is taken as Megatron-LM interleaves it.

    Llama 3      Grattafiori et al. (2024), table 4: FLOP/s of a GPU in bf16, 16M tokens a step
    Nemotron-4   technical report (2024), table 2: 8.0 s for 2,304 sequences on 6,144 GPUs
    DeepSeek-V3  technical report (2024): "training DeepSeek-V3 on each trillion tokens requires
                 only 180K H800 GPU hours", 16 pipeline ranks under DualPipe, 64 expert ranks, FP8
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lab.claims.lines import at_most
from simulators.core.contract import Check
from simulators.training.constants import load_constants
from simulators.training.metrics import job_of, plans_of
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.step import Steps, steps, work_of

NEEDS: tuple[str, ...] = ()
HOURS_A_TRILLION = 180_000.0
RUN = TrainingPoint(
    model="deepseek_v3",
    gpu="h800",
    pp=16,
    dp=128,
    ep=64,
    batch=15_360,
    sequence=4096,
    schedule="dualpipe",
    recompute="none",
    zero=1,
    dtype="fp8",
    gradient_dtype="bf16",
)
LLAMA = TrainingPoint(
    model="llama3_1_405b",
    gpu="h100_sxm",
    tp=8,
    pp=16,
    dp=64,
    batch=2048,
    sequence=8192,
    schedule="interleaved",
    chunks=8,
    recompute="none",
)
TERAFLOPS = {
    "Llama 3 405B on 8,192 H100": (430.0, LLAMA),
    "Llama 3 405B on 16,384 H100": (400.0, replace(LLAMA, dp=128)),
    "Llama 3 405B on 16,384 H100, 131,072 tokens": (
        380.0,
        replace(LLAMA, cp=16, dp=8, batch=128, sequence=131_072),
    ),
}
NEMOTRON_S, NEMOTRON = (
    8.0,
    TrainingPoint(
        model="nemotron_4_340b",
        gpu="h100_sxm",
        tp=8,
        pp=12,
        dp=64,
        batch=2304,
        sequence=4096,
        schedule="interleaved",
        chunks=8,
        recompute="none",
    ),
)


def checks(_reference: Path, _rows: str) -> Iterator[Check]:
    """Yield how far each run is off, and what 1F1B would have taken of DeepSeek's."""
    for name, (measured, point) in TERAFLOPS.items():
        ours = float(_steps(point).flops[0] / _steps(point).step_s[0]) / _gpus(point) / 1e12
        note = f"{ours:.0f} TFLOP/s of a GPU, {measured:.0f} measured"
        yield _line(name, measured / ours, note)
    step_s = float(_steps(NEMOTRON).step_s[0])
    note = f"{step_s:.1f} s a step, {NEMOTRON_S:.1f} measured"
    yield _line("Nemotron-4 340B on 6,144 H100", step_s / NEMOTRON_S, note)
    ours, plain = hours_a_trillion(RUN), hours_a_trillion(replace(RUN, schedule="1f1b"))
    note = (
        f"{ours / 1e3:.0f}K GPU-hours for 1e12 tokens, {HOURS_A_TRILLION / 1e3:.0f}K measured; "
        f"{plain / 1e3:.0f}K by 1F1B"
    )
    yield _line("DeepSeek-V3 on 2,048 H800, dualpipe", ours / HOURS_A_TRILLION, note)


def hours_a_trillion(point: TrainingPoint) -> float:
    """Return the GPU-hours in which a design trains 1e12 tokens, none lost."""
    step_s = float(_steps(point).step_s[0])
    return 1e12 / (point.batch * point.sequence) * step_s * _gpus(point) / 3600.0


def _line(name: str, ratio: float, note: str) -> Check:
    """Return the error of a run whose time is predicted to be so many times that measured."""
    return at_most(f"published run, {name}", 100.0 * abs(ratio - 1.0), None, 1, note)


def _steps(point: TrainingPoint) -> Steps:
    return steps(work_of(job_of(vars(point)), plans_of(batch_of([point]))), load_constants())


def _gpus(point: TrainingPoint) -> int:
    return point.tp * point.pp * point.cp * point.dp
