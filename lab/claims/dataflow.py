"""Claims about dataflow accelerators: Timeloop's counts, mappings, die areas and published chips.

Exact counts are compared with Timeloop's exact counting (without link transfers where only that is
exact) and with its default counting, which extrapolates.

Factors from mapping to silicon are fitted without the chip, or without all chips of its design. The
interval has the spread of the errors of other designs that were left out in the same way; the
baseline is the best mapping: no losses, no power in clocks, only buffers and multipliers.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau

from formats.timeloop import layer_of
from lab.claims.claim import Cells, predict
from lab.fits.accelerators.chip_runs import published_areas, published_runs
from lab.fits.accelerators.chips import latency_s, left_out, spread
from lab.fits.accelerators.devices import CONFIG as DEVICES
from lab.fits.accelerators.devices import left_out as devices_left_out
from lab.fits.accelerators.devices import log_errors, measured
from lab.tables.rows import Record, read_records
from simulators.catalog.accelerator import Accelerator, accelerator_of
from simulators.catalog.gpu import dies, load_gpu
from simulators.catalog.price import DEFAULT, usd_per_gpu_hours
from simulators.codesign.simulator import fitted
from simulators.core.errors import UserError
from simulators.dataflow.evaluation import Evaluation, evaluated
from simulators.dataflow.mapping import read_mapping, read_yaml
from simulators.dataflow.search.mapper import find
from simulators.dataflow.silicon import Z90, Losses, Silicon
from simulators.workload.loop_nest import Layer

ARCHITECTURES, PROBLEMS = "dataflow/architectures.yaml", "dataflow/problems.yaml"
TRIPLES, ACCESSES = "dataflow/triples.parquet", "dataflow/accesses.parquet"
PJ_PER_UJ = 1e6
MTOK, HOUR_S = 1e6, 3600.0
EVALUATIONS = 400_000
CYCLES_SLACK, ENERGY_SLACK = 2, 1e-5
VARIANTS = {"exact": "default", "exact_without_link_transfers": "no_link_transfers"}
"""Timeloop's counts that closed forms reproduce."""

SEARCHES = (
    ("tl_best_energy_uj_no_link", "tl_best_cycles_no_link"),
    ("ref_search_energy_uj", "ref_search_cycles"),
)
"""Energy and cycles of the best mappings of other mappers."""

NO_LOSS = Losses(1.0, 1.0, {}, 0.0, 0.0)
IDEAL = Silicon(NO_LOSS, NO_LOSS, NO_LOSS, start_s=0.0)
"""A chip without losses."""

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


def chips(_reference: Path) -> Iterator[Cells]:
    """Yield frames per second, joules and mm2 of each chip, predicted from the other chips."""
    yield from _without_chips("chip")


def designs(_reference: Path) -> Iterator[Cells]:
    """Yield the same with all chips of a design left out together."""
    yield from _without_chips("design")


def _without_chips(by: str) -> Iterator[Cells]:
    errors, ideal = left_out(by), _without_losses()
    for one in errors:
        others = [other for other in errors if other.design != one.design]
        width = math.exp(Z90 * spread(others, one.quantity))
        ends = (one.predicted / width, one.predicted * width)
        values = (one.predicted, one.measured, *ends, ideal[one.quantity, one.label])
        if one.quantity == "time":
            predicted, measured, hi, lo, baseline = (1.0 / value for value in values)
        else:
            predicted, measured, lo, hi, baseline = values
        yield {
            "quantity": {"time": "frames per second"}.get(one.quantity, one.quantity),
            "chip": one.chip,
            "label": one.label,
            "predicted": predicted,
            "measured": measured,
            "lo": lo,
            "hi": hi,
            "baseline": baseline,
        }


@functools.cache
def _without_losses() -> dict[tuple[str, str], float]:
    """Return time, energy and area of the best mappings, by quantity and label."""
    found: dict[tuple[str, str], float] = {}
    for run in published_runs():
        found["time", run.label] = latency_s(run, IDEAL)
        dynamic_j = run.energy_scale * sum(one.times * one.on_chip_j for one in run.work)
        found["energy", run.label] = dynamic_j / run.inferences
    return found | {("area", area.chip): area.plain_mm2 for area in published_areas()}


def devices(reference: Path) -> Iterator[Cells]:
    """Yield tokens per second, per watt, and USD of Llama-2-70B per device, by data sheet alone.

    The factors are fitted to all other devices. Devices without a list price have no USD.
    """
    known, predicted, errors = (
        measured(reference),
        devices_left_out(reference),
        log_errors(reference),
    )
    prices = usd_per_gpu_hours([DEVICES.priced_as.get(name, name) for name in known], DEFAULT)
    for name, usd_per_hour in zip(known, prices.tolist(), strict=True):
        others = [error for other, error in errors.items() if other != name]
        width = math.exp(Z90 * math.sqrt(sum(e * e for e in others) / len(others)))
        watts = load_gpu(name).tdp_w
        rates = (predicted[name], known[name], predicted[name] / width, predicted[name] * width)
        ends = dict(zip(("predicted", "measured", "lo", "hi"), rates, strict=True))
        yield {"of": "tokens per second", "label": name, **ends}
        yield {"of": "tokens per joule", "label": name, **{k: v / watts for k, v in ends.items()}}
        if not math.isnan(usd_per_hour):
            usd = {k: usd_per_hour * MTOK / HOUR_S / v for k, v in ends.items()}
            usd["lo"], usd["hi"] = usd["hi"], usd["lo"]
            yield {"of": "USD per million tokens", "label": name, **usd}


def device_orders(reference: Path) -> Iterator[Cells]:
    """Yield Kendall's tau between predicted and measured devices, by quantity."""
    rows = list(devices(reference))
    for quantity in dict.fromkeys(row["of"] for row in rows):
        some = [row for row in rows if row["of"] == quantity]
        columns = ([row[name] for row in some] for name in ("predicted", "measured"))
        yield {"of": quantity, "devices": len(some), "predicted": float(kendalltau(*columns)[0])}


def device_gains(reference: Path) -> Iterator[Cells]:
    """Yield the ratio of tokens per second between a device and the one before."""
    known, predicted = measured(reference), devices_left_out(reference)
    for later, earlier in DEVICES.neighbours.items():
        yield {
            "label": f"{earlier} to {later}",
            "predicted": predicted[later] / predicted[earlier],
            "measured": known[later] / known[earlier],
        }
