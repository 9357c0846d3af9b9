"""What narrow weights gain end to end: room for keys and values of more requests.

Llama-2-70B on one A100 of 80 GB, 1,024 tokens in and 512 out, batches that begin and end together
(mit-han-lab/omniserve). The largest batch that fits is prefilled at once and decoded to its end.
Systems whose names state no format of keys and values are taken to store 16 bits. QServe's own
(4-bit weights multiplied in 8-bit integers) has no products here, and is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, at_least, error_line, percent_off
from lab.tables.catalog_names import replica_of
from lab.tables.rows import read_records
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime
from simulators.core.contract import Check
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.step import Step, decode_step, prefill_step

THROUGHPUT = "quantization/qserve_max_throughput.parquet"
NEEDS = (THROUGHPUT,)

MODEL, GPU = "Llama-2-70B", "A100-80GB"
PROMPT, OUTPUT = 1024.0, 512.0
SYSTEMS: Mapping[str, str] = {
    "TRT-LLM-FP16": "fp16",
    "TRT-LLM-W8A8": "w8a8",
    "TRT-LLM-W4A16": "w4a16",
}
"""In the order of what they served, by precision."""
MEMORY_SHARE = 0.9
"""Of the board's memory; as engines reserve it by default."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield whether systems stand in the measured order, and how far off those are that fit."""
    table = read_records(reference / THROUGHPUT, model=MODEL, gpu=GPU)
    published = {row["system"]: row["max_tokens_s_0_is_oom"] for row in table}
    theirs = np.array([published[system] for system in SYSTEMS])
    ours = np.array([tokens_per_s(dtype) for dtype in SYSTEMS.values()])
    each = ", ".join(
        f"{system} {mine:.0f} of {one:.0f}"
        for system, mine, one in zip(SYSTEMS, ours.tolist(), theirs.tolist(), strict=True)
    )
    right = np.sign(np.diff(ours)) == np.sign(np.diff(theirs))
    yield at_least(
        "weight formats, order of maximal throughputs, Llama-2-70B on an A100",
        100.0 * float(right.mean()),
        100.0,
        right.size,
        each,
    )
    fits = theirs > 0.0
    off = percent_off(ours[fits], theirs[fits])
    yield error_line("weight formats, maximal throughput, Llama-2-70B on an A100", [off])
    yield absent(
        "weight formats, maximal throughput of W4A8KV4, Llama-2-70B on an A100",
        "no products of 4-bit weights in 8-bit integers",
    )


def tokens_per_s(dtype: str) -> float:
    """Return the output tokens a second of the largest batch that fits; 0 where none does."""
    replica = replica_of(
        "llama2_70b",
        "a100_sxm",
        dtype=dtype,
        kv_dtype="fp16",
        framework="trtllm",
        runtime=load_runtime("trtllm_session"),
    )
    if (batch := largest_batch(replica)) < 1.0:
        return 0.0
    contexts = PROMPT + OUTPUT * (np.arange(9) + 0.5) / 9.0
    decode_s = np.mean([pass_s(replica, decode_step(batch, one)) for one in contexts.tolist()])
    return float(
        batch * OUTPUT / (pass_s(replica, prefill_step(batch, PROMPT)) + (OUTPUT - 1.0) * decode_s)
    )


def largest_batch(replica: Replica) -> float:
    """Return how many whole requests have room beside the weights."""
    room = MEMORY_SHARE * replica.gpu.hbm_bytes
    room -= weight_bytes(replica.model, replica.cut, replica.dtype)
    request = kv_bytes_per_token(replica.model, replica.cut, replica.kv_dtype) * (PROMPT + OUTPUT)
    return max(0.0, float(np.floor(room / request)))


def pass_s(replica: Replica, step: Step) -> float:
    """Return the seconds of one pass."""
    return float(iteration(replica, step).latency_s)
