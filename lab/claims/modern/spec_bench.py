"""Spec-Bench: how much drafting methods speed up one sequence of Vicuna under HF transformers.

Speed-up is measured tokens of an iteration times a plain pass, over drafts and the pass that checks
them. Trees are checked in one pass with a row for each node, and the root. Sizes are what the
benchmark ran with (hemingkx/Spec-Bench, `evaluation/inference_*.py`), none of them fitted.

HF's loops are bound by the host: it launches each layer's kernels one by one, and in each pass, a
head's as well, and once more when drafts are accepted, it takes the time of a few layers more. Of
2, 3 and 4 layers, 3 is best with a method left out (4 without the draft model's, which is then 5 %
off instead of 1). The host of the A100 is as published; that of the RTX 3090 is TinyChat's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import predict
from lab.tables.catalog_names import extra_model, replica_of
from lab.tables.records import records
from lab.tables.rows import Record
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel
from simulators.composition.price import iteration
from simulators.composition.replica import load_runtime
from simulators.kernels.price import price
from simulators.serving.speculation.drafter import dense_layer
from simulators.workload.llm.step import Step, chunk_step, decode_step
from simulators.workload.operators import Gemm

HALVINGS, MOST_ASSISTED, SETTLED_STEPS = 40, 64, 4096
"""Of the search for a rate; drafts of a walk; its iterations until it is settled."""

CONTEXT = 500.0
"""Tokens so far, about; a pass of one sequence reads 26 times as many bytes of weights."""

RUNTIME = replace(load_runtime("eager"), prompt_layer_s={})
"""HF's code launches the same for several tokens as for one; TinyChat's does not."""

HOST_LAYERS = 3.0
"""Layers that are launched in the time that the host takes besides, in each pass."""

PUBLISHED_RATE, PUBLISHED_LAYERS = 40.24, 32
"""Tokens a second of Vicuna-7B without drafts on the A100's machine, and its layers
(hemingkx/Spec-Bench, issue 4): 2.5 times as long as the GPU takes."""

LAYER_S = 1.0 / PUBLISHED_RATE / (PUBLISHED_LAYERS + HOST_LAYERS)

HOSTS = {
    "a100_sxm": replace(RUNTIME, launch_layer_s={"any": LAYER_S}, host_s=HOST_LAYERS * LAYER_S)
}

MEDUSA_HEADS = 4


@dataclass(frozen=True)
class VerifyStep:
    """What a method runs for each pass of the model."""

    checked: float  # rows of that pass
    drafts: float = 0.0  # passes of what drafts
    drafted: float = 1.0  # rows of each


TREES = {
    "EAGLE": VerifyStep(checked=26.0, drafts=5.0, drafted=4.0),
    "EAGLE2": VerifyStep(checked=60.0, drafts=6.0, drafted=10.0),
    "Medusa": VerifyStep(checked=64.0),
    "PLD": VerifyStep(checked=11.0),
}
"""EAGLE: the 25 nodes of `mc_sim_7b_63` in 5 levels, of which a middle one drafts from 4. EAGLE-2:
59 nodes, the 10 best of each of 5 levels behind the first. Medusa: the 63 nodes of its
`mc_sim_7b_63`. Prompt look-up: 10 candidates."""

METHODS = ("SpS", *TREES)


def speed_ups(reference: Path) -> pl.DataFrame:
    """Return predicted and measured speed-ups by method."""

    def answer(row: Record) -> dict[str, Any]:
        label = f"{row.model.name} on {row.gpu}"
        cells = {"method": row.method, "measured": row.speed_up, "label": label}
        return {"predicted": speed_up(row), **cells}

    return predict(records(reference, "spec_bench", method=METHODS), answer)


def speed_up(row: Record) -> float:
    """Return how much faster a sequence is decoded than by plain passes."""
    runs = assisted(row.tokens) if row.method == "SpS" else TREES[row.method]
    plain_s = pass_s(row.model, row.gpu, decode_step(1.0, CONTEXT))
    checked_s = pass_s(row.model, row.gpu, chunk_step(runs.checked, CONTEXT, runs.checked))
    accepted_s = HOSTS.get(row.gpu, RUNTIME).host_s
    return float(row.tokens * plain_s / (checked_s + accepted_s + drafting_s(row, runs)))


def drafting_s(row: Record, runs: VerifyStep) -> float:
    """Return the seconds of what drafts, for one pass of the model."""
    if row.method == "SpS":
        return runs.drafts * pass_s(
            extra_model("vicuna_68m.toml"), row.gpu, decode_step(1.0, CONTEXT)
        )
    if row.method == "Medusa":
        return HOSTS.get(row.gpu, RUNTIME).host_s + medusa_s(row.model, row.gpu, runs.checked)
    head, step = dense_layer(row.model), chunk_step(runs.drafted, CONTEXT, runs.drafted)
    return runs.drafts * pass_s(head, row.gpu, step) if runs.drafts else 0.0


def assisted(tokens: float) -> VerifyStep:
    """Return what assisted generation of HF transformers comes to, from its tokens an iteration.

    It drafts two tokens more after all were accepted and one less, at least one, after any was not
    (`num_assistant_tokens_schedule` "heuristic"): a walk over numbers of drafts, whose steady state
    has one rate of acceptance that brings those tokens.

    >>> assisted(2.0).drafts.__round__(2)
    2.71
    """
    low, high = 0.0, 0.99
    for _ in range(HALVINGS):
        rate = (low + high) / 2.0
        brought, drafts = _walk(rate)
        low, high = (rate, high) if brought < tokens else (low, rate)
    return VerifyStep(checked=drafts + 1.0, drafts=drafts)


@functools.cache
def _walk(rate: float) -> tuple[float, float]:
    """Return mean tokens of an iteration and mean drafts where each is accepted at a rate."""
    drafts = np.arange(1, MOST_ASSISTED + 1)
    all_of_them = rate**drafts
    move = np.zeros((drafts.size, drafts.size))
    rows = np.arange(drafts.size)
    move[rows, np.minimum(rows + 2, rows[-1])] += all_of_them
    move[rows, np.maximum(rows - 1, 0)] += 1.0 - all_of_them
    share = np.linalg.matrix_power(move, SETTLED_STEPS)[0]
    tokens = (1.0 - rate ** (drafts + 1)) / (1.0 - rate)
    return float(share @ tokens), float(share @ drafts)


def medusa_s(model: LanguageModel, gpu: str, rows: float) -> float:
    """Return the seconds of Medusa's heads: a square layer and an output each, on all rows."""
    chip = load_gpu(gpu)
    outputs = (float(model.hidden), float(model.vocab))
    products = [Gemm(name="head", m=rows, n=n, k=float(model.hidden)) for n in outputs]
    return MEDUSA_HEADS * sum(float(price(one, chip).latency_s) for one in products)


def pass_s(model: LanguageModel, gpu: str, step: Step) -> float:
    """Return the seconds of one pass."""
    host = HOSTS.get(gpu, RUNTIME)
    replica = replica_of(model, gpu, dtype="fp16", kv_dtype="fp16", runtime=host)
    return float(iteration(replica, step).latency_s)
