"""Metrics of two pools: waits and times of KV transfers, utilization and imbalance."""

from __future__ import annotations

from collections.abc import Sequence

from simulators.core.jit import Floats, Ints
from simulators.serving.engine import replica as at

MOVING = ("kv_wait_mean_s", "kv_transfer_mean_s", "kv_transfer_share")
"""Metrics of KV transfers; None without separate pools."""


def moving(times: Floats) -> dict[str, float | None]:
    """Return the mean KV transfer times of some completed requests; None without separate pools."""
    if times.shape[1] <= at.PREFILL_END:
        return dict.fromkeys(MOVING)
    ttft_s = float((times[:, at.FIRST_TOKEN] - times[:, at.ARRIVAL]).sum())
    moved, count = times[times[:, at.TRANSFER_START] >= 0.0], len(times)
    waited_s = float((moved[:, at.TRANSFER_START] - moved[:, at.PREFILL_END]).sum())
    sent_s = float((moved[:, at.FIRST_TOKEN] - moved[:, at.TRANSFER_START]).sum())
    return dict(zip(MOVING, (waited_s / count, sent_s / count, sent_s / ttft_s), strict=True))


def balance(busy: Sequence[float]) -> dict[str, float | None]:
    """Return the utilization of both pools and their imbalance; None without separate pools.

    >>> balance([0.25, 0.5])
    {'prefill_utilization': 0.25, 'decode_utilization': 0.5, 'pool_imbalance': 0.5}
    """
    names = ("prefill_utilization", "decode_utilization", "pool_imbalance")
    if len(busy) == 1:
        return dict.fromkeys(names)
    most = max(busy)
    apart = (most - min(busy)) / most if most else 0.0
    return dict(zip(names, (*busy, apart), strict=True))


def memory(pool: Ints, ranks: int, block_seconds: float, span_s: float) -> dict[str, float]:
    """Return the use of all KV blocks, and the blocks of a replica (a decode replica of two pools).

    `block_seconds` are the blocks in use, integrated over `span_s`.
    """
    total = pool[:, at.TOTAL_BLOCKS]
    return {
        "kv_use_mean": block_seconds / (span_s * int(total.sum())),
        "kv_use_max": float((pool[:, at.MAX_USED_BLOCKS] / total).max()),
        "kv_blocks": int(total[-1]) * ranks,
    }
