"""A peer's run with a prefix cache against its base run without: direction and ratio of latencies.

AISimulate 0.13 (NVIDIA), whose figures are another simulator's and no truth: 12 requests a second,
of which each begins with 2,048 tokens of one of 20 prefixes; the base has 8 requests a second of
1,024 tokens on average with nothing in common. How much of the prompts is found must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.claims.lines import at_most
from lab.claims.serving.aisimulate import BASE, FAR, REQUESTS, asked_of
from lab.tables.rows import numbers, read_table
from simulators.core.contract import PARITY, Check
from simulators.serving.demand.prefixes import of_hashes
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of

NEEDS = (REQUESTS,)
KIND = PARITY

BASE_RUN, PREFIX_RUN = "r01_8b_h100_tp1_vllm_q8", "r06_8b_h100_tp1_vllm_prefix_q12"
PREFIX = 2048
"""Tokens that requests of one group share."""

THEIRS_MS = {"ttft_mean_s": (41.10, 31.30), "tpot_mean_s": (9.755, 10.402)}
FOUND, NEAR = 0.7886, 0.01
"""Share of prompt tokens that the peer found at first admission."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield how far ratios of mean latencies are from the peer's, and the share that was found."""
    point = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", **BASE)  # type: ignore[arg-type]
    base, _ = asked_of(reference / REQUESTS, BASE_RUN)
    shared, _ = asked_of(reference / REQUESTS, PREFIX_RUN)
    rows = read_table(reference / REQUESTS, ("request_id",), run=PREFIX_RUN).sort_by("request_id")
    (group,) = numbers(rows, ("prefix_group",)).values()
    prefixes = of_hashes(
        group.astype(np.int64),
        np.arange(1, group.size + 1),
        PREFIX,
        shared.prompt_tokens,
        shared.output_tokens,
    )
    before = run_of(point, base).metrics()
    after = run_of(replace(point, prefix_cache=True), replace(shared, prefixes=prefixes)).metrics()
    for name, (first_ms, then_ms) in THEIRS_MS.items():
        ours, theirs = getattr(after, name) / getattr(before, name), then_ms / first_ms
        error, same_way = abs(ours / theirs - 1.0), (ours > 1.0) == (theirs > 1.0)
        called = name.removesuffix("_mean_s").upper()
        yield Check(
            f"prefix cache, aisimulate r01 to r06: {called}",
            error,
            "",
            FAR,
            same_way and error <= FAR,
            group.size,
            f"ours x{ours:.2f}, theirs x{theirs:.2f}",
        )
    assert after.prefix_hit_ratio is not None  # of an event simulation
    yield at_most(
        "prefix cache, aisimulate r06: share of prompts found",
        abs(after.prefix_hit_ratio - FOUND),
        NEAR,
        group.size,
        f"ours {after.prefix_hit_ratio:.4f}, theirs {FOUND}",
        unit="",
    )
