"""Attention over eight context-parallel ranks: the share of one GPU's speed that a ring keeps.

Measured is an eighth of flash attention's time alone over that of the ranks, of the shape of
Llama-3.1-8B. Both sides of the predicted ratio use the model's kernels, so the claim judges balance
and the part of the KV transfer that attention does not hide.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from lab.tables.rows import read_records
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.training.communication import cp_comm_s
from simulators.training.job import FLASH, Job
from simulators.training.operators import FORWARD, INPUTS
from simulators.training.pieces import ATTENTION, SCORES, pieces

TABLE = "training_modern/ring_attention_8gpu.parquet"
GPUS = {"8xA100": "a100_sxm", "8xH800": "h100_sxm"}
TOKENS, RANKS = 65_536, 8


def efficiencies(reference: Path) -> pl.DataFrame:
    """Return the predicted and measured efficiency of rings over whole batches."""
    rows = []
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
            ours = attention_share(job, backward="bwd" in row["pass"])
            theirs = row[f"{exchange}_iter_s"] / row["ideal_iter_s"]
            rows.append({"exchange": exchange, "predicted": ours, "measured": theirs})
    return pl.DataFrame(rows)


def attention_share(job: Job, *, backward: bool = False) -> float:
    """Return an even share of one GPU's attention time over the time of the ranks.

    Args:
        job: of which one sequence is attended to.
        backward: whether the backward pass is counted too.
    """
    alone_s = sum(_attention_s(replace(job, cp=1), backward))
    kernels_s, exposed_s = _attention_s(job, backward)
    return alone_s / job.cp / (kernels_s + exposed_s)


def _attention_s(job: Job, backward: bool) -> tuple[float, float]:
    """Return the seconds of a layer's attention on one rank, and of exposed KV transfers."""
    one = np.ones(1)
    seconds = pieces(job, one)["dense"].seconds
    phases = (FORWARD, INPUTS) if backward else (FORWARD,)
    kernels_s, exposed_s = 0.0, 0.0
    for phase, sent in zip(phases, cp_comm_s(job, one), strict=False):
        attending = float(seconds[phase, ATTENTION][0])
        kernels_s += attending + float(seconds.get((phase, SCORES), np.zeros(1))[0])
        exposed_s += max(0.0, float(sent[0]) - attending)
    return kernels_s, exposed_s
