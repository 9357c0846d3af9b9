"""Pipeline schedules: the order in which a rank runs its forward and backward tasks.

    gpipe        all forwards, then all backwards (Huang et al., GPipe, 2019)
    1f1b         a forward, a backward as soon as there is one (Narayanan et al., PipeDream, 2019)
    interleaved  the same over several chunks of layers a rank (Narayanan et al., SC 2021)
    zero_bubble  backwards of inputs at once, those of weights later, in what would be a bubble; no
                 more micro-batches are kept than by 1f1b (Qi et al., Zero bubble, ZB-H1, 2024)

A backward pass is two tasks: gradients of inputs, which the rank before waits for, and of weights,
which nobody does. All schedules but the last run them as one.
"""

from __future__ import annotations

from simulators.core.jit import Ints, array, i8, kernel, matrix

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = range(len(SCHEDULES))

FORWARD, INPUTS, WEIGHTS = 0, 1, 2
"""Kinds of tasks: forward, gradients of inputs (or the whole backward), gradients of weights."""

ORDER = i8(i8, i8, i8, i8, i8, matrix(i8))
PLACE = i8(i8, i8, i8, i8)
ORDERS = i8(i8, i8, i8, i8, array(i8, 3))


@kernel(PLACE)
def place(turn: int, pp: int, chunks: int, micro_batches: int) -> int:
    """Return chunk x micro_batches + micro-batch of the `turn`-th forward of an interleaved rank.

    Micro-batches go through all chunks in groups of `pp`; the last group may be smaller.
    """
    group = turn // (pp * chunks)
    size = min(pp, micro_batches - group * pp)
    rest = turn - group * pp * chunks
    return (rest // size) * micro_batches + group * pp + rest % size


@kernel(ORDER)
def fill_order(
    schedule: int, rank: int, pp: int, chunks: int, micro_batches: int, order: Ints
) -> int:
    """Write (kind, chunk, micro-batch) of every task of a rank in turn; return their number.

    Forwards that come before the first backward warm the pipeline up. Under zero bubble a rank runs
    gradients of weights as many micro-batches late as there are ranks before it, so that all ranks
    keep `pp` micro-batches.
    """
    total = micro_batches * chunks
    if schedule == 0:
        warm_up = total
    elif schedule == 2:
        warm_up = min(total, 2 * (pp - rank - 1) + (chunks - 1) * pp)
    else:
        warm_up = min(total, pp - rank - 1)
    late = rank if schedule == 3 else 0
    forwards, backwards, weights, count = 0, 0, 0, 0
    while backwards < total or weights < (total if schedule == 3 else 0):
        if forwards < total and (forwards < warm_up or forwards - warm_up <= backwards):
            where = place(forwards, pp, chunks, micro_batches)
            order[count, 0], order[count, 1] = 0, where // micro_batches
            order[count, 2] = where % micro_batches
            forwards += 1
            count += 1
            if forwards <= warm_up:
                continue
        if backwards < total:
            where = place(backwards, pp, chunks, micro_batches)
            order[count, 0], order[count, 1] = 1, chunks - 1 - where // micro_batches
            order[count, 2] = where % micro_batches
            backwards += 1
            count += 1
        if schedule == 3 and (backwards - weights > late or backwards == total):
            order[count, 0], order[count, 1], order[count, 2] = 2, 0, weights
            weights += 1
            count += 1
    return count


@kernel(ORDERS)
def fill_orders(schedule: int, pp: int, chunks: int, micro_batches: int, orders: Ints) -> int:
    """Write the tasks of all ranks in turn; return how many each has."""
    count = 0
    for rank in range(pp):
        count = fill_order(schedule, rank, pp, chunks, micro_batches, orders[rank])
    return count
