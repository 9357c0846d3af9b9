"""What a preempted request leaves in a prefix cache, until others take its blocks."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.core.errors import Infeasible
from simulators.serving.engine.admission import admit_chunks
from simulators.serving.engine.kv_cache import leave_prefix, prefix_left
from simulators.serving.engine.replica import (
    BATCH_SEATS,
    BLOCK,
    BLOCKS,
    DONE,
    FREE,
    KEEPS,
    LEFT_BLOCKS,
    LIMITS,
    POOL_COLUMNS,
    PROMPT,
    REQUEST_COLUMNS,
    SEATS,
    TAKEN,
    TIME_COLUMNS,
    View,
    push_waiting,
)
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of


@pytest.mark.parametrize(
    ("taken", "tokens"), [(0, 96), (5, 96), (6, 80), (9, 32), (11, 0), (1000, 0)]
)
def test_others_overwrite_free_blocks_first_and_then_the_last_of_a_request(
    taken: int, tokens: int
) -> None:
    limits, pool = np.zeros(LIMITS, np.int64), np.zeros(POOL_COLUMNS, np.int64)
    request = np.zeros((1, REQUEST_COLUMNS), np.int64)
    limits[[BLOCK, KEEPS]], pool[FREE] = (16, 1), 5
    request[0, PROMPT], request[0, DONE] = 103, 103
    assert leave_prefix(limits, pool, request, 0) == 6
    pool[TAKEN] += taken
    assert prefix_left(limits, pool, request, 0) == tokens


def test_one_token_at_least_is_computed_again() -> None:
    limits, pool = np.zeros(LIMITS, np.int64), np.zeros(POOL_COLUMNS, np.int64)
    request = np.zeros((1, REQUEST_COLUMNS), np.int64)
    limits[[BLOCK, KEEPS]] = 16, 1
    request[0, PROMPT], request[0, DONE] = 96, 96
    leave_prefix(limits, pool, request, 0)
    assert prefix_left(limits, pool, request, 0) == 80


def test_what_is_left_counts_as_done_at_the_next_admission() -> None:
    limits, pool = np.zeros(LIMITS, np.int64), np.zeros(POOL_COLUMNS, np.int64)
    request, times = np.zeros((1, REQUEST_COLUMNS), np.int64), np.zeros((1, TIME_COLUMNS))
    waiting, idle, batch, tokens = np.zeros((4, 2), np.int64)
    limits[[BLOCK, SEATS, BATCH_SEATS]], pool[[FREE, TAKEN]] = (16, 1, 1), (20, 1)
    request[0, PROMPT], request[0, LEFT_BLOCKS] = 100, 4
    push_waiting(pool, waiting, 0)
    view = View(limits, pool, request, times, waiting, idle, batch, tokens)
    left = admit_chunks(view, 2048, False)
    assert (tokens[0], left) == (52, 2048 - 52)
    assert (request[0, DONE], request[0, BLOCKS], pool[FREE]) == (48, 7, 13)


def test_a_scheduler_without_a_prefix_cache_says_so() -> None:
    point = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", preemption="cached", requests=2)
    with pytest.raises(Infeasible, match="vllm_has_no_prefix_cache"):
        run_of(point)
