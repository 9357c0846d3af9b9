"""Products in closed form beside the best mapping that the mapper finds for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import columns, predict, together
from lab.parity.timeloop import extrapolated
from lab.tables.dataflow import PJ_PER_UJ, evaluation_of, read_tables
from lab.tables.rows import read_records
from simulators.catalog.accelerator import load_accelerator
from simulators.catalog.gpu import dies
from simulators.codesign.simulator import fitted
from simulators.core.errors import UserError
from simulators.core.folder import ACCELERATORS
from simulators.dataflow.closed_form import products
from simulators.dataflow.evaluation import Evaluation
from simulators.dataflow.mapping import read_mapping
from simulators.dataflow.search.mapper import find
from simulators.workload.loop_nest import matmul

FEW_EVALUATIONS = 10_000
SHAPES = ((1, 8192, 7168), (64, 8192, 1280), (512, 128, 4096), (2048, 8192, 3584), (8, 2048, 128))
"""Rows, reduction and columns of products as Llama-2-70B has them, cut four and eight ways."""


def products_of(_reference: Path) -> pl.DataFrame:
    """Return cycles and joules of products on each accelerator that ships."""
    n, c, m = np.array(SHAPES, np.float64).T
    frames = []
    for name in ACCELERATORS.names():
        accelerator = load_accelerator(name)
        closed = products(accelerator, np.ones(n.size), n, c, m, dataflow=accelerator.dataflow)
        layers = [matmul("product", n=rows, c=reduced, m=cols) for rows, reduced, cols in SHAPES]
        found = [
            find(layer, accelerator, evaluations=FEW_EVALUATIONS, remainders=True).evaluation
            for layer in layers
        ]
        cycles = np.array([float(one.cycles) for one in found])
        energy_pj = np.array([one.energy_pj for one in found])
        for figure, ours, theirs in (
            ("cycles", closed.cycles, cycles),
            ("joules", closed.energy_pj, energy_pj),
        ):
            labels = {"accelerator": name, "figure": figure}
            frames.append(columns(predicted=ours, measured=theirs, **labels))
    return together(frames)


def gpu_dies(_reference: Path) -> pl.DataFrame:
    """Return the area of each die, left out of the fit; the only die of its node is left aside."""
    known = dies()
    rows = []
    for die in known:
        others = [one for one in known if one is not die]
        if any(die.node == one.node for one in others):
            predicted = fitted(others).mm2(die)
            rows.append({"label": die.name, "predicted": predicted, "measured": die.mm2})
    return pl.DataFrame(rows)


TRIPLES, ACCESSES = "dataflow/triples.parquet", "dataflow/accesses.parquet"
EVALUATIONS = 400_000
CYCLES_SLACK, ENERGY_SLACK = 2, 1e-5

VARIANTS = {"exact": "default", "exact_without_link_transfers": "no_link_transfers"}
"""Of the baseline: which of the counts closed forms reproduce."""

Lines = Mapping[tuple[str, str], Mapping[str, Any]]
"""Counts of the baseline, by level and tensor."""


def counts(reference: Path) -> pl.DataFrame:
    """Return by mapping and comparison whether counts, cycles or energy are equal."""
    tables = read_tables(reference)
    wanted: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = {}
    for row in read_records(reference / ACCESSES):
        wanted.setdefault((row["id"], row["variant"]), {})[row["level"], row["tensor"]] = row

    def answer(row: Mapping[str, Any]) -> list[dict[str, Any]]:
        accelerator, layer = tables.accelerator(row["arch"]), tables.layer(row["problem"])
        written, default = json.loads(row["mapping"]), wanted.get((row["id"], "default"), {})
        result = evaluation_of(written, layer, accelerator)
        variant = VARIANTS.get(row["closed_form"])
        counted = wanted.get((row["id"], variant or "default"), {})
        if any(len(lines) != len(result.traffic) for lines in (default, counted)):
            raise UserError(f"{ACCESSES} lacks lines of the mapping")
        theirs = extrapolated(read_mapping(written), layer, accelerator, result, links=True)
        equal = {"by the default counting, exact counts": _is_equal(result, default)}
        if row["closed_form"] == "not_checked":
            equal["imperfect factors"] = _is_equal(theirs, default)
        else:
            equal["with links, extrapolated, counts"] = _is_equal(theirs, default)
            if variant is not None:
                equal |= _exact(row, result, counted, variant)
        return [{"what": what, "predicted": is_equal} for what, is_equal in equal.items()]

    return predict(read_records(reference / TRIPLES), answer)


def _exact(
    row: Mapping[str, Any], result: Evaluation, counted: Lines, variant: str
) -> dict[str, bool]:
    """Return whether counts, cycles and energy equal those of exact counting."""
    suffix = "" if variant == "default" else "_no_link"
    energy_pj = (
        row["energy_total_uj"] * PJ_PER_UJ
        if variant == "default"
        else row["energy_fj_per_compute_no_link"] * result.macs / 1e3
    )
    return {
        "counts": _is_equal(result, counted),
        "cycles within 2": abs(result.cycles - row[f"cycles{suffix}"]) <= CYCLES_SLACK,
        "energy within 1e-5": abs(result.energy_pj / energy_pj - 1.0) <= ENERGY_SLACK,
    }


def _is_equal(result: Evaluation, wanted: Lines) -> bool:
    """Return whether reads, fills, updates and instances of all lines are equal."""
    keys = ("reads", "fills", "updates", "utilized_instances")
    return all(
        ours == wanted[t.level, t.tensor][key]
        for t in result.traffic
        for ours, key in zip((t.reads, t.fills, t.updates, t.instances), keys, strict=True)
    )


def mappings(reference: Path) -> pl.DataFrame:
    """Return energy-delay products of our mappings beside the best of other mappers.

    `gap` is the share that a better mapping could at most save, on the same or the worst other
    architecture.
    """
    tables = read_tables(reference)
    rows = []
    for row in read_records(reference / "dataflow/mapper_anchor.csv"):
        layer = tables.layer(row["problem"])
        best = {
            name: find(layer, tables.accelerator(name), evaluations=EVALUATIONS)
            for name in tables.accelerators
        }
        found = best[row["arch"]].evaluation.edp / PJ_PER_UJ
        label = f"{row['arch']} {row['problem']}"
        gap = max(one.gap for one in best.values())
        best_known = min(_searched(row))
        rows.append(
            {
                "label": label,
                "predicted": found,
                "measured": best_known,
                "ratio": found / best_known,
                "gap": gap,
            }
        )
    return pl.DataFrame(rows)


def _searched(row: Mapping[str, Any]) -> Iterator[float]:
    """Yield the energy-delay products other tools found."""
    for energy, cycles in (
        ("tl_best_energy_uj_no_link", "tl_best_cycles_no_link"),
        ("ref_search_energy_uj", "ref_search_cycles"),
    ):
        if row[energy] and row[cycles]:
            yield float(row[energy]) * float(row[cycles])
