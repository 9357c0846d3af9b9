"""How close the room is to its peers, row by row of their own outputs.

Counts, cycles and energies of given mappings against Timeloop's; the mapper against the best of two
searches; systolic cycles against SCALE-Sim. Nothing is fitted to these rows.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lab.claims.dataflow.maestro import MAESTRO, named_dataflows, tensor_cores
from lab.parity.scale_sim import systolic_cycles
from simulators.catalog.accelerator import Accelerator
from simulators.core.contract import Check
from simulators.dataflow.energy import Evaluation, evaluated
from simulators.dataflow.extrapolated import extrapolated
from simulators.dataflow.mapping import encode, read_mapping
from simulators.dataflow.search import Constraints, find
from simulators.dataflow.timeloop import accelerator_from_table, layer_from_table, read_yaml
from simulators.workload.convolution import Layer

CYCLES_SLACK = 2
ENERGY_SLACK = 1e-5
SURVEY_SLACK = 2e-3
CPU_BAR_S = 10.0
IMPERFECT_BAR = 90.0
ANCHOR_EVALUATIONS = 400_000
PJ_PER_UJ = 1e6

CONV1 = ("resnet50_conv1", 325.19, 1_229_312, 277.5, 702_464)
"""The first layer of ResNet-50: energy in uJ and cycles to stay within, constrained and not."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return one line for each kind of row.

    Args:
        reference: the folder of the peers' outputs.
        rows: `test` or `all`; nothing here is fitted, so they are the same.
    """
    del rows
    parts: tuple[tuple[str, Callable[[Path], list[Check]]], ...] = (
        ("triples.parquet", _triples),
        ("survey_case.yaml", _survey),
        ("mapper_anchor.csv", _anchors),
        ("scalesim_32x32.csv", _systolic),
        (MAESTRO, named_dataflows),
    )
    found: list[Check] = []
    for name, part in parts:
        if (reference / "dataflow" / name).is_file():
            found += part(reference / "dataflow")
        else:
            found.append(Check(f"dataflow/{name}", None, note=f"absent: dataflow/{name}"))
    return found + tensor_cores(reference)


@dataclasses.dataclass(frozen=True)
class Tables:
    """Architectures and problems of the reference folder."""

    accelerators: Mapping[str, Accelerator]
    problems: Mapping[str, Any]

    def layer(self, name: str) -> Layer:
        """Return a problem."""
        return layer_from_table(name, self.problems)


def read_tables(folder: Path) -> Tables:
    """Return what the rows refer to."""
    path = folder / "architectures.yaml"
    found = {name: accelerator_from_table(name, t, path) for name, t in read_yaml(path).items()}
    return Tables(found, read_yaml(folder / "problems.yaml"))


def _triples(folder: Path) -> list[Check]:
    tables = read_tables(folder)
    wanted: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = {}
    for row in pq.read_table(folder / "accesses.parquet").to_pylist():
        wanted.setdefault((row["id"], row["variant"]), {})[row["level"], row["tensor"]] = row
    variants = {"exact": "default", "exact_without_link_transfers": "no_link_transfers"}
    total = exact = timed = charged = whole = linked = 0
    cut = []
    for row in pq.read_table(folder / "triples.parquet").to_pylist():
        accelerator, layer = tables.accelerators[row["arch"]], tables.layer(row["problem"])
        mapping = read_mapping(json.loads(row["mapping"]))
        result = evaluated(*encode(mapping, layer, accelerator), layer, accelerator)
        assert isinstance(result, Evaluation)
        theirs = extrapolated(mapping, layer, accelerator, result, links=True)
        if row["closed_form"] == "not_checked":
            cut.append((result, theirs, row, wanted[row["id"], "default"]))
            continue
        whole += 1
        linked += _equal_counts(theirs, wanted[row["id"], "default"]) == 4 * len(theirs.traffic)
        if (variant := variants.get(row["closed_form"])) is None:
            continue
        total += 1
        suffix = "" if variant == "default" else "_no_link"
        exact += _equal_counts(result, wanted[row["id"], variant]) == 4 * len(result.traffic)
        timed += abs(result.cycles - row[f"cycles{suffix}"]) <= CYCLES_SLACK
        energy_pj = (
            row["energy_total_uj"] * PJ_PER_UJ
            if variant == "default"
            else row["energy_fj_per_compute_no_link"] * result.macs / 1e3
        )
        charged += abs(result.energy_pj / energy_pj - 1.0) <= ENERGY_SLACK
    return [
        _share("dataflow/triples, counts equal", exact, total),
        _share("dataflow/triples, cycles within 2", timed, total),
        _share("dataflow/triples, energy within 1e-5", charged, total),
        _share("dataflow/triples with links, extrapolated, counts equal", linked, whole),
        *_imperfect(cut),
    ]


def _imperfect(rows: list[tuple[Evaluation, Evaluation, dict[str, Any], Any]]) -> list[Check]:
    """Compare mappings whose last tiles are smaller: counted exactly, and as the peer counts.

    The peer walks a few iterations of each loop and extrapolates. `extrapolated` does the same by
    its rules and is held to its figures; exact counts differ wherever those rules round.
    """
    timed = same = counts = whole = charged = 0
    energies = []
    for exact, theirs, row, wanted in rows:
        energy_pj = row["energy_total_uj"] * PJ_PER_UJ
        timed += exact.compute_cycles == row["compute_cycles"]
        same += _equal_counts(exact, wanted, instances=False)
        counts += 3 * len(exact.traffic)
        energies.append(abs(exact.energy_pj / energy_pj - 1.0))
        whole += _equal_counts(theirs, wanted) == 4 * len(theirs.traffic)
        charged += (
            abs(theirs.cycles - row["cycles"]) <= CYCLES_SLACK
            and abs(theirs.energy_pj / energy_pj - 1.0) <= ENERGY_SLACK
        )
    share = 100.0 * whole / max(1, len(rows))
    typical = 100.0 * statistics.median(energies) if energies else 0.0
    note = (
        f"at least, counting: extrapolated; cycles and energy of {charged}. Exact counts: "
        f"{same} of {counts} equal, energy {typical:.1f} % off in the median"
    )
    return [
        _share("dataflow/triples with imperfect factors, iterations equal", timed, len(rows)),
        Check("dataflow/triples with imperfect factors", share, "%", IMPERFECT_BAR,
              share >= IMPERFECT_BAR, len(rows), note),
    ]  # fmt: skip


def _equal_counts(
    result: Evaluation,
    wanted: Mapping[tuple[str, str], Mapping[str, Any]],
    *,
    instances: bool = True,
) -> int:
    """Return how many of reads, fills, updates and instances of all lines are equal."""
    assert len(wanted) == len(result.traffic)
    keys = ("reads", "fills", "updates", "utilized_instances")[: 4 if instances else 3]
    return sum(
        ours == wanted[t.level, t.tensor][key]
        for t in result.traffic
        for ours, key in zip((t.reads, t.fills, t.updates, t.instances), keys, strict=False)
    )


def _share(name: str, met: int, rows: int) -> Check:
    return Check(name, 100.0 * met / max(1, rows), "%", 100.0, met == rows, rows, "at least")


def _survey(folder: Path) -> list[Check]:
    tables, case = read_tables(folder), read_yaml(folder / "survey_case.yaml")
    eyeriss = tables.accelerators["eyeriss_like_168"]
    # The exercise has a level of wires between columns and rows, so diagonals are sent twice.
    levels = [dataclasses.replace(v, staged=v.name == "shared_glb") for v in eyeriss.levels]
    exercise = dataclasses.replace(eyeriss, levels=tuple(levels))
    given = case["checked_in_reference"]
    layer = tables.layer("exercise_default_conv")
    result = evaluated(*encode(read_mapping(given["mapping"]), layer, exercise), layer, exercise)
    assert isinstance(result, Evaluation)
    uj, bar = result.energy_pj / PJ_PER_UJ, given["same_mapping_rerun_here"]["energy_uj"]
    found = [
        Check("dataflow/survey, checked-in mapping", uj, "uJ", bar,
              abs(uj / bar - 1.0) <= SURVEY_SLACK, 1, "within 0.2 %"),
        Check("dataflow/survey, its cycles", result.cycles, "", given["cycles"],
              result.cycles == given["cycles"], 1, "equal"),
    ]  # fmt: skip
    name, uj_bar, cycles_bar, free_uj_bar, free_cycles_bar = CONV1
    layer = tables.layer(name)
    rules = _as_given(case["real_resnet50_conv1_run_here"]["mapping"])
    for label, limits, where, constraints in (
        ("constrained", (uj_bar, cycles_bar), exercise, rules),
        ("free", (free_uj_bar, free_cycles_bar), eyeriss, None),
    ):
        best = find(layer, where, evaluations=ANCHOR_EVALUATIONS, constraints=constraints)
        uj, cycles = best.evaluation.energy_pj / PJ_PER_UJ, best.evaluation.cycles
        text = f"at most; gap {best.gap:.3f}"
        # The figures of the limits are rounded to two decimals.
        ok = round(uj, 2) <= limits[0]
        found.append(Check(f"dataflow/Conv1, {label}", uj, "uJ", limits[0], ok, 1, text))
        ok = cycles <= limits[1]
        found.append(Check(f"dataflow/Conv1, {label}, cycles", cycles, "", limits[1], ok, 1, text))
    return found


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


def _anchors(folder: Path) -> list[Check]:
    tables = read_tables(folder)
    found = []
    with (folder / "mapper_anchor.csv").open(newline="") as file:
        anchors = list(csv.DictReader(file))
    for row in anchors:
        layer, accelerator = tables.layer(row["problem"]), tables.accelerators[row["arch"]]
        find(layer, accelerator, evaluations=1)
        started = time.process_time()
        best = find(layer, accelerator, evaluations=ANCHOR_EVALUATIONS)
        spent_s = time.process_time() - started
        ratio = best.evaluation.edp / PJ_PER_UJ / min(_searched(row))
        note = (
            f"EDP over the best of the peers; {best.evaluation.energy_pj / PJ_PER_UJ:.1f} uJ, "
            f"{best.evaluation.cycles:,} cycles, {spent_s:.2f} CPU-s, gap {best.gap:.3f}"
        )
        name = f"dataflow/mapper, {row['arch']} {row['problem']}"
        ok = ratio <= 1.0 and spent_s <= CPU_BAR_S
        found.append(Check(name, ratio, "", 1.0, ok, 1, note))
    return found


def _searched(row: Mapping[str, str]) -> Iterator[float]:
    """Yield the energy-delay products the peers found."""
    for energy, cycles in (
        ("tl_best_energy_uj_no_link", "tl_best_cycles_no_link"),
        ("ref_search_energy_uj", "ref_search_cycles"),
    ):
        if row[energy] and row[cycles]:
            yield float(row[energy]) * float(row[cycles])


def _systolic(folder: Path) -> list[Check]:
    with (folder / "scalesim_32x32.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    equal = 0
    for row in rows:
        high, wide = (int(side) for side in row["array"].split("x"))
        m, n, k = (int(row[name]) for name in "MNK")
        cycles = systolic_cycles(
            m, n, k, rows=high, columns=wide, dataflow=row["dataflow"], drain=False
        )
        equal += cycles == int(row["total_cycles"])
    return [_share("dataflow/systolic cycles equal", equal, len(rows))]
