"""Runs of AISimulate, for its rules and for trends; its times are not the truth.

AISimulate 0.13 (NVIDIA) ran under the rules of vLLM 1. One run has iterations of fixed length, so
that nothing but the scheduler can differ. Others differ from a base in one setting: what a change
does should point the same way here, and about as far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.claims.lines import at_most
from lab.tables.rows import numbers, read_table
from simulators.core.contract import PARITY, Check
from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import ReplicaLimits
from simulators.serving.engine.policies import load_router, load_scheduler
from simulators.serving.engine.service import EngineKernels, serve
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of

NEEDS = (REQUESTS,) = ("serving_peers/aisimulate_requests.parquet",)
KIND = PARITY
EXACT_S, FAR = 1e-5, 0.30

FIXED_RUN = "r08_8b_h100_tp1_fixed_q10"
FIXED_S, FIXED_BLOCKS = (0.04, 0.01), 100_000
"""A prompt part of 40 ms, a decode part of 10 ms, and memory without end."""

TIMES = {
    "first_admit_ms": at.SCHEDULED,
    "first_token_ms": at.FIRST_TOKEN,
    "last_token_ms": at.COMPLETED,
}

BASE = {
    "scheduler": "vllm_v1",
    "chunk_size": 8192,
    "max_batch": 256,
    "block_size": 64,
    "watermark": 0.0,
    "max_context": 16384,
    "without": "clocks",
    "runtime": "graphs",
}
"""Its engine. Its tables hold kernels timed alone, on boards that do not slow down under load."""


class Pair(NamedTuple):
    """Two runs on the same requests that differ in one setting, and the means the peer printed."""

    name: str
    run: str  # whose requests both take
    model: str
    settings: tuple[Mapping[str, object], Mapping[str, object]]
    ttft_ms: tuple[float, float]
    tpot_ms: tuple[float, float]


PAIRS = (
    Pair(
        "8B, H100 to A100",
        "r01_8b_h100_tp1_vllm_q8",
        "llama3_1_8b",
        ({"gpu": "h100_sxm"}, {"gpu": "a100_sxm"}),
        ttft_ms=(41.10, 205.87),
        tpot_ms=(9.755, 60.584),
    ),
    Pair(
        "8B, budget 2,048 to 8,192",
        "r14_8b_h100_tp1_long_mbt2048_q2",
        "llama3_1_8b",
        ({"gpu": "h100_sxm", "chunk_size": 2048}, {"gpu": "h100_sxm"}),
        ttft_ms=(237.59, 221.31),
        tpot_ms=(11.963, 12.097),
    ),
    Pair(
        "70B, 4 H100 to 2 H200",
        "r03_70b_h100_tp4_vllm_q4",
        "llama3_1_70b",
        ({"gpu": "h100_sxm", "tp": 4}, {"gpu": "h200_sxm", "tp": 2}),
        ttft_ms=(124.50, 249.17),
        tpot_ms=(22.930, 43.133),
    ),
    Pair(
        "8B, one pool to two",
        "r01_8b_h100_tp1_vllm_q8",
        "llama3_1_8b",
        (
            {"gpu": "h100_sxm"},
            {"gpu": "h100_sxm", "prefill_gpus": 1, "decode_gpus": 1, "kv_link": "infinite"},
        ),
        ttft_ms=(41.10, 38.29),
        tpot_ms=(9.755, 7.591),
    ),
    Pair(
        "70B, one pool to two",
        "r03_70b_h100_tp4_vllm_q4",
        "llama3_1_70b",
        (
            {"gpu": "h100_sxm", "tp": 4},
            {
                "gpu": "h100_sxm",
                "tp": 4,
                "prefill_gpus": 8,
                "decode_gpus": 4,
                "kv_link": "infinite",
            },
        ),
        ttft_ms=(124.50, 95.41),
        tpot_ms=(22.930, 16.139),
    ),
)
"""Runs r01 and r10, r14 and r15, r03 and r18, r01 and r05, r03 and r13 of the reference set. Moving
a cache costs the peer nothing unless it is told a bandwidth, so ours is told an infinite link."""


@at.kernel(at.PRICE)
def part_price(step: Floats, _shape: Ints, table: Floats, price: Floats) -> float:
    """Return `table[0]` for the prompts of a batch and `table[1]` for its decodes, added.

    The peer's `fixed` timing, which leaves nothing to compare but the scheduler.
    """
    price[:] = 0.0
    spent = table[0] if step[at.PREFILLS] > 0.0 else 0.0
    spent += table[1] if step[at.DECODES] > 0.0 else 0.0
    price[at.STAGE_S] = price[at.STAGE_BASE_S] = spent
    price[at.LAST_STAGE_S] = price[at.BASE_S] = spent
    price[at.UNTIL_KV] = inf
    return spent


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the comparisons with the peer's runs."""
    yield _fixed_check(reference / REQUESTS)
    for pair in PAIRS:
        yield from _pair_checks(pair, asked_of(reference / REQUESTS, pair.run)[0])


def _fixed_check(file: Path) -> Check:
    """Replay the run whose iterations take fixed times."""
    asked, theirs_s = asked_of(file, FIXED_RUN)
    limits = ReplicaLimits(
        blocks=FIXED_BLOCKS,
        block_size=64,
        watermark=0.0,
        seats=256,
        batch_tokens=8192,
        chunk=8192,
        most_tokens=64 * FIXED_BLOCKS,
    )
    world = serve(
        EngineKernels(load_scheduler("vllm_v1"), load_router("round_robin"), part_price),
        limits,
        asked,
        replicas=1,
        shape=np.zeros(1, np.int64),
        table=np.array(FIXED_S),
    )
    error_s = float(np.abs(world.times[:, list(TIMES.values())] - theirs_s).max())
    note = "times of all requests under vllm_v1"
    return at_most(f"aisimulate {FIXED_RUN}", error_s, EXACT_S, len(theirs_s), note, unit="s")


def _pair_checks(pair: Pair, asked: Requests) -> Iterator[Check]:
    """Yield how far the ratio of two runs is from the peer's, for mean TTFT and TPOT."""
    before, after = (
        run_of(ServingPoint(**{"model": pair.model, **BASE, **setting}), asked).metrics()  # type: ignore[arg-type]
        for setting in pair.settings
    )
    for name, ours_s, theirs_ms in (
        ("TTFT", (before.ttft_mean_s, after.ttft_mean_s), pair.ttft_ms),
        ("TPOT", (before.tpot_mean_s, after.tpot_mean_s), pair.tpot_ms),
    ):
        assert ours_s[0] is not None
        assert ours_s[1] is not None
        ours, theirs = ours_s[1] / ours_s[0], theirs_ms[1] / theirs_ms[0]
        error, same_way = abs(ours / theirs - 1.0), (ours > 1.0) == (theirs > 1.0)
        yield Check(
            f"aisimulate {pair.name}: {name}",
            error,
            "",
            FAR,
            same_way and error <= FAR,
            asked.arrival_s.size,
            f"ours x{ours:.2f}, theirs x{theirs:.2f}; clocks as of kernels alone",
        )


def asked_of(file: Path, run: str) -> tuple[Requests, Floats]:
    """Return the requests of a run, and the peer's times of each in seconds."""
    rows = read_table(file, ("request_id",), run=run).sort_by("request_id")
    if not rows.num_rows:
        raise UserError(f"{file.name} has no request of {run}")
    arrival_ms, prompt, output, *times_ms = numbers(
        rows, ("arrival_ms", "input_tokens", "output_tokens", *TIMES)
    ).values()
    lengths = prompt.astype(np.int64), output.astype(np.int64)
    asked = Requests(arrival_ms / 1e3, *lengths, np.zeros((len(rows), 2)))
    return asked, np.stack(times_ms, axis=1) / 1e3
