"""Requests that arrive by the clock, against TensorRT-LLM's published latencies by rate.

Its benchmark asks the engine in process, so no API server is between. Outputs of one length are as
stated; where a table gives the mean of a conversation's lengths, they are drawn evenly up to twice
that. Nothing was fitted to these runs of release 0.14, two years older than those that were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from lab.claims.serving.offline import mean_error
from lab.tables.known import known_rows
from lab.tables.offline import MEMORY_FRACTION, MOST_SEQUENCES, MOST_TOKENS
from simulators.core.contract import Check
from simulators.core.folder import GPUS
from simulators.serving.point import NONE, ServingPoint
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

ONLINE = "serving_measured/trtllm_online_qps.parquet"

MODELS = {"LLaMA 3.1 70B": "llama3_1_70b", "LLaMA 3.1 8B": "llama3_1_8b"}

FIXED_OUTPUTS = (16, 256)
"""Output lengths that were asked for; others are means of what a conversation set holds."""

EVENLY = 0.99
"""Drawn from a hundredth of the longest, so that their mean is half of it."""

RELEASE = "; TensorRT-LLM 0.14, bf16, requests by the clock"

KEEPS_UP = 0.9
"""An engine that answers less than this share of the rate is saturated: requests pile up."""


@dataclass(frozen=True)
class Online:
    """One measured rate of requests; times in seconds."""

    point: ServingPoint
    keeps_up: bool
    ttft_s: float
    tpot_s: float
    tokens_per_s: float


def online(reference: Path) -> list[Online]:
    """Return the runs of the reference folder whose models are known."""
    rows = known_rows(
        pq.read_table(reference / ONLINE).to_pylist(),
        ONLINE,
        model=MODELS.__contains__,
        gpu=GPUS.has,
    )
    return [
        Online(
            point=_point(row),
            keeps_up=bool(row["request_rate_qps"])
            and row["measured_req_per_s"] >= KEEPS_UP * row["request_rate_qps"],
            ttft_s=row["mean_ttft_ms"] / 1e3,
            tpot_s=row["mean_itl_ms"] / 1e3,
            tokens_per_s=row["output_tokens_per_s"],
        )
        for row in rows
    ]


def _point(row: Mapping[str, Any]) -> ServingPoint:
    """Return the engine and its clients; without a rate everything is asked at once."""
    rate, requests = row["request_rate_qps"], int(row["num_requests"])
    drawn = row["osl_mean"] not in FIXED_OUTPUTS
    longest = 2 if drawn else 1
    return ServingPoint(
        model=MODELS[row["model"]],
        gpu=row["gpu"],
        tp=int(row["tp_size"]),
        scheduler="trtllm",
        runtime="trtllm",
        frontend=NONE,
        max_batch=MOST_SEQUENCES,
        chunk_size=MOST_TOKENS,
        memory_fraction=MEMORY_FRACTION,
        watermark=0.0,
        dtype=row["precision"],
        kv_dtype=row["precision"],
        arrivals="poisson" if rate else "closed",
        qps=rate,
        clients=requests,
        requests=requests,
        prompt_tokens=longest * int(row["isl_mean"]),
        output_tokens=longest * int(row["osl_mean"]),
        length_spread=EVENLY if drawn else 0.0,
    )


def online_checks(reference: Path) -> Iterator[Check]:
    """Yield mean errors of the runs below and above saturation, without limits."""
    if not (reference / ONLINE).is_file():
        yield Check(name=f"online, {ONLINE}", value=None, note="absent")
        return
    rows, shelf = online(reference), Shelf()
    ours = [simulate(row.point, shelf) for row in rows]
    keeps_up = np.array([row.keeps_up for row in rows], bool)
    for name, predicted, measured in (
        ("TTFT", [one.ttft_mean_s for one in ours], [row.ttft_s for row in rows]),
        ("TPOT", [one.tpot_mean_s for one in ours], [row.tpot_s for row in rows]),
        ("throughput", [one.tokens_per_s for one in ours], [row.tokens_per_s for row in rows]),
    ):
        ratio = np.array(predicted) / np.array(measured)
        for load, which in (("below saturation", keeps_up), ("saturated", ~keeps_up)):
            if which.any():
                yield mean_error(f"online {name}, {load}", ratio[which], note=RELEASE)
