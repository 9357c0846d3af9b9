"""Requests that arrive by the clock, against TensorRT-LLM's published latencies by rate.

Nothing was fitted to these runs of release 0.14, two years older than those that were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, evaluated, ratio_line, skipped_lines
from lab.tables.online import ONLINE, online
from simulators.core.contract import Check
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

NEEDS = (ONLINE,)
RELEASE = "; TensorRT-LLM 0.14, bf16, requests by the clock"


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield mean errors of the runs below and above saturation, without limits."""
    shelf, skipped = Shelf(), Counter[str]()
    answer = evaluated(online(reference), lambda row: simulate(row.point, shelf), skipped)
    found = list(answer)
    rows, ours = [row for row, _ in found], [one for _, one in found]
    if not found:
        yield absent("online")
    keeps_up = np.array([row.keeps_up for row in rows], bool)
    for name, predicted, measured in (
        ("TTFT", [one.ttft_mean_s for one in ours], [row.ttft_s for row in rows]),
        ("TPOT", [one.tpot_mean_s for one in ours], [row.tpot_s for row in rows]),
        ("throughput", [one.tokens_per_s for one in ours], [row.tokens_per_s for row in rows]),
    ):
        ratio = np.array(predicted) / np.array(measured)
        for load, which in (("below saturation", keeps_up), ("saturated", ~keeps_up)):
            if which.any():
                yield ratio_line(f"online {name}, {load}", ratio[which], note=RELEASE)
    yield from skipped_lines("online", skipped)
