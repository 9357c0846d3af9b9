"""A peer's runs with GPUs that read prompts and GPUs that decode, against GPUs that do both.

AISimulate 0.13 (NVIDIA), whose figures are another simulator's and no truth. Its hand-over is free
unless a bandwidth is said, so ours is told an infinite link. What a slower link adds to the first
token is shown: the peer lets caches pass a link at the same time, ours one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lab.claims.lines import at_most
from lab.claims.serving.aisimulate import BASE, FAR, REQUESTS, asked_of
from simulators.core.contract import PARITY, Check
from simulators.serving.point import INFINITE, RDMA, ServingPoint
from simulators.serving.run import run_of

NEEDS = (REQUESTS,)
KIND = PARITY


class Pair(NamedTuple):
    """Two runs on the same requests, by one pool and by two, and the means the peer printed."""

    name: str
    run: str  # whose requests both take
    one: Mapping[str, object]
    two: Mapping[str, object]
    ttft_ms: tuple[float, float]
    tpot_ms: tuple[float, float]


PAIRS = (
    Pair(
        "r01 to r05, 8B", "r01_8b_h100_tp1_vllm_q8", {"model": "llama3_1_8b"},
        {"prefill_gpus": 1, "decode_gpus": 1}, (41.10, 38.29), (9.755, 7.591),
    ),
    Pair(
        "r03 to r13, 70B", "r03_70b_h100_tp4_vllm_q4", {"model": "llama3_1_70b", "tp": 4},
        {"prefill_gpus": 8, "decode_gpus": 4}, (124.50, 95.41), (22.930, 16.139),
    ),
)  # fmt: skip

LINKS_MS = {5e9: 70.2, 100e9: 46.0}
"""The peer's mean TTFT of the first pair's two pools, by bytes per second."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield how far ratios of mean latencies are from the peer's, and what slower links add."""
    for pair in PAIRS:
        yield from _pair_checks(pair, reference)
    yield _link_check(PAIRS[0], reference)


def _pair_checks(pair: Pair, reference: Path) -> Iterator[Check]:
    """Yield how far the ratio of two runs is from the peer's."""
    asked, _ = asked_of(reference / REQUESTS, pair.run)
    one = _point(pair)
    before, after = (run_of(p, asked).metrics() for p in (one, replace(one, **pair.two)))  # type: ignore[arg-type]
    for name, theirs_ms in (("ttft_mean_s", pair.ttft_ms), ("tpot_mean_s", pair.tpot_ms)):
        ours, theirs = getattr(after, name) / getattr(before, name), theirs_ms[1] / theirs_ms[0]
        error, same_way = abs(ours / theirs - 1.0), (ours > 1.0) == (theirs > 1.0)
        called = name.removesuffix("_mean_s").upper()
        yield Check(
            f"two pools, aisimulate {pair.name}: {called}", error, "", FAR,
            same_way and error <= FAR, asked.arrival_s.size,
            f"ours x{ours:.2f}, theirs x{theirs:.2f}, over a free link",
        )  # fmt: skip


def _link_check(pair: Pair, reference: Path) -> Check:
    """Return how far what the slower of two links adds to the first token is from the peer's."""
    asked, _ = asked_of(reference / REQUESTS, pair.run)
    slow_s, fast_s = (
        run_of(
            replace(_point(pair), **pair.two, kv_link=RDMA, kv_link_bytes_per_s=rate),  # type: ignore[arg-type]
            asked,
        ).metrics().ttft_mean_s
        or 0.0
        for rate in LINKS_MS
    )  # fmt: skip
    slow_ms, fast_ms = LINKS_MS.values()
    ours_ms, theirs_ms = 1e3 * (slow_s - fast_s), slow_ms - fast_ms
    return at_most(
        "two pools, aisimulate r05: TTFT that 5 GB/s add to 100", abs(ours_ms / theirs_ms - 1.0),
        None, asked.arrival_s.size, f"ours {ours_ms:.1f} ms, theirs {theirs_ms:.1f} ms", unit="",
    )  # fmt: skip


def _point(pair: Pair) -> ServingPoint:
    settings = {"gpu": "h100_sxm", "kv_link": INFINITE, **BASE, **pair.one}
    return ServingPoint(**settings)  # type: ignore[arg-type]
