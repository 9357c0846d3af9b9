"""Pipeline schedules: the order in which a rank runs its forward and backward tasks.

    gpipe        all forwards, then all backwards (Huang et al., GPipe, 2019)
    1f1b         a forward, a backward as soon as there is one (Narayanan et al., PipeDream, 2019)
    interleaved  the same over several chunks of layers a rank (Narayanan et al., SC 2021)
    zero_bubble  backwards of inputs at once, those of weights later, in what would be a bubble; no
                 more micro-batches are kept than by 1f1b (Qi et al., Zero bubble, ZB-H1, 2024)
    dualpipe     two copies of the model run in opposite directions, so that rank `r` has stages `r`
                 and `pp - 1 - r`; a forward of one is paired with a backward of the other
                 (DeepSeek-V3 technical report, 2024; github.com/deepseek-ai/DualPipe)
    dualpipe_v   one copy folded instead: a rank has the chunks `r` and `2 pp - 1 - r`, in the order
                 of one half of a dualpipe of twice as many ranks (ibid., 2025)

A backward pass has two parts: gradients of inputs, which the rank before waits for, and of weights,
which nobody does. The first three schedules run them as one task.
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Ints, array, i8, kernel, matrix

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble", "dualpipe", "dualpipe_v")
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, DUALPIPE, DUALPIPE_V = range(len(SCHEDULES))
PAIRING = (DUALPIPE, DUALPIPE_V)
"""Schedules that run a forward and a backward of two micro-batches together."""

FORWARD, INPUTS, WEIGHTS, BACKWARD = range(4)
"""Kinds of tasks: forward, gradients of inputs, of weights, and both of these as one."""

MOST_TASKS = 3
"""Of a rank for one micro-batch of one of its chunks."""


@kernel(i8(i8, i8, i8, i8))
def place(turn: int, pp: int, chunks: int, micro_batches: int) -> int:
    """Return chunk x micro_batches + micro-batch of the `turn`-th forward of an interleaved rank.

    Micro-batches go through all chunks in groups of `pp`; the last group may be smaller.
    """
    group = turn // (pp * chunks)
    size = min(pp, micro_batches - group * pp)
    rest = turn - group * pp * chunks
    return (rest // size) * micro_batches + group * pp + rest % size


@kernel(i8(i8, i8, i8, i8, i8, matrix(i8)))
def fill_order(
    schedule: int, rank: int, pp: int, chunks: int, micro_batches: int, order: Ints
) -> int:
    """Write (kind, chunk, micro-batch, 0) of every task of a rank in turn; return their number.

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
    backward = 1 if schedule == 3 else 3
    forwards, backwards, weights, count = 0, 0, 0, 0
    while backwards < total or weights < (total if schedule == 3 else 0):
        if forwards < total and (forwards < warm_up or forwards - warm_up <= backwards):
            where = place(forwards, pp, chunks, micro_batches)
            count = put(order, count, 0, where // micro_batches, where % micro_batches)
            forwards += 1
            if forwards <= warm_up:
                continue
        if backwards < total:
            where = place(backwards, pp, chunks, micro_batches)
            chunk = chunks - 1 - where // micro_batches
            count = put(order, count, backward, chunk, where % micro_batches)
            backwards += 1
        if schedule == 3 and (backwards - weights > late or backwards == total):
            count = put(order, count, 2, 0, weights)
            weights += 1
    return count


@kernel(i8(i8, i8, i8, i8, matrix(i8)))
def fill_paired(half: int, ranks: int, each: int, swaps: int, order: Ints) -> int:
    """Write the tasks of a rank of a dualpipe in turn; return their number.

    The phases are those of DualPipe's published step: forwards of the near half, forwards of both,
    backwards that free memory for forwards, pairs, backwards, and remaining weight gradients.
    `half` is the distance of the rank from its end of the pipeline, of which one half has `ranks`;
    `each` micro-batches pass either chunk; `swaps`: the near chunk is the second.
    """
    tasks = np.zeros((6 * each, 3), np.int64)  # kind, near or far chunk, whether paired
    far, left = ranks - half - 1, half + 1
    count = 0

    for _ in range(2 * far):
        count = put(tasks, count, 0, 0, 0)
    for _ in range(left):
        count = put(tasks, count, 0, 0, 0)
        count = put(tasks, count, 0, 1, 0)
    for _ in range(far):
        count = put(tasks, count, 1, 1, 0)
        count = put(tasks, count, 2, 1, 0)
        count = put(tasks, count, 0, 1, 0)
    for turn in range(each - 2 * ranks + half + 1):
        is_pair = 0 if turn == 0 and far == 0 else 1
        count = put(tasks, count, 0, 0, is_pair)
        count = put(tasks, count, 3, 1, 0)
        count = put(tasks, count, 0, 1, 1)
        count = put(tasks, count, 3, 0, 0)
    for _ in range(far):
        count = put(tasks, count, 3, 1, 0)
        count = put(tasks, count, 0, 1, 1)
        count = put(tasks, count, 3, 0, 0)
    for turn in range(left):
        splits_far = turn > left // 2 or (turn == left // 2 and half % 2 == 1)
        count = put(tasks, count, 1 if splits_far else 3, 1, 0)
        count = put(tasks, count, 1 if turn >= left // 2 else 3, 0, 0)
    for _ in range(far):
        count = put(tasks, count, 2, 0, 0)
        count = put(tasks, count, 1, 0, 0)
    for _ in range(left):
        count = put(tasks, count, 2, 0, 0)
    return number_tasks(tasks, count, swaps, order)


@kernel(i8(matrix(i8), i8, i8, i8, i8))
def put(tasks: Ints, count: int, kind: int, chunk: int, number: int) -> int:
    """Append a task with its micro-batch, or whether it is paired; return the number of tasks."""
    tasks[count, 0], tasks[count, 1], tasks[count, 2] = kind, chunk, number
    return count + 1


@kernel(i8(matrix(i8), i8, i8, matrix(i8)))
def number_tasks(tasks: Ints, count: int, swaps: int, order: Ints) -> int:
    """Write which micro-batch and which chunk each task is of; return how many there are.

    Passes of a chunk follow the micro-batches; gradients of weights are those that have waited
    longest.
    """
    forwards, backwards = np.zeros(2, np.int64), np.zeros(2, np.int64)
    waiting = np.zeros((count, 2), np.int64)
    waits, ran = 0, 0
    for task in range(count):
        kind, chunk = tasks[task, 0], tasks[task, 1]
        if kind == 2:
            chunk, micro = waiting[ran, 0], waiting[ran, 1]
            ran += 1
        elif kind == 0:
            micro = forwards[chunk]
            forwards[chunk] += 1
        else:
            micro = backwards[chunk]
            backwards[chunk] += 1
            if kind == 1:
                waiting[waits, 0], waiting[waits, 1] = chunk, micro
                waits += 1
        order[task, 0], order[task, 1] = kind, chunk if swaps == 0 else 1 - chunk
        order[task, 2], order[task, 3] = micro, tasks[task, 2]
    return count


@kernel(i8(i8, i8, i8, i8, array(i8, 3), array(i8)))
def fill_orders(
    schedule: int, pp: int, chunks: int, micro_batches: int, orders: Ints, counts: Ints
) -> int:
    """Write the tasks of all ranks in turn, and how many each has; return how many all have."""
    for rank in range(pp):
        if schedule == 4:
            half, swaps = min(rank, pp - 1 - rank), 1 if 2 * rank >= pp else 0
            counts[rank] = fill_paired(half, pp // 2, micro_batches // 2, swaps, orders[rank])
        elif schedule == 5:
            counts[rank] = fill_paired(rank, pp, micro_batches, 0, orders[rank])
        else:
            counts[rank] = fill_order(schedule, rank, pp, chunks, micro_batches, orders[rank])
    return int(counts.sum())


@kernel(i8(i8, i8, i8, i8))
def stage_of(schedule: int, chunk: int, rank: int, pp: int) -> int:
    """Return which chunk of the pipeline a rank's chunk is; a second copy follows the first."""
    if schedule == 5 and chunk == 1:
        return 2 * pp - 1 - rank
    if schedule == 4 and chunk == 1:
        return pp + pp - 1 - rank
    return chunk * pp + rank
