"""Time of a matrix product: tiles that run in waves over the SMs.

Each block computes one tile of the output: it loads a strip of `a` and a strip of `b` through L2
and multiplies them along `k`. Blocks fill the SMs in waves; a partly filled wave takes almost as
long as a full one. With too few tiles for the SMs, split-k divides `k` among several blocks. The
library tries several tiles and takes a good one, not always the best: a soft minimum.

Two limits of the memory path are combined: the bytes that one SM loads through L2 per second, and
the bytes that all SMs together read from device memory. Every group of blocks that cannot share a
strip through L2 reads the strip again.

Every term grows with m, n, k and batch and falls with SMs, clock, bandwidth and L2. Sums, norms and
soft minima of such terms do so too, so the time is monotone by construction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats, arrays, f8, i8, kernel, matrix


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a block's output, and the share of an SM's peak in the inner loop."""

    m: int
    n: int
    efficiency: float
    splits: int = 1


@dataclass(frozen=True, kw_only=True)
class TileRates:
    """Sustained rates of a GPU in one precision: parameters of the tile model.

    The compiled loop receives the numbers in the order of the fields.
    """

    sm_count: int
    flops_per_s_per_sm: float
    load_bytes_per_s_per_sm: float
    hbm_bytes_per_s: float
    l2_bytes: float
    a_bytes: float  # of one number of the left operand, the right one and the result
    b_bytes: float
    c_bytes: float
    tail: float  # cost of the last, partly filled wave, as a share of a full wave
    prologue: float  # steps of k in which a block fills its pipeline and writes its tile
    k_step: float
    step_s: float = 0.0  # latency of one step of k, however many SMs and however small the tile
    split_s: float = 0.0  # of adding up the partial results of a split k


def tile_seconds(
    m: NDArray[np.float64],
    n: NDArray[np.float64],
    k: NDArray[np.float64],
    batch: NDArray[np.float64],
    tiles: tuple[Tile, ...],
    rates: TileRates,
) -> NDArray[np.float64]:
    """Return the seconds of matrix products, one per row of the broadcast sizes.

    `m` counts the rows of all `batch` products together, so that grouped products with unequal
    numbers of rows (experts) have the same formula. `tiles` are the candidates of the library.
    """
    shape = np.broadcast_shapes(m.shape, n.shape, k.shape, batch.shape)
    table = np.array([(t.m, t.n, t.efficiency, t.splits) for t in tiles], np.float64)
    numbers = np.array([*vars(rates).values()], np.float64)
    m, n, k, batch = (
        np.array(np.broadcast_to(size, shape), np.float64, order="C").reshape(-1)
        for size in (m, n, k, batch)
    )
    out = np.empty(m.size)
    _price_tiles(m, n, k, batch, table, numbers, out)
    return out.reshape(shape)


def four_norm(*terms: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Return the 4-norm of times that mostly overlap: slightly more than the largest time.

    >>> float(four_norm(3.0, 0.0))
    3.0
    """
    squares = [np.square(np.square(np.asarray(term, np.float64))) for term in terms]
    total: NDArray[np.float64] = np.sqrt(np.sqrt(sum(squares[1:], squares[0])))
    return total


def l2_miss_rate(filled: Floats) -> Floats:
    """Return the miss rate of L2 for data that is read again. `filled`: bytes over L2 capacity."""
    square = filled * filled
    sixth_power = square * square * square  # the steepness on both A100 and V100
    return sixth_power / (1.0 + sixth_power)


BLOCK = 256
"""Products per block of the loop: their columns stay in the first-level cache for all tiles."""


@kernel(i8(*arrays(f8, 4), matrix(f8), *arrays(f8, 2)), simd=True)
def _price_tiles(
    m: Floats, n: Floats, k: Floats, batch: Floats, tiles: Floats, rates: Floats, out: Floats
) -> int:
    """Fill `out` with the seconds: the soft minimum over tiles, at least each operand moved once.

    Split-k writes and reads partial results once in fp32: 8 bytes per number. The exponents 4 and
    16 are powers of two so that roots are square roots, which have the same bits on every machine.
    """
    sms, flops, load, hbm, l2 = rates[0], rates[1], rates[2], rates[3], rates[4]
    a, b, c = rates[5], rates[6], rates[7]
    tail, prologue, k_step = rates[8], rates[9], rates[10]
    step_s, split_s = rates[11], rates[12]
    group = math.sqrt(sms)
    missed, totals = np.empty(BLOCK), np.empty(BLOCK)
    for start in range(0, out.size, BLOCK):
        end = min(start + BLOCK, out.size)
        for i in range(start, end):
            operands = (m[i] * k[i] * a + batch[i] * n[i] * k[i] * b) / batch[i]
            missed[i - start] = max(0.0, 1.0 - l2 / operands)
            totals[i - start] = 0.0
        for t in range(tiles.shape[0]):
            tm, tn, splits = tiles[t, 0], tiles[t, 1], tiles[t, 3]
            flops_of_tile, split_step = flops * tiles[t, 2], splits * k_step
            m_group, n_group, strips = tm * group, tn * group, tm * a + tn * b
            partial = 0.0 if splits == 1.0 else 8.0
            join_s = split_s if splits > 1.0 else 0.0
            for i in range(start, end):
                rows = m[i] / batch[i]
                blocks = batch[i] * np.ceil(rows / tm) * np.ceil(n[i] / tn) * splits
                x = blocks / sms
                waves = 1.0 if x < 1.0 else (1.0 - tail) * x + tail * np.ceil(x)
                depth = np.ceil(k[i] / split_step) * k_step + prologue
                compute_s = waves * 2.0 * tm * tn * depth / flops_of_tile
                load_s = waves * strips * depth / load + waves * depth * step_s + join_s
                a_again = missed[i - start] * max(0.0, n[i] / n_group - 1.0)
                b_again = missed[i - start] * max(0.0, rows / m_group - 1.0)
                read_again = m[i] * k[i] * a * a_again + batch[i] * n[i] * k[i] * b * b_again
                again_s = (read_again + partial * m[i] * n[i] * splits) / hbm
                seconds_4 = compute_s**4 + load_s**4 + again_s**4
                inverse_8 = 1.0 / (seconds_4 * seconds_4)
                totals[i - start] += inverse_8 * inverse_8
        for i in range(start, end):
            tiled_4 = math.sqrt(math.sqrt(1.0 / totals[i - start]))
            moved = m[i] * k[i] * a + batch[i] * n[i] * k[i] * b + m[i] * n[i] * c
            out[i] = math.sqrt(math.sqrt(tiled_4 + (moved / hbm) ** 4))
    return 0
