"""Energy-delay products that our mapper finds: over the best of two peers', and how much is left.

Bounds are stated for each layer on the peers' architecture, and for its worst on any other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.claims.lines import at_most
from lab.tables.accelerators import DESCRIPTIONS, PJ_PER_UJ, read_tables
from lab.tables.rows import read_records
from simulators.core.contract import PARITY, Check
from simulators.dataflow.search.mapper import find

ANCHORS = "dataflow/mapper_anchor.csv"
NEEDS = (ANCHORS, *DESCRIPTIONS)
KIND = PARITY
EVALUATIONS = 400_000
MOST_CPU_S = 10.0
MOST_GAP = 0.15
GAP = "share of the EDP that a better mapping could at most save; at most"


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield a line for each layer on each architecture; nothing was fitted."""
    tables, rows = read_tables(reference), read_records(reference / ANCHORS)
    for row in rows:
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
        title = f"{row['arch']} {row['problem']}"
        is_met = ratio <= 1.0 and spent_s <= MOST_CPU_S
        yield Check(f"dataflow/mapper, {title}", ratio, "", 1.0, is_met, 1, note)
        yield at_most(f"dataflow/gap, {title}", best.gap, MOST_GAP, 1, GAP, unit="")
        others = [name for name in tables.accelerators if name != row["arch"]]
        gaps = {
            name: find(layer, tables.accelerator(name), evaluations=EVALUATIONS).gap
            for name in others
        }
        worst = max(gaps, key=lambda name: gaps[name])
        title, note = f"others {row['problem']}", f"{GAP}; the largest is of {worst}"
        yield at_most(f"dataflow/gap, {title}", gaps[worst], MOST_GAP, len(gaps), note, unit="")


def _searched(row: Mapping[str, Any]) -> Iterator[float]:
    """Yield the energy-delay products the peers found."""
    for energy, cycles in (
        ("tl_best_energy_uj_no_link", "tl_best_cycles_no_link"),
        ("ref_search_energy_uj", "ref_search_cycles"),
    ):
        if row[energy] and row[cycles]:
            yield float(row[energy]) * float(row[cycles])
