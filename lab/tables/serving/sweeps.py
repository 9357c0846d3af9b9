"""How InferenceX cut models for its runs, by the sweeps that it defined: experts and attention.

Its tables of November 2025 have no column for expert parallelism, and where later ones say `tp n,
attention dp n, expert ep n * n` the same run stands elsewhere as `tp n, ep n`. What a row was cut
into is in the definitions of its sweeps (`.github/configs/nvidia-master.yaml`, snapshots by month):
which degrees were run at which load.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lab.tables.catalog_names import is_model, model_name
from lab.tables.rows import read_records
from simulators.workload.llm.parallelism import Parallelism

SWEEPS = "recipes/inferencex_master_configs.parquet"

FRAMEWORKS = {"trt": "trtllm"}
"""Engines that definitions call otherwise."""

PLAIN = "none"
"""What drafts tokens where nothing does."""


class Defined(NamedTuple):
    """One line of a sweep: the degrees of an engine, and the numbers of clients that ask it."""

    date: str  # of the snapshot
    engine: tuple[str, ...]  # framework, model, GPU, precision
    lengths: tuple[int, int]  # longest prompt and answer, in tokens
    tp: int
    ep: int
    attention_dp: bool
    fewest: int
    most: int


def defined_cut(reference: Path, row: Mapping[str, Any], ep: int = 0) -> Parallelism | None:
    """Return how a model was cut for a run; none where no sweep defines it.

    Of snapshots the first from the run's day on is asked, else the last one. A load that no line
    covers was cut like the others of its lengths, if these are cut alike.

    Args:
        reference: the folder of the tables.
        row: a row of InferenceX, whose `tp_size` is all GPUs of the engine.
        ep: what is known of experts; 0: nothing.
    """
    gpus, lengths = int(row["tp_size"]), (int(row["isl"]), int(row["osl"]))
    engine = row["framework"], model_name(row["model"]), row["gpu"], row["precision"]
    same = [
        one
        for one in _defined(reference)
        if (one.engine, one.lengths, one.tp) == (engine, lengths, gpus) and ep in (0, one.ep)
    ]
    dates, day = sorted({one.date for one in same}), row["measured_date"] or ""
    asked = next((date for date in dates if date >= day), dates[-1] if dates else "")
    then = [one for one in same if one.date == asked]
    covering = [one for one in then if one.fewest <= row["concurrency"] <= one.most]
    cuts = {(one.ep, one.attention_dp) for one in covering or then}
    if len(cuts) != 1:
        return None
    ((experts, is_apart),) = cuts
    tp, ranks = (1, gpus) if is_apart else (gpus, 1)
    return Parallelism(tp=tp, ep=experts, attention_dp=ranks)


@functools.lru_cache(maxsize=2)
def _defined(reference: Path) -> tuple[Defined, ...]:
    """Return the lines of all sweeps of one node without drafts; none without the table."""
    return tuple(_lines(reference / SWEEPS)) if (reference / SWEEPS).is_file() else ()


def _lines(table: Path) -> Iterator[Defined]:
    """Yield the lines; from June 2026 on, when no row was measured, they are nested otherwise."""
    for row in read_records(table, multinode=False):
        loads = json.loads(row["search_space"])
        if row["disagg"] or not is_model(row["model"]) or isinstance(loads, dict):
            continue
        framework = FRAMEWORKS.get(row["framework"], row["framework"])
        gpu = f"{row['runner'].partition('-')[0]}_sxm"
        for load in loads:
            for one in load["search-space"]:
                if one.get("spec-decoding", PLAIN) == PLAIN:
                    yield Defined(
                        row["date"],
                        (framework, model_name(row["model"]), gpu, row["precision"]),
                        (load["isl"], load["osl"]),
                        one["tp"],
                        one.get("ep", 1),
                        one.get("dp-attn", False),
                        one["conc-start"],
                        one["conc-end"],
                    )
