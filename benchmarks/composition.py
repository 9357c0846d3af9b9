"""Whole-model passes per CPU-second, in batches: `python -m benchmarks.composition [--json]`.

Every timed batch is new. NeuSight needs about 0.3 s for one forward pass of a transformer.
"""

from __future__ import annotations

import argparse
import functools
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.timing import median_cpu_s
from simulators.composition.point import CompositionPoint
from simulators.composition.simulator import SIMULATOR
from simulators.core.checks import Check, print_checks
from simulators.core.columns import schema_of

ROWS = 20_000
BAR = 20_000.0

REPLICAS: dict[str, list[dict[str, Any]]] = {
    "decode, 70B dense": [{"model": "llama2_70b", "gpu": "h100_sxm", "tp": 8}],
    "prompts, 70B dense, fp8": [
        {"model": "llama2_70b", "gpu": "h100_sxm", "tp": 8, "phase": "prefill", "dtype": "fp8"}
    ],
    "decode, mixture": [{"model": "deepseek_v3", "gpu": "b200_sxm", "tp": 8, "dtype": "fp8"}],
    "pipeline of 4": [{"model": "llama2_70b", "gpu": "a100_sxm", "tp": 2, "pp": 4}],
    "GPU without measured kernels": [{"model": "llama2_7b", "gpu": "rtx_4090"}],
    "64 replicas mixed": [
        {"model": model, "gpu": gpu, "tp": tp, "dtype": dtype}
        for model in ("llama2_70b", "mixtral_8x7b")
        for gpu in ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm")
        for tp in (1, 2, 4, 8)
        for dtype in ("bf16", "w4a16")
    ],
}
"""Replicas of the rows; batches and contexts are drawn."""


def main() -> None:
    """Print the passes per CPU-second of each kind of replica."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    SIMULATOR.warm_up()
    print_checks(
        [_timed(name, replicas) for name, replicas in REPLICAS.items()], as_json=chosen.json
    )


def _timed(name: str, replicas: list[dict[str, Any]]) -> Check:
    """Return the passes per CPU-second of batches of these replicas."""
    _, spent = median_cpu_s(
        lambda run: functools.partial(SIMULATOR.evaluate, _batch(replicas, run))
    )
    speed = ROWS / spent
    return Check(name, round(speed), "1/s", limit=BAR, ok=speed >= BAR, rows=ROWS)


def _batch(replicas: list[dict[str, Any]], seed: int) -> pa.RecordBatch:
    """Return rows of these replicas in turn, with batches and contexts drawn from a seed."""
    draw = np.random.default_rng(np.random.SeedSequence(seed))
    drawn = {"batch": draw.integers(1, 513, ROWS), "context": draw.integers(1, 8193, ROWS)}
    columns = {}
    for f, kind in zip(fields(CompositionPoint), schema_of(CompositionPoint), strict=True):
        if f.name in drawn:
            columns[f.name] = pa.array(drawn[f.name], kind.type)
            continue
        values = [replica.get(f.name, f.default) for replica in replicas]
        column = pa.array([values[i % len(values)] for i in range(ROWS)], kind.type)
        is_word = pa.types.is_string(column.type)
        columns[f.name] = column.dictionary_encode() if is_word else column
    return pa.RecordBatch.from_pydict(columns)


if __name__ == "__main__":
    main()
