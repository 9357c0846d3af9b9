"""Time to the first token of whole prompts on an RTX 4090: in fp16, and with 4-bit weights.

Timed by TinyChat's authors (mit-han-lab/llm-awq), without history. Their fp16 is the default
implementation of Hugging Face, whose forward pass gives the logits of every token unless told
otherwise (transformers, pull request 31292); so did TinyChat until "only the last tokens in the
final logits layer" became new of it. Ours has one way to multiply by 4-bit weights, the engines
have several, which differ by 1.7 times: those are shown, not judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.claims.lines import compared
from lab.tables.catalog_names import gpu_name, model_name, replica_of
from lab.tables.rows import read_records
from simulators.composition.price import iteration
from simulators.composition.replica import load_runtime
from simulators.core.contract import Check
from simulators.workload.llm.step import prefill_step

TINYCHAT = "quantization/awq_tinychat_prefill.parquet"
SYSTEMS = "quantization/w4_prefill_systems_llama3_8b_4090.parquet"
NEEDS = (TINYCHAT, SYSTEMS)

BOARD, MODEL = "RTX4090", "LLaMA-3-8B"
LIMIT = 15.0
FP16, LEGACY = "TinyChat in fp16", "TinyChat-legacy"
ALL_LOGITS = (FP16, LEGACY)
"""Who computes the logits of every token of a prompt."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the error of prompts in fp16, and of those in 4 bits by engine."""
    rows: list[dict[str, Any]] = list(read_records(reference / TINYCHAT, gpu=BOARD))
    yield _line(FP16, rows, "fp16_ttft_s", "fp16", LIMIT)
    by_system: dict[str, list[dict[str, Any]]] = {}
    for row in read_records(reference / SYSTEMS):
        by_system.setdefault(row["system"], []).append({"model": MODEL, **row})
    for system, mine in by_system.items():
        yield _line(system, mine, "w4_ttft_s", "w4a16", None)


def _line(
    who: str, rows: Sequence[dict[str, Any]], column: str, dtype: str, limit: float | None
) -> Check:
    ours = [
        first_token_s(row["model"], dtype, float(row["prompt_tokens"]), who in ALL_LOGITS)
        for row in rows
    ]
    theirs = [row[column] for row in rows]
    groups = [f"{row['model']}, {row['prompt_tokens']:,} tokens" for row in rows]
    shown = who if dtype == "fp16" else f"{who} in 4 bits"
    name = f"weight formats, TTFT of a prompt, {shown}, RTX 4090"
    return compared(name, np.array(ours), np.array(theirs), groups, limit)


def first_token_s(model: str, dtype: str, prompt: float, all_logits: bool = False) -> float:
    """Return the seconds of one pass over a prompt, with the logits of its last token or of all."""
    replica = replica_of(
        model_name(model),
        gpu_name(BOARD),
        dtype=dtype,
        kv_dtype="fp16",
        runtime=load_runtime("eager"),
    )
    step = prefill_step(1.0, prompt)
    if all_logits:
        step = dataclasses.replace(step, logits_rows=prompt)
    return float(iteration(replica, step).latency_s)
