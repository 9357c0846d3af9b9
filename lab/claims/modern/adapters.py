"""Many adapters at once: what S-LoRA loses by the first of them, and by two hundred.

Ours are rates of closed clients, more than fit into memory. Theirs are at one rate of arrivals, at
which the engine without adapters is not quite full: its own loss is at least what is stated here.
The engine is another, and slower: rates are compared with each engine's own without adapters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, at_most
from lab.tables.modern.adapters import RUNS, SETTINGS, throughputs
from lab.tables.rows import Record
from simulators.core.contract import Check
from simulators.serving.point import BY_TOKEN, CLOSED, ServingPoint
from simulators.serving.simulator import simulate

NEEDS = (RUNS,)
BOARD = "a100-80"
STEP_LIMIT, FLAT_LIMIT = 10.0, 5.0
"""Points of percent: of the loss by the first adapter, and of what all others add to it."""

ENGINE = ServingPoint(
    model="",
    gpu="a100_sxm",
    scheduler="lightllm",
    runtime="eager",
    block_size=1,
    max_batch=1000,
    max_batch_tokens=16_384,
    prompt_tokens=512,
    output_tokens=512,
    length_spread=504 / 512,
    arrivals=CLOSED,
    clients=600,
    requests=2000,
    adapter_targets="attention",
    adapter_kernels=BY_TOKEN,
)
"""S-LoRA is built on LightLLM, adapts projections around attention, and its decodes gather."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield by setting how far off the first adapter's loss is, and what further ones add."""
    for name, setting in SETTINGS.items():
        theirs = throughputs(reference, BOARD, name)
        title = f"adapters, S-LoRA {name}, {setting.model} on an A100"
        if 0 not in theirs or 1 not in theirs:
            yield absent(title)
            continue
        ours = {count: rate(setting, count) for count in theirs}
        most = max(theirs)
        for what, first, last, limit in (
            ("loss by the first adapter", 0, 1, STEP_LIMIT),
            (f"loss from 1 to {most} adapters", 1, most, FLAT_LIMIT),
        ):
            mine, published = (100.0 * (r[last] / r[first] - 1.0) for r in (ours, theirs))
            yield at_most(
                f"{title}, {what}",
                abs(mine - published),
                limit,
                len(theirs),
                f"{mine:+.1f} %, published {published:+.1f} %",
                unit="points",
            )


def rate(setting: Record, adapters: int) -> float:
    """Return requests per second with a number of adapters, all of the mean rank."""
    rank = round(float(np.mean(setting.ranks)))
    point = replace(ENGINE, model=setting.model, adapters=adapters, adapter_rank=rank)
    return simulate(point).requests_per_s
