"""Counts, cycles and energies of given mappings against Timeloop's, row by row."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.claims.lines import at_least, skipped_lines
from lab.tables.accelerators import DESCRIPTIONS, PJ_PER_UJ, evaluation_of, read_tables
from lab.tables.rows import read_records
from simulators.core.contract import PARITY, Check
from simulators.dataflow.energy.evaluation import Evaluation
from simulators.dataflow.energy.extrapolated import extrapolated
from simulators.dataflow.mapping.loop_nest import read_mapping

TRIPLES, ACCESSES = "dataflow/triples.parquet", "dataflow/accesses.parquet"
NEEDS = (TRIPLES, ACCESSES, *DESCRIPTIONS)
KIND = PARITY
LEAST, PLAINLY = "at least", "without link transfers where only that is exact"
CYCLES_SLACK, ENERGY_SLACK = 2, 1e-5
IMPERFECT_LIMIT = 90.0

VARIANTS = {"exact": "default", "exact_without_link_transfers": "no_link_transfers"}
"""Of the peer's counts, which one closed forms reproduce."""

Lines = Mapping[tuple[str, str], Mapping[str, Any]]
"""The peer's counts, by level and tensor."""


def checks(reference: Path, _rows: str) -> list[Check]:
    """Return the shares of mappings that agree; nothing was fitted to these rows."""
    tables = read_tables(reference)
    wanted: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = {}
    for row in read_records(reference / ACCESSES):
        wanted.setdefault((row["id"], row["variant"]), {})[row["level"], row["tensor"]] = row
    exact, timed, charged, linked, plain = [], [], [], [], []
    skipped = Counter[str]()
    imperfect: list[tuple[Evaluation, Evaluation, dict[str, Any], Lines]] = []
    for row in read_records(reference / TRIPLES):
        accelerator, layer = tables.accelerator(row["arch"]), tables.layer(row["problem"])
        written, default = json.loads(row["mapping"]), wanted.get((row["id"], "default"), {})
        result = evaluation_of(written, layer, accelerator)
        variant = VARIANTS.get(row["closed_form"])
        counted = wanted.get((row["id"], variant or "default"), {})
        if any(len(lines) != len(result.traffic) for lines in (default, counted)):
            skipped[f"{ACCESSES} lacks lines of the mapping"] += 1
            continue
        plain.append(_equal_counts(result, default) == 4 * len(result.traffic))
        theirs = extrapolated(read_mapping(written), layer, accelerator, result, links=True)
        if row["closed_form"] == "not_checked":
            imperfect.append((result, theirs, row, default))
            continue
        linked.append(_equal_counts(theirs, default) == 4 * len(theirs.traffic))
        if variant is None:
            continue
        suffix = "" if variant == "default" else "_no_link"
        equal = _equal_counts(result, counted)
        exact.append(equal == 4 * len(result.traffic))
        timed.append(abs(result.cycles - row[f"cycles{suffix}"]) <= CYCLES_SLACK)
        energy_pj = (
            row["energy_total_uj"] * PJ_PER_UJ
            if variant == "default"
            else row["energy_fj_per_compute_no_link"] * result.macs / 1e3
        )
        charged.append(abs(result.energy_pj / energy_pj - 1.0) <= ENERGY_SLACK)
    return [
        _share(" by the default counting, exact counts equal", plain, None, "all mappings"),
        _share(", counts equal", exact, note=f"at least; {PLAINLY}"),
        _share(", cycles within 2", timed),
        _share(", energy within 1e-5", charged),
        _share(" with links, extrapolated, counts equal", linked),
        *_imperfect(imperfect),
        *skipped_lines("dataflow/triples", skipped),
    ]


def _imperfect(rows: list[tuple[Evaluation, Evaluation, dict[str, Any], Lines]]) -> list[Check]:
    """Compare mappings whose last tiles are smaller: counted exactly, and as the peer counts.

    The peer walks a few iterations of each loop and extrapolates. `extrapolated` does the same by
    its rules and is held to its figures; exact counts differ wherever those rules round.
    """
    timed, whole, energies = [], [], []
    same = counts = charged = 0
    for exact, theirs, row, wanted in rows:
        energy_pj = row["energy_total_uj"] * PJ_PER_UJ
        timed.append(exact.compute_cycles == row["compute_cycles"])
        same += _equal_counts(exact, wanted, instances=False)
        counts += 3 * len(exact.traffic)
        energies.append(abs(exact.energy_pj / energy_pj - 1.0))
        whole.append(_equal_counts(theirs, wanted) == 4 * len(theirs.traffic))
        charged += (
            abs(theirs.cycles - row["cycles"]) <= CYCLES_SLACK
            and abs(theirs.energy_pj / energy_pj - 1.0) <= ENERGY_SLACK
        )
    typical = 100.0 * statistics.median(energies) if energies else 0.0
    note = (
        f"at least, counting: extrapolated; cycles and energy of {charged}. Exact counts: "
        f"{same} of {counts} equal, energy {typical:.1f} % off in the median"
    )
    title = " with imperfect factors"
    return [
        _share(f"{title}, iterations equal", timed),
        _share(title, whole, IMPERFECT_LIMIT, note),
    ]


def _equal_counts(result: Evaluation, wanted: Lines, *, instances: bool = True) -> int:
    """Return how many of reads, fills, updates and instances of all lines are equal."""
    keys = ("reads", "fills", "updates", "utilized_instances")[: 4 if instances else 3]
    return sum(
        ours == wanted[t.level, t.tensor][key]
        for t in result.traffic
        for ours, key in zip((t.reads, t.fills, t.updates, t.instances), keys, strict=False)
    )


def _share(name: str, met: list[bool], limit: float | None = 100.0, note: str = LEAST) -> Check:
    share = 100.0 * sum(met) / len(met) if met else math.nan
    return at_least(f"dataflow/triples{name}", share, limit, len(met), note)
