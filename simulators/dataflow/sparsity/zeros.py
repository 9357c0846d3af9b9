"""Expected words, energy and cycles of a mapping whose operands have zeros.

Compressed operands move and store their non-zeros and what tells where they are. A multiply whose
leader is zero is gated, which spares its energy and that of the words it would have read, or
skipped, which spares its cycle too; a tile of the follower is not fetched while the leader's is
empty. Wu et al., "Sparseloop" (MICRO 2022). Whether tiles fit is judged as if they were dense.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import UserError, suggestion
from simulators.dataflow.energy.evaluation import (
    Evaluation,
    Traffic,
    scaled,
    tile_words_by_level,
    totalled,
)
from simulators.dataflow.mapping.loop_nest import Mapping as LoopNest
from simulators.dataflow.search.mapper import Found
from simulators.dataflow.sparsity.densities import Density, empty_chance, metadata_bits
from simulators.workload.loop_nest import Layer

OPERANDS = TENSORS[:2]
ACTIONS = ("none", "gating", "skipping")


@dataclass(frozen=True)
class Sparsity:
    """Zeros of both operands, and what the hardware makes of them.

    `formats` of `sparse.FORMATS`, by operand; without one an operand is stored as it is. `leaders`
    are the operands whose zeros the action looks for.
    """

    densities: Mapping[str, Density] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    action: str = "none"
    leaders: tuple[str, ...] = OPERANDS

    def __post_init__(self) -> None:
        for name in (*self.densities, *self.formats, *self.leaders):
            if name not in OPERANDS:
                raise UserError(f"sparsity of '{name}'{suggestion(name, OPERANDS)}")
        if self.action not in ACTIONS:
            raise UserError(f"sparse action '{self.action}'{suggestion(self.action, ACTIONS)}")

    def density(self, operand: str) -> Density:
        """Return an operand's density, dense unless given."""
        return self.densities.get(operand, Density())

    @property
    def multiplies(self) -> float:
        """Share of the multiplies that take place."""
        if self.action == "none":
            return 1.0
        return math.prod(self.density(leader).mean for leader in self.leaders)


def with_zeros(
    mapping: LoopNest, dense: Evaluation, layer: Layer, accelerator: Accelerator, zeros: Sparsity
) -> Evaluation:
    """Return the expected counts, energy and cycles of a mapping that was evaluated as dense."""
    tiles = tile_words_by_level(mapping, layer, accelerator)
    share = zeros.multiplies
    lines = [
        _expected(line, dense, layer, accelerator, zeros, tiles, share) for line in dense.traffic
    ]
    steps = share if zeros.action == "skipping" else 1.0
    return totalled(dense, lines, accelerator, multiplies=share, steps=steps)


def sparse_of(found: Found, layer: Layer, accelerator: Accelerator, zeros: Sparsity) -> Found:
    """Return a search result with zeros; bounds cover only the multiplies that remain.

    The mapping is the best one of dense operands.
    """
    evaluation = with_zeros(found.mapping, found.evaluation, layer, accelerator, zeros)
    mac_pj = evaluation.mac_energy_pj
    steps = zeros.multiplies if zeros.action == "skipping" else 1.0
    cycles = math.ceil(layer.macs * steps / accelerator.mac.instances)
    return found.restated(evaluation, mac_pj, cycles)


def _expected(
    line: Traffic,
    dense: Evaluation,
    layer: Layer,
    accelerator: Accelerator,
    zeros: Sparsity,
    tiles: Mapping[tuple[str, str], int],
    share: float,
) -> Traffic:
    """Return one line with the words that are expected to move."""
    names = [level.name for level in accelerator.levels]
    inner = [t.level for t in dense.traffic if t.tensor == line.tensor]
    child = inner.index(line.level) + 1
    feeds_mac = child == len(inner)
    bits = accelerator.levels[names.index(line.level)].word_bits
    if line.tensor in OPERANDS:
        stored = _stored(line.tensor, tiles[line.level, line.tensor], bits, zeros)
        others = [leader for leader in zeros.leaders if leader != line.tensor]
        sent = stored
        if zeros.action != "none":
            for leader in others:
                tile = 1 if feeds_mac else tiles.get((inner[child], leader), 0)
                sent *= 1.0 - _empty(leader, tile, layer, zeros)
        arrived = stored
        if zeros.action != "none" and tiles.get((line.level, line.tensor)):
            for leader in others:
                arrived *= 1.0 - _empty(leader, tiles.get((line.level, leader), 0), layer, zeros)
        scale = (sent, arrived, 0.0)
    else:
        # A sum is touched only by multiplies that take place; whole sums leave as they are.
        scale = (share, 1.0, share) if feeds_mac else (1.0, 1.0, 1.0)
    return scaled(line, scale, accelerator)


def _stored(operand: str, tile: int, word_bits: int, zeros: Sparsity) -> float:
    """Return stored words per word of a tile: non-zeros and their metadata."""
    layout = zeros.formats.get(operand, "none")
    if layout == "none":
        return 1.0
    filled = tile * zeros.density(operand).mean
    return (filled + metadata_bits(layout, tile, filled) / word_bits) / tile


def _empty(leader: str, tile: int, layer: Layer, zeros: Sparsity) -> float:
    """Return the chance that a tile of the leader holds nothing; 0 if the level has none."""
    whole = layer.words(layer.tensors[TENSORS.index(leader)].name)
    return empty_chance(zeros.density(leader), min(tile, whole), whole) if tile else 0.0
