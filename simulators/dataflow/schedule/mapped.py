"""Energy, cycles and traffic of a schedule, with every layer mapped onto the array.

A layer of a fused group is mapped for its tile; the tensors that the buffer holds cost nothing
outside of the buffer. Moves between DRAM and the buffer that the tiling states are added. Within a
group all transfers overlap with work, so a group takes

    cycles = max(sum of cycles on chip, words through DRAM / bandwidth)                          (1)

and their sum without double buffering.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import Infeasible
from simulators.dataflow import access as at
from simulators.dataflow.evaluation import (
    Evaluation,
    level_cycles,
    machine_of,
    problem_of,
)
from simulators.dataflow.network import LayerGraph, rows_of, used_words
from simulators.dataflow.schedule.search import (
    Buffer,
    ScheduleStep,
    ScheduleSteps,
    cheapest,
    compulsory_words,
    fewer_heads,
    least_words,
    on_chip,
)
from simulators.dataflow.search.bounds import compulsory
from simulators.dataflow.search.mapper import Found
from simulators.workload.loop_nest import Layer

Mapper = Callable[[Layer, Accelerator], Found]
ROUNDS = 4
"""Most searches for a schedule, each with the mapped costs of the steps before."""


@dataclass(frozen=True)
class Run:
    """A mapped layer, or a tile of it, and how often it runs."""

    layer: Layer
    times: int
    found: Found


@dataclass(frozen=True)
class Moves:
    """Words that a step moves besides the accesses of its mappings."""

    dram_reads: int = 0
    dram_writes: int = 0
    fills: int = 0  # of the buffer
    reads: int = 0  # of the buffer
    weights: int = 0  # among the words read from DRAM
    dram_pj: float = 0.0
    buffer_pj: float = 0.0

    @property
    def is_any(self) -> bool:
        """Whether any word moves."""
        return self.dram_reads + self.dram_writes + self.fills + self.reads > 0


@dataclass(frozen=True)
class MappedStep:
    """A step of a schedule with its mappings."""

    first: int
    last: int  # exclusive
    runs: tuple[Run, ...]
    moves: Moves
    tiles: int
    energy_pj: float
    cycles: int
    dram_words: int

    @property
    def layers(self) -> int:
        """Layers in a row. Tiles of a group belong to one run of the layers."""
        layers = self.last - self.first
        return self.runs[0].times if (layers, self.tiles) == (1, 1) else layers


@dataclass(frozen=True)
class NetworkSchedule:
    """A mapped schedule of a network, and bounds over all schedules."""

    steps: tuple[MappedStep, ...]
    dram_words_bound: float  # of all schedules that were considered
    energy_bound_pj: float
    cycles_bound: int
    on_chip_words: int  # of outputs that never leave the chip

    @property
    def energy_pj(self) -> float:
        """Energy of all steps."""
        return sum(step.energy_pj for step in self.steps)

    @property
    def cycles(self) -> int:
        """Cycles of all steps."""
        return sum(step.cycles for step in self.steps)

    @property
    def dram_words(self) -> int:
        """Words through the outermost level."""
        return sum(step.dram_words for step in self.steps)


def buffer_of(accelerator: Accelerator, *, remainders: bool = False) -> Buffer | None:
    """Return the outermost shared level on chip, or None if the accelerator has none."""
    for k, level in enumerate(accelerator.levels):
        words = level.capacity_words
        if k == 0 or level.instances > 1 or words is None:
            continue
        able = [t for t in TENSORS if any(t in s for s in level.may_keep)]
        if not any({"Inputs", "Outputs"} <= set(s) for s in level.may_keep):
            return None
        mask = max(sum(1 << TENSORS.index(t) for t in s) for s in level.may_keep)
        return Buffer(
            k,
            words * level.buffering,
            accelerator.mac.instances,
            mask,
            "Weights" in able,
            remainders,
        )
    return None


class Planner:
    """Searches and maps schedules of one network on one accelerator."""

    def __init__(
        self,
        network: LayerGraph,
        accelerator: Accelerator,
        buffer: Buffer,
        mapper: Mapper,
        *,
        most_layers: int,
        overlaps: bool = True,
    ) -> None:
        self.network, self.accelerator, self.buffer = network, accelerator, buffer
        self.mapper, self.overlaps = mapper, overlaps
        self.steps = ScheduleSteps(network, buffer, most_layers)
        machine = machine_of(accelerator)
        dram, level = accelerator.levels[0], accelerator.levels[buffer.level]
        self.dram_pj = [float(pj) / dram.block_words for pj in machine.energy_pj[0, :3]]
        self.fill_pj = float(machine.energy_pj[buffer.level, at.FILLS]) / level.block_words
        self.read_pj = float(machine.energy_pj[buffer.level, at.READS]) / level.block_words
        self.rates = [float(rate) for rate in machine.rates[0, : at.HOP]]
        self._alone: dict[int, tuple[float, int]] = {}
        self._mapped: dict[ScheduleStep, MappedStep | None] = {}

    def best(
        self, score: Callable[[float, float], float], slopes: Sequence[float]
    ) -> NetworkSchedule:
        """Return the schedule with the best score of energy and cycles that was found.

        The cost of a step is linear in energy and cycles: `slopes` are the exponents of the score,
        so that each search lowers the product of powers around the best schedule so far.
        """
        best = self.layer_by_layer()
        chosen: list[ScheduleStep] = []
        found = score(*_totals(best))
        for _ in range(ROUNDS):
            energy_pj, cycles = _totals(best)
            a, b = slopes[0] / energy_pj, slopes[1] / cycles
            _, steps = cheapest(self.steps, functools.partial(self._cost, a, b))
            mapped = [self.mapped(step) for step in steps]
            if any(step is None for step in mapped):
                continue
            tried = tuple(step for step in mapped if step is not None)
            value = score(*_totals(tried))
            if value >= found:
                break
            best, found, chosen = tried, value, steps
        energy_pj, cycles_bound = self._bounds()
        words = sum(self.steps.words[k] for k in on_chip(self.steps, chosen))
        return NetworkSchedule(best, least_words(self.steps), energy_pj, cycles_bound, words)

    def layer_by_layer(self) -> tuple[MappedStep, ...]:
        """Return the schedule in which every tensor goes to DRAM."""
        nothing: frozenset[int] = frozenset()
        found = []
        for k in range(self.steps.count):
            step = self.steps.step(k, k + 1, nothing, nothing)
            if step is None:
                raise Infeasible("buffer_too_small", f"no tile of {self.steps.layers[k]} fits")
            mapped = self.mapped(step)
            if mapped is None:
                raise Infeasible("buffer_too_small", "no mapping fits")
            found.append(mapped)
        return tuple(found)

    def mapped(self, step: ScheduleStep) -> MappedStep | None:
        """Return a step with its mappings, or None if a layer cannot be mapped."""
        if step not in self._mapped:
            try:
                self._mapped[step] = (
                    self._single(step) if step.tiling is None else self._tiled(step)
                )
            except Infeasible:
                self._mapped[step] = None
        return self._mapped[step]

    def _cost(self, a: float, b: float, step: ScheduleStep) -> float:
        """Return the linear cost of a step: mapped where it is known, estimated elsewhere."""
        if step in self._mapped:
            known = self._mapped[step]
            return math.inf if known is None else a * known.energy_pj + b * known.cycles
        energy_pj, cycles = 0.0, 0
        for k in range(step.first, step.last):
            alone_pj, alone_cycles = self._on_chip(k)
            energy_pj += alone_pj
            cycles += alone_cycles
        energy_pj += self.dram_pj[0] * step.dram_words
        dram = math.ceil(step.dram_words / self._rate())
        return a * energy_pj + b * (max(cycles, dram) if self.overlaps else cycles + dram)

    def _rate(self) -> float:
        return min(self.rates[2], self.rates[0] + self.rates[1])

    def _on_chip(self, node: int) -> tuple[float, int]:
        """Return energy and cycles on chip of a layer that is mapped alone."""
        if node not in self._alone:
            layer = self.network.nodes[node].layer
            evaluation = self.mapper(layer, self.accelerator).evaluation
            outer_pj = sum(t.energy_pj for t in evaluation.traffic if t.level == self._dram)
            self._alone[node] = evaluation.energy_pj - outer_pj, self._inner_cycles(evaluation)
        return self._alone[node]

    @property
    def _dram(self) -> str:
        return self.accelerator.levels[0].name

    def _inner_cycles(self, evaluation: Evaluation) -> int:
        levels = range(1, len(self.accelerator.levels))
        inner = (level_cycles(k, evaluation.traffic, self.accelerator) for k in levels)
        return max(evaluation.compute_cycles, *inner)

    def _single(self, step: ScheduleStep) -> MappedStep:
        """Return a layer whose operands come from DRAM, and its sums with residual branches."""
        layer = self.network.nodes[step.first].layer
        found = self.mapper(layer, self._machine(step.held_words, ()))
        moves = Moves(dram_reads=step.added_words, dram_writes=step.spilled_words)
        return self._step(step, (Run(layer, 1, found),), moves, 1)

    def _tiled(self, step: ScheduleStep) -> MappedStep:
        assert step.tiling is not None
        tiling, heads = step.tiling, step.heads
        level = self.accelerator.levels[self.buffer.level]
        runs, fills = [], 0
        for k, member in enumerate(step.group.members):
            node = self.network.nodes[step.first + k]
            layer = node.layer if heads == 1 else fewer_heads(node.layer, heads)
            words = member.weight_words // heads if heads > 1 else member.weight_words
            held = ["Inputs", "Outputs"]
            stays = words == 0 or (tiling.keeps_weights[k] and tiling.tiles > 1)
            sets = [s for s in level.may_keep if set(TENSORS) <= set(s)]
            if stays and sets:
                held.append("Weights")
                fills += words * heads
            used = step.held_words + tiling.buffer_words - min(words, step.group.lanes)
            machine = self._machine(min(used, self.buffer.capacity), tuple(held))
            for rows, times in _tiles_of(layer, tiling.member_rows[k], tiling.rows_ahead[k]):
                tile = with_rows(layer, rows)
                named = dataclasses.replace(tile, name=node.layer.name)
                runs.append(Run(named, times * heads, self.mapper(named, machine)))
        inputs = tiling.input_words * heads + step.loaded_words
        moves = Moves(
            dram_reads=inputs + fills,
            weights=fills,
            dram_writes=tiling.output_words * heads + step.spilled_words,
            fills=inputs - step.added_words + fills,
            reads=sum(t.words * len(t.adders) for t in step.group.tensors if t.place not in (1,))
            + step.spilled_words,
        )
        return self._step(step, tuple(runs), moves, tiling.tiles * heads)

    def _step(
        self, step: ScheduleStep, runs: tuple[Run, ...], moves: Moves, tiles: int
    ) -> MappedStep:
        energy_pj = sum(run.times * run.found.evaluation.energy_pj for run in runs)
        dram_pj = self.dram_pj[at.READS] * moves.dram_reads
        dram_pj += self.dram_pj[at.UPDATES] * moves.dram_writes
        buffer_pj = self.fill_pj * moves.fills + self.read_pj * moves.reads
        moves = dataclasses.replace(moves, dram_pj=dram_pj, buffer_pj=buffer_pj)
        energy_pj += dram_pj + buffer_pj
        inner = sum(run.times * self._inner_cycles(run.found.evaluation) for run in runs)
        reads, writes = moves.dram_reads, moves.dram_writes
        for run in runs:
            for line in run.found.evaluation.traffic:
                if line.level == self._dram:
                    reads += run.times * line.reads
                    writes += run.times * (line.fills + line.updates)
        outer = math.ceil(
            max(reads / self.rates[0], writes / self.rates[1], (reads + writes) / self.rates[2])
        )
        cycles = max(inner, outer) if self.overlaps else inner + outer
        return MappedStep(
            step.first, step.last, runs, moves, tiles, energy_pj, cycles, reads + writes
        )

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - a planner lives as long as its answer
    def _machine(self, held_words: int, held: tuple[str, ...]) -> Accelerator:
        """Return the accelerator whose buffer holds some tensors, with the rest of its capacity."""
        place = self.buffer.level
        level = self.accelerator.levels[place]
        if not held_words and not held:
            return self.accelerator
        smaller = dataclasses.replace(
            level, reserved_words=-(-held_words // level.buffering), holds=held
        )
        levels = (*self.accelerator.levels[:place], smaller, *self.accelerator.levels[place + 1 :])
        return dataclasses.replace(self.accelerator, levels=levels)

    def _bounds(self) -> tuple[float, int]:
        """Return bounds of energy and cycles over all mappings and all schedules."""
        outermost = self.accelerator.levels[0]
        machine = machine_of(self.accelerator)
        energy_pj, cycles = 0.0, 0
        for node in self.network.nodes:
            problem = problem_of(node.layer, self.accelerator)
            least_pj, _ = compulsory(node.layer, self.accelerator, problem)
            for tensor, action in ((0, at.READS), (1, at.READS), (2, at.UPDATES)):
                words = used_words(node.layer, tensor)
                least_pj -= float(machine.energy_pj[0, action]) * words / outermost.block_words
            energy_pj += max(0.0, least_pj)
            cycles += -(-node.layer.macs // self.accelerator.mac.instances)
        words = compulsory_words(self.network)
        energy_pj += min(self.dram_pj) * words
        return energy_pj, max(cycles, math.ceil(words / self._rate()))


def _totals(steps: Iterable[MappedStep]) -> tuple[float, float]:
    return sum(step.energy_pj for step in steps), float(sum(step.cycles for step in steps))


def _tiles_of(layer: Layer, rows: int, ahead: int) -> list[tuple[int, int]]:
    """Return rows and number of a layer's tiles, with those of the rows ahead of the first tile."""
    total = rows_of(layer)
    rows = min(rows, total)
    before, first = divmod(min(ahead, total), rows)
    after, last = divmod(total - min(ahead, total), rows)
    return [
        (n, times) for n, times in ((rows, before + after), (first, 1), (last, 1)) if n and times
    ]


def with_rows(layer: Layer, rows: int) -> Layer:
    """Return a layer that computes some rows of its output."""
    extents = layer.extents
    if rows == rows_of(layer):
        return layer
    if "P" in extents:
        images = max(1, rows // extents["P"])
        extents |= {"P": min(rows, extents["P"])}
        if "N" in extents:
            extents |= {"N": images}
    else:
        extents |= {"N": rows}
    return dataclasses.replace(layer, bounds=tuple(extents[d] for d in layer.dims))
