"""Timeloop's published exercise: energy and cycles of its mapping, and of what our mapper finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.claims.dataflow.timeloop_mapper import EVALUATIONS
from lab.claims.lines import at_most
from lab.tables.accelerators import DESCRIPTIONS, PJ_PER_UJ, evaluation_of, read_tables
from simulators.core.contract import PARITY, Check
from simulators.dataflow.mapping.files import read_yaml
from simulators.dataflow.search.constraints import Constraints
from simulators.dataflow.search.mapper import find

CASE = "dataflow/survey_case.yaml"
NEEDS = (CASE, *DESCRIPTIONS)
KIND = PARITY
ENERGY_SLACK = 2e-3

CONV1 = "resnet50_conv1"
LIMITS = {"constrained": (325.19, 1_229_312), "free": (277.5, 702_464)}
"""Of the first layer of ResNet-50: energy in uJ, to two decimals, and cycles."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the figures of the exercise, then those of ResNet-50's first layer."""
    tables, case = read_tables(reference), read_yaml(reference / CASE)
    eyeriss = tables.accelerator("eyeriss_like_168")
    # The exercise has a level of wires between columns and rows, so diagonals are sent twice.
    levels = [dataclasses.replace(v, staged=v.name == "shared_glb") for v in eyeriss.levels]
    exercise = dataclasses.replace(eyeriss, levels=tuple(levels))
    given = case["checked_in_reference"]
    result = evaluation_of(given["mapping"], tables.layer("exercise_default_conv"), exercise)
    uj, theirs_uj = result.energy_pj / PJ_PER_UJ, given["same_mapping_rerun_here"]["energy_uj"]
    is_near = abs(uj / theirs_uj - 1.0) <= ENERGY_SLACK
    title, cycles = "dataflow/survey", given["cycles"]
    yield Check(f"{title}, checked-in mapping", uj, "uJ", theirs_uj, is_near, 1, "within 0.2 %")
    yield Check(
        f"{title}, its cycles", result.cycles, "", cycles, result.cycles == cycles, 1, "equal"
    )
    rules = _as_given(case["real_resnet50_conv1_run_here"]["mapping"])
    for how, where, constraints in (("constrained", exercise, rules), ("free", eyeriss, None)):
        best = find(tables.layer(CONV1), where, evaluations=EVALUATIONS, constraints=constraints)
        uj, (limit_uj, limit) = best.evaluation.energy_pj / PJ_PER_UJ, LIMITS[how]
        name, note = f"dataflow/Conv1, {how}", f"at most; gap {best.gap:.3f}"
        yield Check(name, uj, "uJ", limit_uj, round(uj, 2) <= limit_uj, 1, note)
        yield at_most(f"{name}, cycles", best.evaluation.cycles, limit, 1, note, unit="")


def _as_given(mapping: list[dict[str, Any]]) -> Constraints:
    """Return the keep sets of a mapping and the dimensions it spreads, as constraints."""
    return Constraints(
        allow={
            level["level"]: {
                side: tuple(dim for dim, _ in level.get(side, ()))
                for side in ("spatial_x", "spatial_y")
            }
            for level in mapping
        },
        keep={level["level"]: tuple(level["keep"]) for level in mapping},
    )
