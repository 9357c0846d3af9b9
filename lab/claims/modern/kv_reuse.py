"""Reused keys and values: time to the first token of 32 tokens asked behind a history.

TinyChat on an RTX 4090, Llama-3-8B in 4 bits (mit-han-lab/llm-awq): the history is in the cache, or
is computed again. Ours is a pass of the tokens that are new behind those that are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import at_most, percent_off, spread
from lab.tables.catalog_names import replica_of
from lab.tables.rows import read_records
from simulators.composition.price import iteration
from simulators.composition.replica import load_runtime
from simulators.core.contract import Check
from simulators.workload.llm.step import Step, chunk_step, prefill_step

REUSE = "quantization/kv_reuse_ttft_llama3_8b_4090_q32.parquet"
NEEDS = (REUSE,)

QUESTION = 32.0
LIMIT = 15.0


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors with and without reuse, and how much a longer history costs with it."""
    rows = read_records(reference / REUSE)
    histories = [float(row["history_tokens"]) for row in rows]
    reused = [first_token_s(chunk_step(QUESTION, n, 1.0)) for n in histories]
    computed = [first_token_s(prefill_step(1.0, n + QUESTION)) for n in histories]
    for name, ours, column, limit in (
        ("reused", reused, "w4_kv_reuse_ttft_ms", LIMIT),
        ("computed", computed, "w4_no_reuse_ttft_ms", None),
    ):
        theirs = [1e-3 * row[column] for row in rows]
        off = percent_off(np.array(ours), np.array(theirs))
        each = ", ".join(
            f"{1e3 * mine:.1f} of {1e3 * one:.1f} ms behind {history:,.0f}"
            for mine, one, history in zip(ours, theirs, histories, strict=True)
        )
        yield at_most(
            f"prefix cache, TTFT of 32 tokens behind a history {name}", float(np.mean(np.abs(off))),
            limit, off.size, f"{spread(off)}; {each}",
        )  # fmt: skip
    flat = [row["w4_kv_reuse_ttft_ms"] for row in rows]
    yield at_most(
        "prefix cache, growth of that TTFT from the shortest to the longest history reused",
        100.0 * (reused[-1] / reused[0] - 1.0), LIMIT, len(rows),
        f"measured {100.0 * (flat[-1] / flat[0] - 1.0):.1f} %",
    )  # fmt: skip


def first_token_s(step: Step) -> float:
    """Return the seconds of one pass of that model on that board."""
    replica = replica_of(
        "llama3_1_8b", "rtx_4090", dtype="w4a16", kv_dtype="fp16", runtime=load_runtime("eager")
    )
    return float(iteration(replica, step).latency_s)
