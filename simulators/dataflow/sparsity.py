"""Operands with zeros: distribution, storage, and expected words, energy and cycles of a mapping.

Compressed operands move and store their non-zeros and the metadata of their positions. A multiply
whose leader is zero is gated, which saves its energy and that of the words it would have read, or
skipped, which saves its cycle too; a tile of the follower is not fetched while the leader's tile is
empty. Whether tiles fit is checked as if they were dense. Wu et al., "Sparseloop" (MICRO 2022).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import UnknownNameError, UserError, suggestion
from simulators.dataflow.evaluation import (
    Evaluation,
    Traffic,
    scaled,
    tile_words_by_level,
    totalled,
)
from simulators.dataflow.mapping import LoopNest
from simulators.dataflow.search.mapper import Found
from simulators.workload.loop_nest import Layer

FORMATS = ("none", "bitmask", "coordinate", "run_length", "uncompressed_offset")
UNIFORM, STRUCTURED, BANDED, DENSE = "uniform", "structured", "banded", "dense"
DENSITIES = (UNIFORM, STRUCTURED, BANDED, DENSE)


@dataclass(frozen=True)
class Density:
    """Distribution of a tensor's non-zeros.

    `uniform`: at random; `structured`: exactly `n` of every `m` neighbors; `banded`: within a band,
    which contains a tile fully or not at all; `dense`: all words.
    """

    kind: str = DENSE
    share: float = 1.0
    n: int = 0
    m: int = 0

    def __post_init__(self) -> None:
        if self.kind not in DENSITIES:
            raise UnknownNameError("density", self.kind, DENSITIES)
        if not 0.0 <= self.share <= 1.0:
            raise UserError(f"a density is between 0 and 1, not {self.share}")
        if self.kind == STRUCTURED and not 0 < self.n <= self.m:
            raise UserError(f"structured density is n of m, not {self.n} of {self.m}")

    @property
    def mean(self) -> float:
        """Return the share of non-zeros.

        >>> Density("structured", n=2, m=4).mean
        0.5
        """
        if self.kind == DENSE:
            return 1.0
        return self.n / self.m if self.kind == STRUCTURED else self.share


def density_named(text: str) -> Density:
    """Return a density from a share, n:m, or `banded` and a share.

    >>> density_named("2:4").mean, density_named("banded 0.1").kind, density_named("1").kind
    (0.5, 'banded', 'dense')

    Raises:
        UserError: the text has another form.
    """
    words = text.split()
    try:
        if len(words) == 1 and ":" in text:
            n, m = (int(part) for part in text.split(":"))
            return Density(STRUCTURED, n=n, m=m)
        if len(words) == 2 and words[0] == BANDED:
            return Density(BANDED, float(words[1]))
        share = float(text)
    except ValueError as error:
        raise UserError(f"density '{text}' is not like 0.3, 2:4 or banded 0.1") from error
    return Density() if share == 1.0 else Density(UNIFORM, share)


def empty_probability(density: Density, tile: int, whole: int) -> float:
    """Return the probability that a tile has no non-zeros and can be skipped."""
    if density.kind == UNIFORM and 0 < tile <= whole:
        return hypergeometric(0, tile, round(density.share * whole), whole)
    if density.kind == BANDED:
        return 1.0 - density.share
    return max(0.0, 1.0 - tile * density.mean)


def metadata_bits(layout: str, tile: int, filled: float) -> float:
    """Return the expected bits of the metadata of a tile's non-zeros.

    A `bitmask` has one bit per word; `coordinate` an index per non-zero; `run_length` the number of
    zeros before a non-zero; `uncompressed_offset` begin and end. `tile` counts all words.
    """
    if layout not in FORMATS:
        raise UnknownNameError("format", layout, FORMATS)
    index_bits = max(1, math.ceil(math.log2(max(2, tile))))
    return {
        "none": 0.0,
        "bitmask": float(tile),
        "coordinate": filled * index_bits,
        "run_length": filled * index_bits,
        "uncompressed_offset": 2.0 * max(1, math.ceil(math.log2(tile + 1))),
    }[layout]


def hypergeometric(k: int, tile: int, filled: int, whole: int) -> float:
    """Return the probability of `k` non-zeros in a tile; the tensor has `filled` of `whole`."""
    if k > filled or tile - k > whole - filled:
        return 0.0
    log = _log_choose(filled, k) + _log_choose(whole - filled, tile - k) - _log_choose(whole, tile)
    return math.exp(log)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


OPERANDS = TENSORS[:2]
ACTIONS = ("none", "gating", "skipping")


@dataclass(frozen=True)
class Sparsity:
    """Densities and formats of both operands, and the hardware's action on zeros.

    Operands without an entry in `formats` are stored uncompressed. `leaders` are the operands whose
    zeros trigger the action.
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
        """Return an operand's density; the default is dense."""
        return self.densities.get(operand, Density())

    @property
    def multiplies(self) -> float:
        """Share of the multiplies that are executed."""
        if self.action == "none":
            return 1.0
        return math.prod(self.density(leader).mean for leader in self.leaders)


def with_zeros(
    mapping: LoopNest, dense: Evaluation, layer: Layer, accelerator: Accelerator, zeros: Sparsity
) -> Evaluation:
    """Return the expected accesses, energy and cycles with zeros, from a dense evaluation."""
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
        # Only executed multiplies access a partial sum; final sums are written in full.
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
    """Return the probability that a tile of the leader is empty; 0 without a tile."""
    whole = layer.words(layer.tensors[TENSORS.index(leader)].name)
    return empty_probability(zeros.density(leader), min(tile, whole), whole) if tile else 0.0
