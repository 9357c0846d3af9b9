"""KV block accounting and admission, worked out by hand, one call at a time."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.serving.engine import kv_cache
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import View, push_waiting

LIMITS = (
    "BLOCK",
    "WATERMARK",
    "MAX_NUM_SEQS",
    "MAX_BATCH_SEQS",
    "RESERVED",
    "SWAP_CAPACITY",
    "NUM_DRAFT_TOKENS",
    "SLOTS_BEYOND_END",
)
CAPACITY = 4  # of the queue and of a batch
NO_TREE = np.zeros((0, at.TREE_COLUMNS), np.int64)


def view(*requests: dict[str, int], **numbers: int) -> View:
    """Return a replica with these requests, limits and counters; all others are zero.

    BLOCK is 16, there are three seats and 100 blocks free if nothing else is said.
    """
    limits, pool = np.zeros(at.LIMITS, np.int64), np.zeros(at.POOL_COLUMNS, np.int64)
    rows = np.zeros((max(1, len(requests)), at.REQUEST_COLUMNS), np.int64)
    times = np.full((len(rows), at.TIME_COLUMNS), -1.0)
    waiting, idle, batch, tokens = np.zeros((4, CAPACITY), np.int64)
    gauge = np.zeros(at.GAUGE_COLUMNS)
    known = {"BLOCK": 16, "MAX_NUM_SEQS": 3, "MAX_BATCH_SEQS": 3, "FREE_BLOCKS": 100} | numbers
    for name, number in known.items():
        (limits if name in LIMITS else pool)[getattr(at, name)] = number
    for row, given in zip(rows, requests, strict=False):
        for name, number in given.items():
            row[getattr(at, name)] = number
    return View(limits, pool, rows, times, waiting, idle, batch, tokens, NO_TREE, gauge)


def of(here: View, *names: str) -> list[int]:
    """Return counters of a replica."""
    return [int(here.pool[getattr(at, name)]) for name in names]


def held(here: View, who: int, *names: str) -> list[int]:
    """Return what is known of a request."""
    return [int(here.request[who, getattr(at, name)]) for name in names]


def queued(here: View, *members: int) -> View:
    """Let requests wait, in this order."""
    for who in members:
        push_waiting(here.pool, here.waiting, who)
    return here


def idling(here: View, *members: int) -> View:
    """Let requests hold memory without a batch."""
    here.running[: len(members)] = members
    here.pool[at.RUNNING] = len(members)
    return here


def seated(here: View) -> list[tuple[int, int]]:
    """Return the batch: who has how many tokens."""
    count = here.pool[at.BATCH_SIZE]
    return list(zip(here.batch[:count].tolist(), here.tokens[:count].tolist(), strict=True))


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (33, 3)])
def test_block_is_allocated_for_the_first_token(tokens: int, blocks: int) -> None:
    assert kv_cache.blocks_for(tokens, 16) == blocks


def test_admission_keeps_the_watermark_free() -> None:
    here = view(FREE_BLOCKS=10, NUM_RUNNING=1, WATERMARK=3)
    assert kv_cache.has_free_blocks(here.limits, here.pool, 7)
    assert not kv_cache.has_free_blocks(here.limits, here.pool, 8)


def test_blocks_are_allocated_extended_and_freed() -> None:
    here = view({}, FREE_BLOCKS=20, NUM_RUNNING=1)
    assert kv_cache.allocate(here.pool, here.request, 0, 6, 0) == 14
    assert of(here, "FREE_BLOCKS", "NUM_RUNNING") == [14, 2]
    assert kv_cache.append_blocks(here.pool, here.request, 0, 3) == 11
    assert kv_cache.append_blocks(here.pool, here.request, 0, 0) == 11
    assert kv_cache.append_blocks(here.pool, here.request, 0, -2) == 11
    assert of(here, "FREE_BLOCKS", "NUM_RUNNING") == [11, 2]
    assert held(here, 0, "BLOCKS") == [9]
    assert kv_cache.release(here.limits, here.pool, here.request, here.tree, 0) == 20
    assert of(here, "FREE_BLOCKS", "NUM_RUNNING") == [20, 1]
    assert held(here, 0, "BLOCKS") == [0]


@pytest.mark.parametrize(
    ("done", "prompt", "output"),
    [
        (130, 130, 20),  # 30 of 50 tokens are out: they join the prompt
        (100, 100, 50),  # the prompt is done and nothing out
        (40, 100, 50),
    ],
)
def test_recompute_adds_generated_tokens_to_the_prompt(done: int, prompt: int, output: int) -> None:
    mine = {"PROMPT": 100, "OUTPUT": 50, "NUM_COMPUTED": done, "BLOCKS": 9, "NUM_RECOMPUTES": 1}
    here = queued(view({}, mine, FREE_BLOCKS=2, NUM_RUNNING=2, RECOMPUTE_PREEMPTIONS=4), 0)
    assert kv_cache.preempt_recompute(here, 1) == 2  # wait, and it is their head
    assert here.waiting[here.pool[at.WAITING_HEAD]] == 1
    assert of(here, "FREE_BLOCKS", "NUM_RUNNING", "RECOMPUTE_PREEMPTIONS", "WAITING") == [
        11,
        1,
        5,
        2,
    ]
    assert held(here, 1, "PROMPT", "OUTPUT", "NUM_COMPUTED", "BLOCKS", "NUM_RECOMPUTES") == [
        prompt,
        output,
        0,
        0,
        2,
    ]


def test_preempted_request_swaps_if_host_blocks_suffice() -> None:
    mine = {"PROMPT": 10, "NUM_COMPUTED": 90, "BLOCKS": 6, "SWAPPED_BEFORE": 7}
    counts = {
        "FREE_BLOCKS": 1,
        "NUM_RUNNING": 3,
        "NUM_SWAPPED": 2,
        "SWAPPED_BLOCKS": 4,
        "SWAP_PREEMPTIONS": 5,
        "BLOCKS_TO_MOVE": 1,
        "SWAPPED_LAST": 8,
    }
    here = view({}, mine, **counts, SWAP_CAPACITY=10, RECOMPUTE_PREEMPTIONS=20)
    assert kv_cache.preempt(here, 1) == 26  # six swaps and twenty restarts
    assert of(
        here,
        "FREE_BLOCKS",
        "NUM_RUNNING",
        "NUM_SWAPPED",
        "SWAPPED_BLOCKS",
        "SWAP_PREEMPTIONS",
        "BLOCKS_TO_MOVE",
        "SWAPPED_LAST",
        "WAITING",
    ) == [
        7,
        2,
        3,
        10,
        6,
        7,
        1,
        0,
    ]
    assert held(here, 1, "SWAPPED_BEFORE", "BLOCKS", "NUM_COMPUTED") == [8, 6, 90]


def test_preempted_request_recomputes_if_one_host_block_is_missing() -> None:
    counts = {
        "FREE_BLOCKS": 1,
        "NUM_RUNNING": 3,
        "NUM_SWAPPED": 2,
        "SWAPPED_BLOCKS": 5,
        "SWAP_PREEMPTIONS": 5,
    }
    here = view(
        {},
        {"PROMPT": 10, "NUM_COMPUTED": 90, "BLOCKS": 6},
        **counts,
        SWAP_CAPACITY=10,
        RECOMPUTE_PREEMPTIONS=20,
    )
    assert kv_cache.preempt(here, 1) == 26
    assert of(
        here,
        "FREE_BLOCKS",
        "NUM_RUNNING",
        "NUM_SWAPPED",
        "SWAPPED_BLOCKS",
        "SWAP_PREEMPTIONS",
        "RECOMPUTE_PREEMPTIONS",
        "WAITING",
    ) == [
        7,
        2,
        2,
        5,
        5,
        21,
        1,
    ]


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"NUM_SWAPPED": 0}, False),
        ({"NUM_SWAPPED": 1}, True),
        ({"NUM_RUNNING": 3}, False),
        ({"FREE_BLOCKS": 7}, False),
    ],
)
def test_swapped_request_needs_a_running_slot_and_the_watermark(
    changes: dict[str, int], may: bool
) -> None:
    numbers = {
        "NUM_SWAPPED": 2,
        "SWAPPED_LAST": 1,
        "FREE_BLOCKS": 8,
        "WATERMARK": 3,
        "NUM_RUNNING": 2,
    } | changes
    here = view({}, {"BLOCKS": 5}, **numbers)
    assert kv_cache.can_swap_in(here.limits, here.pool, here.request) == may


def test_last_swapped_request_returns_first() -> None:
    counts = {
        "NUM_SWAPPED": 3,
        "SWAPPED_LAST": 2,
        "SWAPPED_BLOCKS": 12,
        "BLOCKS_TO_MOVE": 1,
        "NUM_RUNNING": 1,
    }
    here = view(
        {"BLOCKS": 3, "SWAPPED_BEFORE": 9},
        {"BLOCKS": 4, "SWAPPED_BEFORE": 0},
        {"BLOCKS": 5, "SWAPPED_BEFORE": 1},
        FREE_BLOCKS=14,
        WATERMARK=3,
        MAX_NUM_SEQS=9,
        **counts,
    )
    # 14 - 5 = 9, 9 - 4 = 5; the third would leave 2 of the 3 that stay free.
    assert kv_cache.swap_in(idling(here, 3)) == 1
    assert here.running[:3].tolist() == [3, 2, 1]
    assert of(
        here,
        "NUM_SWAPPED",
        "SWAPPED_LAST",
        "SWAPPED_BLOCKS",
        "BLOCKS_TO_MOVE",
        "NUM_RUNNING",
        "FREE_BLOCKS",
        "RUNNING",
    ) == [
        1,
        0,
        3,
        10,
        3,
        5,
        3,
    ]


def decodes(done: int, blocks: int) -> dict[str, int]:
    """Return a decoding request with a prompt of ten tokens."""
    return {"PROMPT": 10, "OUTPUT": 90, "NUM_COMPUTED": done, "BLOCKS": blocks}


def test_decode_allocates_a_block_when_the_last_is_full() -> None:
    # 33 tokens, the newest of which is not stored yet, are more than two blocks hold; 32 are not.
    here = view(decodes(33, 2), decodes(32, 2), decodes(11, 1), FREE_BLOCKS=5, MAX_NUM_SEQS=4)
    assert kv_cache.schedule_decodes(idling(here, 0, 1, 2)) == 0
    assert seated(here) == [(0, 1), (1, 1), (2, 1)]
    assert [held(here, who, "BLOCKS") for who in range(3)] == [[3], [2], [1]]
    assert of(here, "FREE_BLOCKS", "RUNNING") == [4, 0]


@pytest.mark.parametrize(("beyond", "blocks"), [(0, 0), (4, 1)])
def test_decode_reserves_blocks_for_draft_tokens_up_to_a_limit(beyond: int, blocks: int) -> None:
    longer = decodes(30, 2) | {"OUTPUT": 40}
    here = view(
        longer,
        {"PROMPT": 16, "OUTPUT": 16, "NUM_COMPUTED": 31, "BLOCKS": 2},
        NUM_DRAFT_TOKENS=4,
        SLOTS_BEYOND_END=beyond,
    )
    missing = [kv_cache.blocks_missing(here.limits, here.request, who) for who in (0, 1)]
    assert missing == [1, blocks]  # 34 tokens take a third block; the other's answer ends at 32


def test_chunked_prefills_come_before_unscheduled_decodes() -> None:
    layout = {
        "PROMPT": 50,
        "OUTPUT": 9,
        "NUM_COMPUTED": 50,
        "BLOCKS": 4,
    }  # has computed but not answered
    here = view(decodes(11, 1), layout, decodes(12, 1), decodes(13, 1), MAX_BATCH_SEQS=2)
    assert kv_cache.schedule_decodes(idling(here, 0, 1, 2, 3)) == 1
    assert seated(here) == [(0, 1), (2, 1)]
    assert here.running[:2].tolist() == [1, 3]
    assert of(here, "RUNNING", "FREE_BLOCKS") == [2, 100]


def test_newest_running_request_is_preempted_for_the_oldest() -> None:
    here = view(decodes(33, 2), decodes(11, 1), decodes(40, 3), FREE_BLOCKS=0, NUM_RUNNING=3)
    assert kv_cache.schedule_decodes(idling(here, 0, 1, 2)) == 0
    # The third gives back three blocks, of which the first takes one.
    assert seated(here) == [(0, 1), (1, 1)]
    assert of(
        here, "FREE_BLOCKS", "NUM_RUNNING", "RECOMPUTE_PREEMPTIONS", "WAITING", "RUNNING"
    ) == [2, 2, 1, 1, 0]
    assert held(here, 2, "PROMPT", "OUTPUT", "NUM_COMPUTED") == [40, 60, 0]


def test_free_block_avoids_preemption() -> None:
    here = view(decodes(33, 2), FREE_BLOCKS=1, NUM_RUNNING=1)
    kv_cache.schedule_decodes(idling(here, 0))
    assert (seated(here), of(here, "FREE_BLOCKS", "RECOMPUTE_PREEMPTIONS")) == ([(0, 1)], [0, 0])
    # He takes it, so the second finds none and gives back his own.
    here = view(decodes(33, 2), decodes(11, 1), FREE_BLOCKS=1, NUM_RUNNING=2)
    kv_cache.schedule_decodes(idling(here, 0, 1))
    assert (seated(here), of(here, "FREE_BLOCKS", "RECOMPUTE_PREEMPTIONS")) == ([(0, 1)], [1, 1])


def test_newest_decode_without_a_block_preempts_itself() -> None:
    here = view(decodes(33, 2), decodes(12, 1), FREE_BLOCKS=0, NUM_RUNNING=2, MAX_BATCH_SEQS=2)
    here.pool[at.BATCH_SIZE] = 1  # somebody else
    assert kv_cache.schedule_decodes(idling(here, 0)) == 0
    assert of(
        here,
        "BATCH_SIZE",
        "FREE_BLOCKS",
        "NUM_RUNNING",
        "RECOMPUTE_PREEMPTIONS",
        "WAITING",
        "RUNNING",
    ) == [
        1,
        2,
        1,
        1,
        1,
        0,
    ]
    assert here.waiting[here.pool[at.WAITING_HEAD]] == 0


@pytest.mark.parametrize(
    ("changes", "seat", "may"),
    [
        ({}, True, True),
        ({"NUM_SWAPPED": 1}, True, False),
        ({"NUM_RUNNING": 3}, False, False),
        ({"BATCH_SIZE": 2}, False, False),
    ],
)
def test_admission_needs_a_free_slot_and_no_swapped_request(
    changes: dict[str, int], seat: bool, may: bool
) -> None:
    here = queued(view({}, MAX_BATCH_SEQS=2, **({"NUM_RUNNING": 2, "BATCH_SIZE": 1} | changes)), 0)
    assert kv_cache.has_waiting_slot(here.limits, here.pool) == seat
    assert kv_cache.can_admit(here.limits, here.pool) == may


def test_empty_queue_admits_no_request() -> None:
    here = view({})
    assert not kv_cache.has_waiting_slot(here.limits, here.pool)


def test_prefills_share_the_token_budget_in_queue_order() -> None:
    here = queued(view({"PROMPT": 40}, {"PROMPT": 50}, {"PROMPT": 9}, FREE_BLOCKS=100), 1, 0, 2)
    assert kv_cache.admit_chunks(here, 70, False) == 0
    assert seated(here) == [(1, 50), (0, 20)]
    assert [held(here, who, "BLOCKS") for who in range(3)] == [[2], [4], [0]]
    assert of(here, "FREE_BLOCKS", "NUM_RUNNING", "WAITING") == [94, 2, 1]


def test_token_budget_is_used_to_the_last_token() -> None:
    here = queued(view({"PROMPT": 40}), 0)
    assert kv_cache.admit_chunks(here, 1, False) == 0
    assert seated(here) == [(0, 1)]


def test_unchunked_prefill_allocates_blocks_for_the_whole_prompt() -> None:
    here = queued(view({"PROMPT": 40}, {"PROMPT": 50}, FREE_BLOCKS=100), 1, 0)
    assert kv_cache.admit_chunks(here, 70, True) == 0
    assert seated(here) == [(1, 50), (0, 20)]
    assert [held(here, who, "BLOCKS") for who in range(2)] == [[3], [4]]


@pytest.mark.parametrize(("free", "admitted"), [(10, 2), (9, 1), (6, 1), (5, 0)])
def test_prefills_are_admitted_while_the_watermark_is_free(free: int, admitted: int) -> None:
    # 50 tokens take four blocks, and two stay free while another request runs.
    pool = {"FREE_BLOCKS": free, "WATERMARK": 2, "NUM_RUNNING": 1}
    here = queued(view({"PROMPT": 50}, {"PROMPT": 50}, **pool), 0, 1)
    assert kv_cache.admit_chunks(here, 1000, False) == 1000 - 50 * admitted
    assert of(here, "FREE_BLOCKS", "BATCH_SIZE") == [free - 4 * admitted, admitted]


def test_running_requests_continue_decode_or_prefill() -> None:
    rows = (
        {"PROMPT": 50, "NUM_COMPUTED": 20},
        decodes(12, 1),
        {"PROMPT": 50, "NUM_COMPUTED": 49},
        decodes(10, 1),
    )
    here = idling(view(*rows), 0, 1, 2, 3)
    assert kv_cache.schedule_running(here, 33, True) == 2
    assert seated(here) == [(0, 30), (2, 1)]
    assert here.running[:2].tolist() == [1, 3]
    here = idling(view(*rows), 0, 1, 2, 3)
    assert kv_cache.schedule_running(here, 33, False) == 31
    assert seated(here) == [(1, 1), (3, 1)]
    assert here.running[:2].tolist() == [0, 2]
    assert of(here, "RUNNING") == [2]


def test_running_requests_wait_without_token_budget() -> None:
    layout = {"PROMPT": 50, "NUM_COMPUTED": 20}
    here = idling(view(layout, layout), 0, 1)
    assert kv_cache.schedule_running(here, 25, True) == 0
    assert (seated(here), of(here, "RUNNING")) == ([(0, 25)], [1])
    here = idling(view(decodes(12, 1), decodes(13, 1)), 0, 1)
    assert kv_cache.schedule_running(here, 1, False) == 0
    assert (seated(here), of(here, "RUNNING")) == ([(0, 1)], [1])


@pytest.mark.parametrize(("free", "admitted"), [(20, 2), (19, 1), (10, 1), (9, 0)])
def test_full_reservation_needs_blocks_for_the_longest_output(free: int, admitted: int) -> None:
    rows = ({"PROMPT": 50}, {"PROMPT": 60})
    here = queued(view(*rows, FREE_BLOCKS=free, RESERVED=10, WATERMARK=1), 0, 1)
    assert kv_cache.admit_with_reservation(here) == admitted
    assert seated(here) == [(0, 50), (1, 60)][:admitted]
    assert of(here, "FREE_BLOCKS", "WAITING") == [free - 10 * admitted, 2 - admitted]
