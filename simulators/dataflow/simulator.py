"""Energy and time of a layer or a network on an accelerator, under the best mapping found.

Layers run one after the other, each with its own mapping. Buffers hold no data between layers,
unless neighbors are fused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulators.catalog.accelerator import (
    TENSORS,
    Accelerator,
    Changes,
    load_accelerator,
    resized,
    sheet_name,
)
from simulators.core.columns import DATASHEET, LEVELS, evaluate_pointwise
from simulators.core.contract import Contribution, asked, choice, metric
from simulators.core.errors import UserError
from simulators.core.fields import check_point
from simulators.core.folder import ACCELERATORS
from simulators.dataflow.access import lay_out
from simulators.dataflow.evaluation import (
    PJ_PER_J,
    TECHNOLOGY,
    Evaluation,
    area_mm2,
    level_cycles,
    problem_of,
)
from simulators.dataflow.fusion import in_pairs
from simulators.dataflow.mapping import (
    NETWORKS,
    LoopNest,
    accelerator_named,
    chains,
    encode,
    is_file,
    layers_named,
    layers_of,
    mapping_named,
    network_names,
    read_yaml,
)
from simulators.dataflow.search.annealing import GOALS
from simulators.dataflow.search.map_space import ANY, constraints_of, dataflows, read_constraints
from simulators.dataflow.search.mapper import Found, find, given
from simulators.dataflow.sparsity import ACTIONS, FORMATS, Sparsity, density_named, sparse_of
from simulators.workload.loop_nest import Layer


def contributions(
    layer: Layer, times: int, mapping: LoopNest, evaluation: Evaluation, accelerator: Accelerator
) -> list[Contribution]:
    """Return contributions per level and tensor, of multiplies, and of all other energy.

    The time of the layer is attributed to its bottleneck: the multipliers, or the slowest level.
    """
    why = reasons(mapping, layer, accelerator)
    time_s = times * evaluation.cycles / accelerator.clock_hz
    pace = "mac"
    if evaluation.cycles > evaluation.compute_cycles:
        levels = accelerator.levels
        took = [level_cycles(k, evaluation.traffic, accelerator) for k in range(len(levels))]
        pace = levels[took.index(max(took))].name
    bits = {level.name: level.word_bits for level in accelerator.levels}
    lines = [
        Contribution(
            phase=layer.name,
            name="mac",
            count=times,
            time_s=time_s if pace == "mac" else 0.0,
            energy_j=times * evaluation.mac_energy_pj / PJ_PER_J,
            flops=2.0 * times * layer.macs,
            bound="compute",
            level=LEVELS[DATASHEET],
            note=f"{evaluation.utilization:.0%} of the multipliers at work",
        )
    ]
    rest_pj = evaluation.energy_pj - evaluation.mac_energy_pj
    for line in evaluation.traffic:
        rest_pj -= line.energy_pj
        first = pace == line.level and not any(c.time_s for c in lines)
        lines.append(
            Contribution(
                phase=layer.name,
                name=f"{line.level} {line.tensor}",
                count=times,
                time_s=time_s if first else 0.0,
                energy_j=times * line.energy_pj / PJ_PER_J,
                moved_bytes=times * sum(line.totals) * bits[line.level] / 8,
                bound="memory",
                level=LEVELS[DATASHEET],
                note=why[line.level, line.tensor],
            )
        )
    lines.append(
        Contribution(
            phase=layer.name,
            name="leakage and network",
            count=times,
            energy_j=times * rest_pj / PJ_PER_J,
            level=LEVELS[DATASHEET],
            note="zero unless an accelerator states them",
        )
    )
    return lines


def reasons(
    mapping: LoopNest, layer: Layer, accelerator: Accelerator
) -> dict[tuple[str, str], str]:
    """Return for each level and tensor a description of the loop that sends its words."""
    loops, keep = encode(mapping, layer, accelerator)
    problem = problem_of(layer, accelerator)
    temporal = lay_out(problem, loops, keep)
    names = [level.name for level in accelerator.levels]
    found = {}
    for t, tensor in enumerate(TENSORS):
        kept = [k for k in range(keep.size) if int(keep[k]) >> t & 1]
        for level, child in zip(kept, [*kept[1:], keep.size], strict=True):
            placed = problem.placed[int(problem.first[child]) : temporal].tolist()
            if child == keep.size:
                why = "one word per cycle, no latch"
            else:
                walks = problem.home[t].tolist()
                tile = int(problem.tiles[child, t])
                why = _why(placed, walks, tile, layer, names)
                why += ", the last smaller" if problem.has_partial_tiles[0] else ""
            found[names[level], tensor] = why
    return found


def _why(
    placed: list[list[int]], walks: list[int], tile: int, layer: Layer, names: list[str]
) -> str:
    """Return a description of the words sent per step of the innermost indexing loop."""
    skipped = []
    for dim, bound, level, outer in placed:
        if walks[dim] < 0:
            skipped.append(f"{layer.dims[dim]} {bound}")
            continue
        reused = f", reused over {', '.join(skipped)}" if skipped else ""
        return (
            f"{outer:,} x (the tile of {tile:,} + {bound - 1} steps of {layer.dims[dim]} at "
            f"{names[level]}, of which only what is new{reused})"
        )
    reused = f", reused over {', '.join(skipped)}" if skipped else ""
    return f"the tile of {tile:,} once{reused}"


@dataclass(frozen=True)
class DataflowPoint:
    """A network, an accelerator, and the options of the mapper."""

    accelerator: str = choice("the accelerator, or the path of a user's file", names="accelerator")
    network: str = asked(f"the network: {', '.join(network_names())}", default="resnet50")
    layer: str = asked("a layer of the network, or all", default="all")
    pe_rows: int = choice("rows of the array; 0: as in the file", default=0)
    pe_cols: int = choice("columns of the array; 0: as in the file", default=0)
    buffer_scale: float = choice("relative depth of shared buffers", default=1.0)
    spad_scale: float = choice("relative depth of storage inside the array", default=1.0)
    dram_type: str = choice("lpddr4, ddr3, gddr5 or hbm2; empty: as in the file", default="")
    node_nm: float = choice(
        "technology node, which scales all energies; 0: as in the file", unit="nm", default=0.0
    )
    dataflow: str = choice(f"dataflow: {', '.join(dataflows())}", default="any")
    goal: str = asked("objective of the mapper", default="edp", known=tuple(GOALS))
    constraints: str = choice("path of a YAML file with constraints on mappings", default="")
    mapping: str = choice("path of a mapping of a single layer, instead of a search", default="")
    fused: bool = choice("whether neighboring layers may be fused on chip", default=False)
    weight_density: str = asked("density of weights: 0.3, 2:4, banded 0.1", default="1")
    input_density: str = asked("density of inputs, in the same notation", default="1")
    weight_format: str = choice(f"storage format of weights: {', '.join(FORMATS)}", default="none")
    input_format: str = choice("storage format of inputs", default="none")
    zeros: str = choice(f"action on zero operands: {', '.join(ACTIONS)}", default="none")
    remainders: bool = choice("whether loops may leave a smaller last tile", default=False)
    evaluations: int = asked(
        "mappings tried per distinct layer", default=40_000, at_least=1, at_most=10**8
    )
    seed: int = asked("seed of the mapper", default=0, at_least=0)


SIZES = ("pe_rows", "pe_cols", "buffer_scale", "spad_scale", "dram_type", "node_nm")
"""Fields that change an accelerator."""

_total = partial(metric, page="dataflow.md#energy-time-and-area")
_share = partial(metric, page="dataflow.md#where-energy-goes")
_bound = partial(metric, page="dataflow.md#bounds")


@dataclass(frozen=True)
class DataflowMetrics:
    """Energy, time, area and bounds of a network on an accelerator."""

    energy_j: float = _total("energy of one inference", unit="J", better="min")
    latency_s: float = _total("time of one inference", unit="s", better="min")
    area_mm2: float = _total("area of buffers, registers and multipliers", unit="mm2", better="min")
    edp_js: float = _total("energy-delay product", unit="J s")
    cycles: int = _total("clock cycles")
    macs: int = _share("multiply-accumulates")
    utilization: float = _share("utilization: multiplies per cycle over multipliers")
    dram_bytes: float = _share("bytes moved to and from the outermost level", unit="B")
    dram_energy_share: float = _share("share of the outermost level in energy")
    array_energy_share: float = _share("share of multipliers and of storage inside the array")
    energy_bound_j: float = _bound("lower bound of the energy of all mappings", unit="J")
    latency_bound_s: float = _bound("lower bound of the time of all mappings", unit="s")
    gap: float = _bound("largest possible saving of energy-delay product, as a share")


@dataclass(frozen=True)
class Dataflow:
    """The simulator of loop nests on spatial accelerators."""

    name: str = "dataflow"
    version: int = 7
    point: type = DataflowPoint
    metrics: type = DataflowMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the metrics of every row, with every layer mapped."""
        return evaluate_pointwise(DataflowPoint, DataflowMetrics, simulate, batch, DATASHEET)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files behind an axis value."""
        if name == "accelerator":
            path = Path(str(value))
            sheet = path if is_file(str(value)) else ACCELERATORS.find(sheet_name(str(value)))
            return (sheet, TECHNOLOGY)
        files = name in ("constraints", "mapping") or (name == "network" and is_file(str(value)))
        if name == "network" and not files:
            file = NETWORKS.find(str(value))
            return () if file.parent == NETWORKS.shipped else (file,)
        return (Path(str(value)),) if files and value else ()

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return the contributions to time and energy by layer, level and tensor.

        Raises:
            Infeasible: the design is infeasible.
            UserError: a value is unknown.
        """
        design = DataflowPoint(**point)
        accelerator = machine_for(design)
        return [
            line
            for layer, times, found in _found(design, accelerator)
            for line in contributions(layer, times, found.mapping, found.evaluation, accelerator)
        ]

    def warm_up(self) -> None:
        """Compile the mapper."""
        layer, _ = layers_of("resnet50", "fc")[0]
        find(layer, load_accelerator("two_level"), evaluations=1)


SIMULATOR = Dataflow()


def simulate(point: DataflowPoint) -> DataflowMetrics:
    """Return the metrics of a point: sums over its layers under the best mappings found.

    Raises:
        Infeasible: a buffer holds fewer words than the tensors it must keep.
        UserError: a value is unknown.
    """
    check_point(point)
    accelerator = machine_for(point)
    return _totals([(n, f) for _, n, f in _found(point, accelerator)], accelerator)


def machine_for(point: DataflowPoint) -> Accelerator:
    """Return the accelerator of a point, with its changes."""
    changes: dict[str, Any] = {name: getattr(point, name) for name in SIZES}
    return resized(accelerator_named(point.accelerator), Changes(**changes))


def _found(point: DataflowPoint, accelerator: Accelerator) -> list[tuple[Layer, int, Found]]:
    layers = layers_named(point.network, point.layer)
    if point.mapping:
        if len(layers) > 1:
            raise UserError(f"mapping '{point.mapping}' is of one layer; name it by `layer`")
        layer, times = layers[0]
        mapping = mapping_named(point.mapping, layer, accelerator)
        return [(layer, times, given(mapping, layer, accelerator))]
    rules = read_constraints(read_yaml(Path(point.constraints))) if point.constraints else None
    zeros = _zeros(point)
    dataflow = accelerator.dataflow if point.dataflow == ANY else point.dataflow
    known: dict[tuple[object, ...], Found] = {}

    def mapper(layer: Layer, machine: Accelerator) -> Found:
        left = tuple((level.reserved_words, level.may_keep) for level in machine.levels)
        key = (layer.dims, layer.bounds, layer.tensors, left)
        if key not in known:
            known[key] = find(
                layer,
                machine,
                goal=point.goal,
                evaluations=point.evaluations,
                seed=point.seed,
                constraints=constraints_of(dataflow, layer, machine, rules),
                remainders=point.remainders,
            )
            if zeros is not None:
                known[key] = sparse_of(known[key], layer, machine, zeros)
        return known[key]

    if not point.fused:
        return [(layer, times, mapper(layer, accelerator)) for layer, times in layers]
    if point.layer != "all" or is_file(point.network):
        raise UserError("fused layers are those of a whole network that is known by name")
    return [
        (layer, 1, found)
        for chain in chains(point.network)
        for layer, found in in_pairs(chain, accelerator, mapper)
    ]


def _zeros(point: DataflowPoint) -> Sparsity | None:
    given_as = (point.weight_density, point.input_density, point.weight_format, point.input_format)
    if given_as == ("1", "1", "none", "none") and point.zeros == "none":
        return None
    return Sparsity(
        densities={
            "Weights": density_named(point.weight_density),
            "Inputs": density_named(point.input_density),
        },
        formats={"Weights": point.weight_format, "Inputs": point.input_format},
        action=point.zeros,
    )


def _totals(found: list[tuple[int, Found]], accelerator: Accelerator) -> DataflowMetrics:
    clock_hz, dram = accelerator.clock_hz, accelerator.levels[0]
    shared = {level.name for level in accelerator.levels if level.instances == 1}
    energy_pj = sum(times * f.evaluation.energy_pj for times, f in found)
    cycles = sum(times * f.evaluation.cycles for times, f in found)
    macs = sum(times * f.evaluation.macs for times, f in found)
    bound_pj = sum(times * f.bounds.energy_pj for times, f in found)
    bound_cycles = sum(times * f.bounds.cycles for times, f in found)
    # The product of two sums is at least the squared sum of the roots of the products.
    bound_edp = sum(times * math.sqrt(f.bounds.edp) for times, f in found) ** 2
    by_level: dict[str, float] = {}
    for times, f in found:
        for level, spent_pj in f.evaluation.level_energy_pj().items():
            by_level[level] = by_level.get(level, 0.0) + times * spent_pj
    dram_words = sum(
        times * (line.reads + line.fills + line.updates)
        for times, f in found
        for line in f.evaluation.traffic
        if line.level == dram.name
    )
    energy_j, latency_s = energy_pj / PJ_PER_J, cycles / clock_hz
    return DataflowMetrics(
        energy_j=energy_j,
        latency_s=latency_s,
        area_mm2=area_mm2(accelerator),
        edp_js=energy_j * latency_s,
        cycles=cycles,
        macs=macs,
        utilization=macs / accelerator.mac.instances / cycles,
        dram_bytes=dram_words * dram.word_bits / 8,
        dram_energy_share=by_level[dram.name] / energy_pj,
        array_energy_share=sum(v for k, v in by_level.items() if k not in shared) / energy_pj,
        energy_bound_j=bound_pj / PJ_PER_J,
        latency_bound_s=bound_cycles / clock_hz,
        gap=1.0 - max(bound_pj * bound_cycles, bound_edp) / (energy_pj * cycles),
    )
