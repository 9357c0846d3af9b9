"""Cycles of sparse tensor cores: dense, two of four, flexible n of m, and both operands sparse.

The case study of Wu et al., "Sparseloop" (MICRO 2022), figure 15: 1,024 multipliers of 8 bit in
four subpartitions, a shared memory of 42 words per cycle (what two of four needs: 32 inputs, 8
weights, 2 of metadata), and 2,048 accumulators in each subpartition. Dual-side cores after Wang et
al., "Dual-side sparse tensor core" (ISCA 2021): outer products of operands packed into 16 lanes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from simulators.dataflow.sparsity import hypergeometric

MULTIPLIERS = 1024
LANES = 16  # rows of weights, or of an outer product, side by side in a subpartition
SMEM_WORDS_PER_CYCLE = 42.0
WEIGHT_ROWS = 64  # over all subpartitions
DEPTH = MULTIPLIERS // WEIGHT_ROWS  # non-zero products summed per output and cycle
STAY = 128  # columns of the result that pass while weights stay, twice the first design's
WORD_BITS = 8
OUTER_TILES = ((128, 64), (64, 128))
"""Rows and columns of sums of an outer product over all subpartitions."""


class SparseProduct(NamedTuple):
    """M x K weights of some density times K x N inputs of some density."""

    m: int
    n: int
    k: int
    weights: float = 1.0
    inputs: float = 1.0


def tensor_core_cycles(design: str, product: SparseProduct, *, run_length: bool = False) -> float:
    """Return the cycles of a product on one design.

    Args:
        design: `tc` takes everything as dense, `stc` weights of two in four at half the time,
            `stc_flexible` two of any number, `stc_flexible_dual` also stores inputs as bitmasks,
            `dstc` skips zeros of both.
        product: the product.
        run_length: weights tell the run of zeros before them instead of their place in the group.

    >>> tensor_core_cycles("tc", SparseProduct(512, 1024, 128))
    65536.0
    """
    dense = _rounds(product, DEPTH)
    if design == "tc":
        return dense
    if design == "stc":
        return dense / 2.0 if product.weights <= 0.5 else dense
    if design == "dstc":
        return dense * min(_outer_product(product, *tile) for tile in OUTER_TILES)
    return _flexible(product, dual=design == "stc_flexible_dual", run_length=run_length)


def _rounds(product: SparseProduct, depth: float) -> float:
    return 1.0 * math.ceil(product.m / WEIGHT_ROWS) * product.n * math.ceil(product.k / depth)


def _flexible(product: SparseProduct, *, dual: bool, run_length: bool) -> float:
    """Two of every `group` weights: the inputs of all of them have to arrive."""
    group = max(2, round(2.0 / product.weights))
    depth = DEPTH * group / 2.0
    if group == 2:
        return _rounds(product, DEPTH)
    weights = MULTIPLIERS / min(STAY, product.n)
    bits = _power_of_two(math.log2(group - 2 if run_length else group))
    inputs = depth
    if dual:
        inputs = depth * product.inputs + (depth / WORD_BITS if product.inputs < 1.0 else 0.0)
    words = inputs + weights * (1.0 + bits / WORD_BITS)
    return _rounds(product, depth) * max(1.0, words / SMEM_WORDS_PER_CYCLE)


def _outer_product(product: SparseProduct, rows: int, columns: int) -> float:
    """Return the time of one step of K relative to dense: packing, or what has to arrive."""
    high, wide = rows // 2, columns // 2  # two subpartitions each way
    high_rounds = expected_groups(product.weights, high, product.m * product.k, LANES)
    wide_rounds = expected_groups(product.inputs, wide, product.n * product.k, LANES)
    packed = high_rounds * LANES / high * wide_rounds * LANES / wide
    mask = 1.0 / WORD_BITS
    words = rows * (product.weights + mask) + columns * (product.inputs + mask)
    dense_cycles = rows * columns / MULTIPLIERS
    return max(packed, words / SMEM_WORDS_PER_CYCLE / dense_cycles)


def _power_of_two(bits: float) -> int:
    """Metadata words are 1, 2, 4 or 8 bits wide."""
    return 1 << math.ceil(math.log2(max(1.0, math.ceil(bits))))


def expected_groups(share: float, tile: int, whole: int, lanes: int) -> float:
    """Return the expected rounds in which some lanes process the non-zeros of a tile.

    A tile is a draw without replacement from a tensor of `whole` words: hypergeometric.

    >>> expected_groups(1.0, 32, 1024, 16)
    2.0
    """
    if share >= 1.0:
        return 1.0 * math.ceil(tile / lanes)
    filled = round(share * whole)
    return sum(
        hypergeometric(k, tile, filled, whole) * max(1, math.ceil(k / lanes))
        for k in range(tile + 1)
    )
