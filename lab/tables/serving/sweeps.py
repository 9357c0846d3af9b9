"""Parallelism of InferenceX's runs, by the sweeps that it defined.

Its tables of November 2025 have no column for expert parallelism, and where later ones say `tp n,
attention dp n, expert ep n * n` the same run is elsewhere listed as `tp n, ep n`. The definitions
of its sweeps (`.github/configs/nvidia-master.yaml`, snapshots by month) say which degrees ran at
which load.
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


class Defined(NamedTuple):
    """One line of a sweep: the degrees of an engine, and its range of clients."""

    date: str  # of the snapshot
    engine: tuple[str, ...]  # framework, model, GPU, precision
    lengths: tuple[int, int]  # longest prompt and answer, in tokens
    tp: int
    ep: int
    attention_dp: bool
    fewest: int
    most: int


def defined_cut(reference: Path, row: Mapping[str, Any], ep: int = 0) -> Parallelism | None:
    """Return the parallelism of a run; None where no sweep defines it.

    The first snapshot from the run's day on is used, else the last one. A load that no line covers
    has the parallelism of the others of its lengths, if they agree.

    Args:
        reference: the folder of the tables.
        row: a row of InferenceX, whose `tp_size` is all GPUs of the engine.
        ep: the degree of expert parallelism; 0: unknown.
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
    ((experts, is_data_parallel),) = cuts
    tp, ranks = (1, gpus) if is_data_parallel else (gpus, 1)
    return Parallelism(tp=tp, ep=experts, attention_dp=ranks)


@functools.lru_cache(maxsize=2)
def _defined(reference: Path) -> tuple[Defined, ...]:
    """Return the lines of all sweeps of one node without speculation; none without the table."""
    return tuple(_lines(reference / SWEEPS)) if (reference / SWEEPS).is_file() else ()


def _lines(table: Path) -> Iterator[Defined]:
    """Yield the lines; those from June 2026 on, when no row was measured, have another layout."""
    for row in read_records(table, multinode=False):
        loads = json.loads(row.search_space)
        if row.disagg or not is_model(row.model) or isinstance(loads, dict):
            continue
        framework = FRAMEWORKS.get(row.framework, row.framework)
        gpu = f"{row.runner.partition('-')[0]}_sxm"
        engine = (framework, model_name(row.model), gpu, row.precision)
        for load in loads:
            for one in load["search-space"]:
                if one.get("spec-decoding", "none") == "none":
                    degrees = (one["tp"], one.get("ep", 1), one.get("dp-attn", False))
                    clients = (one["conc-start"], one["conc-end"])
                    yield Defined(row.date, engine, (load["isl"], load["osl"]), *degrees, *clients)
