"""KV caches that were transferred between replicas, and reused ones: seconds and shares of TTFT.

Mooncake's tables of one prefill and one decode replica of eight GPUs over RoCE; a transfer is
predicted from the others of its framework. TinyChat on an RTX 4090 (mit-han-lab/llm-awq) reuses a
history: ours is a pass of the new tokens behind the cached ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path

import polars as pl

from lab.claims.predictions import predict
from lab.fits.networks.kv_transfer import frameworks, left_out, log_error, of, transfers
from lab.tables.forward_passes import tinychat_prompts
from lab.tables.modern.kv_transfer import moved
from lab.tables.rows import Record
from simulators.composition.replica import load_runtime
from simulators.serving.point import RDMA, MeasurementConfig, PoolsConfig, ServingPoint
from simulators.serving.pools.link import Transfers
from simulators.serving.simulator import simulate

LONG = 4096
"""Tokens: of shorter prompts the server before the engine takes most of TTFT."""


def caches(reference: Path) -> pl.DataFrame:
    """Return predicted over measured seconds, each transfer and each framework left out."""
    rows = list(moved(reference))
    names = frameworks(rows)
    others = {name: transfers([row for row in rows if row.framework != name]) for name in names}
    splits = {
        "each cache by the others of its framework": list(left_out(rows)),
        "each framework by the other": [
            (row, others[name]) for name in names for row in of(rows, name)
        ],
    }
    cells = [
        {"split": split, "predicted": exp(log_error(row, known)), "measured": 1.0}
        for split, pairs in splits.items()
        for row, known in pairs
    ]
    return pl.DataFrame(cells)


def shares(reference: Path) -> pl.DataFrame:
    """Return shares of TTFT of long prompts that are KV transfer."""
    long = [
        (row, known) for row, known in left_out(list(moved(reference))) if row.prompt_tokens >= LONG
    ]
    return predict(
        long,
        lambda pair: {
            "predicted": share_of_ttft(*pair),
            "measured": pair[0].transfer_s / pair[0].ttft_s,
        },
        lambda pair: {"label": f"{pair[0].model}, {pair[0].prompt_tokens:,}"},
    )


def reused(reference: Path) -> pl.DataFrame:
    """Return seconds to the first token of 32 tokens behind a history in the cache."""
    runtime = load_runtime("eager")
    return predict(
        tinychat_prompts(reference, reused=True),
        lambda case: {"predicted": case.predicted_s(runtime), "measured": case.measured_s},
        lambda case: {"label": f"behind {case.group}"},
    )


def share_of_ttft(row: Record, known: Transfers) -> float:
    """Return the transfer's share of the time to the first token of one prompt alone.

    Raises:
        Infeasible: the model does not fit.
    """
    point = ServingPoint(
        row.model,
        row.gpu,
        tp=row.tp,
        pools=PoolsConfig(
            prefill_gpus=row.tp,
            decode_gpus=row.tp,
            kv_link=RDMA,
            kv_link_bytes_per_s=known.share * row.line_bytes_per_s,
        ),
        dtype="bf16",
        kv_dtype="bf16",
        scheduler="sglang" if row.framework == "sglang" else "vllm_v1",
        chunk_size=8192,
        prompt_tokens=row.prompt_tokens,
        output_tokens=2,
        requests=1,
        measurement=MeasurementConfig(warmup=0),
    )
    found = simulate(replace(point, measurement=replace(point.measurement, window="whole")))
    assert found.kv_transfer_share is not None
    return found.kv_transfer_share
