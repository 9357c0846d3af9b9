"""Lower bounds of energy and cycles over all mappings: the least accesses of each spread.

For a given spread, every multiply reads its own words, and every word of a tensor reaches each
place that uses it at least once. Levels with a single instance have a tighter bound: the tile with
the least cost among all tiles that fit, where the innermost loop outside the tile sends again each
tensor that the loop indexes. A tensor that bypasses the level is sent again in every step if a tile
needs more of it than the inner buffers hold together. Hong and Kung, "I/O complexity" (STOC 1981),
gave the first such bound; here capacities, halos, strides and divisors are those of the layer.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix
from simulators.dataflow import access as at
from simulators.dataflow.access import (
    Problem,
    distinct_sums,
    drop_held,
    lay_out,
    note_accesses,
)
from simulators.dataflow.evaluation import CYCLES, ENERGY_PJ, RESULTS, UNLIMITED, charge
from simulators.dataflow.search.annealing import SPACE, Space, score
from simulators.workload.loop_nest import Layer

Tensors = tuple[float, float, float]
Capacities = tuple[int, int, int]


@dataclass(frozen=True)
class MappingBounds:
    """Lower bounds of all mappings of a layer on an accelerator."""

    energy_pj: float
    cycles: int
    edp: float  # pJ cycles


def compulsory(layer: Layer, accelerator: Accelerator, problem: Problem) -> tuple[float, int]:
    """Return lower bounds of energy in pJ and of cycles over all mappings.

    Every tensor crosses the outermost level once; where a level at the multipliers must keep a
    tensor, each multiply reads it there, and updates it if it is the output.
    """
    levels, energies = accelerator.levels, problem.energy_pj
    mask = int(problem.held[at.MASK])
    words = [0 if mask >> t & 1 else _words(problem, t) for t in range(len(TENSORS))]
    actions = [at.UPDATES if tensor.output else at.READS for tensor in layer.tensors]
    energy_pj = float(energies[-1, 0]) * layer.macs
    for number, action in zip(words, actions, strict=True):
        energy_pj += float(energies[0, action]) * number / levels[0].block_words
    for t, tensor in enumerate(TENSORS):
        inner = [k for k, level in enumerate(levels) if any(tensor in s for s in level.may_keep)]
        last = inner[-1]
        forced = all(tensor in keep for keep in levels[last].may_keep)
        if last > 0 and forced and levels[last].mesh == accelerator.mac.mesh:
            cost = float(energies[last, actions[t]]) / levels[last].block_words
            energy_pj += cost * layer.macs
    fed = words[0] + words[1]
    rates = problem.rates[0]
    return energy_pj, max(
        math.ceil(layer.macs / accelerator.mac.instances),
        math.ceil(fed / rates[0]),
        math.ceil(words[at.OUTPUT] / rates[1]),
        math.ceil(sum(words) / rates[2]),
    )


def spread_bounds(
    layer: Layer, accelerator: Accelerator, problem: Problem, space: Space, spread: Ints
) -> tuple[Floats, Ints]:
    """Return least energy in pJ, cycles, energy-delay product and goal by spread, and kept tensors.

    A spread without fitting tiles has infinite bounds. The kept tensors by level are those of the
    least goal. The loops divide the layer's dimensions. `spread` has loops by mapping, level, row
    and dimension; loops that are not spread are temporal at the outermost level.
    """
    options = [row[:n] for row, n in zip(space.keeps.tolist(), space.keep_count, strict=True)]
    kept = np.array(list(itertools.product(*options)), np.int64)
    surplus = np.array([_surplus(layer, accelerator, problem, tuple(row)) for row in kept.tolist()])
    found, best = np.full((len(spread), 4), np.inf), np.zeros(len(spread), np.int64)
    _spread_bounds(problem, space, spread, kept, surplus, found, best)
    return found, kept[best]


def _surplus(
    layer: Layer, accelerator: Accelerator, problem: Problem, kept: tuple[int, ...]
) -> float:
    """Return the least pJ above one transfer per word, at levels with a single instance."""
    spent = 0.0
    energy, rates = problem.energy_pj, problem.rates
    for level in range(1, len(kept)):
        if accelerator.levels[level].instances > 1:
            break
        costs, capacities = [0.0, 0.0, 0.0], [0, 0, 0]
        whole = 0.0
        for t in range(len(TENSORS)):
            if int(problem.held[at.MASK]) >> t & 1:  # nothing enters, or capacity is not counted
                continue
            outer = max(k for k in range(level) if kept[k] >> t & 1)
            inner = next((k for k in range(level, len(kept)) if kept[k] >> t & 1), 0)
            passes = inner > level and outer == level - 1 and _is_plain(layer, t)
            if inner != level and not passes:
                continue
            blocks = int(problem.sizes[inner, at.BLOCK]), int(problem.sizes[outer, at.BLOCK])
            hops = 0.5 * float(problem.sizes[outer, at.FAN_X] + problem.sizes[outer, at.FAN_Y])
            sent = float(energy[outer, at.READS]) / blocks[1] + float(rates[outer, at.HOP]) * hops
            filled = float(energy[inner, at.FILLS]) / blocks[0]
            costs[t] = sent + filled
            if t == at.OUTPUT:  # neither `costs` nor `whole` has the first entry of a sum
                costs[t] += float(energy[outer, at.UPDATES]) / blocks[1]
            whole += costs[t] * _words(problem, t)
            if passes:
                capacity = int(problem.sizes[inner, at.CAPACITY])
                capacities[t] = min(capacity * accelerator.levels[inner].instances, UNLIMITED)
        capacity = int(problem.sizes[level, at.CAPACITY])
        at_level = kept[level]
        if level == problem.held[at.HOME]:
            at_level &= ~int(problem.held[at.MASK])
        entering = _entering(layer, capacity, at_level, tuple(costs), tuple(capacities))
        spent += max(0.0, entering - whole)
    return spent


def _is_plain(layer: Layer, tensor: int) -> bool:
    """Return whether tiles neither overlap nor have gaps."""
    return all(len(rank) == 1 and rank[0][1] == 1 for rank in layer.tensors[tensor].ranks)


def _words(problem: Problem, tensor: int) -> int:
    """Return the used words of a tensor, without the gaps of a stride."""
    problem.extents[0] = 1
    return int(_least_words(problem, tensor, 0))


@functools.lru_cache(maxsize=8192)
def _entering(layer: Layer, capacity: int, kept: int, costs: Tensors, beyond: Capacities) -> float:
    """Return the least cost of words that enter or pass a buffer, over all tiles that fit.

    Args:
        layer: the sides of a tile divide its bounds.
        capacity: words that the buffer holds.
        kept: mask of the tensors that the buffer keeps.
        costs: pJ of a word of each tensor.
        beyond: words that inner buffers hold of each tensor that bypasses this one; 0 for other
            tensors. If a tile needs more, the tensor is sent in every step.
    """
    divisors = [[float(n) for n in range(1, b + 1) if b % n == 0] for b in layer.bounds]
    sides = np.stack([grid.ravel() for grid in np.meshgrid(*divisors, indexing="ij")])
    held = [t for t in range(len(TENSORS)) if kept >> t & 1]
    fits = sum(_tiles(layer, t, sides).prod(axis=0) for t in held) <= capacity
    sides = sides[:, np.broadcast_to(fits, sides.shape[1])]
    steps = np.array(layer.bounds, np.float64)[:, None] / sides
    every_step = steps.prod(axis=0)
    spent = np.zeros(sides.shape)  # by innermost loop outside the tile, and tile
    for t, (cost, most) in enumerate(zip(costs, beyond, strict=True)):
        if t in held or most > 0:
            tile = _tiles(layer, t, sides).prod(axis=0)
            words = np.where(every_step > 1.0, _sent(layer, t, sides, steps), tile)
            if most > 0:
                words = np.where(tile > most, tile * every_step, words)
            spent += cost * words
    is_loop = (steps > 1) | (every_step == 1.0)
    return float(spent[is_loop].min(initial=np.inf))


@functools.lru_cache(maxsize=8192)
def least_traffic(layer: Layer, capacity: int, kept: int) -> float:
    """Return the fewest words that cross DRAM if one buffer of a capacity holds tiles of a layer.

    `kept` is a mask of the tensors that the buffer may hold; others are counted once. Sums are
    written on each arrival, and read back on all but the first. Infinite if no tile fits.
    """
    words = _entering(layer, capacity, kept, (1.0, 1.0, 2.0), (0, 0, 0))
    whole = [_tiles(layer, t, np.array(layer.bounds, np.float64)[:, None]) for t in range(3)]
    if kept >> at.OUTPUT & 1:
        words -= float(whole[at.OUTPUT].prod())
    return words + sum(float(whole[t].prod()) for t in range(len(TENSORS)) if not kept >> t & 1)


def _tiles(layer: Layer, tensor: int, sides: Floats) -> Floats:
    """Return the extents of tiles of a tensor, by rank and tile, from their sides by dimension."""
    extents = [
        1 + sum((sides[layer.dims.index(dim)] - 1) * c for dim, c in rank)
        for rank in layer.tensors[tensor].ranks
    ]
    return np.array(extents, np.float64).reshape(-1, sides.shape[1])


def _sent(layer: Layer, tensor: int, sides: Floats, steps: Floats) -> Floats:
    """Return the fewest words of a tensor that are sent, by innermost loop and tile.

    If the innermost loop indexes the tensor, every step of all loops sends the new part of the
    tile. Otherwise only loops that index the tensor send, the best of them innermost.
    """
    indexed = {
        layer.dims.index(dim): (rank, c)
        for rank, terms in enumerate(layer.tensors[tensor].ranks)
        for dim, c in terms
    }
    extents = _tiles(layer, tensor, sides)
    tile = extents.prod(axis=0)
    every_step, own_steps = steps.prod(axis=0), steps[list(indexed)].prod(axis=0)
    best: Floats = own_steps * tile
    result = np.empty_like(steps)
    for d, (rank, coefficient) in indexed.items():
        new = np.minimum(extents[rank], sides[d] * coefficient)
        slid = tile + (steps[d] - 1.0) * (tile / extents[rank]) * new
        best = np.where(steps[d] > 1.0, np.minimum(best, own_steps / steps[d] * slid), best)
        result[d] = np.minimum(every_step * tile, every_step / steps[d] * slid)
    result[[d for d in range(len(steps)) if d not in indexed]] = best
    return result


def bounds(
    layer: Layer,
    accelerator: Accelerator,
    problem: Problem,
    goal: Floats,
    least_costs: Floats,
    left_out: int,
) -> tuple[MappingBounds, float]:
    """Return the bounds of all mappings, and the bound of the goal.

    `least_costs` has the rows of `spread_bounds` for the listed spreads. Unlisted spreads use at
    most `left_out` multipliers; 0 if all are listed.
    """
    energy_pj, cycles = compulsory(layer, accelerator, problem)
    least = np.array([energy_pj, cycles, energy_pj * cycles, 0.0])
    if left_out:
        cycles = max(cycles, math.ceil(layer.macs / left_out))
        value = score(goal, energy_pj, cycles)
        least_costs = np.vstack([least_costs, [energy_pj, cycles, energy_pj * cycles, value]])
    energy_pj, cycles, edp, value = np.maximum(least_costs.min(axis=0), least).tolist()
    return MappingBounds(energy_pj, round(cycles), edp), value


@kernel(i8(at.PROBLEM, i8, i8), no_refcount=True)
def _least_words(problem: Problem, tensor: int, level: int) -> int:
    """Return the fewest words of a tensor that one instance needs; `extents` counts instances."""
    words = 1
    for place in range(at.RANKS * tensor, at.RANKS * (tensor + 1)):
        d, e = problem.terms[place, 0], problem.terms[place, 2]
        if d < 0:
            break
        size = problem.bounds[d] // problem.extents[level, d]
        if e >= 0:
            other = problem.bounds[e] // problem.extents[level, e]
            if problem.extents[level, d] * problem.extents[level, e] == 1:
                a, b = problem.terms[place, 1], problem.terms[place, 3]
                size = distinct_sums(size, a, other, b)
            else:
                size += other - 1
        words *= size
    return int(words)


@kernel(i8(at.PROBLEM, i8, i8), no_refcount=True)
def _least_tiles(problem: Problem, tensor: int, level: int) -> int:
    """Return the fewest different tiles that one fan-out distributes."""
    number = 1
    for place in range(at.RANKS * tensor, at.RANKS * (tensor + 1)):
        d, e = problem.terms[place, 0], problem.terms[place, 2]
        if d < 0:
            break
        size = problem.spread[level, d]
        if e >= 0:
            size += problem.spread[level, e] - 1
        number *= size
    return int(number)


@kernel(i8(at.PROBLEM, at.KEEP, at.COUNTS), no_refcount=True)
def _least_counts(problem: Problem, keep: Ints, counts: Ints) -> int:
    """Fill in the fewest accesses per instance, as `access.count` does; return the cycles."""
    levels, compute = keep.size, 1
    for d in range(problem.bounds.size):
        compute *= problem.bounds[d]
    compute //= problem.instances[levels, at.USED]
    for tensor in range(at.TENSORS):
        child, number, received = levels, 1, compute
        for level in range(levels - 1, -1, -1):
            number *= _least_tiles(problem, tensor, level)
            if not keep[level] >> tensor & 1:
                continue
            if child < levels:
                received = _least_words(problem, tensor, child)
            accesses = received * number
            child = note_accesses(problem, counts, tensor, level, child, accesses, received)
            number = 1
    return int(compute)


@kernel(i8(at.PROBLEM, SPACE, array(i8, 4), matrix(i8), array(f8), matrix(f8), array(i8)))
def _spread_bounds(
    problem: Problem,
    space: Space,
    spread: Ints,
    kept: Ints,
    surplus: Floats,
    found: Floats,
    best: Ints,
) -> int:
    """Fill in the rows of `spread_bounds` and the best kept tensors by row; return rows."""
    levels, dims = kept.shape[1], problem.bounds.size
    counts, result = np.zeros_like(problem.totals), np.zeros(RESULTS)
    around = problem.extents
    for row in range(spread.shape[0]):
        for choice in range(kept.shape[0]):
            if lay_out(problem, spread[row], kept[choice]) < 0:
                continue
            for level in range(levels + 1):
                for d in range(dims):
                    around[level, d] = 1
                    if level > 0:
                        around[level, d] = around[level - 1, d] * problem.spread[level - 1, d]
            problem.has_partial_tiles[0] = 0
            compute = _least_counts(problem, kept[choice], counts)
            if problem.held[at.MASK]:
                drop_held(problem, counts)
            charge(problem, kept[choice], counts, compute, result)
            around[levels] = 1  # the tile of a multiplier, from which `lay_out` starts
            energy_pj, cycles = result[ENERGY_PJ] + surplus[choice], result[CYCLES]
            goal = score(space.goal, energy_pj, cycles)
            if goal < found[row, 3]:
                best[row] = choice
            found[row, 0] = min(found[row, 0], energy_pj)
            found[row, 1] = min(found[row, 1], cycles)
            found[row, 2] = min(found[row, 2], energy_pj * cycles)
            found[row, 3] = min(found[row, 3], goal)
    return int(spread.shape[0])
