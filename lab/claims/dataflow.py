"""Claims about dataflow accelerators: Timeloop's counts, mappings that are found, and die areas.

Exact counts are compared with Timeloop's exact counting (without link transfers where only that is
exact) and with its default counting, which extrapolates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from formats.timeloop import layer_of
from lab.claims.claim import Cells, predict
from lab.tables.rows import Record, read_records
from simulators.catalog.accelerator import Accelerator, accelerator_of
from simulators.catalog.gpu import dies
from simulators.codesign.simulator import fitted
from simulators.core.errors import UserError
from simulators.dataflow.evaluation import Evaluation, evaluated
from simulators.dataflow.mapping import read_mapping, read_yaml
from simulators.dataflow.search.mapper import find
from simulators.workload.loop_nest import Layer

ARCHITECTURES, PROBLEMS = "dataflow/architectures.yaml", "dataflow/problems.yaml"
TRIPLES, ACCESSES = "dataflow/triples.parquet", "dataflow/accesses.parquet"
PJ_PER_UJ = 1e6
EVALUATIONS = 400_000
CYCLES_SLACK, ENERGY_SLACK = 2, 1e-5
VARIANTS = {"exact": "default", "exact_without_link_transfers": "no_link_transfers"}
"""Timeloop's counts that closed forms reproduce."""

SEARCHES = (
    ("tl_best_energy_uj_no_link", "tl_best_cycles_no_link"),
    ("ref_search_energy_uj", "ref_search_cycles"),
)
"""Energy and cycles of the best mappings of other mappers."""

Lines = Mapping[tuple[str, str], Mapping[str, Any]]
"""Timeloop's counts, by level and tensor."""


def gpu_dies(_reference: Path) -> Iterator[Cells]:
    """Yield the area of each GPU die by a fit without it; a node's only die is left aside."""
    known = dies()
    for die in known:
        others = [one for one in known if one is not die]
        if any(die.node == one.node for one in others):
            predicted = fitted(others).mm2(die)
            yield {"label": die.name, "predicted": predicted, "measured": die.mm2}


def counts(reference: Path) -> Iterator[Cells]:
    """Yield whether counts, cycles or energy are equal, by mapping and comparison."""
    accelerators, problems = read_accelerators(reference), read_yaml(reference / PROBLEMS)
    wanted = stored_counts(reference)

    def answer(row: Record) -> list[Cells]:
        accelerator, layer = accelerators[row.arch], problem_layer(problems, row.problem)
        mapping = read_mapping(json.loads(row.mapping))
        default = wanted.get((row.id, "default"), {})
        result = evaluated(mapping, layer, accelerator)
        assert isinstance(result, Evaluation)
        variant = VARIANTS.get(row.closed_form)
        counted = wanted.get((row.id, variant or "default"), {})
        if any(len(lines) != len(result.traffic) for lines in (default, counted)):
            raise UserError(f"{ACCESSES} lacks lines of the mapping")
        equal = {"by the default counting, exact counts": is_equal(exact(result), default)}
        if row.closed_form != "not_checked" and variant is not None:
            equal["counts"] = is_equal(exact(result), counted)
            equal |= _exact(row, result, variant)
        return [{"what": what, "predicted": is_equal} for what, is_equal in equal.items()]

    return predict(read_records(reference / TRIPLES), answer)


def stored_counts(reference: Path) -> dict[tuple[str, str], dict[tuple[str, str], Record]]:
    """Return Timeloop's counts by mapping and variant, each by level and tensor."""
    wanted: dict[tuple[str, str], dict[tuple[str, str], Record]] = {}
    for line in read_records(reference / ACCESSES):
        wanted.setdefault((line.id, line.variant), {})[line.level, line.tensor] = line
    return wanted


def _exact(row: Record, result: Evaluation, variant: str) -> dict[str, bool]:
    cycles, energy_pj = row.cycles, row.energy_total_uj * PJ_PER_UJ
    if variant != "default":
        cycles = row.cycles_no_link
        energy_pj = row.energy_fj_per_compute_no_link * result.macs / 1e3
    return {
        "cycles within 2": abs(result.cycles - cycles) <= CYCLES_SLACK,
        "energy within 1e-5": abs(result.energy_pj / energy_pj - 1.0) <= ENERGY_SLACK,
    }


def exact(result: Evaluation) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return reads, fills, updates and instances in use, by level and tensor."""
    return {(t.level, t.tensor): (t.reads, t.fills, t.updates, t.instances) for t in result.traffic}


def is_equal(counts: Mapping[tuple[str, str], tuple[int, ...]], wanted: Lines) -> bool:
    """Return whether counts are Timeloop's."""
    keys = ("reads", "fills", "updates", "utilized_instances")
    return all(ours == tuple(wanted[at][key] for key in keys) for at, ours in counts.items())


def mappings(reference: Path) -> Iterator[Cells]:
    """Yield energy-delay products of our mappings beside the best of other mappers.

    `gap`: upper bound of the share that a better mapping saves, over all architectures.
    """
    accelerators, problems = read_accelerators(reference), read_yaml(reference / PROBLEMS)
    for row in read_records(reference / "dataflow/mapper_anchor.csv"):
        layer = problem_layer(problems, row.problem)
        best = {
            name: find(layer, accelerator, evaluations=EVALUATIONS)
            for name, accelerator in accelerators.items()
        }
        ours = best[row.arch].evaluation.edp / PJ_PER_UJ
        theirs = min(
            float(row[energy]) * float(row[cycles])
            for energy, cycles in SEARCHES
            if row[energy] and row[cycles]
        )
        gap = max(one.gap for one in best.values())
        cells = {"label": f"{row.arch} {row.problem}", "ratio": ours / theirs, "gap": gap}
        yield {**cells, "predicted": ours, "measured": theirs}


def problem_layer(problems: Mapping[str, Any], name: str) -> Layer:
    """Return the layer of a problem of `problems.yaml`."""
    problem = problems["problems"][name]
    shape = problems["shapes"][problem["shape"]]
    spaces, bounds = shape["dataspaces"], problem["bounds"]
    return layer_of(name, shape["dims"], spaces, bounds, problem["coef"])


def read_accelerators(reference: Path) -> dict[str, Accelerator]:
    """Return the architectures of Timeloop's reference runs, by name."""
    path = reference / ARCHITECTURES
    found = {}
    for name, table in read_yaml(path).items():
        levels = []
        for level in table["levels"]:
            stated = {key: value for key, value in level.items() if value is not None}
            kind = "dram" if stated.pop("dram") else "sram"
            renamed = {k.replace("bandwidth", "words_per_cycle"): v for k, v in stated.items()}
            levels.append({"kind": kind, **renamed})
        sheet = {"name": name, "source": table["origin"], "levels": levels, "mac": table["mac"]}
        found[name] = accelerator_of(sheet, path)
    return found
