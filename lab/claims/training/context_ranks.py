"""Attention over eight context ranks: what a ring keeps of one GPU's pace, measured and priced.

The measured figure is iterations over an eighth of flash attention's alone, of the shape of
Llama-3.1-8B. Kernels are those of the model on either side, so what is judged is balance and what
sending keys leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, error_line
from lab.tables.rows import read_records
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.contract import Check
from simulators.training.job import FLASH, Job
from simulators.training.work.messages import context_s
from simulators.training.work.operators import FORWARD, INPUTS
from simulators.training.work.pieces import ATTENTION, SCORES, pieces

TABLE = "training_modern/ring_attention_8gpu.parquet"
NEEDS = (TABLE,)
GPUS = {"8xA100": "a100_sxm", "8xH800": "h100_sxm"}
PASSES = {"fwd": False, "fwd+bwd": True}
TOKENS, RANKS = 65_536, 8
"""Of the benchmark: 8,192 tokens a rank."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of efficiencies of rings over whole batches."""
    errors: dict[str, list[float]] = {}
    for row in read_records(reference / TABLE, api="batch"):
        gpu = load_gpu(GPUS[row["gpus"]])
        for exchange in ("ring", "zigzag"):
            job = Job(
                model=load_model("llama3_1_8b"),
                gpu=gpu,
                cluster=cluster_for("auto", gpu),
                sequence=TOKENS,
                cp=RANKS,
                attention=FLASH,
                context_exchange=exchange,
            )
            ours = attention_share(job, backward=PASSES[row["pass"]])
            theirs = row[f"{exchange}_iter_s"] / row["ideal_iter_s"]
            errors.setdefault(exchange, []).append(100.0 * (ours / theirs - 1.0))
    if not errors:
        yield absent("context ranks", unit="%")
    for exchange, found in errors.items():
        yield error_line(f"efficiency of context ranks, {exchange}", [np.array(found)], 10.0)


def attention_share(job: Job, *, backward: bool = False) -> float:
    """Return an even share of a single GPU's time of attention over the time of the ranks.

    Args:
        job: of which one sequence is attended to.
        backward: whether the backward pass is counted too.
    """
    alone_s = sum(_attention_s(replace(job, cp=1), backward))
    kernels_s, exposed_s = _attention_s(job, backward)
    return alone_s / job.cp / (kernels_s + exposed_s)


def _attention_s(job: Job, backward: bool) -> tuple[float, float]:
    """Return the seconds of a layer's attention on one rank, and of the sends it does not hide."""
    one = np.ones(1)
    seconds = pieces(job, one)["dense"].seconds
    phases = (FORWARD, INPUTS) if backward else (FORWARD,)
    kernels_s, exposed_s = 0.0, 0.0
    for phase, sent in zip(phases, context_s(job, one), strict=False):
        attending = float(seconds[phase, ATTENTION][0])
        kernels_s += attending + float(seconds.get((phase, SCORES), np.zeros(1))[0])
        exposed_s += max(0.0, float(sent[0]) - attending)
    return kernels_s, exposed_s
