"""Pipelines: when the tasks of all ranks end, from the seconds of a micro-batch's passes.

A task starts when its rank is free and its predecessor has ended; a message between ranks takes
`send_s`. All micro-batches are simulated: a pipeline may look steady and slow down later, when a
slightly slower rank has used up the slack of the ranks before it.

Rows with the same tasks are played side by side, in blocks of `LANES` rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix
from simulators.training.schedule import KINDS, sorted_tasks
from simulators.training.stages import PipelinedModel, chunk_contents

EMBEDDING, DENSE, EXPERTS, HEAD, SEND, BLOCKED, MTP = 0, 3, 6, 9, 12, 13, 14
"""Columns of a row of seconds: forward, input gradients and weight gradients of the embedding, a
dense layer, an expert layer and the head; an overlapped send, and a blocking send; the three passes
of a layer of multi-token prediction with its head."""

COLUMNS = 17

LANES = 8
"""Rows that are played side by side: numbers of a vector register."""


@kernel(i8(matrix(i8), matrix(f8), array(f8, 3)))
def fill_seconds(contents: Ints, parts: Floats, seconds: Floats) -> int:
    """Write the seconds of each kind of task by row and chunk; return the number of chunks.

    `contents` has the columns of `stages.chunk_contents`.
    """
    number = contents.shape[0]
    for chunk in range(number):
        dense, experts, tables, heads, predicting = contents[chunk]
        for row in range(parts.shape[0]):
            part, passes = parts[row], seconds[row, chunk]
            for kind in range(3):
                passes[kind] = dense * part[3 + kind] + experts * part[6 + kind]
                if tables > 0:
                    passes[kind] += part[kind]
                if heads > 0:
                    passes[kind] += part[9 + kind]
                if predicting > 0:
                    passes[kind] += predicting * part[14 + kind]
            if chunk < number - 1:
                passes[0] += part[13]
            if chunk > 0:
                passes[1] += part[13]
            passes[3] = passes[1] + passes[2]
    return int(number)


@kernel(i8(i8, matrix(i8), array(f8, 3), matrix(f8), matrix(f8)))
def play(pp: int, tasks: Ints, seconds: Floats, send_s: Floats, out: Floats) -> int:
    """Write the end of the last task of each row, (blocks, `LANES`); return the number of blocks.

    `seconds` has the time of a task by block, chunk x `KINDS` + kind, and lane. A pair of tasks
    starts together, and the results of both are available when both have ended.
    """
    number = tasks.shape[0]
    ends = np.empty((number + 1, 8))
    rank_ends = np.zeros((pp, 8))
    for block in range(out.shape[0]):
        rank_ends[:] = 0.0
        ends[number] = -np.inf  # of the predecessor -1, which is none
        hop_s, passes = send_s[block], seconds[block]
        task = 0
        while task < number:
            # A loop without other branches, which compiles to vector instructions.
            while task < number and tasks[task, 4] == 0:
                rank, end, takes = rank_ends[tasks[task, 0]], ends[task], passes[tasks[task, 1]]
                needs, hops = ends[tasks[task, 2]], tasks[task, 3] * 1.0
                for lane in range(8):
                    start, arrived = rank[lane], needs[lane] + hop_s[lane] * hops
                    rank[lane] = end[lane] = max(start, arrived) + takes[lane]
                task += 1
            if task < number:  # a pair
                for lane in range(8):
                    start = rank_ends[tasks[task, 0], lane]
                    for one in range(task, task + 2):
                        start = max(start, ends[tasks[one, 2], lane] + hop_s[lane] * tasks[one, 3])
                    takes_s = passes[tasks[task, 1], lane] + passes[tasks[task + 1, 1], lane]
                    ends[task, lane] = ends[task + 1, lane] = start + takes_s
                    rank_ends[tasks[task, 0], lane] = start + takes_s
                task += 2
        for lane in range(8):
            out[block, lane] = rank_ends[:, lane].max()
    return int(out.shape[0])


def pipelines_s(shapes: Ints, models: Sequence[PipelinedModel], parts: Floats) -> Floats:
    """Return the end of the last task of each row's pipeline in seconds.

    `shapes` has schedule, ranks, chunks, micro-batches, layers of the first and the last rank (0:
    even) and the position in `models` of each row; `parts` has the columns from `EMBEDDING` on.
    Rows of equal bytes are played once.
    """
    rows = np.concatenate([shapes, parts.view(np.int64)], axis=1)
    _, first, which = np.unique(
        rows.view(f"V{rows.itemsize * rows.shape[1]}"), return_index=True, return_inverse=True
    )
    distinct, shaped = parts[first], shapes[first]  # rows of one shape follow each other
    starts = np.flatnonzero(np.any(shaped[1:] != shaped[:-1], axis=1)) + 1
    ends = [
        _played(shape, models, mine)
        for shape, mine in zip(
            shaped[[0, *starts.tolist()]].tolist(), np.split(distinct, starts), strict=True
        )
    ]
    return np.asarray(np.concatenate(ends)[which.reshape(-1)], np.float64)


def _played(shape: list[int], models: Sequence[PipelinedModel], parts: Floats) -> Floats:
    schedule, pp, chunks, m, first, last, model = shape
    contents = chunk_contents(models[model], pp, chunks, first, last)
    seconds = np.empty((len(parts), len(contents), KINDS))
    fill_seconds(contents, np.ascontiguousarray(parts), seconds)
    return ends_s(pp, sorted_tasks(schedule, pp, chunks, m), seconds, parts[:, SEND] * (pp > 1))


def ends_s(pp: int, tasks: Ints, seconds: Floats, send_s: Floats) -> Floats:
    """Return the end of the last task of each row.

    `seconds` has the time of a task by row, chunk of the pipeline and kind.
    """
    rows = len(seconds)
    blocks = -(-rows // LANES)
    lanes = np.minimum(np.arange(blocks * LANES), rows - 1).reshape(blocks, LANES)
    passes = np.ascontiguousarray(seconds.reshape(rows, -1)[lanes].transpose(0, 2, 1))
    ends = np.empty((blocks, LANES))
    play(pp, tasks, passes, send_s[lanes], ends)
    return ends.reshape(-1)[:rows]
