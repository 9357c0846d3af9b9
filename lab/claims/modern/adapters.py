"""Many adapters at once: throughput that S-LoRA loses by the first of them, and by two hundred.

Ours are rates of a closed loop with more clients than fit into memory. Theirs are at one arrival
rate, at which the engine without adapters is not quite full: its own loss is at least this. The
engine is slower, so rates are compared with each engine's own without adapters.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from lab.tables.modern.adapters import SETTINGS, throughputs
from simulators.serving.point import (
    BY_TOKEN,
    CLOSED,
    ArrivalsConfig,
    CacheConfig,
    LengthsConfig,
    LoraConfig,
    SchedulingConfig,
    ServingPoint,
)
from simulators.serving.simulator import simulate

GPU = "a100-80"
ENGINE = ServingPoint(
    model="",
    gpu="a100_sxm",
    scheduler="lightllm",
    runtime="eager",
    cache=CacheConfig(block_size=1),
    max_batch=1000,
    scheduling=SchedulingConfig(max_batch_tokens=16_384),
    prompt_tokens=512,
    output_tokens=512,
    lengths=LengthsConfig(spread=504 / 512),
    arrivals=ArrivalsConfig(process=CLOSED, clients=600),
    requests=2000,
    lora=LoraConfig(targets="attention", kernels=BY_TOKEN),
)
"""S-LoRA is built on LightLLM, adapts projections around attention, and its decodes gather."""


def losses(reference: Path) -> pl.DataFrame:
    """Return by setting the percent lost by the first adapter, and by all others."""
    rows = []
    for name, setting in SETTINGS.items():
        theirs = throughputs(reference, GPU, name)
        rank = round(float(np.mean(setting.ranks)))
        points = {
            count: replace(
                ENGINE, model=setting.model, lora=replace(ENGINE.lora, adapters=count, rank=rank)
            )
            for count in theirs
        }
        ours = {count: simulate(point).requests_per_s for count, point in points.items()}
        most = max(theirs)
        for change, first, last in (
            ("loss by the first adapter", 0, 1),
            (f"loss from 1 to {most} adapters", 1, most),
        ):
            lost = (100.0 * (rate[last] / rate[first] - 1.0) for rate in (ours, theirs))
            predicted, measured = lost
            cells = {"setting": name, "model": setting.model, "change": change}
            rows.append({**cells, "predicted": predicted, "measured": measured})
    return pl.DataFrame(rows)
