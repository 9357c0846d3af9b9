"""Bounds need not divide: the last tile of a dimension is what is left of it.

Loops over a dimension may multiply to more than it has. Then each of them, at the last iteration of
all loops over that dimension further out, ends where the dimension ends: spatial loops leave
instances idle, loops in time take fewer steps. Horeni et al., "Ruby" (ISPASS 2022).

At every place in the nest a dimension has tiles of one size, and a last one of what remains. So a
sum over iterations needs two states per dimension, carried from the innermost loop out. `sums[0]`
is of whole tiles, `sums[1]` of what a step adds to the tile before; columns are (whole, whole),
(whole, last), (last, whole), (last, last) tiles of the two dimensions of a rank.
"""

from __future__ import annotations

from simulators.core.jit import Ints, array, i8, kernel, matrix
from simulators.dataflow.access import (
    FILLS,
    LOOPS,
    MACHINE,
    NEST,
    ORDER,
    OUTPUT,
    RANKS,
    READS,
    SPATIAL_X,
    SPATIAL_Y,
    STAGED,
    TEMPORAL,
    TENSORS,
    UPDATES,
    WORK,
    Machine,
    Nest,
    Work,
)

EACH, FIRST, DISTINCT = range(3)
"""Of instances side by side: add up all, look at the first, or at those whose tiles differ."""

ALL, NONE = 1 << 30, -1
"""Places in the nest that every loop, and that no loop, is outside of."""

RANK = array(i8)  # dim, coefficient, dim or -1, coefficient


@kernel(i8(i8, i8), borrows=True)
def left_over(bound: int, tile: int) -> int:
    """Return the size of the last tile."""
    return bound - (bound - 1) // tile * tile


@kernel(i8(i8, i8, i8), borrows=True)
def last_run(bound: int, tile: int, times: int) -> int:
    """Return the iterations of a loop over tiles that is the last one of its dimension."""
    return (left_over(bound, tile * times) - 1) // tile + 1


@kernel(i8(matrix(i8), i8, i8, i8, i8), borrows=True)
def repeat(sums: Ints, axis: int, times: int, last: int, added: int) -> int:
    """Take a loop over one dimension in: its iterations add up, or look like the first one."""
    for table in range(2):
        for other in range(2):
            whole, cut = (other, 2 + other) if axis == 0 else (2 * other, 2 * other + 1)
            one, end = sums[table, whole], sums[table, cut]
            if added:
                sums[table, whole] = times * one
                sums[table, cut] = (last - 1) * one + end
            elif last > 1:
                sums[table, cut] = one
    return 0


@kernel(i8(matrix(i8), i8, i8, i8), borrows=True)
def slide(sums: Ints, axis: int, times: int, last: int) -> int:
    """Take in the loop whose steps send only what they do not share with the tile before."""
    for other in range(2):
        whole, cut = (other, 2 + other) if axis == 0 else (2 * other, 2 * other + 1)
        first, step, end = sums[0, whole], sums[1, whole], sums[1, cut]
        sums[0, whole] = first + (times - 1) * step
        if last > 1:
            sums[0, cut] = first + (last - 2) * step + end
    return 0


@kernel(i8(matrix(i8), i8, i8, i8, i8, i8, i8, i8), borrows=True)
def of_diagonals(
    sums: Ints, table: int, m: int, a: int, n: int, b: int, state: int, finest: int
) -> int:
    """Return the sum over different values of `a * i + b * j`, of the largest tile at each.

    `state` says whether the last i and j have a last tile; `finest` divides a and b.
    """
    total = 0
    back, down = b // finest, a // finest
    for i in range(m):
        for j in range(n):
            if i >= back and j + down < n:
                continue
            largest, x, y = 0, i, j
            while x < m and y >= 0:
                cut = 2 * (state >> 1 and x == m - 1) + (state & 1 and y == n - 1)
                largest = max(largest, sums[table, cut])
                x += back
                y -= down
            total += largest
    return total


@kernel(i8(matrix(i8), i8, i8, i8, i8, i8, i8, i8), borrows=True)
def fan_out(sums: Ints, m: int, m_last: int, a: int, n: int, n_last: int, b: int, how: int) -> int:
    """Take in the loops of one fan-out over both dimensions of a rank."""
    if how != DISTINCT or m == 1 or n == 1:
        repeat(sums, 0, m, m_last, how != FIRST)
        repeat(sums, 1, n, n_last, how != FIRST)
        return 0
    finest, rest = a, b
    while rest:
        finest, rest = rest, finest % rest
    for table in range(2):
        whole = of_diagonals(sums, table, m, a, n, b, 0, finest)
        narrow = of_diagonals(sums, table, m, a, n_last, b, 1, finest)
        short = of_diagonals(sums, table, m_last, a, n, b, 2, finest)
        both = of_diagonals(sums, table, m_last, a, n_last, b, 3, finest)
        sums[table, 0], sums[table, 1], sums[table, 2], sums[table, 3] = whole, narrow, short, both
    return 0


@kernel(i8(NEST, matrix(i8), matrix(i8), RANK, i8, i8, i8), borrows=True)
def tile_sums(
    nest: Nest, extents: Ints, sums: Ints, rank: Ints, child: int, slides: int, step: int
) -> int:
    """Start sums with the extents of one tile, and with what a step of `slides` adds to it."""
    d, e = rank[0], rank[2]
    for state in range(4):
        p = extents[child, d]
        wide = left_over(nest.bounds[d], p) if state >> 1 else p
        q = high = 1
        if e >= 0:
            q = extents[child, e]
            high = left_over(nest.bounds[e], q) if state & 1 else q
        extent = 1 + (wide - 1) * rank[1] + (high - 1) * rank[3]
        fresh = extent
        if slides == d:
            fresh = rank[1] * (step - p + wide)
        elif slides >= 0:
            fresh = rank[3] * (step - q + high)
        sums[0, state] = extent
        sums[1, state] = min(extent, fresh)
    return 0


@kernel(i8(NEST, MACHINE, LOOPS, matrix(i8), matrix(i8), RANK, i8, i8, i8, i8, i8, i8))
def along(
    nest: Nest, machine: Machine, loops: Ints, extents: Ints, sums: Ints, rank: Ints,
    parent: int, child: int, outside: int, between: int, slides: int, place: int,
) -> int:  # fmt: skip
    """Return the sum of a rank's extents over the loops outside `child`, up to a place.

    Args:
        nest: the layer.
        machine: the accelerator.
        loops: of the mapping.
        extents: tiles inside each level.
        sums: scratch.
        rank: one or two dimensions with coefficients; a coefficient of 0 counts iterations.
        parent: level that sends.
        child: level that receives.
        outside: which instances count of levels outside the parent.
        between: which from there to the child.
        slides: the dimension whose loop at `place` sends only what is new, or -1.
        place: level and order of the innermost loop that counts.
    """
    dims = nest.bounds.size
    step = 1
    if slides >= 0:
        step = extents[place // dims + 1, slides] * across(loops, place // dims, slides)
    tile_sums(nest, extents, sums, rank, child, slides, step)
    for level in range(child - 1, -1, -1):
        how = outside if level < parent else between
        if machine.sizes[level, STAGED] and how == DISTINCT:
            side_by_side(nest, loops, extents, sums, rank, level, SPATIAL_Y, how)
            side_by_side(nest, loops, extents, sums, rank, level, SPATIAL_X, how)
        else:
            side_by_side(nest, loops, extents, sums, rank, level, 0, how)
        for k in range(dims - 1, -1, -1):
            d = loops[level, ORDER, k]
            times = loops[level, TEMPORAL, d]
            if times == 1 or (d != rank[0] and d != rank[2]):
                continue
            tile = extents[level + 1, d] * across(loops, level, d)
            last = last_run(nest.bounds[d], tile, times)
            axis = 0 if d == rank[0] else 1
            if slides == d and level * dims + k == place:
                slide(sums, axis, times, last)
            else:
                repeat(sums, axis, times, last, level * dims + k <= place)
    return int(sums[0, 3])


@kernel(i8(LOOPS, i8, i8), borrows=True)
def across(loops: Ints, level: int, dim: int) -> int:
    """Return the instances a dimension is spread over."""
    spread: int = loops[level, SPATIAL_X, dim] * loops[level, SPATIAL_Y, dim]
    return spread


@kernel(i8(NEST, LOOPS, matrix(i8), matrix(i8), RANK, i8, i8, i8), borrows=True)
def side_by_side(
    nest: Nest, loops: Ints, extents: Ints, sums: Ints, rank: Ints, level: int, row: int, how: int
) -> int:
    """Take in one level's fan-out over columns, over rows, or over both (`row` 0)."""
    d, e = rank[0], rank[2]
    tile = extents[level + 1, d]
    m = loops[level, row, d] if row else across(loops, level, d)
    if row == SPATIAL_X:
        tile *= loops[level, SPATIAL_Y, d]
    m_last = last_run(nest.bounds[d], tile, m)
    if e < 0:
        return repeat(sums, 0, m, m_last, how == EACH or (how == DISTINCT and rank[1] > 0))
    other = extents[level + 1, e]
    n = loops[level, row, e] if row else across(loops, level, e)
    if row == SPATIAL_X:
        other *= loops[level, SPATIAL_Y, e]
    n_last = last_run(nest.bounds[e], other, n)
    return fan_out(sums, m, m_last, tile * rank[1], n, n_last, other * rank[3], how)


@kernel(i8(NEST, MACHINE, LOOPS, WORK, i8, i8, i8, i8, i8), borrows=True)
def words_moved(
    nest: Nest, machine: Machine, loops: Ints, work: Work,
    tensor: int, parent: int, child: int, outside: int, between: int,
) -> int:  # fmt: skip
    """Return the words of a tensor on their way from one level to another, over the whole layer."""
    levels, dims = loops.shape[0], nest.bounds.size
    slides, place = -1, ALL
    if child < levels:
        place = NONE
        for at in range(child * dims):
            d = loops[at // dims, ORDER, at % dims]
            if nest.home[tensor, d] >= 0 and loops[at // dims, TEMPORAL, d] > 1:
                slides, place = d, at
    words = 1
    for row in range(RANKS * tensor, RANKS * (tensor + 1)):
        if nest.terms[row, 0] < 0:
            break
        holds = slides >= 0 and row - RANKS * tensor == nest.home[tensor, slides]
        words *= along(
            nest, machine, loops, work.extents, work.sums, nest.terms[row],
            parent, child, outside, between, slides if holds else -1, place,
        )  # fmt: skip
    return words * times_again(nest, machine, loops, work, tensor, parent, child, outside, between,
                               place)  # fmt: skip


@kernel(i8(NEST, MACHINE, LOOPS, WORK, i8, i8, i8, i8, i8, i8), borrows=True)
def times_again(
    nest: Nest, machine: Machine, loops: Ints, work: Work,
    tensor: int, parent: int, child: int, outside: int, between: int, place: int,
) -> int:  # fmt: skip
    """Return how often loops that do not walk a tensor send it again."""
    times = 1
    work.rank[1], work.rank[2], work.rank[3] = 0, -1, 0
    for d in range(nest.bounds.size):
        if nest.home[tensor, d] < 0:
            work.rank[0] = d
            times *= along(
                nest, machine, loops, work.extents, work.sums, work.rank,
                parent, child, outside, between, -1, place,
            )  # fmt: skip
    return times


@kernel(i8(NEST, MACHINE, LOOPS, WORK, i8, i8), borrows=True)
def words_seen(nest: Nest, machine: Machine, loops: Ints, work: Work, level: int, how: int) -> int:
    """Return the different words of the output that instances of a level ever see."""
    words = 1
    for row in range(RANKS * OUTPUT, RANKS * (OUTPUT + 1)):
        if nest.terms[row, 0] < 0:
            break
        words *= along(
            nest, machine, loops, work.extents, work.sums, nest.terms[row],
            level, level, how, how, -1, ALL,
        )  # fmt: skip
    return words * times_again(nest, machine, loops, work, OUTPUT, level, level, how, how, NONE)


@kernel(i8(NEST, MACHINE, LOOPS, array(i8), WORK, LOOPS, i8), borrows=True)
def count_instances(
    nest: Nest, machine: Machine, loops: Ints, keep: Ints, work: Work, counts: Ints, how: int
) -> int:
    """Fill in accesses, of the first instance or of all, by level and tensor."""
    levels = keep.size
    for tensor in range(TENSORS):
        child = levels
        for level in range(levels - 1, -1, -1):
            if not keep[level] >> tensor & 1:
                continue
            sent = words_moved(nest, machine, loops, work, tensor, level, child, how, DISTINCT)
            counts[level, tensor, FILLS] = 0
            counts[level, tensor, READS] = sent
            counts[level, tensor, UPDATES] = 0
            if tensor == OUTPUT:
                counts[level, tensor, UPDATES] = sent
                counts[level, tensor, READS] -= words_seen(nest, machine, loops, work, level, how)
            if child < levels:
                came = words_moved(nest, machine, loops, work, tensor, level, child, how, how)
                if tensor == OUTPUT:
                    came -= words_seen(nest, machine, loops, work, child, how)
                counts[child, tensor, FILLS] = came
            child = level
    return 0


@kernel(i8(NEST, MACHINE, LOOPS, array(i8), WORK, LOOPS))
def count_cut(
    nest: Nest, machine: Machine, loops: Ints, keep: Ints, work: Work, counts: Ints
) -> int:
    """Fill in accesses of the first instance, which is never cut short; return the cycles.

    Accesses of all instances together go to `work.totals`.
    """
    count_instances(nest, machine, loops, keep, work, counts, FIRST)
    count_instances(nest, machine, loops, keep, work, work.totals, EACH)
    levels = keep.size
    compute = 1
    work.rank[1], work.rank[2], work.rank[3] = 0, -1, 0
    for d in range(nest.bounds.size):
        work.rank[0] = d
        compute *= along(
            nest, machine, loops, work.extents, work.sums, work.rank,
            levels, levels, FIRST, FIRST, -1, ALL,
        )  # fmt: skip
    return compute
