"""When the tasks of a pipeline end: ranks run theirs in turn, and wait for what comes from others.

A forward waits for the forward of the layers before it, gradients of inputs for those of the layers
after it; what crosses ranks arrives `send_s` later. Layers are shared out evenly over chunks; where
they do not divide, the chunks with the ends of the model have one less, then the last ones.

Once a pipeline is full, `pp` more micro-batches make every step longer by the same, and by no less
than they take the slowest rank. A long one is played until that is so, and carried on from there.
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats, Ints, array, arrays, f8, i8, kernel, matrix
from simulators.training.schedule.orders import fill_orders

PLAY = f8(i8, i8, array(i8, 3), i8, matrix(f8), f8, matrix(f8), array(f8))
SHARES = i8(i8, i8, i8, i8)
STEP = i8(i8, i8, i8, i8, i8, i8, array(f8), array(f8))
STEPS = i8(*arrays(i8, 6), matrix(f8), matrix(f8))

EMBEDDING, DENSE, EXPERTS, HEAD, SEND, SYNC, BLOCKED = 0, 3, 6, 9, 12, 13, 16
"""Where the seconds of a step's parts stand in its row: forward, gradients of inputs and of weights
of either end and of a layer of either kind; a send; what follows the last task of the first rank,
of the last, and of the others; a send during which its rank computes nothing."""

COLUMNS = 17


@kernel(SHARES)
def layers_of_chunk(chunk: int, chunks: int, layers: int, upto: int) -> int:
    """Return how many of the first `upto` of all layers are in a chunk of the whole pipeline."""
    each, extra = layers // chunks, layers % chunks
    short = chunks - extra if extra > 0 else 0
    first = 0
    for before in range(chunk + 1):
        is_short = short > 0 and (
            before == chunks - 1 or (short > 1 and before == 0)
            or (short > 2 and before > chunks - short and before < chunks - 1)
        )  # fmt: skip
        size = each + (1 if extra > 0 and not is_short else 0)
        if before == chunk:
            return max(0, min(first + size, upto) - first)
        first += size
    return 0


@kernel(PLAY)
def play(
    pp: int,
    chunks: int,
    orders: Ints,
    count: int,
    seconds: Floats,
    send_s: float,
    ends: Floats,
    rank_ends: Floats,
) -> float:
    """Return when the last task ends.

    Args:
        pp: ranks.
        chunks: of layers on each rank.
        orders: of each rank, (kind, chunk, micro-batch) in turn.
        count: of tasks on each rank.
        seconds: of a chunk of the whole pipeline by kind.
        send_s: from one rank to the next.
        ends: room for the end of each task, by kind x chunks + chunk, and micro-batch.
        rank_ends: where the end of each rank's last task is written.
    """
    last = pp * chunks - 1
    ends[:, :] = -1.0
    rank_ends[:] = 0.0
    turn = np.zeros(pp, np.int64)
    left = pp * count
    hop_s = send_s if pp > 1 else 0.0
    while left > 0:
        moved = False
        for rank in range(pp):
            while turn[rank] < count:
                kind, micro = orders[rank, turn[rank], 0], orders[rank, turn[rank], 2]
                where = orders[rank, turn[rank], 1] * pp + rank
                ready = 0.0
                if kind == 0 and where > 0:
                    ready = ends[where - 1, micro]
                    arrived = ready + hop_s
                elif kind == 1 and where < last:
                    ready = ends[last + 2 + where, micro]
                    arrived = ready + hop_s
                elif kind == 1:
                    ready = ends[where, micro]
                    arrived = ready
                else:
                    arrived = 0.0
                if ready < 0.0:
                    break
                end = max(arrived, rank_ends[rank]) + seconds[where, kind]
                ends[kind * (last + 1) + where, micro] = end
                rank_ends[rank] = end
                turn[rank] += 1
                left -= 1
                moved = True
        if not moved:
            return -1.0
    return float(rank_ends.max())


@kernel(i8(i8, i8, i8, array(f8), matrix(f8)))
def fill_seconds(number: int, layers: int, dense: int, parts: Floats, seconds: Floats) -> int:
    """Write what each pass of each chunk of the whole pipeline takes; return how many chunks."""
    for chunk in range(number):
        all_layers = layers_of_chunk(chunk, number, layers, layers)
        dense_layers = layers_of_chunk(chunk, number, layers, dense)
        for kind in range(3):
            seconds[chunk, kind] = (
                dense_layers * parts[3 + kind] + (all_layers - dense_layers) * parts[6 + kind]
            )
            if chunk == 0:
                seconds[chunk, kind] += parts[kind]
            if chunk == number - 1:
                seconds[chunk, kind] += parts[9 + kind]
        if chunk < number - 1:
            seconds[chunk, 0] += parts[16]
        if chunk > 0:
            seconds[chunk, 1] += parts[16]
    return number


@kernel(f8(i8, i8, i8, i8, array(f8)))
def slowest_rank_s(pp: int, chunks: int, layers: int, dense: int, parts: Floats) -> float:
    """Return what one micro-batch takes the rank with the most work."""
    seconds = np.zeros((pp * chunks, 3))
    fill_seconds(pp * chunks, layers, dense, parts, seconds)
    longest = 0.0
    for rank in range(pp):
        mine = 0.0
        for chunk in range(rank, pp * chunks, pp):
            mine += seconds[chunk].sum()
        longest = max(longest, mine)
    return longest


@kernel(STEP)
def step_s(
    schedule: int,
    pp: int,
    chunks: int,
    micro_batches: int,
    layers: int,
    dense: int,
    parts: Floats,
    out: Floats,
) -> int:
    """Write the seconds until every rank has run its tasks, and until what follows them is done."""
    number = pp * chunks
    seconds = np.zeros((number, 3))
    fill_seconds(number, layers, dense, parts, seconds)
    kinds = 3 if schedule == 3 else 2
    if kinds == 2:  # a backward is one task
        seconds[:, 1] += seconds[:, 2]
    tasks = kinds * micro_batches * chunks
    orders = np.zeros((pp, tasks, 3), np.int64)
    count = fill_orders(schedule, pp, chunks, micro_batches, orders)
    ends = np.zeros((kinds * number, micro_batches))
    rank_ends = np.zeros(pp)
    end = play(pp, chunks, orders, count, seconds, parts[12], ends, rank_ends)
    out[0] = out[1] = end
    for rank in range(pp):
        after = parts[13] if rank == 0 else (parts[14] if rank == pp - 1 else parts[15])
        out[1] = max(out[1], rank_ends[rank] + after)
    return count


@kernel(STEPS)
def steps_s(
    schedule: Ints,
    pp: Ints,
    chunks: Ints,
    micro_batches: Ints,
    layers: Ints,
    dense: Ints,
    parts: Floats,
    out: Floats,
) -> int:
    """Write the seconds of each row's pipeline and of its whole step; return how many rows.

    `dense` is the number of leading layers without experts, `parts` as in `EMBEDDING` ff.
    """
    then, later = np.zeros(2), np.zeros(2)
    for row in range(pp.size):
        how, p, v, m = schedule[row], pp[row], chunks[row], micro_batches[row]
        n, first, seconds = layers[row], dense[row], parts[row]
        short = min(m, 2 * p + m % p)
        step_s(how, p, v, short, n, first, seconds, out[row])
        while short < m:
            step_s(how, p, v, short + p, n, first, seconds, then)
            if short + p == m:
                out[row, 0], out[row, 1] = then[0], then[1]
                break
            step_s(how, p, v, short + 2 * p, n, first, seconds, later)
            grown = later[1] - then[1]
            is_steady = abs(grown - (then[1] - out[row, 1])) <= 1e-9 * later[1]
            if is_steady and grown >= p * slowest_rank_s(p, v, n, first, seconds) * (1.0 - 1e-9):
                rounds = (m - short) // p
                for which in range(2):
                    out[row, which] += rounds * (later[which] - then[which])
                break
            short = min(m, 2 * short - m % p)
            step_s(how, p, v, short, n, first, seconds, out[row])
    return pp.size
