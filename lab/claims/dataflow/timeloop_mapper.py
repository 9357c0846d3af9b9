"""Energy-delay products that our mapper finds, over the best of two peers' searches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.tables.accelerators import DESCRIPTIONS, PJ_PER_UJ, read_tables
from lab.tables.rows import read_records
from simulators.core.contract import PARITY, Check
from simulators.dataflow.search.mapper import find

ANCHORS = "dataflow/mapper_anchor.csv"
NEEDS = (ANCHORS, *DESCRIPTIONS)
KIND = PARITY
EVALUATIONS = 400_000
MOST_CPU_S = 10.0


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield a line for each layer on each architecture; nothing was fitted."""
    tables = read_tables(reference)
    for row in read_records(reference / ANCHORS):
        layer, accelerator = tables.layer(row["problem"]), tables.accelerator(row["arch"])
        find(layer, accelerator, evaluations=1)  # compiles
        started = time.process_time()
        best = find(layer, accelerator, evaluations=EVALUATIONS)
        spent_s = time.process_time() - started
        ratio = best.evaluation.edp / PJ_PER_UJ / min(_searched(row))
        note = (
            f"EDP over the best of the peers; {best.evaluation.energy_pj / PJ_PER_UJ:.1f} uJ, "
            f"{best.evaluation.cycles:,} cycles, {spent_s:.2f} CPU-s, gap {best.gap:.3f}"
        )
        name = f"dataflow/mapper, {row['arch']} {row['problem']}"
        yield Check(name, ratio, "", 1.0, ratio <= 1.0 and spent_s <= MOST_CPU_S, 1, note)


def _searched(row: Mapping[str, Any]) -> Iterator[float]:
    """Yield the energy-delay products the peers found."""
    for energy, cycles in (
        ("tl_best_energy_uj_no_link", "tl_best_cycles_no_link"),
        ("ref_search_energy_uj", "ref_search_cycles"),
    ):
        if row[energy] and row[cycles]:
            yield float(row[energy]) * float(row[cycles])
