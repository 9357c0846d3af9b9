"""Splitwise's measurements of Llama-2-70B, as runs of prefill and decode pools.

Patel et al. (2024) timed prompts and tokens apart, under vLLM of 2023, to simulate pools from them;
so KV transfers take no time here. Prompts of a batch ran one after another in some rows, as
`lab.tables.forward_passes` says: of prompts, single ones are judged. The host's constants were
fitted to these rows at tp 2 and 8; those at tp 4 no fit has seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from lab.tables.catalog_names import gpu_name
from lab.tables.forward_passes import SPLITWISE
from lab.tables.rows import read_records
from simulators.composition.metrics import prompt_s
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import deployment_of
from simulators.serving.point import CacheConfig, PoolsConfig, SchedulingConfig, ServingPoint
from simulators.serving.run import run_of
from simulators.workload.llm.step import prefill_step

MODEL = "llama2_70b"
REPLICAS = (8, 4)
"""GPUs of a replica."""


class TimedSetting(NamedTuple):
    """One setting: prompt and output tokens, and medians of repeated runs."""

    gpu: str
    tp: int
    prompt: int
    batch: int
    output: int
    ttft_s: float
    tpot_s: float


def pools(reference: Path) -> pl.DataFrame:
    """Return seconds of prompts and of tokens, by the GPUs of a replica."""
    rows = []
    for tp in REPLICAS:
        for row in timed(reference, tp):
            first_s, later_s = _seconds(row)
            cells = {"tp": tp, "is_single": row.batch == 1}
            rows += [
                {**cells, "metric": "prompts read", "predicted": first_s, "measured": row.ttft_s},
                {**cells, "metric": "tokens decoded", "predicted": later_s, "measured": row.tpot_s},
            ]
    return pl.DataFrame(rows)


def timed(reference: Path, tp: int) -> list[TimedSetting]:
    """Return the settings of one cut; rows marked as synthetic were derived, not measured."""
    found: dict[tuple[str, int, int, int], list[tuple[float, float]]] = {}
    rows = read_records(
        reference / SPLITWISE, model="llama2-70b", tensor_parallel=tp, synthetic_pcap=False
    )
    for row in rows:
        key = gpu_name(row["hardware"]), row["prompt_size"], row["batch_size"], row["token_size"]
        found.setdefault(key, []).append((row["prompt_time"] * 1e-3, row["token_time"] * 1e-3))
    return [
        TimedSetting(gpu, tp, prompt, batch, output, *np.median(times, axis=0).tolist())
        for (gpu, prompt, batch, output), times in sorted(found.items())
    ]


def _seconds(row: TimedSetting) -> tuple[float, float]:
    """Return when the last prompt of a batch has been read, and the mean time of later tokens."""
    point = ServingPoint(
        MODEL,
        row.gpu,
        tp=row.tp,
        pools=PoolsConfig(prefill_gpus=row.tp, decode_gpus=row.tp, kv_link="infinite"),
        scheduler="vllm",
        scheduling=SchedulingConfig(max_batch_tokens=row.prompt),
        runtime="eager",
        cache=CacheConfig(watermark=0.0),
        max_context=row.prompt + row.output,
    )
    host = prompt_s(deployment_of(point).hardware.replica, prefill_step(1.0, float(row.prompt)))
    lengths = np.full(row.batch, row.prompt), np.full(row.batch, row.output)
    asked = Requests(np.zeros(row.batch), *lengths, np.zeros((row.batch, 2)))
    found = run_of(point, asked).metrics()
    assert found.ttft_max_s is not None
    assert found.tpot_mean_s is not None
    return found.ttft_max_s + float(host), found.tpot_mean_s
