"""Reads, fills and updates of every level, from the loops of a mapping in closed form.

A tile stays in place until the innermost loop outside the tile that indexes its tensor takes a
step; words that the step shares with the previous tile are not sent again. Outer loops send the
tile again, whether they index the tensor or not. Spatial loops that do not index a tensor multicast
it, or reduce it on the way out. Parashar et al., "Timeloop" (ISPASS 2019); Kwon et al., "MAESTRO"
(MICRO 2019). All counts are 64-bit integers; `Layer` refuses layers whose counts could overflow.

Loops over a dimension may multiply to more than it has. Then each of them, at the last iteration of
all loops over that dimension further out, ends where the dimension ends: spatial loops leave
instances idle, loops in time take fewer steps. Horeni et al., "Ruby" (ISPASS 2022).

At every place in the nest a dimension has tiles of one size, and a last one of what remains. So a
sum over iterations needs two states per dimension, carried from the innermost loop out. `sums[0]`
is of whole tiles, `sums[1]` of what a step adds to the tile before; columns are (whole, whole),
(whole, last), (last, whole), (last, last) tiles of the two dimensions of a rank.
"""

from __future__ import annotations

from typing import NamedTuple

from simulators.core.jit import (
    FloatMatrix,
    IntCube,
    IntMatrix,
    Ints,
    array,
    i8,
    kernel,
    matrix,
    struct,
)

TENSORS = 3
RANKS = 4
OUTPUT = 2
READS, FILLS, UPDATES = range(3)
TEMPORAL, ORDER, SPATIAL_X, SPATIAL_Y = range(4)
"""Rows of one level's loops: temporal bounds, order of dimensions, spatial bounds along X and Y."""

FEASIBLE, TOO_LARGE, TOO_WIDE = range(3)
VERDICTS = {TOO_LARGE: "tiles_exceed_buffer", TOO_WIDE: "loops_exceed_array"}

CAPACITY, BLOCK, SHIFT, FAN_X, FAN_Y, STAGED = range(6)
LEAK = 3
HOP = 3
DIM, BOUND, LEVEL, AFTER = range(4)
USED, FAN, SPLIT = range(3)
MASK, HOME = range(2)


class Problem(NamedTuple):
    """A layer, an accelerator, and scratch arrays for intermediate results."""

    bounds: Ints
    terms: IntMatrix  # row 4 * tensor + rank: dim, coefficient, dim, coefficient; dim -1 is none
    home: IntMatrix  # tensor x dim -> rank, or -1 for a dimension that does not index the tensor
    coef: IntMatrix  # tensor x dim
    words: Ints  # by tensor
    # By level of the accelerator; the last row of energies belongs to the multipliers.
    sizes: IntMatrix  # capacity, block, log2 of the block or -1, fan-out X, Y, staged
    energy_pj: FloatMatrix  # read, fill, update, leak per cycle; of a physical access
    rates: FloatMatrix  # read, write, shared words per cycle, pJ per word and hop
    # Scratch arrays of a mapping; rows are levels, and the multipliers.
    extents: IntMatrix  # by dim: the tile inside each level
    spread: IntMatrix  # by dim: copies side by side
    tiles: IntMatrix  # by tensor: its words
    placed: IntMatrix  # temporal loops, innermost first: dim, bound, level, product of outer bounds
    instances: IntMatrix  # used, fan-out, split of outputs
    first: Ints  # the innermost of the placed loops outside the tile
    totals: IntCube  # level x tensor x action: accesses of all instances with partial tiles
    sums: IntMatrix  # whole tiles and steps x states of two dimensions
    rank: Ints  # one dimension as a rank
    has_partial_tiles: Ints  # whether the last tile of a dimension is smaller
    held: Ints  # mask of the tensors that are wholly in a level, and that level


LOOPS = COUNTS = array(i8, 3)
KEEP = array(i8)
PROBLEM = struct(Problem)


@kernel(i8(i8, i8, i8, i8), no_refcount=True)
def distinct_sums(m: int, a: int, n: int, b: int) -> int:
    """Return the number of values of `a * i + b * j` for i < m and j < n.

    (i, j) and (i + b/g, j - a/g) coincide, g the greatest common divisor of a and b; pairs without
    a predecessor are counted.
    """
    if m == 1 or n == 1:
        return m * n
    g, h = a, b
    while h:
        g, h = h, g % h
    return m * n - max(0, m - b // g) * max(0, n - a // g)


@kernel(i8(matrix(i8), i8, matrix(i8), i8, i8), no_refcount=True)
def tile_words(terms: Ints, tensor: int, extents: Ints, row: int, without: int) -> int:
    """Return the words of a tile, without the rank `without`."""
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


@kernel(i8(PROBLEM, LOOPS, i8, i8), no_refcount=True)
def distinct_tiles(problem: Problem, loops: Ints, tensor: int, level: int) -> int:
    """Return the number of different tiles that one fan-out distributes.

    Where a network forks into columns first and then into rows, data that two columns share across
    rows is sent twice.
    """
    terms, spread, extents = problem.terms, problem.spread, problem.extents
    number = 1
    for place in range(RANKS * tensor, RANKS * (tensor + 1)):
        d, e = terms[place, 0], terms[place, 2]
        if d < 0:
            break
        if e < 0:
            number *= spread[level, d]
            continue
        a, b = terms[place, 1] * extents[level + 1, d], terms[place, 3] * extents[level + 1, e]
        if problem.sizes[level, STAGED]:
            m, n = loops[level, SPATIAL_Y, d], loops[level, SPATIAL_Y, e]
            wide, high = loops[level, SPATIAL_X, d], loops[level, SPATIAL_X, e]
            number *= distinct_sums(m, a, n, b) * distinct_sums(wide, a * m, high, b * n)
        else:
            number *= distinct_sums(spread[level, d], a, spread[level, e], b)
    return number


@kernel(i8(PROBLEM, i8, i8, i8), no_refcount=True)
def deliveries(problem: Problem, tensor: int, child: int, temporal: int) -> int:
    """Return the words that arrive at one instance of `child` over the whole layer."""
    terms, loops, extents = problem.terms, problem.placed, problem.extents
    k = problem.first[child]
    while k < temporal and problem.home[tensor, loops[k, DIM]] < 0:
        k += 1
    tile = int(problem.tiles[child, tensor])
    if k == temporal:
        return tile
    d, level = loops[k, DIM], loops[k, LEVEL]
    place = RANKS * tensor + problem.home[tensor, d]
    extent = 1 + (extents[child, terms[place, 0]] - 1) * terms[place, 1]
    other = terms[place, 2]
    if other >= 0:
        extent += (extents[child, other] - 1) * terms[place, 3]
    moved = extents[level + 1, d] * problem.spread[level, d] * problem.coef[tensor, d]
    rest = tile_words(terms, tensor, extents, child, place)
    steps = (loops[k, BOUND] - 1) * rest * min(extent, moved)
    words: int = loops[k, AFTER] * (tile + steps)
    return words


@kernel(i8(PROBLEM, LOOPS, KEEP), no_refcount=True)
def lay_out(problem: Problem, loops: Ints, keep: Ints) -> int:
    """Fill in tiles and loops; return the number of loops, or minus the code of infeasibility."""
    sizes, extents, spread = problem.sizes, problem.extents, problem.spread
    found, instances = problem.placed, problem.instances
    levels, dims = keep.size, problem.bounds.size
    n = 0
    problem.has_partial_tiles[0] = 0
    for level in range(levels - 1, -1, -1):
        x = y = walked = 1
        problem.first[level + 1] = n
        for place in range(dims - 1, -1, -1):
            d = loops[level, ORDER, place]
            across, down = loops[level, SPATIAL_X, d], loops[level, SPATIAL_Y, d]
            bound = loops[level, TEMPORAL, d]
            x *= across
            y *= down
            if problem.home[OUTPUT, d] >= 0:
                walked *= across * down
            spread[level, d] = across * down
            extent = extents[level + 1, d] * across * down * bound
            if extent > problem.bounds[d]:
                extent = problem.bounds[d]
                problem.has_partial_tiles[0] = 1
            extents[level, d] = extent
            if bound > 1:
                found[n, DIM], found[n, BOUND], found[n, LEVEL] = d, bound, level
                n += 1
        if x > sizes[level, FAN_X] or y > sizes[level, FAN_Y]:
            return -TOO_WIDE
        instances[level, FAN] = x * y
        instances[level, SPLIT] = walked
        held = 0
        for tensor in range(TENSORS):
            if keep[level] >> tensor & 1:
                tile = tile_words(problem.terms, tensor, extents, level, -1)
                problem.tiles[level, tensor] = tile
                if level != problem.held[HOME] or not problem.held[MASK] >> tensor & 1:
                    held += tile
        if held > sizes[level, CAPACITY]:
            return -TOO_LARGE
    used = split = 1
    for level in range(levels + 1):
        instances[level, USED] = used
        used *= instances[level, FAN]
        split, instances[level, SPLIT] = split * instances[level, SPLIT], split
    product = 1
    for k in range(n - 1, -1, -1):
        found[k, AFTER] = product
        product *= found[k, BOUND]
    return n


@kernel(i8(PROBLEM, COUNTS, i8, i8, i8, i8, i8), no_refcount=True)
def note_accesses(
    problem: Problem, counts: Ints, tensor: int, level: int, child: int, accesses: int, fills: int
) -> int:
    """Write the accesses of a tensor at a level, and the fills of the level it feeds.

    The first visit of a sum writes; only later ones read what is there.
    """
    outputs, instances = problem.words[OUTPUT], problem.instances
    counts[level, tensor, FILLS] = 0
    counts[level, tensor, READS] = accesses
    counts[level, tensor, UPDATES] = 0
    if tensor == OUTPUT:
        counts[level, tensor, UPDATES] = accesses
        counts[level, tensor, READS] = max(0, accesses - outputs // instances[level, SPLIT])
        fills = max(0, fills - outputs // instances[child, SPLIT])
    if child < counts.shape[0]:
        counts[child, tensor, FILLS] = fills
    return level


@kernel(i8(PROBLEM, COUNTS), no_refcount=True)
def drop_held(problem: Problem, counts: Ints) -> int:
    """Remove accesses of tensors that are wholly in a level: from outside and into it.

    Returns the mask of these tensors.
    """
    mask, home = problem.held[MASK], problem.held[HOME]
    for tensor in range(TENSORS):
        if mask >> tensor & 1:
            for level in range(home):
                for action in range(3):
                    counts[level, tensor, action] = 0
                    problem.totals[level, tensor, action] = 0
            counts[home, tensor, FILLS] = 0
            problem.totals[home, tensor, FILLS] = 0
    return int(mask)


@kernel(i8(PROBLEM, LOOPS, KEEP, i8, COUNTS), no_refcount=True)
def count(problem: Problem, loops: Ints, keep: Ints, temporal: int, counts: Ints) -> int:
    """Fill in reads, fills and updates per instance, by level and tensor; return the cycles."""
    instances, levels = problem.instances, keep.size
    compute = 1
    for k in range(temporal):
        compute *= problem.placed[k, BOUND]
    for tensor in range(TENSORS):
        child = levels
        received = compute
        number = 1
        for level in range(levels - 1, -1, -1):
            if instances[level, FAN] > 1:
                number *= distinct_tiles(problem, loops, tensor, level)
            if not keep[level] >> tensor & 1:
                continue
            if child < levels:
                received = deliveries(problem, tensor, child, temporal)
            accesses = received * number
            child = note_accesses(problem, counts, tensor, level, child, accesses, received)
            number = 1
    return compute


EACH, FIRST, DISTINCT = range(3)
"""Parallel instances: the sum over all, the first one, or the sum over different tiles."""

ALL, NONE = 1 << 30, -1
"""Places in the nest: inside of all loops, and outside of all loops."""

RANK = array(i8)  # dim, coefficient, dim or -1, coefficient


@kernel(i8(i8, i8), no_refcount=True)
def left_over(bound: int, tile: int) -> int:
    """Return the size of the last tile."""
    return bound - (bound - 1) // tile * tile


@kernel(i8(i8, i8, i8), no_refcount=True)
def last_run(bound: int, tile: int, times: int) -> int:
    """Return the iterations of the last run of a loop over tiles of a dimension."""
    return (left_over(bound, tile * times) - 1) // tile + 1


@kernel(i8(matrix(i8), i8, i8, i8, i8), no_refcount=True)
def repeat(sums: Ints, axis: int, times: int, last: int, added: int) -> int:
    """Apply a loop over one dimension: iterations add words, or repeat the first one's words."""
    for table in range(2):
        for other in range(2):
            whole, partial = (other, 2 + other) if axis == 0 else (2 * other, 2 * other + 1)
            one, end = sums[table, whole], sums[table, partial]
            if added:
                sums[table, whole] = times * one
                sums[table, partial] = (last - 1) * one + end
            elif last > 1:
                sums[table, partial] = one
    return 0


@kernel(i8(matrix(i8), i8, i8, i8), no_refcount=True)
def slide(sums: Ints, axis: int, times: int, last: int) -> int:
    """Apply the loop whose steps send only words that the previous tile lacks."""
    for other in range(2):
        whole, partial = (other, 2 + other) if axis == 0 else (2 * other, 2 * other + 1)
        first, step, end = sums[0, whole], sums[1, whole], sums[1, partial]
        sums[0, whole] = first + (times - 1) * step
        if last > 1:
            sums[0, partial] = first + (last - 2) * step + end
    return 0


@kernel(i8(matrix(i8), i8, i8, i8, i8, i8, i8, i8), no_refcount=True)
def of_diagonals(
    sums: Ints, table: int, m: int, a: int, n: int, b: int, state: int, finest: int
) -> int:
    """Return the sum of the largest tile over the different values of `a * i + b * j`.

    `state`: whether the last i and j have a partial tile; `finest` divides a and b.
    """
    total = 0
    back, down = b // finest, a // finest
    for i in range(m):
        for j in range(n):
            if i >= back and j + down < n:
                continue
            largest, x, y = 0, i, j
            while x < m and y >= 0:
                partial = 2 * (state >> 1 and x == m - 1) + (state & 1 and y == n - 1)
                largest = max(largest, sums[table, partial])
                x += back
                y -= down
            total += largest
    return total


@kernel(i8(matrix(i8), i8, i8, i8, i8, i8, i8, i8), no_refcount=True)
def fan_out(sums: Ints, m: int, m_last: int, a: int, n: int, n_last: int, b: int, how: int) -> int:
    """Apply the loops of one fan-out over both dimensions of a rank."""
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


@kernel(i8(PROBLEM, RANK, i8, i8, i8), no_refcount=True)
def tile_sums(problem: Problem, rank: Ints, child: int, slides: int, step: int) -> int:
    """Initialize sums with the extents of a tile and the words that a step of `slides` adds."""
    d, e = rank[0], rank[2]
    for state in range(4):
        p = problem.extents[child, d]
        wide = left_over(problem.bounds[d], p) if state >> 1 else p
        q = high = 1
        if e >= 0:
            q = problem.extents[child, e]
            high = left_over(problem.bounds[e], q) if state & 1 else q
        extent = 1 + (wide - 1) * rank[1] + (high - 1) * rank[3]
        fresh = extent
        if slides == d:
            fresh = rank[1] * (step - p + wide)
        elif slides >= 0:
            fresh = rank[3] * (step - q + high)
        problem.sums[0, state] = extent
        problem.sums[1, state] = min(extent, fresh)
    return 0


@kernel(i8(PROBLEM, LOOPS, RANK, i8, i8, i8, i8, i8, i8))
def along(
    problem: Problem,
    loops: Ints,
    rank: Ints,
    parent: int,
    child: int,
    outside: int,
    between: int,
    slides: int,
    place: int,
) -> int:
    """Return the sum of a rank's extents over the loops outside `child`, up to a place.

    A rank is one or two dimensions with coefficients; a coefficient of 0 counts iterations.
    `outside` and `between`: the instances that count of levels outside the parent, and from the
    parent to the child. The loop over `slides` at `place`, if any, sends only new words.
    """
    bounds, extents, dims = problem.bounds, problem.extents, problem.bounds.size
    step = 1
    if slides >= 0:
        step = extents[place // dims + 1, slides] * problem.spread[place // dims, slides]
    tile_sums(problem, rank, child, slides, step)
    for level in range(child - 1, -1, -1):
        how = outside if level < parent else between
        if problem.sizes[level, STAGED] and how == DISTINCT:
            side_by_side(problem, loops, rank, level, SPATIAL_Y, how)
            side_by_side(problem, loops, rank, level, SPATIAL_X, how)
        else:
            side_by_side(problem, loops, rank, level, 0, how)
        for k in range(dims - 1, -1, -1):
            d = loops[level, ORDER, k]
            times = loops[level, TEMPORAL, d]
            if times == 1 or (d != rank[0] and d != rank[2]):
                continue
            last = last_run(bounds[d], extents[level + 1, d] * problem.spread[level, d], times)
            axis = 0 if d == rank[0] else 1
            if slides == d and level * dims + k == place:
                slide(problem.sums, axis, times, last)
            else:
                repeat(problem.sums, axis, times, last, level * dims + k <= place)
    return int(problem.sums[0, 3])


@kernel(i8(PROBLEM, LOOPS, RANK, i8, i8, i8), no_refcount=True)
def side_by_side(problem: Problem, loops: Ints, rank: Ints, level: int, row: int, how: int) -> int:
    """Apply one level's fan-out over columns, over rows, or over both (`row` 0)."""
    d, e = rank[0], rank[2]
    tile = problem.extents[level + 1, d]
    m = loops[level, row, d] if row else problem.spread[level, d]
    if row == SPATIAL_X:
        tile *= loops[level, SPATIAL_Y, d]
    m_last = last_run(problem.bounds[d], tile, m)
    if e < 0:
        adds = how == EACH or (how == DISTINCT and rank[1] > 0)
        return repeat(problem.sums, 0, m, m_last, adds)
    other = problem.extents[level + 1, e]
    n = loops[level, row, e] if row else problem.spread[level, e]
    if row == SPATIAL_X:
        other *= loops[level, SPATIAL_Y, e]
    n_last = last_run(problem.bounds[e], other, n)
    return fan_out(problem.sums, m, m_last, tile * rank[1], n, n_last, other * rank[3], how)


@kernel(i8(PROBLEM, LOOPS, i8, i8, i8, i8, i8), no_refcount=True)
def words_moved(
    problem: Problem, loops: Ints, tensor: int, parent: int, child: int, outside: int, between: int
) -> int:
    """Return the words of a tensor that are sent from one level to another over the whole layer."""
    levels, dims, home = loops.shape[0], problem.bounds.size, problem.home
    slides, place = -1, ALL
    if child < levels:
        place = NONE
        for k in range(child * dims):
            d = loops[k // dims, ORDER, k % dims]
            if home[tensor, d] >= 0 and loops[k // dims, TEMPORAL, d] > 1:
                slides, place = d, k
    words = 1
    for row in range(RANKS * tensor, RANKS * (tensor + 1)):
        if problem.terms[row, 0] < 0:
            break
        holds = slides >= 0 and row - RANKS * tensor == home[tensor, slides]
        words *= along(
            problem,
            loops,
            problem.terms[row],
            parent,
            child,
            outside,
            between,
            slides if holds else -1,
            place,
        )
    return words * times_again(problem, loops, tensor, parent, child, outside, between, place)


@kernel(i8(PROBLEM, LOOPS, i8, i8, i8, i8, i8, i8), no_refcount=True)
def times_again(
    problem: Problem,
    loops: Ints,
    tensor: int,
    parent: int,
    child: int,
    outside: int,
    between: int,
    place: int,
) -> int:
    """Return the product of the loops that do not index a tensor; of all loops if it is -1."""
    times = 1
    rank = problem.rank
    rank[1], rank[2], rank[3] = 0, -1, 0
    for d in range(problem.bounds.size):
        if tensor < 0 or problem.home[tensor, d] < 0:
            rank[0] = d
            times *= along(problem, loops, rank, parent, child, outside, between, -1, place)
    return times


@kernel(i8(PROBLEM, LOOPS, i8, i8), no_refcount=True)
def words_seen(problem: Problem, loops: Ints, level: int, how: int) -> int:
    """Return the different output words of the instances of a level."""
    words = 1
    for row in range(RANKS * OUTPUT, RANKS * (OUTPUT + 1)):
        if problem.terms[row, 0] < 0:
            break
        words *= along(problem, loops, problem.terms[row], level, level, how, how, -1, ALL)
    return words * times_again(problem, loops, OUTPUT, level, level, how, how, NONE)


@kernel(i8(PROBLEM, LOOPS, KEEP, COUNTS, i8), no_refcount=True)
def count_instances(problem: Problem, loops: Ints, keep: Ints, counts: Ints, how: int) -> int:
    """Fill in accesses, of the first instance or of all, by level and tensor."""
    levels = keep.size
    for tensor in range(TENSORS):
        child = levels
        for level in range(levels - 1, -1, -1):
            if not keep[level] >> tensor & 1:
                continue
            sent = words_moved(problem, loops, tensor, level, child, how, DISTINCT)
            counts[level, tensor, FILLS] = 0
            counts[level, tensor, READS] = sent
            counts[level, tensor, UPDATES] = 0
            if tensor == OUTPUT:
                counts[level, tensor, UPDATES] = sent
                counts[level, tensor, READS] -= words_seen(problem, loops, level, how)
            if child < levels:
                came = words_moved(problem, loops, tensor, level, child, how, how)
                if tensor == OUTPUT:
                    came -= words_seen(problem, loops, child, how)
                counts[child, tensor, FILLS] = came
            child = level
    return 0


@kernel(i8(PROBLEM, LOOPS, KEEP, COUNTS))
def count_partial(problem: Problem, loops: Ints, keep: Ints, counts: Ints) -> int:
    """Fill in accesses of the first instance, whose tiles are whole; return the cycles.

    Accesses of all instances together go to `problem.totals`.
    """
    count_instances(problem, loops, keep, counts, FIRST)
    count_instances(problem, loops, keep, problem.totals, EACH)
    levels = keep.size
    return times_again(problem, loops, -1, levels, levels, FIRST, FIRST, ALL)
