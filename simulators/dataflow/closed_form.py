"""Energy and cycles of a matrix product on an accelerator in closed form, without a search.

A product of N x C by C x M is split into nested blocks, one for each level. A level that keeps a
tensor holds the tensor's part of the block. The tensor enters the level once per block; a
stationary tensor, which stays while outer loops that do not index it run, enters once per block of
the level around:

    words into a level = multiplies / (extent of the dimension that does not index the tensor)

The extent is the block's or, of the stationary tensor, that of the block around. Spread dimensions,
kept tensors and block lengths are chosen from a few dozen candidates each, from the outermost level
inwards, by the least energy of the level around. The tests compare the result with the mapper's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator, Level, load_accelerator
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats
from simulators.dataflow.access import FILLS, LEAK, READS, UPDATES
from simulators.dataflow.evaluation import Machine, machine_of
from simulators.dataflow.search.map_space import ANY, spread_of
from simulators.workload.operators import Column

DIMS = ("N", "C", "M")
WEIGHTS, INPUTS, OUTPUTS = range(3)
UNINDEXED = (0, 2, 1)
"""The dimension that does not index weights (N), inputs (M) and outputs (C)."""

STEPS = 2.0 ** np.arange(0, 15, 2)
"""Candidate block lengths, as multiples of the spatial tile; the level's capacity limits them."""

LOOK_AHEAD = 0.1
"""Weight of words that enter inner levels, relative to words that enter the level itself: among
equally good blocks, the longer one wins."""

N_STEP, N_NODES = 1.0, 18
KEYS_STEP, KEYS_NODES = 2.0, 11
"""Tables cover rows up to 2^17 at every octave, and keys up to 4^10 at every other octave."""


def products(
    accelerator: Accelerator, b: Floats, n: Floats, c: Floats, m: Floats, *, dataflow: str = ANY
) -> tuple[Floats, Floats]:
    """Return cycles and picojoules of `b` independent products of N x C by C x M each.

    The dataflow `any` uses the best one for each product.

    Raises:
        Infeasible: no buffer holds one word per multiplier.
    """
    machine = machine_of(accelerator)
    sizes = np.stack(np.broadcast_arrays(n, c, m)).astype(np.float64)
    shape = sizes.shape[1:]
    sizes = sizes.reshape(3, -1)
    best_cycles = np.full(sizes.shape[1], np.inf)
    best_pj = np.full(sizes.shape[1], np.inf)
    for across, down in _spreads(dataflow):
        for keeps in itertools.product(*(level.may_keep for level in accelerator.levels)):
            cycles, energy_pj = _blocked(accelerator, machine, sizes, across, down, keeps)
            better = cycles * energy_pj < best_cycles * best_pj
            best_cycles = np.where(better, cycles, best_cycles)
            best_pj = np.where(better, energy_pj, best_pj)
    if not np.isfinite(best_pj).all():
        raise Infeasible("buffer_too_small", "a level holds less than its multipliers need")
    times = np.broadcast_to(b, shape)
    return best_cycles.reshape(shape) * times, best_pj.reshape(shape) * times


def tabulated(
    accelerator: tuple[str, int], times: Column, n: Column, c: Column, m: Column, *, keys: str = ""
) -> tuple[Floats, Floats]:
    """Return cycles and picojoules of `times` products, read from a table between powers of two.

    An accelerator is a name and the version of its data sheet. `n` is one side of the table; the
    other side is the dimension `keys`, "C" or "M", which is the length of a context.
    """
    columns = np.broadcast_arrays(times, n, c, m)
    flat = [np.asarray(column, np.float64).reshape(-1) for column in columns]
    sides = {"N": flat[1], "C": flat[2], "M": flat[3]}
    along = np.maximum(sides.pop("N"), 1.0)
    across = np.maximum(sides.pop(keys), 1.0) if keys else np.ones(along.size)
    fixed, which = np.unique(np.stack(list(sides.values())), axis=1, return_inverse=True)
    found = np.empty((2, along.size))
    for i, sizes in enumerate(fixed.T.tolist()):
        rows = which.reshape(-1) == i
        table = _table(accelerator, tuple(zip(sides, sizes, strict=True)), keys)
        found[:, rows] = flat[0][rows] * 2.0 ** _between(
            table, np.log2(along[rows]) / N_STEP, np.log2(across[rows]) / KEYS_STEP
        )
    cycles, energy_pj = found.reshape(2, *columns[0].shape)
    return cycles, energy_pj


@functools.lru_cache(maxsize=4096)
def _table(accelerator: tuple[str, int], fixed: tuple[tuple[str, float], ...], keys: str) -> Floats:
    """Return the logarithms of cycles and picojoules over rows and keys."""
    found = load_accelerator(accelerator[0])
    rows = 2.0 ** (N_STEP * np.arange(N_NODES))
    contexts = 2.0 ** (KEYS_STEP * np.arange(KEYS_NODES)) if keys else np.ones(2)
    n, context = np.meshgrid(rows, contexts, indexing="ij")
    sizes: dict[str, Floats] = {"N": n, **{d: np.full(n.shape, size) for d, size in fixed}}
    if keys:
        sizes[keys] = context
    sides = (sizes[d] for d in DIMS)
    return np.log2(products(found, np.ones(n.shape), *sides, dataflow=found.dataflow))


def _between(table: Floats, x: Floats, y: Floats) -> Floats:
    """Return a table's columns by linear interpolation, and extrapolation beyond the last nodes."""
    i = np.minimum(x.astype(np.int64), table.shape[1] - 2)
    j = np.minimum(y.astype(np.int64), table.shape[2] - 2)
    u, v = x - i, y - j
    low = table[:, i, j] + v * (table[:, i, j + 1] - table[:, i, j])
    high = table[:, i + 1, j] + v * (table[:, i + 1, j + 1] - table[:, i + 1, j])
    return np.asarray(low + u * (high - low), np.float64)


@functools.cache
def _spreads(dataflow: str) -> tuple[tuple[int, int], ...]:
    pairs = (
        (DIMS.index(x), DIMS.index(y))
        for columns, rows in spread_of(dataflow)
        for x, y in itertools.product(columns, rows)
        if x in DIMS and y in DIMS
    )
    return tuple(dict.fromkeys(pairs))


def _blocked(
    accelerator: Accelerator,
    machine: Machine,
    sizes: Floats,
    across: int,
    down: int,
    keeps: Sequence[Sequence[str]],
) -> tuple[Floats, Floats]:
    """Return cycles and energy of the blocks chosen for one spread and one choice of tensors."""
    array = _parts(accelerator.mac.mesh, sizes, across, down)
    macs, compute = np.prod(sizes, axis=0), np.prod(np.ceil(sizes / array), axis=0)
    traffic = _Traffic(accelerator, machine, sizes)
    around, fits = sizes, np.ones(macs.size, bool)
    for position, level in enumerate(accelerator.levels[1:], 1):
        kept = [TENSORS.index(tensor) for tensor in keeps[position]]
        parts = _parts(level.mesh, sizes, across, down)
        weights = [traffic.entry_pj(tensor, position) for tensor in kept]
        later = [traffic.leaving_pj(tensor) for tensor in range(len(TENSORS))]
        block, stays, found = _block(level, kept, weights, later, array, parts, around)
        fits &= found
        for tensor in kept:
            unindexed = UNINDEXED[tensor]
            reuse = np.where(stays == tensor, around[unindexed], block[unindexed])
            traffic.enter(tensor, position, reuse, parts[unindexed])
        around = block
    for tensor in range(len(TENSORS)):
        traffic.leave(tensor, array[UNINDEXED[tensor]])
    cycles = np.maximum(compute, traffic.cycles(accelerator))
    used = np.prod(array, axis=0)
    energy_pj = traffic.energy_pj + machine.energy_pj[-1, 0] * macs
    for position, level in enumerate(accelerator.levels):
        instances = np.prod(_parts(level.mesh, sizes, across, down), axis=0)
        energy_pj = energy_pj + machine.energy_pj[position, LEAK] * cycles * instances
    energy_pj = energy_pj + machine.energy_pj[-1, LEAK] * cycles * used
    return np.where(fits, cycles, np.inf), np.where(fits, energy_pj, np.inf)


def _parts(mesh: Sequence[int], sizes: Floats, across: int, down: int) -> Floats:
    """Return the number of instances of a mesh that each dimension is spread over."""
    spread = np.ones(3)
    spread[across] *= mesh[0]
    spread[down] *= mesh[1]
    return np.minimum(spread[:, None], sizes)


def _block(
    level: Level,
    kept: Sequence[int],
    weights: Sequence[float],
    later: Sequence[float],
    array: Floats,
    parts: Floats,
    around: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Return the block of a level, the stationary tensor, and whether the block fits.

    Two lengths are tried in steps; the third is the longest that the capacity allows.
    """
    columns = np.arange(around.shape[1])
    best = np.full(columns.size, np.inf)
    block, stays = array.copy(), np.full(columns.size, -1)
    for last in range(3):
        lengths = _candidates(level, kept, last, array, parts, around)
        possible = lengths[last] >= array[last]
        cost, stationary = _entering_pj(lengths, kept, weights, later, around)
        cost = np.where(possible, cost, np.inf)
        row = cost.argmin(axis=0)
        better = cost[row, columns] < best
        best = np.where(better, cost[row, columns], best)
        block = np.where(better, lengths[:, row, columns], block)
        stays = np.where(better, stationary[row, columns], stays)
    return block, stays, np.isfinite(best)


def _candidates(
    level: Level, kept: Sequence[int], last: int, array: Floats, parts: Floats, around: Floats
) -> Floats:
    """Return blocks by dimension, candidate and product; too short in `last` where none fits."""
    first = [d for d in range(3) if d != last]
    lengths = np.empty((3, len(STEPS) ** 2, around.shape[1]))
    for d, steps in zip(first, np.array(list(itertools.product(STEPS, STEPS))).T, strict=True):
        lengths[d] = np.minimum(array[d] * steps[:, None], around[d])
    inside = {d: np.ceil(lengths[d] / parts[d]) for d in first}
    held: Floats = np.zeros(lengths.shape[1:])
    per_last: Floats = np.zeros(lengths.shape[1:])
    for tensor in kept:
        sides = [inside[d] for d in first if d != UNINDEXED[tensor]]
        if UNINDEXED[tensor] == last:
            held += sides[0] * sides[1]
        else:
            per_last += sides[0]
    capacity = float(level.capacity_words or 0)
    with np.errstate(divide="ignore"):
        most = np.floor((capacity - held) / per_last) if per_last.any() else np.inf
    lengths[last] = np.minimum(np.where(held <= capacity, most, 0.0) * parts[last], around[last])
    return lengths


def _entering_pj(
    lengths: Floats,
    kept: Sequence[int],
    weights: Sequence[float],
    later: Sequence[float],
    around: Floats,
) -> tuple[Floats, Floats]:
    """Return picojoules per multiply of words that enter blocks, and the best stationary tensor."""
    lengths = np.maximum(lengths, 1.0)
    cost: Floats = np.zeros(lengths.shape[1:])
    saved: Floats = np.zeros((1 + len(kept), *lengths.shape[1:]))
    for i, (tensor, weight) in enumerate(zip(kept, weights, strict=True), 1):
        moved = weight / lengths[UNINDEXED[tensor]]
        saved[i] = moved - weight / around[UNINDEXED[tensor]]
        cost += moved
    for tensor, weight in enumerate(later):
        cost += LOOK_AHEAD * weight / lengths[UNINDEXED[tensor]]
    return cost - saved.max(axis=0), np.array([-1, *kept])[saved.argmax(axis=0)]


class _Traffic:
    """Words that cross each level, and their energy."""

    def __init__(self, accelerator: Accelerator, machine: Machine, sizes: Floats) -> None:
        levels, count = len(accelerator.levels), sizes.shape[1]
        self._macs: Floats = np.prod(sizes, axis=0)
        self._words = [np.prod(np.delete(sizes, d, 0), axis=0) for d in UNINDEXED]
        self._levels, self._machine = accelerator.levels, machine
        self._keeper = [0] * len(TENSORS)
        self._copies: list[Floats] = [np.ones(count) for _ in TENSORS]
        self._out: list[Floats] = [np.zeros(count) for _ in range(levels)]
        self._in: list[Floats] = [np.zeros(count) for _ in range(levels)]
        self.energy_pj: Floats = np.zeros(count)

    def entry_pj(self, tensor: int, position: int) -> float:
        """Return the energy of one word that enters a level, with the read of the outer level."""
        return self.leaving_pj(tensor) + self._word_pj(position, FILLS)

    def leaving_pj(self, tensor: int) -> float:
        """Return the energy of a word that leaves the tensor's innermost level so far."""
        return self._word_pj(self._keeper[tensor], UPDATES if tensor == OUTPUTS else READS)

    def enter(self, tensor: int, position: int, reuse: Floats, copies: Floats) -> None:
        """Move a tensor from its current level into an inner level."""
        self.leave(tensor, reuse)
        words = self._macs / reuse
        if tensor == OUTPUTS:  # a partial sum enters only after it has left once
            words = np.maximum(words - self._words[tensor], 0.0)
        self._charge(position, FILLS, words * copies)
        self._keeper[tensor], self._copies[tensor] = position, copies

    def cycles(self, accelerator: Accelerator) -> Floats:
        """Return the cycles of the slowest level."""
        slowest = np.zeros_like(self.energy_pj)
        for position, level in enumerate(accelerator.levels):
            read, write, shared = (float(rate) for rate in self._machine.rates[position, :3])
            out, into = self._out[position] / level.instances, self._in[position] / level.instances
            for cycles in (out / read, into / write, (out + into) / shared):
                slowest = np.maximum(slowest, np.ceil(cycles))
        return slowest

    def leave(self, tensor: int, reuse: Floats) -> None:
        """Charge the reads of inner levels; for outputs, updates, and reads of partial sums."""
        level, words, whole = self._keeper[tensor], self._macs / reuse, self._words[tensor]
        if tensor == OUTPUTS:
            self._charge(level, UPDATES, words * self._copies[tensor])
            words = np.maximum(words - whole, 0.0)
        self._charge(level, READS, words * self._copies[tensor])

    def _charge(self, position: int, action: int, words: Floats) -> None:
        if action == READS:
            self._out[position] = self._out[position] + words
        else:
            self._in[position] = self._in[position] + words
        self.energy_pj = self.energy_pj + words * self._word_pj(position, action)

    def _word_pj(self, position: int, action: int) -> float:
        block = self._levels[position].block_words
        return float(self._machine.energy_pj[position, action]) / block
