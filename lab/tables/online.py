"""TensorRT-LLM's published latencies under requests that arrive by the clock.

Its benchmark asks the engine in process, so no API server is between. Outputs of one length are as
stated; where a table gives the mean of a conversation's lengths, they are drawn evenly up to twice
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import is_gpu, is_model, model_name
from lab.tables.known import known_rows
from lab.tables.offline import ENGINE, MOST_TOKENS
from lab.tables.rows import read_records
from simulators.serving.point import ServingPoint

ONLINE = "serving_measured/trtllm_online_qps.parquet"

FIXED_OUTPUTS = (16, 256)
"""Output lengths that were asked for; others are means of what a conversation set holds."""

EVENLY = 0.99
"""Drawn from a hundredth of the longest, so that their mean is half of it."""

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
    table = read_records(reference / ONLINE)
    return [
        Online(
            point=_point(row),
            keeps_up=bool(row["request_rate_qps"])
            and row["measured_req_per_s"] >= KEEPS_UP * row["request_rate_qps"],
            ttft_s=row["mean_ttft_ms"] / 1e3,
            tpot_s=row["mean_itl_ms"] / 1e3,
            tokens_per_s=row["output_tokens_per_s"],
        )
        for row in known_rows(table, ONLINE, model=is_model, gpu=is_gpu)
    ]


def _point(row: Mapping[str, Any]) -> ServingPoint:
    """Return the engine and its clients; without a rate everything is asked at once."""
    rate, requests = row["request_rate_qps"], int(row["num_requests"])
    drawn = row["osl_mean"] not in FIXED_OUTPUTS
    longest = 2 if drawn else 1
    return ServingPoint(
        model=model_name(row["model"]),
        gpu=row["gpu"],
        tp=int(row["tp_size"]),
        runtime="trtllm",
        chunk_size=MOST_TOKENS,
        dtype=row["precision"],
        kv_dtype=row["precision"],
        arrivals="poisson" if rate else "closed",
        qps=rate,
        clients=requests,
        requests=requests,
        prompt_tokens=longest * int(row["isl_mean"]),
        output_tokens=longest * int(row["osl_mean"]),
        length_spread=EVENLY if drawn else 0.0,
        **ENGINE,
    )
