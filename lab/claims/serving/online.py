"""Requests that arrive by the clock, against TensorRT-LLM's published latencies by rate.

Nothing was fitted to these runs of release 0.14, two years older than those that were.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import answered, ratio_line
from lab.tables.published_runs import ONLINE, online
from simulators.core.contract import Check
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

NEEDS = (ONLINE,)
RELEASE = "; TensorRT-LLM 0.14, bf16, requests by the clock"


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield mean errors of the runs below and above saturation, without limits."""
    shelf = Shelf()
    found = answered("online", online(reference), lambda run: simulate(run.point, shelf))
    yield from found.lines
    keeps_up = np.array([run.keeps_up for run in found.rows], bool)
    for name, ours, theirs in (
        ("TTFT", "ttft_mean_s", "ttft_s"),
        ("TPOT", "tpot_mean_s", "tpot_s"),
        ("throughput", "tokens_per_s", "tokens_per_s"),
    ):
        predicted = np.array([getattr(metrics, ours) for metrics in found.answers])
        ratio = predicted / np.array([getattr(run, theirs) for run in found.rows])
        for load, which in (("below saturation", keeps_up), ("saturated", ~keeps_up)):
            yield ratio_line(f"online {name}, {load}", ratio[which], note=RELEASE)
