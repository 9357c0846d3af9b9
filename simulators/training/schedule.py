"""Pipeline schedules: the order in which ranks run their tasks.

    gpipe        all forwards, then all backwards (Huang et al., GPipe, 2019)
    1f1b         a forward, a backward as soon as there is one (Narayanan et al., PipeDream, 2019)
    interleaved  the same over several chunks of layers per rank (Narayanan et al., SC 2021)
    zero_bubble  input gradients at once, weight gradients later, in place of a bubble; as many
                 micro-batches are kept as by 1f1b (Qi et al., Zero bubble, ZB-H1, 2024)
    dualpipe     two copies of the model run in opposite directions, so that rank `r` has stages `r`
                 and `pp - 1 - r`; a forward of one is paired with a backward of the other
                 (DeepSeek-V3 technical report, 2024; github.com/deepseek-ai/DualPipe)
    dualpipe_v   one copy, folded: a rank has the chunks `r` and `2 pp - 1 - r`, in the order of one
                 half of a dualpipe of twice as many ranks (ibid., 2025)

A backward pass has two parts: gradients of inputs, which the previous rank waits for, and of
weights, which no rank waits for. The first three schedules run both parts as one task.

A forward waits for the forward of the layers before it, a backward for the backward of the layers
after it. Dependencies follow from schedule and sizes alone, so tasks are sorted topologically once
per shape of a pipeline.
"""

from __future__ import annotations

import functools

import numpy as np

from simulators.core.jit import Ints, array, i8, kernel, matrix

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble", "dualpipe", "dualpipe_v")
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, DUALPIPE, DUALPIPE_V = range(len(SCHEDULES))
PAIRING = (DUALPIPE, DUALPIPE_V)
"""Schedules that run a forward and a backward of two micro-batches together."""

FORWARD, INPUTS, WEIGHTS, BACKWARD = range(4)
"""Kinds of tasks: forward, gradients of inputs, of weights, and both of these as one."""

MOST_TASKS = 3
"""Largest number of tasks of a rank per micro-batch and chunk."""


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
    """Write (kind, chunk, micro-batch, 0) of the tasks of a rank in order; return their number.

    Forwards before the first backward are the warm-up. Under zero bubble a rank delays weight
    gradients by as many micro-batches as there are ranks before it, so that all ranks keep `pp`
    micro-batches.
    """
    total = micro_batches * chunks
    if schedule == GPIPE:
        warm_up = total
    elif schedule == INTERLEAVED:
        warm_up = min(total, 2 * (pp - rank - 1) + (chunks - 1) * pp)
    else:
        warm_up = min(total, pp - rank - 1)
    late = rank if schedule == ZERO_BUBBLE else 0
    backward = INPUTS if schedule == ZERO_BUBBLE else BACKWARD
    forwards, backwards, weights, count = 0, 0, 0, 0
    while backwards < total or weights < (total if schedule == ZERO_BUBBLE else 0):
        if forwards < total and (forwards < warm_up or forwards - warm_up <= backwards):
            where = place(forwards, pp, chunks, micro_batches)
            count = put(order, count, FORWARD, where // micro_batches, where % micro_batches)
            forwards += 1
            if forwards <= warm_up:
                continue
        if backwards < total:
            where = place(backwards, pp, chunks, micro_batches)
            chunk = chunks - 1 - where // micro_batches
            count = put(order, count, backward, chunk, where % micro_batches)
            backwards += 1
        if schedule == ZERO_BUBBLE and (backwards - weights > late or backwards == total):
            count = put(order, count, WEIGHTS, 0, weights)
            weights += 1
    return count


@kernel(i8(i8, i8, i8, i8, matrix(i8)))
def fill_paired(half: int, ranks: int, each: int, swaps: int, order: Ints) -> int:
    """Write the tasks of a rank of a dualpipe in order; return their number.

    The phases are those of DualPipe's published step: forwards of the near half, forwards of both,
    backwards that free memory for forwards, pairs, backwards, and remaining weight gradients.
    `half` is the distance of the rank from its end of the pipeline, of which one half has `ranks`;
    `each` micro-batches pass either chunk; `swaps`: the near chunk is the second.
    """
    tasks = np.zeros((6 * each, 3), np.int64)  # kind, near or far chunk, whether paired
    far, left = ranks - half - 1, half + 1
    count = 0

    for _ in range(2 * far):
        count = put(tasks, count, FORWARD, 0, 0)
    for _ in range(left):
        count = put(tasks, count, FORWARD, 0, 0)
        count = put(tasks, count, FORWARD, 1, 0)
    for _ in range(far):
        count = put(tasks, count, INPUTS, 1, 0)
        count = put(tasks, count, WEIGHTS, 1, 0)
        count = put(tasks, count, FORWARD, 1, 0)
    for turn in range(each - 2 * ranks + half + 1):
        is_pair = 0 if turn == 0 and far == 0 else 1
        count = put(tasks, count, FORWARD, 0, is_pair)
        count = put(tasks, count, BACKWARD, 1, 0)
        count = put(tasks, count, FORWARD, 1, 1)
        count = put(tasks, count, BACKWARD, 0, 0)
    for _ in range(far):
        count = put(tasks, count, BACKWARD, 1, 0)
        count = put(tasks, count, FORWARD, 1, 1)
        count = put(tasks, count, BACKWARD, 0, 0)
    for turn in range(left):
        splits_far = turn > left // 2 or (turn == left // 2 and half % 2 == 1)
        count = put(tasks, count, INPUTS if splits_far else BACKWARD, 1, 0)
        count = put(tasks, count, INPUTS if turn >= left // 2 else BACKWARD, 0, 0)
    for _ in range(far):
        count = put(tasks, count, WEIGHTS, 0, 0)
        count = put(tasks, count, INPUTS, 0, 0)
    for _ in range(left):
        count = put(tasks, count, WEIGHTS, 0, 0)
    return number_tasks(tasks, count, swaps, order)


@kernel(i8(matrix(i8), i8, i8, i8, i8))
def put(tasks: Ints, count: int, kind: int, chunk: int, number: int) -> int:
    """Append a task with its micro-batch, or whether it is paired; return the number of tasks."""
    tasks[count, 0], tasks[count, 1], tasks[count, 2] = kind, chunk, number
    return count + 1


@kernel(i8(matrix(i8), i8, i8, matrix(i8)))
def number_tasks(tasks: Ints, count: int, swaps: int, order: Ints) -> int:
    """Write micro-batch and chunk of each task; return the number of tasks.

    Passes of a chunk follow the order of micro-batches; weight gradients run oldest first.
    """
    forwards, backwards = np.zeros(2, np.int64), np.zeros(2, np.int64)
    waiting = np.zeros((count, 2), np.int64)
    waits, ran = 0, 0
    for task in range(count):
        kind, chunk = tasks[task, 0], tasks[task, 1]
        if kind == WEIGHTS:
            chunk, micro = waiting[ran, 0], waiting[ran, 1]
            ran += 1
        elif kind == FORWARD:
            micro = forwards[chunk]
            forwards[chunk] += 1
        else:
            micro = backwards[chunk]
            backwards[chunk] += 1
            if kind == INPUTS:
                waiting[waits, 0], waiting[waits, 1] = chunk, micro
                waits += 1
        order[task, 0], order[task, 1] = kind, chunk if swaps == 0 else 1 - chunk
        order[task, 2], order[task, 3] = micro, tasks[task, 2]
    return count


@kernel(i8(i8, i8, i8, i8, array(i8, 3), array(i8)))
def fill_orders(
    schedule: int, pp: int, chunks: int, micro_batches: int, orders: Ints, counts: Ints
) -> int:
    """Write the tasks of all ranks in order and their counts; return the total."""
    for rank in range(pp):
        if schedule == DUALPIPE:
            half, swaps = min(rank, pp - 1 - rank), 1 if 2 * rank >= pp else 0
            counts[rank] = fill_paired(half, pp // 2, micro_batches // 2, swaps, orders[rank])
        elif schedule == DUALPIPE_V:
            counts[rank] = fill_paired(rank, pp, micro_batches, 0, orders[rank])
        else:
            counts[rank] = fill_order(schedule, rank, pp, chunks, micro_batches, orders[rank])
    return int(counts.sum())


@kernel(i8(i8, i8, i8, i8))
def stage_of(schedule: int, chunk: int, rank: int, pp: int) -> int:
    """Return the pipeline stage of a rank's chunk; stages of a second copy follow the first."""
    if schedule == DUALPIPE_V and chunk == 1:
        return 2 * pp - 1 - rank
    if schedule == DUALPIPE and chunk == 1:
        return pp + pp - 1 - rank
    return chunk * pp + rank


RANK, DURATION, NEEDED, HOPS, PAIRED = 0, 1, 2, 3, 4
"""Columns of a task: rank, chunk x `KINDS` + kind, position of its predecessor (-1: none), whether
the predecessor is on another rank, and whether the task is paired with the next one."""

KINDS = 4


@kernel(i8(i8, i8, i8, i8, i8, matrix(i8)))
def needed_by(kind: int, stage: int, micro: int, length: int, lanes: int, places: Ints) -> int:
    """Return the position of a task's predecessor: -1 for none, -2 if not yet written.

    Stages are numbered over all copies of the model; one copy has `length` stages. `places` has the
    positions of passes by stage and micro-batch, forwards before backwards.
    """
    if kind == WEIGHTS or (kind == FORWARD and stage % length == 0):
        return -1
    before = stage - 1
    if kind != FORWARD:
        before = stage if stage % length == length - 1 else lanes + stage + 1
    return int(places[before, micro])


@kernel(i8(i8, i8, i8, i8, array(i8, 3), array(i8), matrix(i8)))
def fill_sorted(
    schedule: int, pp: int, lanes: int, micro_batches: int, orders: Ints, counts: Ints, tasks: Ints
) -> int:
    """Write all tasks in dependency order; return their number.

    `orders` has (kind, chunk, micro-batch, whether paired with the next) of each rank in order;
    tasks have the columns from `RANK` on. Fewer tasks are written if ranks wait for each other.
    """
    length = pp if schedule == DUALPIPE else lanes
    places = np.full((2 * lanes, micro_batches), -2, np.int64)
    turn = np.zeros(pp, np.int64)
    written, before = 0, -1
    while written > before:
        before = written
        for rank in range(pp):
            while turn[rank] < counts[rank]:
                together = 1 + orders[rank, turn[rank], 3]
                can = True
                for task in range(together):
                    kind, chunk, micro, _ = orders[rank, turn[rank] + task]
                    stage = stage_of(schedule, chunk, rank, pp)
                    if needed_by(kind, stage, micro, length, lanes, places) == -2:
                        can = False
                if not can:
                    break
                for _ in range(together):
                    kind, chunk, micro, is_paired = orders[rank, turn[rank]]
                    stage = stage_of(schedule, chunk, rank, pp)
                    needs = needed_by(kind, stage, micro, length, lanes, places)
                    if kind != WEIGHTS:
                        places[(0 if kind == FORWARD else lanes) + stage, micro] = written
                    tasks[written, 0] = rank
                    tasks[written, 1] = stage % length * 4 + kind
                    tasks[written, 2] = needs
                    tasks[written, 3] = 1 if needs >= 0 and tasks[needs, 0] != rank else 0
                    tasks[written, 4] = is_paired
                    written += 1
                    turn[rank] += 1
    return written


@functools.lru_cache(maxsize=512)
def sorted_tasks(schedule: int, pp: int, chunks: int, micro_batches: int) -> Ints:
    """Return all tasks of a pipeline in dependency order."""
    orders = np.zeros((pp, MOST_TASKS * micro_batches * chunks, KINDS), np.int64)
    counts = np.zeros(pp, np.int64)
    count = fill_orders(schedule, pp, chunks, micro_batches, orders, counts)
    lanes = pp * (2 if schedule == DUALPIPE else chunks)
    tasks = np.zeros((count, 5), np.int64)
    written = fill_sorted(schedule, pp, lanes, micro_batches, orders, counts, tasks)
    assert written == count, f"{schedule}: ranks of {pp} x {chunks} wait for each other"
    return tasks
