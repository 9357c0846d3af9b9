"""Claims about the tiers of the KV cache: published hit ratios, and replays of public traces.

A replay counts the 512-token blocks that one LRU cache finds, whatever their times (reference
table `prefix_cache`). In the simulation the requests of the trace share a remote store of that
capacity, and GPU memory holds fewer blocks than the store. Loads are fast, because a tier that is
slower than the computation is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.claims.claim import Cells, predict
from lab.tables.rows import read_records
from simulators.catalog.model import load_model
from simulators.core.fields import point_from
from simulators.serving.engine import replica as at
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of
from simulators.serving.simulator import simulate
from simulators.workload.llm.memory import kv_bytes_per_token
from simulators.workload.llm.parallelism import Parallelism

HASHED_TOKENS = 512
ENDLESS_BYTES = 1e17
FEWEST_BLOCKS = 10_000  # of a replay: GPU memory of the simulated deployment holds fewer
REPLAYS = "prefix_cache/lru_replay_hit_ratio.parquet"
TRACE = "traces/mooncake_fast25_{}.parquet"


def hit_ratios(reference: Path, base: Mapping[str, Any]) -> Iterator[Cells]:
    """Yield hit ratios in percent beside LRU replays; `base` are the options of all runs."""

    def answer(row: Mapping[str, Any]) -> Cells:
        capacity, model = row["capacity_blocks"], load_model(base["model"])
        token_bytes = kv_bytes_per_token(model, Parallelism(), base["kv_dtype"])
        size = ENDLESS_BYTES if capacity is None else capacity * HASHED_TOKENS * token_bytes
        trace = str(reference / TRACE.format(row["trace"]))
        point = point_from(
            ServingPoint, {**base, "workload": trace, "kv_tiers.remote_bytes": float(size)}
        )
        request = run_of(point).state.request
        cached, prompts = (
            np.ceil(request[:, column] / HASHED_TOKENS).sum()
            for column in (at.NUM_CACHED, at.GIVEN_PROMPT)
        )
        predicted = 100.0 * float(cached / prompts)
        measured = 100.0 * row["block_hit_ratio"]
        return {
            "trace": row["trace"],
            "predicted": predicted,
            "measured": measured,
            "error": abs(predicted - measured),
            "label": f"{row['trace']}, {capacity or 'endless'} blocks",
        }

    rows = read_records(reference / REPLAYS)
    return predict(
        (r for r in rows if (r["capacity_blocks"] or ENDLESS_BYTES) >= FEWEST_BLOCKS), answer
    )


def published(reference: Path, figures: Sequence[Mapping[str, Any]]) -> Iterator[Cells]:
    """Yield published hit ratios in percent beside those of the same load.

    `figures`: each with its name, source, measured hit ratio and options; a `trace` names a table.
    """

    def answer(figure: Mapping[str, Any]) -> Cells:
        options = dict(figure["options"])
        if "trace" in figure:
            options["workload"] = str(reference / TRACE.format(figure["trace"]))
        predicted = 100.0 * (simulate(point_from(ServingPoint, options)).prefix_hit_ratio or 0.0)
        return {
            "figure": figure["name"],
            "predicted": predicted,
            "measured": figure["measured"],
            "error": abs(predicted - figure["measured"]),
            "label": f"{predicted:.1f} %, published {figure['measured']} %",
        }

    return predict(figures, answer)
