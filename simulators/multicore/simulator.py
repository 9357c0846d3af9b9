"""Latency, energy and traffic of a network on a chip of several cores.

Layers run on cores, or share all cores; they run one after the other, or tile by tile as a pipeline
across cores. Tensors move over the network on chip and the DRAM port, for which they queue.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.catalog.accelerator import Accelerator, load_accelerator
from simulators.core.columns import DATASHEET, EXTRAPOLATED, LEVELS, evaluate_pointwise
from simulators.core.contract import Contribution, asked, choice, metric
from simulators.core.errors import UserError
from simulators.core.fields import check_point
from simulators.dataflow.evaluation import TECHNOLOGY, area_mm2
from simulators.dataflow.mapping import accelerator_file, layers_of, network_names
from simulators.dataflow.network import network_files, network_graph
from simulators.dataflow.search.annealing import GOALS
from simulators.dataflow.search.map_space import dataflows
from simulators.dataflow.search.mapper import find
from simulators.multicore.allocation import SEARCH, WORDS, Allocator, CoreSchedule, allocation_of
from simulators.multicore.chip import NOCS, MulticoreChip, chip_of, chip_of_file, is_chip_file
from simulators.multicore.core_state import BETWEEN, L2_PEAK, READ, SPILLED, WEIGHTS, WRITTEN
from simulators.multicore.costs import TileCost, tile_cost
from simulators.multicore.events import run
from simulators.multicore.nodes import Nodes
from simulators.workload.loop_nest import Layer

LAYERS, ROWS = "layers", "rows"


@dataclass(frozen=True)
class MulticorePoint:
    """A network, a chip of several cores, and the search for an allocation."""

    cores: str = choice("cores, as in 2*tpu_like + eyeriss_like, or a YAML file with their links")
    network: str = asked(
        f"the network, or an ONNX or YAML file: {', '.join(network_names())}", default="resnet50"
    )
    batch: int = asked("inputs that run together", default=1, at_least=1)
    pipelining: str = choice(
        "layers: a layer waits for all of its producers; rows: tiles of rows flow across cores",
        default=ROWS,
        known=(LAYERS, ROWS),
    )
    tiles: int = choice(
        "tiles per layer with pipelining rows, at most; 0: one row each", default=16, at_least=0
    )
    allocation: str = choice(
        f"{', '.join(WORDS)}, or a place per layer with commas: a core, rows, channels",
        default=SEARCH,
    )
    noc: str = choice("network on chip of named cores", default=NOCS[0], known=NOCS)
    noc_bytes_per_s: float = choice(
        "bandwidth of the bus, or of a link of the mesh in one direction",
        unit="B/s",
        default=32e9,
        above=0.0,
    )
    noc_pj_per_bit: float = choice(
        "energy of a bit on the bus, or on a link of the mesh", unit="pJ", default=0.0, at_least=0.0
    )
    memory_bytes_per_s: float = choice(
        "bandwidth of the DRAM port; 0: of the first core's outermost level",
        unit="B/s",
        default=0.0,
        at_least=0.0,
    )
    l2_bytes: float = choice("capacity of a shared L2", unit="B", default=0.0, at_least=0.0)
    l2_bytes_per_s: float = choice(
        "bandwidth of the L2; 0: unlimited", unit="B/s", default=0.0, at_least=0.0
    )
    l2_pj_per_bit: float = choice("energy of a bit of the L2", unit="pJ", default=0.0, at_least=0.0)
    dataflow: str = choice(
        f"dataflow of cores that state none: {', '.join(dataflows())}", default="any"
    )
    goal: str = asked("objective of mapper and allocation", default="edp", known=tuple(GOALS))
    evaluations: int = asked("mappings tried per tile and core", default=2000, at_least=1)
    allocations: int = asked("allocations simulated, at most", default=200, at_least=1)
    seed: int = asked("seed of the searches", default=0, at_least=0)


_total = partial(metric, page="multicore.md#energy-time-and-area")
_use = partial(metric, page="multicore.md#use-of-cores-and-links")
_moved = partial(metric, page="multicore.md#bytes")
_bound = partial(metric, page="multicore.md#bounds")


@dataclass(frozen=True)
class MulticoreMetrics:
    """Time, energy, traffic and memory of a network on a multi-core chip."""

    latency_s: float = _total("time of one batch", unit="s", better="min")
    energy_j: float = _total("energy of one batch", unit="J", better="min")
    area_mm2: float = _total("area of all cores", unit="mm2", better="min")
    edp_js: float = _total("energy-delay product", unit="J s")
    inputs_per_s: float = _total("inputs per second of batches one after the other", unit="1/s")
    compute_energy_share: float = _total("share of the cores in energy")
    dram_energy_share: float = _total("share of DRAM in energy")
    macs: int = _use("multiply-accumulates")
    utilization: float = _use("multiplies per second over those of all multipliers")
    core_utilization: float = _use("share of time in which cores compute, mean")
    core_utilization_max: float = _use("that of the busiest core")
    core_utilization_min: float = _use("that of the idlest core")
    cores_used: int = _use("cores that compute")
    dram_port_utilization: float = _use("share of time in which the DRAM port is busy")
    noc_utilization: float = _use("share of time in which the busiest link on chip is busy")
    dram_bytes: float = _moved("bytes through the DRAM port", unit="B")
    weight_dram_bytes: float = _moved("weights among them", unit="B")
    spilled_bytes: float = _moved("tensors between layers written to DRAM", unit="B")
    noc_bytes: float = _moved("bytes between cores", unit="B")
    peak_memory_bytes: float = _moved("largest memory in use of a core", unit="B")
    l2_peak_bytes: float = _moved("largest use of the L2", unit="B")
    latency_bound_s: float = _bound("time that no allocation beats", unit="s")
    gap: float = _bound("largest possible saving of time, as a share")
    allocations_tried: int = _bound("allocations that were simulated")


@dataclass(frozen=True)
class Multicore:
    """The simulator of networks on multi-core accelerators."""

    name: str = "multicore"
    version: int = 1
    point: type = MulticorePoint
    metrics: type = MulticoreMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the metrics of every row."""
        return evaluate_pointwise(MulticorePoint, MulticoreMetrics, simulate, batch, EXTRAPOLATED)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files behind an axis value."""
        text = str(value)
        if name == "cores" and text:
            if is_chip_file(text):
                return (TECHNOLOGY, *sorted(Path(text).parent.rglob("*.y*ml")))
            named = (part.split("*")[-1].strip() for part in text.split("+"))
            return (TECHNOLOGY, *(accelerator_file(one) for one in named))
        if name == "network":
            return network_files(text)
        return ()

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return a line per layer and core, with start, end, time and bytes.

        Raises:
            Infeasible: the design is infeasible.
            UserError: a value is unknown.
        """
        allocator = allocator_of(MulticorePoint(**point))
        return _lines(schedule_of(MulticorePoint(**point), allocator), allocator)

    def warm_up(self) -> None:
        """Compile the mapper and the event loop."""
        layer, _ = layers_of("resnet50", "fc")[0]
        find(layer, load_accelerator("two_level"), evaluations=1)
        _ = run.compiled


SIMULATOR = Multicore()


def simulate(point: MulticorePoint) -> MulticoreMetrics:
    """Return the metrics of a point.

    Raises:
        Infeasible: a tile cannot be mapped onto its core.
        UserError: a value is unknown.
    """
    check_point(point)
    allocator = allocator_of(point)
    return _metrics(schedule_of(point, allocator), allocator, point)


def chip_for(point: MulticorePoint) -> MulticoreChip:
    """Return the chip of a point.

    Raises:
        UserError: cores or their file are invalid, or a file states the links that the point gives.
    """
    if is_chip_file(point.cores):
        given = MulticorePoint(cores=point.cores)
        names = ("noc", "noc_bytes_per_s", "noc_pj_per_bit")
        if other := [n for n in names if getattr(point, n) != getattr(given, n)]:
            raise UserError(
                f"{point.cores} states the links of its cores; {other[0]} has no effect"
            )
        chip = chip_of_file(Path(point.cores))
    else:
        chip = chip_of(point.cores, point.noc, point.noc_bytes_per_s, point.noc_pj_per_bit)
    return dataclasses.replace(
        chip,
        dram_bytes_per_s=point.memory_bytes_per_s or chip.dram_bytes_per_s,
        l2_bytes=point.l2_bytes,
        l2_bytes_per_s=point.l2_bytes_per_s or chip.l2_bytes_per_s,
        l2_pj_per_bit=point.l2_pj_per_bit,
    )


def allocator_of(point: MulticorePoint) -> Allocator:
    """Return the nodes of a point with the costs of their tiles."""
    network = network_graph(point.network, point.batch)
    tiles = 1 if point.pipelining == LAYERS else point.tiles or 1 << 30
    slopes = GOALS[point.goal]

    def priced(layer: Layer, core: Accelerator) -> TileCost:
        dataflow = core.dataflow if core.dataflow != "any" else point.dataflow
        return tile_cost(layer, core, dataflow, point.goal, point.evaluations, point.seed)

    nodes = Nodes(network, chip_for(point), tiles, priced)
    return Allocator(nodes, lambda joules, seconds: joules ** slopes[0] * seconds ** slopes[1])


def schedule_of(point: MulticorePoint, allocator: Allocator) -> CoreSchedule:
    """Return the schedule of a point's allocation, or of the best one found."""
    if point.allocation == SEARCH:
        return allocator.best(point.allocations, point.seed)
    return allocator.evaluate(allocation_of(point.allocation, allocator.nodes))


def _metrics(found: CoreSchedule, allocator: Allocator, point: MulticorePoint) -> MulticoreMetrics:
    chip, state, work = allocator.chip, found.state, found.work
    cores, links = len(chip.cores), len(chip.links)
    busy = np.bincount(work.core[work.core >= 0], work.compute_s[work.core >= 0], cores)
    shares = busy / found.latency_s
    seconds = state.link_bytes / allocator.fabric.bytes_per_s / found.latency_s
    ports = slice(links, links + 1 + int(chip.has_two_ports))
    macs = sum(layer.macs for layer in allocator.nodes.layers)
    peak = sum(core.mac.instances * core.clock_hz for core in chip.cores) * found.latency_s
    bound_s = allocator.latency_bound_s()
    return MulticoreMetrics(
        latency_s=found.latency_s,
        energy_j=found.energy_j,
        area_mm2=sum(_area_mm2(core) for core in chip.cores),
        edp_js=found.energy_j * found.latency_s,
        inputs_per_s=point.batch / found.latency_s,
        compute_energy_share=found.compute_j / found.energy_j if found.energy_j else 0.0,
        dram_energy_share=float(found.link_j[ports].sum()) / found.energy_j
        if found.energy_j
        else 0.0,
        macs=macs,
        utilization=macs / peak,
        core_utilization=float(shares.mean()),
        core_utilization_max=float(shares.max()),
        core_utilization_min=float(shares.min()),
        cores_used=int((busy > 0).sum()),
        dram_port_utilization=float(seconds[ports].max()),
        noc_utilization=float(seconds[:links].max(initial=0.0)),
        dram_bytes=float(state.sums[READ] + state.sums[WRITTEN]),
        weight_dram_bytes=float(state.sums[WEIGHTS]) + found.streamed_weight_bytes,
        spilled_bytes=float(state.sums[SPILLED]),
        noc_bytes=float(state.sums[BETWEEN]),
        peak_memory_bytes=float(state.peak.max()),
        l2_peak_bytes=float(state.sums[L2_PEAK]),
        latency_bound_s=bound_s,
        gap=max(0.0, 1.0 - bound_s / found.latency_s),
        allocations_tried=found.tried,
    )


@functools.lru_cache(maxsize=256)
def _area_mm2(core: Accelerator) -> float:
    return area_mm2(core)


def _lines(found: CoreSchedule, allocator: Allocator) -> list[Contribution]:
    """Return a line per layer and core, and one per link and port that moves bytes."""
    work, state, nodes, lines = found.work, found.state, allocator.nodes, []
    energies = nodes.energies(found.allocation)
    for k, layer in enumerate(nodes.layers):
        for core, model in enumerate(allocator.chip.cores):
            mine = (work.layer == k) & (work.core == core)
            if not mine.any():
                continue
            start_s, end_s = state.start_s[mine].min(), state.end_s[mine].max()
            lines.append(
                Contribution(
                    phase=layer.name,
                    name=f"core {core}, {model.name}",
                    count=int(mine.sum()),
                    time_s=float(work.compute_s[mine].sum()),
                    energy_j=energies[k, core],
                    moved_bytes=float(work.out_bytes[mine].sum()),
                    bound="compute",
                    level=LEVELS[DATASHEET],
                    note=f"from {start_s:.4g} s to {end_s:.4g} s",
                )
            )
    names = [f"link {', '.join(map(str, link.ends))}" for link in allocator.chip.links]
    ports = ("DRAM port, reads", "DRAM port, writes")
    names += [*(ports if allocator.chip.has_two_ports else ("DRAM port",)), "L2"]
    for number, name in enumerate(names):
        moved = float(state.link_bytes[number])
        if moved:
            lines.append(
                Contribution(
                    phase="transfers",
                    name=name,
                    count=1,
                    time_s=moved / float(allocator.fabric.bytes_per_s[number]),
                    energy_j=float(found.link_j[number]),
                    moved_bytes=moved,
                    bound="memory",
                    level=LEVELS[DATASHEET],
                    note="overlaps with work and with other links",
                )
            )
    return lines
