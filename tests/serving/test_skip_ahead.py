"""Repetition of decode batches, worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulators.core.jit import Floats
from simulators.serving.engine import batches
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import LOG_COLUMNS
from simulators.serving.engine.token_gaps import GAP_BINS, gap_bin
from tests.serving.cases import limits, pure_python


@pytest.fixture(autouse=True)
def in_python() -> Iterator[None]:
    """Let all kernels run as written, so that prices may be Python functions of a test."""
    with pure_python():
        yield


BLOCK = 4


def deciding(done: list[int], blocks: list[int], output: list[int]) -> Any:
    """Return the state of a batch in slot 1 of requests with prompts of 10 tokens."""
    count = len(done)
    request = np.zeros((count, at.REQUEST_COLUMNS), np.int64)
    request[:, at.PROMPT], request[:, at.OUTPUT] = 10, output
    request[:, at.NUM_COMPUTED], request[:, at.BLOCKS] = done, blocks
    return SimpleNamespace(
        request=request,
        limits=limits(block_size=BLOCK).vector(),
        crossings=np.full((2, BLOCK), 9),
        batch=np.array([[-1] * count, range(count)]),
        sizes=np.array([0, count]),
    )


@pytest.mark.parametrize(
    ("done", "blocks", "output", "holds", "repeats", "crossings"),
    [
        ([11], [3], 90, 9, 8, [0, 0, 1, 0]),  # the second repetition asks for token 13
        ([12], [3], 90, 9, 8, [0, 1, 0, 0]),
        ([13], [3], 90, 9, 8, [1, 0, 0, 0]),  # block 4 is taken by the batch itself
        ([11, 12, 12], [3, 3, 3], 90, 9, 8, [0, 2, 1, 0]),
        ([11], [3], 90, 2, 1, [0, 0, 1, 0]),
        ([11], [3], 5, 99, 3, [0, 0, 1, 0]),  # tokens 12 to 15: one now, three by repetition
        ([12, 11], [3, 3], 5, 99, 2, [0, 1, 1, 0]),
        ([11], [5], 90, 99, 9, [0, 0, 0, 0]),  # more blocks than usual: asked before they are full
        ([13], [4], 90, 99, 86, [1, 0, 0, 0]),
        ([10, 12], [3, 3], 90, 9, 0, None),  # a prompt
        ([9], [3], 90, 9, 0, None),
    ],
)
def test_batch_repeats_until_a_request_ends_or_needs_a_block(
    done: list[int],
    blocks: list[int],
    output: int,
    holds: int,
    repeats: int,
    crossings: list[int] | None,
) -> None:
    state = deciding(done, blocks, [output] * len(done))
    assert batches.possible_repeats.py_func(state, 1, holds) == repeats
    if crossings is not None:
        assert state.crossings.tolist() == [[9] * BLOCK, crossings]


@pytest.mark.parametrize(
    ("stages", "ranks", "replica", "stopped"),
    [(1, 1, 1, [1]), (2, 1, 1, [2, 3]), (1, 2, 3, [2, 3]), (1, 2, 0, [0, 1])],
)
def test_ranks_and_stages_stop_repeating_together(
    stages: int, ranks: int, replica: int, stopped: list[int]
) -> None:
    rounds = np.full((6, at.ROUND_COLUMNS), 7)
    allowed = limits(stages=stages, ranks=ranks).vector()
    state: Any = SimpleNamespace(limits=allowed, own=allowed[None], rounds=rounds)
    assert batches.stop_repeating.py_func(state, replica) == stages
    assert np.flatnonzero(rounds[:, at.REPEATS] == 0).tolist() == stopped
    assert (rounds[:, [at.REPEATED, at.KEYS_PER_REPEAT, at.COUNTS_ITERATION]] == 7).all()


def repeating(*, stages: int = 1, log_rows: int = 0) -> Any:
    """Return a state in which the batch of slot `stages` ends at 2, and may be repeated 9 times.

    It is the first of the second replica. Two requests; each iteration takes a second, and their
    keys, 20, grow by 2; the second repetition takes three blocks.
    """
    slots = 2 * stages
    state = SimpleNamespace(
        limits=limits(block_size=BLOCK).vector(),
        own=limits(block_size=BLOCK).vector()[None],
        pool=np.zeros((2, at.POOL_COLUMNS), np.int64),
        gauge=np.zeros((2, at.GAUGE_COLUMNS)),
        ends=np.full((2, stages), 2.0),
        stages=np.full((2, stages), 2.0),
        in_flight=np.tile(np.arange(stages), (2, 1)),
        rounds=np.zeros((slots, at.ROUND_COLUMNS), np.int64),
        timing=np.zeros((slots, at.TIMING_COLUMNS)),
        crossings=np.zeros((slots, BLOCK), np.int64),
        priced=np.zeros((slots, at.STEP_COLUMNS)),
        price=np.zeros((slots, at.PRICE_COLUMNS)),
        step=np.zeros((slots, at.STEP_COLUMNS)),
        sizes=np.full(slots, 2),
        gaps=np.zeros(GAP_BINS, np.int64),
        clock=np.zeros(at.CLOCK_COLUMNS, np.int64),
        log=np.zeros((log_rows, len(LOG_COLUMNS))),
        shape=[None],
        table=[None],
    )
    state.pool[1, [at.TOTAL_BLOCKS, at.FREE_BLOCKS, at.IN_FLIGHT, at.MAX_USED_BLOCKS]] = (
        20,
        12,
        1,
        9,
    )
    state.gauge[1, at.CLOCK_S] = 1.0
    state.rounds[stages] = [9, 0, 2, 1]
    state.crossings[stages, 2] = 3
    state.priced[stages, at.DECODE_KV] = 20.0
    state.price[stages, [at.BASE_S, at.STAGE_BASE_S]] = 1.0
    state.price[stages, at.UNTIL_KV] = inf
    return state


def unpriced(*_: object) -> float:
    """Refuse to be asked."""
    raise AssertionError


@pytest.mark.parametrize(
    ("changes", "until", "ends", "ended", "made", "free"),
    [
        ({}, 2.0, 0, 2.0, 0, 12),  # nothing before the instant itself
        ({}, 2.5, 0, 3.0, 1, 12),
        ({}, 3.0, 0, 3.0, 1, 12),
        ({}, 3.5, 0, 4.0, 2, 9),
        ({"repeats": 1}, 9.0, 1, 3.0, 1, 12),
        ({"repeats": 0}, 9.0, 1, 2.0, 0, 12),
        ({"free": 4}, 3.5, 0, 4.0, 2, 1),  # one is left for whoever comes
        ({"free": 3}, 3.5, 1, 3.0, 1, 3),
        ({"made": 3}, 5.5, 0, 6.0, 7, 9),  # the sixth round is the second modulo four
    ],
)
def test_batch_repeats_up_to_a_time(
    changes: dict[str, float], until: float, ends: int, ended: float, made: int, free: int
) -> None:
    state = repeating()
    state.rounds[1, at.REPEATS] = changes.get("repeats", 9)
    state.rounds[1, at.REPEATED] = changes.get("made", 0)
    state.pool[1, at.FREE_BLOCKS] = changes.get("free", 12)
    assert batches.repeat_first.py_func(unpriced, state, 1, until) == ends
    assert (state.ends[1, 0], state.pool[1, at.FREE_BLOCKS]) == (ended, free)
    assert state.rounds[1, at.REPEATED] == made
    assert state.ends[0, 0] == 2.0


def test_repetitions_count_as_iterations() -> None:
    state = repeating(log_rows=1)
    state.price[1, at.SLOPE_S] = 0.125  # of 22 keys and then of 24: 3.75 and 4 seconds
    assert batches.repeat_first.py_func(unpriced, state, 1, 5.8) == 0
    assert state.ends[1, 0] == 2.0 + 3.75 + 4.0
    assert state.rounds[1].tolist() == [7, 2, 2, 1]
    assert state.priced[1, at.DECODE_KV] == 24.0
    pool, gauge = state.pool[1], state.gauge[1]
    assert pool[[at.FREE_BLOCKS, at.MAX_USED_BLOCKS]].tolist() == [9, 11]
    assert pool[[at.ITERATIONS, at.BATCHED_REQUESTS, at.BATCHED_TOKENS]].tolist() == [2, 4, 4]
    assert gauge[at.BLOCK_SECONDS] == 8 * (1.0 + 3.75)  # the three are taken at 5.75
    assert gauge[at.CLOCK_S] == 5.75
    assert gauge[at.GAPS_S] == 2 * (3.75 + 4.0)
    assert state.timing[1, at.LONGEST_S] == 4.0
    assert [state.gaps[gap_bin.py_func(gap)] for gap in (3.75, 4.0)] == [2, 2]
    assert state.gaps.sum() == 4
    assert state.clock[at.LOG_ROWS] == 1
    assert state.log[0, [0, 1, 2]].tolist() == [1.0, 2.0, 5.75]
    assert not state.pool[0].any()


def test_itl_at_a_bin_edge_is_counted_in_the_bin() -> None:
    """Bins hold their lower edge and not the upper; the last gap's bin is remembered."""
    for gap, low, high, remembered in ((1.0, 1.0, 2.0, True), (2.0, 1.0, 2.0, False)):
        state = repeating()
        state.price[1, at.BASE_S] = gap
        state.timing[1, [at.BIN_LOW_S, at.BIN_HIGH_S, at.BIN]] = low, high, 5
        batches.repeat_first.py_func(unpriced, state, 1, 2.5)
        assert (state.gaps[5] == 2) == remembered
        assert state.gaps.sum() == 2
        if not remembered:
            edges = state.timing[1, [at.BIN_LOW_S, at.BIN_HIGH_S]].tolist()
            assert edges == [2.0, 2.0 + 2.0 / 256]


def test_iteration_time_is_looked_up_again_at_the_segment_end() -> None:
    asked: list[float] = []

    def price(step: Floats, shape: None, table: None, out: Floats) -> float:
        asked.append(step[at.DECODE_KV])
        out[[at.BASE_S, at.UNTIL_KV]] = 0.5, 27.0
        return 0.5

    state = repeating()
    state.price[1, at.UNTIL_KV] = 24.0
    assert batches.repeat_first.py_func(price, state, 1, 4.2) == 0
    assert asked == [24.0, 28.0]  # 22 is below, 26 below the next
    assert state.ends[1, 0] == 2.0 + 1.0 + 3 * 0.5


def test_pipeline_batches_alternate() -> None:
    # Three places, two in flight, which end at 2 and 3 and are repeated at once; each passes three
    # stages of a second, free at 2, so one ends at 5 and the other, a second behind it, at 6.
    state = repeating(stages=3)
    state.pool[1, [at.IN_FLIGHT, at.OLDEST]] = 2, 2
    state.in_flight[1] = [1, 2, 0]  # from the third: places 0 and 1 are in flight, 2 is free
    state.ends[1] = [2.0, 2.5, 99.0]
    state.stages[1] = [1.0, 1.0, 2.5]
    for slot in (3, 4):
        state.rounds[slot] = [9, 0, 2, 1]
        state.price[slot, [at.BASE_S, at.STAGE_BASE_S]] = 1.0
        state.price[slot, at.UNTIL_KV] = inf
    state.crossings[:] = 0
    assert batches.repeat_first.py_func(unpriced, state, 1, 4.9) == 0
    assert state.ends[1].tolist() == [5.0, 6.0, 99.0]
    assert state.rounds[:, at.REPEATED].tolist() == [0, 0, 0, 1, 1, 0]
    oldest, ring = int(state.pool[1, at.OLDEST]), state.in_flight[1].tolist()
    assert [ring[(oldest + turn) % 3] for turn in range(3)] == [0, 1, 2]
    assert oldest == 1
    assert state.timing[3:5, at.STALL_S].tolist() == [0.0, 0.5]


def test_stage_time_grows_with_keys_above_a_minimum() -> None:
    price, stages = np.zeros(at.PRICE_COLUMNS), np.zeros(2)
    price[[at.STAGE_BASE_S, at.STAGE_SLOPE_S, at.STAGE_MIN_S]] = 1, 0.5, 4
    ends = [batches.pass_stages.py_func(price, keys, 0 * stages, 0.0)[0] for keys in (4.0, 8.0)]
    assert ends == [4.0, 5.0]


def test_time_waits_and_energy_of_a_batch_on_three_stages() -> None:
    # 10 keys. A stage works for 1 + 0.1 * 10 but takes no less than 4, and 1 besides: 5, of which 3
    # it waits. The last works for 2 + 0.5 * 10 = 7 and takes no less than 6, and 2 besides: 9.
    price = np.zeros(at.PRICE_COLUMNS)
    price[[at.STAGE_BASE_S, at.STAGE_SLOPE_S, at.STAGE_MIN_S, at.STAGE_ADDED_S]] = 1, 0.1, 4, 1
    price[[at.BASE_S, at.SLOPE_S, at.MIN_S, at.ADDED_S]] = 2, 0.5, 6, 2
    price[[at.BASE_J, at.SLOPE_J, at.WAITING_W]] = 100, 3, 10
    for leads in (0, 1):
        stages, timing = np.array([1.0, 9.0, 3.0]), np.zeros(at.TIMING_COLUMNS)
        gauge = np.zeros(at.GAUGE_COLUMNS)
        timing[at.STALL_S] = 7.0
        end = batches.run_stages.py_func(price, 10.0, stages, timing, gauge, 2.0, leads)
        assert end == 2.0 + 5.0 + 2.0 + 5.0 + 9.0  # it finds the second stage taken until 9
        assert stages.tolist() == [7.0, 14.0, 23.0]
        assert timing[at.STALL_S] == 9.0
        waits = (9.0 - 7.0) + 2 * (5.0 - 2.0)
        wanted = [19.0, 100 + 30 + 10 * waits] if leads else [0.0, 0.0]
        assert gauge[[at.BUSY_S, at.JOULES]].tolist() == wanted
