"""Energy and time of a layer or a network on an accelerator, under the best mapping found.

The schedule of a network decides which tensors stay on chip between layers, and which layers run
tile by tile as fused groups; every layer, or its tile, has its own mapping. With `residency: layer`
every tensor goes to DRAM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulators.catalog.accelerator import (
    CHANGES,
    Accelerator,
    Changes,
    load_accelerator,
    resized,
)
from simulators.core.columns import (
    DATASHEET,
    EXTRAPOLATED,
    FITTED,
    LEVELS,
    evaluate_pointwise,
)
from simulators.core.contract import Contribution, asked, choice, metric
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.fields import check_point
from simulators.dataflow.contributions import contributions
from simulators.dataflow.evaluation import (
    PJ_PER_J,
    TECHNOLOGY,
    area_mm2,
)
from simulators.dataflow.mapping import (
    accelerator_file,
    accelerator_named,
    is_file,
    layers_named,
    layers_of,
    mapping_named,
    network_names,
    read_yaml,
    table_of,
)
from simulators.dataflow.network import batched, is_onnx, network_files, network_graph, used_words
from simulators.dataflow.schedule.mapped import (
    MappedStep,
    Mapper,
    Moves,
    Planner,
    Run,
    buffer_of,
)
from simulators.dataflow.search.annealing import GOALS
from simulators.dataflow.search.map_space import ANY, constraints_of, dataflows, read_constraints
from simulators.dataflow.search.mapper import Found, find, given
from simulators.dataflow.silicon import FILE as SILICON
from simulators.dataflow.silicon import MappedLayer, calibrated, chip_of, work_of
from simulators.dataflow.sparsity import ACTIONS, FORMATS, Sparsity, density_named, sparse_of
from simulators.workload.loop_nest import Layer


@dataclass(frozen=True)
class DataflowPoint:
    """A network, an accelerator, and the options of the mapper."""

    accelerator: str = choice("the accelerator, or the path of a user's file", names="accelerator")
    network: str = asked(
        f"the network, or an ONNX or YAML file: {', '.join(network_names())}", default="resnet50"
    )
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
    residency: str = asked(
        "tensors between layers: network (they stay on chip where that is better) or layer (DRAM)",
        default="network",
        known=("network", "layer"),
    )
    most_fused: int = asked("layers that may be fused, at most", default=8, at_least=1, at_most=16)
    batch: int = choice("inputs that run together", default=1)
    buffer_bytes: float = choice(
        "capacity of the outermost shared buffer; 0: as in the file", unit="B", default=0.0
    )
    memory_bytes_per_s: float = choice(
        "bandwidth of the outermost level; 0: as in the file", unit="B/s", default=0.0
    )
    ports: int = choice(
        "ports of shared buffers: 1 for all accesses, 2 for reads and writes; 0: as in the file",
        default=0,
    )
    buffering: int = choice(
        "tiles in shared buffers: 2 is double buffering, with 1 transfers wait for work; "
        "0: as in the file, and transfers overlap",
        default=0,
    )
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


SIZES = (
    *("pe_rows", "pe_cols", "buffer_scale", "spad_scale", "dram_type", "node_nm"),
    *("buffer_bytes", "memory_bytes_per_s", "ports", "buffering"),
)
"""Fields that change an accelerator."""

_total = partial(metric, page="dataflow.md#energy-time-and-area")
_share = partial(metric, page="dataflow.md#where-energy-goes")
_bound = partial(metric, page="dataflow.md#bounds")
_chip = partial(metric, page="dataflow.md#silicon")
_kept = partial(metric, page="dataflow.md#what-stays-on-chip")


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
    weight_dram_bytes: float = _kept("weights among them, read again for each tile", unit="B")
    on_chip_bytes: float = _kept("outputs of layers that never leave the chip", unit="B")
    fused_groups: int = _kept("groups of several layers that run tile by tile")
    longest_group: int = _kept("layers of the longest group")
    dram_energy_share: float = _share("share of the outermost level in energy")
    array_energy_share: float = _share("share of multipliers and of storage inside the array")
    energy_bound_j: float = _bound("lower bound of the energy of all mappings", unit="J")
    latency_bound_s: float = _bound("lower bound of the time of all mappings", unit="s")
    dram_bytes_bound: float = _bound("fewest DRAM bytes of all schedules searched", unit="B")
    gap: float = _bound("largest possible saving of energy-delay product, as a share")
    chip_latency_s: float = _chip("time on a chip: with losses of published chips", unit="s")
    chip_latency_s_lo: float = _chip("lower end of its 90 % interval", unit="s")
    chip_latency_s_hi: float = _chip("upper end of its 90 % interval", unit="s")
    chip_energy_j: float = _chip("energy on a chip, with clocks and control, no DRAM", unit="J")
    chip_energy_j_lo: float = _chip("lower end of its 90 % interval", unit="J")
    chip_energy_j_hi: float = _chip("upper end of its 90 % interval", unit="J")
    chip_area_mm2: float = _chip("area of a chip, with control and wires", unit="mm2")
    chip_area_mm2_lo: float = _chip("lower end of its 90 % interval", unit="mm2")
    chip_area_mm2_hi: float = _chip("upper end of its 90 % interval", unit="mm2")


@dataclass(frozen=True)
class Dataflow:
    """The simulator of loop nests on spatial accelerators."""

    name: str = "dataflow"
    version: int = 10
    point: type = DataflowPoint
    metrics: type = DataflowMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the metrics of every row, with every layer mapped."""
        return evaluate_pointwise(DataflowPoint, DataflowMetrics, simulate, batch, evidence_of)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files behind an axis value."""
        text = str(value)
        if name == "accelerator":
            return (accelerator_file(text), TECHNOLOGY, SILICON)
        if name == "network":
            return network_files(text)
        return (Path(text),) if name in ("constraints", "mapping") and value else ()

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return the contributions to time and energy by layer, level and tensor.

        Raises:
            Infeasible: the design is infeasible.
            UserError: a value is unknown.
        """
        design = DataflowPoint(**point)
        accelerator = machine_for(design)
        plan = plan_of(design, accelerator)
        return [line for part in plan.parts for line in part_contributions(part, accelerator)]

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
    return _totals(plan_of(point, accelerator), accelerator, is_changed=is_changed(point))


def is_changed(point: DataflowPoint) -> bool:
    """Return whether a point changes sizes of its accelerator."""
    defaults = DataflowPoint(accelerator=point.accelerator)
    return CHANGES in point.accelerator or any(
        getattr(point, name) != getattr(defaults, name) for name in SIZES
    )


def evidence_of(point: DataflowPoint) -> int:
    """Return the evidence level of a point: the design has published chips, or others have."""
    design = accelerator_named(point.accelerator).design
    is_known = design in calibrated().time.designs and not is_changed(point)
    return FITTED if is_known else EXTRAPOLATED


def machine_for(point: DataflowPoint) -> Accelerator:
    """Return the accelerator of a point, with its changes."""
    changes: dict[str, Any] = {name: getattr(point, name) for name in SIZES}
    return resized(accelerator_named(point.accelerator), Changes(**changes))


@dataclass(frozen=True)
class MappedNetwork:
    """Mapped layers of a point, with the bounds of all plans."""

    parts: tuple[MappedStep, ...]
    energy_bound_pj: float
    cycles_bound: int
    edp_bound: float
    dram_words_bound: float
    on_chip_words: int = 0


def plan_of(point: DataflowPoint, accelerator: Accelerator) -> MappedNetwork:
    """Map the layers of a point, as a schedule of the network or one by one.

    Raises:
        Infeasible: a buffer holds fewer words than the tensors it must keep.
        UserError: a value is unknown.
    """
    mapper = _mapper(point, accelerator)
    if point.mapping or point.layer != "all" or _is_problem(point.network):
        return _one_by_one(_layers_found(point, accelerator, mapper), accelerator)
    network = network_graph(point.network, point.batch)
    buffer = buffer_of(accelerator, remainders=point.remainders)
    if buffer is None or point.residency == "layer":
        found = [(node.layer, 1, mapper(node.layer, accelerator)) for node in network.nodes]
        return _one_by_one(found, accelerator)
    overlaps = point.buffering != 1
    planner = Planner(
        network, accelerator, buffer, mapper, most_layers=point.most_fused, overlaps=overlaps
    )
    slopes = GOALS[point.goal]
    best = planner.best(lambda pj, cycles: pj ** slopes[0] * cycles ** slopes[1], slopes)
    # Bounds are of dense layers; zeros save at most the share of products without two non-zeros.
    zeros = _zeros(point)
    left = math.prod(density.mean for density in zeros.densities.values()) if zeros else 1.0
    return MappedNetwork(
        parts=best.steps,
        energy_bound_pj=left * best.energy_bound_pj,
        cycles_bound=math.floor(left * best.cycles_bound),
        edp_bound=0.0,
        dram_words_bound=left * best.dram_words_bound,
        on_chip_words=best.on_chip_words,
    )


def _is_problem(network: str) -> bool:
    return is_file(network) and "problem" in table_of(read_yaml(Path(network)), network)


def _one_by_one(
    found: Sequence[tuple[Layer, int, Found]], accelerator: Accelerator
) -> MappedNetwork:
    parts = tuple(
        MappedStep(k, k + 1, (Run(layer, times, one),), Moves(), 1, *_sums(one, times, accelerator))
        for k, (layer, times, one) in enumerate(found)
    )
    once = sum(times * sum(used_words(layer, t) for t in range(3)) for layer, times, _ in found)
    return MappedNetwork(
        parts=parts,
        energy_bound_pj=sum(times * one.bounds.energy_pj for _, times, one in found),
        cycles_bound=sum(times * one.bounds.cycles for _, times, one in found),
        # The product of two sums is at least the squared sum of the roots of the products.
        edp_bound=sum(times * math.sqrt(one.bounds.edp) for _, times, one in found) ** 2,
        dram_words_bound=min(once, sum(part.dram_words for part in parts)),
    )


def _sums(found: Found, times: int, accelerator: Accelerator) -> tuple[float, int, int]:
    dram, one = accelerator.levels[0].name, found.evaluation
    words = sum(t.reads + t.fills + t.updates for t in one.traffic if t.level == dram)
    return times * one.energy_pj, times * one.cycles, times * words


def _layers_found(
    point: DataflowPoint, accelerator: Accelerator, mapper: Mapper
) -> list[tuple[Layer, int, Found]]:
    if is_onnx(point.network):
        nodes = network_graph(point.network, point.batch).nodes
        layers = [(n.layer, 1) for n in nodes if point.layer in ("all", n.layer.name)]
        if not layers:
            known = ("all", *(n.layer.name for n in nodes))
            raise UnknownNameError(f"layer of {point.network}", point.layer, known)
    else:
        named = layers_named(point.network, point.layer)
        layers = [(batched(one, point.batch), times) for one, times in named]
    if not point.mapping:
        return [(layer, times, mapper(layer, accelerator)) for layer, times in layers]
    if len(layers) > 1:
        raise UserError(f"mapping '{point.mapping}' is of one layer; name it by `layer`")
    layer, times = layers[0]
    mapping = mapping_named(point.mapping, layer, accelerator)
    return [(layer, times, given(mapping, layer, accelerator))]


def _mapper(point: DataflowPoint, accelerator: Accelerator) -> Mapper:
    """Return the mapper of a point; equal layers on equal machines are mapped once."""
    rules = read_constraints(read_yaml(Path(point.constraints))) if point.constraints else None
    zeros = _zeros(point)
    dataflow = accelerator.dataflow if point.dataflow == ANY else point.dataflow
    known: dict[tuple[object, ...], Found] = {}

    def mapper(layer: Layer, machine: Accelerator) -> Found:
        left = tuple((level.reserved_words, level.holds) for level in machine.levels)
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

    return mapper


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


def _totals(plan: MappedNetwork, accelerator: Accelerator, *, is_changed: bool) -> DataflowMetrics:
    clock_hz, dram = accelerator.clock_hz, accelerator.levels[0]
    shared = {level.name for level in accelerator.levels if level.instances == 1}
    word_bytes = dram.word_bits / 8
    energy_pj = sum(part.energy_pj for part in plan.parts)
    cycles = sum(part.cycles for part in plan.parts)
    runs = [run for part in plan.parts for run in part.runs]
    macs = sum(run.times * run.found.evaluation.macs for run in runs)
    by_level: dict[str, float] = {}
    weights = 0
    for run in runs:
        for level, spent_pj in run.found.evaluation.level_energy_pj().items():
            by_level[level] = by_level.get(level, 0.0) + run.times * spent_pj
        weights += run.times * sum(
            line.reads
            for line in run.found.evaluation.traffic
            if line.level == dram.name and line.tensor == "Weights"
        )
    for part in plan.parts:
        by_level[dram.name] += part.moves.dram_pj
        weights += part.moves.weights
    energy_j, latency_s = energy_pj / PJ_PER_J, cycles / clock_hz
    work = [_chip_work(part, accelerator) for part in plan.parts]
    chip = chip_of(work, accelerator, is_changed=is_changed)
    bound_edp = max(plan.energy_bound_pj * plan.cycles_bound, plan.edp_bound)
    groups = [part.last - part.first for part in plan.parts if part.tiles > 1]
    return DataflowMetrics(
        energy_j=energy_j,
        latency_s=latency_s,
        area_mm2=area_mm2(accelerator),
        edp_js=energy_j * latency_s,
        cycles=cycles,
        macs=macs,
        utilization=macs / accelerator.mac.instances / cycles,
        dram_bytes=sum(part.dram_words for part in plan.parts) * word_bytes,
        weight_dram_bytes=weights * word_bytes,
        on_chip_bytes=plan.on_chip_words * word_bytes,
        fused_groups=sum(size > 1 for size in groups),
        longest_group=max(groups, default=1),
        dram_energy_share=by_level[dram.name] / energy_pj,
        array_energy_share=sum(v for k, v in by_level.items() if k not in shared) / energy_pj,
        energy_bound_j=plan.energy_bound_pj / PJ_PER_J,
        latency_bound_s=plan.cycles_bound / clock_hz,
        dram_bytes_bound=plan.dram_words_bound * word_bytes,
        gap=1.0 - bound_edp / (energy_pj * cycles),
        **{
            f"chip_{name}{end}": value
            for name in ("latency_s", "energy_j", "area_mm2")
            for end, value in zip(("", "_lo", "_hi"), getattr(chip, name), strict=True)
        },
    )


def _chip_work(part: MappedStep, accelerator: Accelerator) -> MappedLayer:
    """Return a step as work of a chip: its transfers overlap with all of its runs."""
    dram = accelerator.levels[0]
    rates = (dram.shared_words_per_cycle, dram.read_words_per_cycle)
    rate = next((one for one in rates if one), math.inf)
    moved = part.moves.dram_reads + part.moves.dram_writes
    runs = [work_of(run.times, run.found.evaluation, accelerator) for run in part.runs]
    return MappedLayer(
        times=1,
        on_chip_cycles=sum(one.times * one.on_chip_cycles for one in runs),
        dram_cycles=sum(one.times * one.dram_cycles for one in runs) + moved / rate,
        on_chip_j=sum(one.times * one.on_chip_j for one in runs) + part.moves.buffer_pj / PJ_PER_J,
        layers=part.layers,
    )


def part_contributions(part: MappedStep, accelerator: Accelerator) -> list[Contribution]:
    """Return contributions of a layer or a fused group, with its moves between DRAM and buffer."""
    lines = []
    for run in part.runs:
        lines += contributions(
            run.layer, run.times, run.found.mapping, run.found.evaluation, accelerator
        )
    moves, dram = part.moves, accelerator.levels[0]
    words = moves.dram_reads + moves.dram_writes
    spent_s = sum(line.time_s for line in lines)
    if moves.is_any or part.last - part.first > 1:
        names = [run.layer.name for run in part.runs]
        lines.append(
            Contribution(
                phase=names[0] if len(set(names)) == 1 else f"{names[0]} to {names[-1]}",
                name="moves of the group",
                count=part.tiles,
                time_s=part.cycles / accelerator.clock_hz - spent_s,
                energy_j=part.energy_pj / PJ_PER_J - sum(line.energy_j for line in lines),
                moved_bytes=words * dram.word_bits / 8,
                bound="memory",
                level=LEVELS[DATASHEET],
                note=f"{part.last - part.first} layers in {part.tiles} tiles; transfers overlap",
            )
        )
    return lines
