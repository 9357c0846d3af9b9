"""Arrays of a layer on an accelerator, as the kernels read them."""

from __future__ import annotations

from typing import NamedTuple

from simulators.core.jit import FloatMatrix, IntCube, IntMatrix, Ints, array, i8, struct

TENSORS = 3
RANKS = 4
OUTPUT = 2
READS, FILLS, UPDATES = range(3)
TEMPORAL, ORDER, SPATIAL_X, SPATIAL_Y = range(4)
"""Rows of one level's loops: bounds by dimension, dimensions outermost first, bounds, bounds."""

FEASIBLE, TOO_LARGE, TOO_WIDE = range(3)
VERDICTS = {TOO_LARGE: "tiles_exceed_buffer", TOO_WIDE: "loops_exceed_array"}

CAPACITY, BLOCK, SHIFT, FAN_X, FAN_Y, STAGED = range(6)
LEAK = 3
HOP = 3
DIM, BOUND, LEVEL, AFTER = range(4)
USED, FAN, SPLIT = range(3)


class Problem(NamedTuple):
    """A layer, an accelerator, and scratch arrays for intermediate results."""

    bounds: Ints
    terms: IntMatrix  # row 4 * tensor + rank: dim, coefficient, dim, coefficient; dim -1 is none
    home: IntMatrix  # tensor x dim -> rank, or -1 for a loop that does not walk the tensor
    coef: IntMatrix  # tensor x dim
    words: Ints  # by tensor
    # By level of the accelerator; the last row of energies belongs to the multipliers.
    sizes: IntMatrix  # capacity, block, log2 of the block or -1, fan-out X, Y, staged
    energy_pj: FloatMatrix  # read, fill, update, leak per cycle; of a physical access
    rates: FloatMatrix  # read, write, shared words per cycle, pJ per word and hop
    # What a mapping is laid out in; rows are levels, and the multipliers.
    extents: IntMatrix  # by dim: the tile inside each level
    spread: IntMatrix  # by dim: copies side by side
    tiles: IntMatrix  # by tensor: its words
    placed: IntMatrix  # dim, bound, level, product further out: of temporal loops, innermost first
    instances: IntMatrix  # used, fan-out, split of outputs
    first: Ints  # the innermost of the placed loops outside its tile
    totals: IntCube  # level x tensor x action: accesses of all instances, where tiles are cut short
    sums: IntMatrix  # whole tiles and steps x states of two dimensions
    rank: Ints  # one dimension as a rank
    cut: Ints  # whether a dimension's last tile is smaller


LOOPS = COUNTS = array(i8, 3)
KEEP = array(i8)
PROBLEM = struct(Problem)
