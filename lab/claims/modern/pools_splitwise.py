"""Splitwise's measurements of Llama-2-70B, as runs of two pools: one reads prompts, one decodes.

Patel et al. (2024) timed prompts and tokens by themselves, under vLLM of 2023, to simulate pools
from them; so caches move for free here. Prompts of a batch ran one after another in some rows, as
`lab.tables.forward_passes` says: of prompts, single ones are judged. The host's constants were
fitted to these rows at tp 2 and 8; those at tp 4 nothing has seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.claims.lines import error_line, percent_off
from lab.tables.catalog_names import gpu_name
from lab.tables.forward_passes import SPLITWISE
from lab.tables.rows import read_records
from simulators.composition.metrics import prompt_s
from simulators.core.contract import Check
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import deployment_of
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of
from simulators.workload.llm.step import prefill_step

NEEDS = (SPLITWISE,)
LIMIT = 12.0
MODEL = "llama2_70b"
CUTS = {8: "fitted", 4: "held out of all fits"}
"""GPUs of a replica, and whether the host's constants have seen them."""


class Timed(NamedTuple):
    """One setting: what ran, in tokens, and the medians of its repeats."""

    gpu: str
    tp: int
    prompt: int
    batch: int
    output: int
    ttft_s: float
    tpot_s: float


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors of both pools' times, by the GPUs of a replica."""
    for tp, seen in CUTS.items():
        rows = timed(reference, tp)
        ours = [answered(row) for row in rows]
        single = np.array([row.batch == 1 for row in rows])
        first, later = (np.array(times) for times in zip(*ours, strict=True))
        for name, mine, theirs, kept in (
            ("prompts read", first, [row.ttft_s for row in rows], single),
            ("tokens decoded", later, [row.tpot_s for row in rows], single | True),
        ):
            off = percent_off(mine[kept], np.array(theirs)[kept])
            title = f"two pools, Splitwise's Llama-2-70B over {tp} GPUs: {name}"
            yield error_line(title, [off], LIMIT, f"A100 and H100, {seen}")


def timed(reference: Path, tp: int) -> list[Timed]:
    """Return the settings of one cut; rows marked as synthetic were derived, not measured."""
    found: dict[tuple[str, int, int, int], list[tuple[float, float]]] = {}
    rows = read_records(
        reference / SPLITWISE, model="llama2-70b", tensor_parallel=tp, synthetic_pcap=False
    )
    for row in rows:
        key = gpu_name(row["hardware"]), row["prompt_size"], row["batch_size"], row["token_size"]
        found.setdefault(key, []).append((row["prompt_time"] * 1e-3, row["token_time"] * 1e-3))
    return [
        Timed(gpu, tp, prompt, batch, output, *np.median(times, axis=0).tolist())
        for (gpu, prompt, batch, output), times in sorted(found.items())
    ]


def answered(row: Timed) -> tuple[float, float]:
    """Return when the last prompt of a batch has been read, and the mean time of later tokens."""
    point = ServingPoint(
        MODEL,
        row.gpu,
        tp=row.tp,
        prefill_gpus=row.tp,
        decode_gpus=row.tp,
        kv_link="infinite",
        scheduler="vllm",
        max_batch_tokens=row.prompt,
        runtime="eager",
        watermark=0.0,
        max_context=row.prompt + row.output,
    )
    host = prompt_s(deployment_of(point).hardware.replica, prefill_step(1.0, float(row.prompt)))
    lengths = np.full(row.batch, row.prompt), np.full(row.batch, row.output)
    asked = Requests(np.zeros(row.batch), *lengths, np.zeros((row.batch, 2)))
    found = run_of(point, asked).metrics()
    assert found.ttft_max_s is not None
    assert found.tpot_mean_s is not None
    return found.ttft_max_s + float(host), found.tpot_mean_s
