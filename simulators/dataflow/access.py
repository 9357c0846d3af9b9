"""How often each level is read and written follows from the loops in closed form.

A tile stays where it is until the innermost loop that walks its tensor, outside the tile, takes a
step; what the step shares with the tile before is not sent again. Loops further out send the tile
again, whether they walk the tensor or not. Spatial loops that do not walk a tensor multicast it, or
reduce it on the way out. Parashar et al., "Timeloop" (ISPASS 2019); Kwon et al., "MAESTRO" (MICRO
2019).

These are the counts of loops that divide a layer's bounds; `remainders` has those that do not. All
are 64-bit integers; `Layer` refuses layers whose counts could overflow.
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


class Nest(NamedTuple):
    """A layer in numbers."""

    bounds: Ints
    terms: Ints  # row 4 * tensor + rank: dim, coefficient, dim, coefficient; dim -1 is none
    home: Ints  # tensor x dim -> rank, or -1 for a loop that does not walk the tensor
    coef: Ints  # tensor x dim
    words: Ints  # by tensor


class Machine(NamedTuple):
    """An accelerator in numbers; the last row of what is per level belongs to the multipliers."""

    sizes: Ints  # level x (capacity, block, log2 of the block or -1, fan-out X, Y, staged)
    energy_pj: Floats  # level x (read, fill, update, leak per cycle), per physical access
    rates: Floats  # level x (read, write, shared words per cycle, pJ per word and hop)


class Work(NamedTuple):
    """Room for intermediate results."""

    extents: Ints  # (levels + 1) x dims: the tile inside each level
    spread: Ints  # (levels + 1) x dims: copies side by side
    tiles: Ints  # (levels + 1) x tensors: its words
    loops: Ints  # dim, bound, level, product further out: of temporal loops, innermost first
    places: Ints  # by level: instances used, fan-out, split of outputs
    first: Ints  # by level: the innermost loop outside its tile
    totals: Ints  # level x tensor x action: accesses of all instances, where tiles are cut short
    sums: Ints  # whole tiles and steps x states of two dimensions
    rank: Ints  # one dimension as a rank
    cut: Ints  # whether a dimension's last tile is smaller


CAPACITY, BLOCK, SHIFT, FAN_X, FAN_Y, STAGED = range(6)
LEAK = 3
HOP = 3
DIM, BOUND, LEVEL, AFTER = range(4)
USED, FAN, SPLIT = range(3)

NEST = named_tuple((array(i8), matrix(i8), matrix(i8), matrix(i8), array(i8)), Nest)
MACHINE = named_tuple((matrix(i8), matrix(f8), matrix(f8)), Machine)
LOOPS = array(i8, 3)
COUNTS = array(i8, 3)
WORK = named_tuple((*(matrix(i8),) * 5, array(i8), COUNTS, matrix(i8), array(i8), array(i8)), Work)


def work_for(levels: int, dims: int) -> Work:
    """Return scratch room."""
    return Work(
        extents=np.ones((levels + 1, dims), np.int64),
        spread=np.ones((levels + 1, dims), np.int64),
        tiles=np.ones((levels + 1, TENSORS), np.int64),
        loops=np.ones((levels * dims + 1, 4), np.int64),
        places=np.ones((levels + 1, 3), np.int64),
        first=np.zeros(levels + 1, np.int64),
        totals=np.zeros((levels, TENSORS, 3), np.int64),
        sums=np.zeros((2, 4), np.int64),
        rank=np.zeros(4, np.int64),
        cut=np.zeros(1, np.int64),
    )


@kernel(i8(i8, i8, i8, i8), borrows=True)
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


@kernel(i8(matrix(i8), i8, matrix(i8), i8, i8), borrows=True)
def tile_words(terms: Ints, tensor: int, extents: Ints, row: int, without: int) -> int:
    """Return the words of a tile; the rank `without` is left out."""
    words = 1
    for place in range(RANKS * tensor, RANKS * (tensor + 1)):
        d = terms[place, 0]
        if d < 0:
            break
        if place != without:
            extent = 1 + (extents[row, d] - 1) * terms[place, 1]
            e = terms[place, 2]
            if e >= 0:
                extent += (extents[row, e] - 1) * terms[place, 3]
            words *= extent
    return words


@kernel(i8(matrix(i8), i8, matrix(i8), matrix(i8), i8), borrows=True)
def distinct_tiles(terms: Ints, tensor: int, spread: Ints, extents: Ints, level: int) -> int:
    """Return how many different tiles one fan-out hands out."""
    number = 1
    for place in range(RANKS * tensor, RANKS * (tensor + 1)):
        d = terms[place, 0]
        if d < 0:
            break
        e = terms[place, 2]
        if e < 0:
            number *= spread[level, d]
        else:
            number *= distinct_sums(
                spread[level, d], terms[place, 1] * extents[level + 1, d],
                spread[level, e], terms[place, 3] * extents[level + 1, e],
            )  # fmt: skip
    return number


@kernel(i8(matrix(i8), i8, LOOPS, matrix(i8), i8), borrows=True)
def distinct_in_stages(terms: Ints, tensor: int, loops: Ints, extents: Ints, level: int) -> int:
    """Return the same where a network forks into columns first and then into rows.

    What two columns share across different rows is sent twice.
    """
    number = 1
    for place in range(RANKS * tensor, RANKS * (tensor + 1)):
        d = terms[place, 0]
        if d < 0:
            break
        e = terms[place, 2]
        if e < 0:
            number *= loops[level, SPATIAL_X, d] * loops[level, SPATIAL_Y, d]
            continue
        a = terms[place, 1] * extents[level + 1, d]
        b = terms[place, 3] * extents[level + 1, e]
        m, n = loops[level, SPATIAL_Y, d], loops[level, SPATIAL_Y, e]
        number *= distinct_sums(m, a, n, b)
        number *= distinct_sums(
            loops[level, SPATIAL_X, d], a * m, loops[level, SPATIAL_X, e], b * n
        )
    return number


@kernel(i8(matrix(i8), matrix(i8), matrix(i8), i8, WORK, i8, i8), borrows=True)
def deliveries(
    terms: Ints, home: Ints, coef: Ints, tensor: int, work: Work, child: int, temporal: int
) -> int:
    """Return the words that arrive at one instance of `child` over the whole layer."""
    loops, extents = work.loops, work.extents
    k = work.first[child]
    while k < temporal and home[tensor, loops[k, DIM]] < 0:
        k += 1
    tile = int(work.tiles[child, tensor])
    if k == temporal:
        return tile
    d, level = loops[k, DIM], loops[k, LEVEL]
    place = RANKS * tensor + home[tensor, d]
    extent = 1 + (extents[child, terms[place, 0]] - 1) * terms[place, 1]
    other = terms[place, 2]
    if other >= 0:
        extent += (extents[child, other] - 1) * terms[place, 3]
    fresh = min(extent, extents[level + 1, d] * work.spread[level, d] * coef[tensor, d])
    rest = tile_words(terms, tensor, extents, child, place)
    words: int = loops[k, AFTER] * (tile + (loops[k, BOUND] - 1) * rest * fresh)
    return words


@kernel(i8(NEST, MACHINE, LOOPS, array(i8), WORK), borrows=True)
def lay_out(nest: Nest, machine: Machine, loops: Ints, keep: Ints, work: Work) -> int:
    """Fill in tiles and loops; return their number, or minus the reason it cannot be."""
    sizes, extents, spread = machine.sizes, work.extents, work.spread
    terms, home = nest.terms, nest.home
    found, places = work.loops, work.places
    levels, dims = keep.size, nest.bounds.size
    n = 0
    work.cut[0] = 0
    for level in range(levels - 1, -1, -1):
        x = y = walked = 1
        work.first[level + 1] = n
        for place in range(dims - 1, -1, -1):
            d = loops[level, ORDER, place]
            across, down = loops[level, SPATIAL_X, d], loops[level, SPATIAL_Y, d]
            bound = loops[level, TEMPORAL, d]
            x *= across
            y *= down
            if home[OUTPUT, d] >= 0:
                walked *= across * down
            spread[level, d] = across * down
            extent = extents[level + 1, d] * across * down * bound
            if extent > nest.bounds[d]:
                extent = nest.bounds[d]
                work.cut[0] = 1
            extents[level, d] = extent
            if bound > 1:
                found[n, DIM] = d
                found[n, BOUND] = bound
                found[n, LEVEL] = level
                n += 1
        if x > sizes[level, FAN_X] or y > sizes[level, FAN_Y]:
            return -TOO_WIDE
        places[level, FAN] = x * y
        places[level, SPLIT] = walked
        held = 0
        for tensor in range(TENSORS):
            if keep[level] >> tensor & 1:
                tile = tile_words(terms, tensor, extents, level, -1)
                work.tiles[level, tensor] = tile
                held += tile
        if held > sizes[level, CAPACITY]:
            return -TOO_LARGE
    used = split = 1
    for level in range(levels + 1):
        places[level, USED] = used
        used *= places[level, FAN]
        split, places[level, SPLIT] = split * places[level, SPLIT], split
    product = 1
    for k in range(n - 1, -1, -1):
        found[k, AFTER] = product
        product *= found[k, BOUND]
    return n


@kernel(i8(NEST, MACHINE, LOOPS, array(i8), WORK, i8, COUNTS), borrows=True)
def count(
    nest: Nest, machine: Machine, loops: Ints, keep: Ints, work: Work, temporal: int, counts: Ints
) -> int:
    """Fill in reads, fills and updates per instance, by level and tensor; return the cycles."""
    terms, home, coef, places = nest.terms, nest.home, nest.coef, work.places
    outputs = nest.words[OUTPUT]
    levels = keep.size
    compute = 1
    for k in range(temporal):
        compute *= work.loops[k, BOUND]
    for tensor in range(TENSORS):
        child = levels
        received = compute
        number = 1
        for level in range(levels - 1, -1, -1):
            if places[level, FAN] > 1:
                if machine.sizes[level, STAGED]:
                    number *= distinct_in_stages(terms, tensor, loops, work.extents, level)
                else:
                    number *= distinct_tiles(terms, tensor, work.spread, work.extents, level)
            if not keep[level] >> tensor & 1:
                continue
            if child < levels:
                received = deliveries(terms, home, coef, tensor, work, child, temporal)
            accesses = received * number
            counts[level, tensor, FILLS] = 0
            if tensor == OUTPUT:
                counts[level, tensor, UPDATES] = accesses
                # The first visit of a sum writes; only later ones read what is there.
                counts[level, tensor, READS] = accesses - outputs // places[level, SPLIT]
                if child < levels:
                    counts[child, tensor, FILLS] = received - outputs // places[child, SPLIT]
            else:
                counts[level, tensor, READS] = accesses
                counts[level, tensor, UPDATES] = 0
                if child < levels:
                    counts[child, tensor, FILLS] = received
            child = level
            number = 1
    return compute
