"""Reads, fills and updates of every level, from the loops of a mapping in closed form.

A tile stays where it is until the innermost loop that walks its tensor, outside the tile, takes a
step; what the step shares with the tile before is not sent again. Loops further out send the tile
again, whether they walk the tensor or not. Spatial loops that do not walk a tensor multicast it, or
reduce it on the way out. Parashar et al., "Timeloop" (ISPASS 2019); Kwon et al., "MAESTRO" (MICRO
2019).

These are the counts of loops that divide a layer's bounds; `remainders` has those that do not. All
are 64-bit integers; `Layer` refuses layers whose counts could overflow.
"""

from __future__ import annotations

from simulators.core.jit import Ints, i8, kernel, matrix
from simulators.dataflow.access import arrays as at
from simulators.dataflow.access.arrays import COUNTS, KEEP, LOOPS, PROBLEM, Problem


@kernel(i8(i8, i8, i8, i8), no_refcount=True)
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


@kernel(i8(matrix(i8), i8, matrix(i8), i8, i8), no_refcount=True)
def tile_words(terms: Ints, tensor: int, extents: Ints, row: int, without: int) -> int:
    """Return the words of a tile; the rank `without` is left out."""
    words = 1
    for place in range(at.RANKS * tensor, at.RANKS * (tensor + 1)):
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


@kernel(i8(PROBLEM, LOOPS, i8, i8), no_refcount=True)
def distinct_tiles(problem: Problem, loops: Ints, tensor: int, level: int) -> int:
    """Return how many different tiles one fan-out hands out.

    Where a network forks into columns first and then into rows, what two columns share across
    different rows is sent twice.
    """
    terms, spread, extents = problem.terms, problem.spread, problem.extents
    number = 1
    for place in range(at.RANKS * tensor, at.RANKS * (tensor + 1)):
        d, e = terms[place, 0], terms[place, 2]
        if d < 0:
            break
        if e < 0:
            number *= spread[level, d]
            continue
        a, b = terms[place, 1] * extents[level + 1, d], terms[place, 3] * extents[level + 1, e]
        if problem.sizes[level, at.STAGED]:
            m, n = loops[level, at.SPATIAL_Y, d], loops[level, at.SPATIAL_Y, e]
            wide, high = loops[level, at.SPATIAL_X, d], loops[level, at.SPATIAL_X, e]
            number *= distinct_sums(m, a, n, b) * distinct_sums(wide, a * m, high, b * n)
        else:
            number *= distinct_sums(spread[level, d], a, spread[level, e], b)
    return number


@kernel(i8(PROBLEM, i8, i8, i8), no_refcount=True)
def deliveries(problem: Problem, tensor: int, child: int, temporal: int) -> int:
    """Return the words that arrive at one instance of `child` over the whole layer."""
    terms, loops, extents = problem.terms, problem.placed, problem.extents
    k = problem.first[child]
    while k < temporal and problem.home[tensor, loops[k, at.DIM]] < 0:
        k += 1
    tile = int(problem.tiles[child, tensor])
    if k == temporal:
        return tile
    d, level = loops[k, at.DIM], loops[k, at.LEVEL]
    place = at.RANKS * tensor + problem.home[tensor, d]
    extent = 1 + (extents[child, terms[place, 0]] - 1) * terms[place, 1]
    other = terms[place, 2]
    if other >= 0:
        extent += (extents[child, other] - 1) * terms[place, 3]
    moved = extents[level + 1, d] * problem.spread[level, d] * problem.coef[tensor, d]
    rest = tile_words(terms, tensor, extents, child, place)
    steps = (loops[k, at.BOUND] - 1) * rest * min(extent, moved)
    words: int = loops[k, at.AFTER] * (tile + steps)
    return words


@kernel(i8(PROBLEM, LOOPS, KEEP), no_refcount=True)
def lay_out(problem: Problem, loops: Ints, keep: Ints) -> int:
    """Fill in tiles and loops; return their number, or minus the reason it cannot be."""
    sizes, extents, spread = problem.sizes, problem.extents, problem.spread
    found, instances = problem.placed, problem.instances
    levels, dims = keep.size, problem.bounds.size
    n = 0
    problem.cut[0] = 0
    for level in range(levels - 1, -1, -1):
        x = y = walked = 1
        problem.first[level + 1] = n
        for place in range(dims - 1, -1, -1):
            d = loops[level, at.ORDER, place]
            across, down = loops[level, at.SPATIAL_X, d], loops[level, at.SPATIAL_Y, d]
            bound = loops[level, at.TEMPORAL, d]
            x *= across
            y *= down
            if problem.home[at.OUTPUT, d] >= 0:
                walked *= across * down
            spread[level, d] = across * down
            extent = extents[level + 1, d] * across * down * bound
            if extent > problem.bounds[d]:
                extent = problem.bounds[d]
                problem.cut[0] = 1
            extents[level, d] = extent
            if bound > 1:
                found[n, at.DIM], found[n, at.BOUND], found[n, at.LEVEL] = d, bound, level
                n += 1
        if x > sizes[level, at.FAN_X] or y > sizes[level, at.FAN_Y]:
            return -at.TOO_WIDE
        instances[level, at.FAN] = x * y
        instances[level, at.SPLIT] = walked
        held = 0
        for tensor in range(at.TENSORS):
            if keep[level] >> tensor & 1:
                tile = tile_words(problem.terms, tensor, extents, level, -1)
                problem.tiles[level, tensor] = tile
                held += tile
        if held > sizes[level, at.CAPACITY]:
            return -at.TOO_LARGE
    used = split = 1
    for level in range(levels + 1):
        instances[level, at.USED] = used
        used *= instances[level, at.FAN]
        split, instances[level, at.SPLIT] = split * instances[level, at.SPLIT], split
    product = 1
    for k in range(n - 1, -1, -1):
        found[k, at.AFTER] = product
        product *= found[k, at.BOUND]
    return n


@kernel(i8(PROBLEM, LOOPS, KEEP, i8, COUNTS), no_refcount=True)
def count(problem: Problem, loops: Ints, keep: Ints, temporal: int, counts: Ints) -> int:
    """Fill in reads, fills and updates per instance, by level and tensor; return the cycles."""
    instances, outputs, levels = problem.instances, problem.words[at.OUTPUT], keep.size
    compute = 1
    for k in range(temporal):
        compute *= problem.placed[k, at.BOUND]
    for tensor in range(at.TENSORS):
        child = levels
        received = compute
        number = 1
        for level in range(levels - 1, -1, -1):
            if instances[level, at.FAN] > 1:
                number *= distinct_tiles(problem, loops, tensor, level)
            if not keep[level] >> tensor & 1:
                continue
            if child < levels:
                received = deliveries(problem, tensor, child, temporal)
            accesses = received * number
            counts[level, tensor, at.FILLS] = 0
            counts[level, tensor, at.READS] = accesses
            counts[level, tensor, at.UPDATES] = 0
            fills = received
            if tensor == at.OUTPUT:
                counts[level, tensor, at.UPDATES] = accesses
                # The first visit of a sum writes; only later ones read what is there.
                counts[level, tensor, at.READS] -= outputs // instances[level, at.SPLIT]
                if child < levels:
                    fills -= outputs // instances[child, at.SPLIT]
            if child < levels:
                counts[child, tensor, at.FILLS] = fills
            child = level
            number = 1
    return compute
