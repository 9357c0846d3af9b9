"""How often each level is read and written follows from the loops in closed form.

A tile stays where it is until the innermost loop that walks its tensor, outside the tile, takes a
step; what the step shares with the tile before is not sent again. Loops further out send the tile
again, whether they walk the tensor or not. Spatial loops that do not walk a tensor multicast it, or
reduce it on the way out. Parashar et al., "Timeloop" (ISPASS 2019); Kwon et al., "MAESTRO" (MICRO
2019).

All counts are 64-bit integers; `Layer` refuses layers whose counts could overflow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix, named_tuple

TENSORS = 3
RANKS = 4
OUTPUT = 2
READS, FILLS, UPDATES = range(3)
TEMPORAL, ORDER, SPATIAL_X, SPATIAL_Y = range(4)
"""Rows of one level's loops: bounds by dimension, dimensions outermost first, bounds, bounds."""

FEASIBLE, TOO_LARGE, TOO_WIDE = range(3)
ENERGY_PJ, CYCLES, COMPUTE_CYCLES, MACS_USED = range(4)
RESULTS = 4


class Nest(NamedTuple):
    """A layer in numbers."""

    bounds: Ints
    terms: Ints  # row 4 * tensor + rank: dim, coefficient, dim, coefficient; dim -1 is none
    home: Ints  # tensor x dim -> rank, or -1 for a loop that does not walk the tensor
    coef: Ints  # tensor x dim
    words: Ints  # by tensor


class Machine(NamedTuple):
    """An accelerator in numbers; the last row of what is per level belongs to the multipliers."""

    capacity: Ints
    block: Ints
    shift: Ints  # log2 of the block, or -1
    fan_x: Ints
    fan_y: Ints
    energy_pj: Floats  # level x action, per physical access
    leak_pj: Floats  # per cycle and instance
    bandwidth: Floats  # level x (read, write, shared), words per cycle
    hop_pj: Floats  # per word and hop, from a level to the next


class Work(NamedTuple):
    """Room for intermediate results."""

    extents: Ints  # (levels + 1) x dims: the tile inside each level
    tiles: Ints  # (levels + 1) x tensors: its words
    dim: Ints  # the temporal loops, innermost first
    bound: Ints
    level: Ints
    after: Ints  # product of the bounds further out
    first: Ints  # by level: the innermost loop outside its tile
    used: Ints  # by level: instances used
    fan: Ints


NEST = named_tuple((array(i8), matrix(i8), matrix(i8), matrix(i8), array(i8)), Nest)
MACHINE = named_tuple((*(array(i8),) * 5, matrix(f8), array(f8), matrix(f8), array(f8)), Machine)
WORK = named_tuple((matrix(i8), matrix(i8), *(array(i8),) * 7), Work)
LOOPS = array(i8, 3)
COUNTS = array(i8, 3)


def work_for(levels: int, dims: int) -> Work:
    """Return scratch room."""
    loops = levels * dims + 1
    return Work(
        extents=np.ones((levels + 1, dims), np.int64),
        tiles=np.ones((levels + 1, TENSORS), np.int64),
        dim=np.zeros(loops, np.int64),
        bound=np.zeros(loops, np.int64),
        level=np.zeros(loops, np.int64),
        after=np.ones(loops, np.int64),
        first=np.zeros(levels + 1, np.int64),
        used=np.ones(levels + 1, np.int64),
        fan=np.ones(levels + 1, np.int64),
    )


@kernel(i8(NEST, i8, matrix(i8), i8, i8))
def tile_words(nest: Nest, tensor: int, extents: Ints, row: int, without: int) -> int:
    """Return the words of a tile; the rank `without` is left out."""
    words = 1
    for rank in range(RANKS):
        place = RANKS * tensor + rank
        d = nest.terms[place, 0]
        if d < 0:
            break
        if rank == without:
            continue
        extent = 1 + (extents[row, d] - 1) * nest.terms[place, 1]
        e = nest.terms[place, 2]
        if e >= 0:
            extent += (extents[row, e] - 1) * nest.terms[place, 3]
        words *= extent
    return words


@kernel(i8(i8, i8, i8, i8))
def distinct_sums(m: int, a: int, n: int, b: int) -> int:
    """Return how many values `a * i + b * j` takes for i < m and j < n.

    (i, j) and (i + b/g, j - a/g) coincide, g the greatest common divisor of a and b; what has no
    predecessor on its chain is counted.
    """
    if m == 1 or n == 1:
        return m * n
    g, h = a, b
    while h:
        g, h = h, g % h
    return m * n - max(0, m - b // g) * max(0, n - a // g)


@kernel(i8(NEST, i8, LOOPS, matrix(i8), i8, i8, array(i8)))
def distinct_children(
    nest: Nest, tensor: int, loops: Ints, extents: Ints, outer: int, inner: int, fan: Ints
) -> int:
    """Return how many different tiles the instances of `inner` under one of `outer` hold."""
    count = 1
    for level in range(outer, inner):
        if fan[level] == 1:
            continue
        for rank in range(RANKS):
            place = RANKS * tensor + rank
            d = nest.terms[place, 0]
            if d < 0:
                break
            m = loops[level, SPATIAL_X, d] * loops[level, SPATIAL_Y, d]
            e = nest.terms[place, 2]
            if e < 0:
                count *= m
            else:
                n = loops[level, SPATIAL_X, e] * loops[level, SPATIAL_Y, e]
                count *= distinct_sums(
                    m,
                    nest.terms[place, 1] * extents[level + 1, d],
                    n,
                    nest.terms[place, 3] * extents[level + 1, e],
                )
    return count


@kernel(i8(NEST, i8, LOOPS, i8, WORK, i8))
def deliveries(
    nest: Nest, tensor: int, loops: Ints, child: int, work: Work, temporal_loops: int
) -> int:
    """Return the words that arrive at one instance of `child` over the whole layer."""
    k = work.first[child]
    while k < temporal_loops and nest.home[tensor, work.dim[k]] < 0:
        k += 1
    tile = work.tiles[child, tensor]
    if k == temporal_loops:
        return tile
    d, level = work.dim[k], work.level[k]
    rank = nest.home[tensor, d]
    place = RANKS * tensor + rank
    step = work.extents[level + 1, d] * loops[level, SPATIAL_X, d] * loops[level, SPATIAL_Y, d]
    extent = 1 + (work.extents[child, nest.terms[place, 0]] - 1) * nest.terms[place, 1]
    other = nest.terms[place, 2]
    if other >= 0:
        extent += (work.extents[child, other] - 1) * nest.terms[place, 3]
    fresh = min(extent, step * nest.coef[tensor, d])
    rest = tile_words(nest, tensor, work.extents, child, rank)
    return work.after[k] * (tile + (work.bound[k] - 1) * rest * fresh)


@kernel(i8(NEST, MACHINE, LOOPS, array(i8), WORK))
def lay_out(nest: Nest, machine: Machine, loops: Ints, keep: Ints, work: Work) -> int:
    """Fill in tiles and loops; return their number, or minus the reason it cannot be."""
    levels, dims = keep.size, nest.bounds.size
    extents = work.extents
    for d in range(dims):
        extents[levels, d] = 1
    n = 0
    for level in range(levels - 1, -1, -1):
        x = y = 1
        work.first[level + 1] = n
        for d in range(dims):
            across, down = loops[level, SPATIAL_X, d], loops[level, SPATIAL_Y, d]
            x *= across
            y *= down
            extents[level, d] = extents[level + 1, d] * across * down * loops[level, TEMPORAL, d]
        if x > machine.fan_x[level] or y > machine.fan_y[level]:
            return -TOO_WIDE
        work.fan[level] = x * y
        if keep[level]:
            held = 0
            for tensor in range(TENSORS):
                if keep[level] >> tensor & 1:
                    tile = tile_words(nest, tensor, extents, level, -1)
                    work.tiles[level, tensor] = tile
                    held += tile
            if held > machine.capacity[level]:
                return -TOO_LARGE
        for place in range(dims - 1, -1, -1):
            d = loops[level, ORDER, place]
            bound = loops[level, TEMPORAL, d]
            if bound > 1:
                work.dim[n] = d
                work.bound[n] = bound
                work.level[n] = level
                n += 1
    work.used[0] = 1
    for level in range(levels):
        work.used[level + 1] = work.used[level] * work.fan[level]
    product = 1
    for k in range(n - 1, -1, -1):
        work.after[k] = product
        product *= work.bound[k]
    work.after[n] = product
    return n


@kernel(i8(NEST, LOOPS, array(i8), i8))
def partition_words(nest: Nest, loops: Ints, keep: Ints, level: int) -> int:
    """Return the outputs that are one instance's own share."""
    split = 1
    for outer in range(level):
        for d in range(nest.bounds.size):
            if nest.home[OUTPUT, d] >= 0:
                split *= loops[outer, SPATIAL_X, d] * loops[outer, SPATIAL_Y, d]
    return nest.words[OUTPUT] // split


@kernel(i8(NEST, LOOPS, array(i8), WORK, i8, COUNTS))
def count(
    nest: Nest, loops: Ints, keep: Ints, work: Work, temporal_loops: int, counts: Ints
) -> int:
    """Fill in reads, fills and updates per instance, by level and tensor; return the cycles."""
    levels = keep.size
    compute = 1
    for k in range(temporal_loops):
        compute *= work.bound[k]
    counts[:] = 0
    for tensor in range(TENSORS):
        child = levels
        received = compute
        for level in range(levels - 1, -1, -1):
            if not keep[level] >> tensor & 1:
                continue
            if child < levels:
                received = deliveries(nest, tensor, loops, child, work, temporal_loops)
            accesses = received * distinct_children(
                nest, tensor, loops, work.extents, level, child, work.fan
            )
            if tensor == OUTPUT:
                counts[level, tensor, UPDATES] = accesses
                # The first visit of a sum writes; only later ones read what is there.
                counts[level, tensor, READS] = accesses - partition_words(nest, loops, keep, level)
                if child < levels:
                    share = partition_words(nest, loops, keep, child)
                    counts[child, tensor, FILLS] = received - share
            else:
                counts[level, tensor, READS] = accesses
                if child < levels:
                    counts[child, tensor, FILLS] = received
            child = level
    return compute


@kernel(i8(MACHINE, i8, i8))
def physical(machine: Machine, level: int, words: int) -> int:
    """Return how many physical accesses move that many words."""
    if machine.shift[level] >= 0:
        return (words + machine.block[level] - 1) >> machine.shift[level]
    return (words + machine.block[level] - 1) // machine.block[level]


@kernel(f8(MACHINE, array(i8), WORK, COUNTS, i8, i8, array(f8)))
def charge(
    machine: Machine, keep: Ints, work: Work, counts: Ints, compute: int, macs: int, result: Floats
) -> float:
    """Fill in energy and cycles from the counts; return the energy in pJ."""
    levels = keep.size
    cycles = float(compute)
    energy_pj = machine.energy_pj[levels, 0] * macs
    for level in range(levels):
        reads = writes = 0
        spent_pj = 0.0
        for tensor in range(TENSORS):
            if not keep[level] >> tensor & 1:
                continue
            r = counts[level, tensor, READS]
            f = counts[level, tensor, FILLS]
            u = counts[level, tensor, UPDATES]
            reads += r
            writes += f + u
            spent_pj += machine.energy_pj[level, READS] * physical(machine, level, r)
            spent_pj += machine.energy_pj[level, FILLS] * physical(machine, level, f)
            spent_pj += machine.energy_pj[level, UPDATES] * physical(machine, level, u)
        energy_pj += spent_pj * work.used[level]
        if machine.hop_pj[level] > 0.0:
            hops = 0.5 * (work.fan[level] ** 0.5 + 1.0)
            energy_pj += machine.hop_pj[level] * hops * (reads + writes) * work.used[level]
        cycles = max(cycles, np.ceil(reads / machine.bandwidth[level, 0]))
        cycles = max(cycles, np.ceil(writes / machine.bandwidth[level, 1]))
        cycles = max(cycles, np.ceil((reads + writes) / machine.bandwidth[level, 2]))
    for level in range(levels + 1):
        energy_pj += machine.leak_pj[level] * cycles * work.used[level]
    result[ENERGY_PJ] = energy_pj
    result[CYCLES] = cycles
    result[COMPUTE_CYCLES] = compute
    result[MACS_USED] = work.used[levels]
    return energy_pj


@kernel(i8(NEST, MACHINE, LOOPS, array(i8), WORK, COUNTS, array(f8)))
def evaluate(
    nest: Nest, machine: Machine, loops: Ints, keep: Ints, work: Work, counts: Ints, result: Floats
) -> int:
    """Count and charge one mapping; return why it is infeasible, or 0."""
    n = lay_out(nest, machine, loops, keep, work)
    if n < 0:
        return -n
    compute = count(nest, loops, keep, work, n, counts)
    macs = 1
    for d in range(nest.bounds.size):
        macs *= nest.bounds[d]
    charge(machine, keep, work, counts, compute, macs, result)
    return FEASIBLE


@kernel(i8(NEST, MACHINE, array(i8, 4), matrix(i8), WORK, COUNTS, matrix(f8), array(i8)))
def evaluate_all(
    nest: Nest, machine: Machine, loops: Ints, keep: Ints, work: Work, counts: Ints,
    results: Floats, verdicts: Ints,
) -> int:  # fmt: skip
    """Evaluate many mappings, each on its own; return how many are feasible."""
    feasible = 0
    for row in range(keep.shape[0]):
        verdicts[row] = evaluate(nest, machine, loops[row], keep[row], work, counts, results[row])
        feasible += verdicts[row] == FEASIBLE
    return feasible
