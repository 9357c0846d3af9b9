"""Double binary trees: cases worked out by hand, and rank after rank as automata of their own."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from simulators.collectives.events.run import simulate, uncontended_ns
from simulators.collectives.events.state import ALONE, IN_TURN
from simulators.collectives.topologies.blocks import reduction_ns
from simulators.collectives.topologies.plan import plan_of
from tests.parity.astra_sim import request

MEMORY = 3e9  # an addition of m bytes takes m ns: three times a third


@dataclass
class Tree:
    """An in-order binary tree over ranks 0 to n-2 below rank n-1, or the mirror image of it."""

    n: int
    root_is_last: bool
    parent: dict[int, int] = field(default_factory=dict)
    children: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        root, low, high = (self.n - 1, 0, self.n - 2) if self.root_is_last else (0, 1, self.n - 1)
        self.children = {rank: [] for rank in range(self.n)}
        self._join(root, low, high)

    def _join(self, above: int, low: int, high: int) -> None:
        if low > high:
            return
        middle = (low + high) // 2
        self.parent[middle] = above
        self.children[above].append(middle)
        self._join(middle, low, middle - 1)
        self._join(middle, middle + 1, high)


def walked_ns(
    n: int, chunks: int, slots: int, endpoint: int, added: int, delay: Callable[[int, int], int]
) -> int:
    """Return when the last rank has ended its last chunk; messages do not meet.

    A rank takes up its chunks in order, `slots` at a time. A leaf sends after a delay; others wait
    for all children, are delayed and add; what comes down is delayed and, but in leaves, added.
    """
    trees = [Tree(n, root_is_last=k % 2 == 0) for k in range(chunks)]
    queue: list[tuple[int, int, Callable[[int], None]]] = []
    order = itertools.count()
    issued = [0] * n
    busy = [0] * n
    heard: dict[tuple[int, int], int] = {}
    started: set[tuple[int, int]] = set()
    came_down: set[tuple[int, int]] = set()
    last = 0

    def at(time: int, what: Callable[[int], None]) -> None:
        heapq.heappush(queue, (time, next(order), what))

    def start_more(rank: int, now: int) -> None:
        while issued[rank] < chunks and busy[rank] < slots:
            chunk = issued[rank]
            issued[rank] += 1
            busy[rank] += 1
            started.add((rank, chunk))
            if not trees[chunk].children[rank]:
                at(now + endpoint, lambda t, c=chunk: report(rank, c, t))  # type: ignore[misc]
            else:
                all_heard(rank, chunk, now)

    def all_heard(rank: int, chunk: int, now: int) -> None:
        if (rank, chunk) in started and heard.get((rank, chunk), 0) == len(
            trees[chunk].children[rank]
        ):
            at(now + endpoint + added, lambda t: report(rank, chunk, t))

    def report(rank: int, chunk: int, now: int) -> None:
        above = trees[chunk].parent.get(rank)
        if above is None:
            pass_on(rank, chunk, now)
        else:
            at(now + delay(rank, above), lambda t: hear(above, chunk, t))

    def hear(rank: int, chunk: int, now: int) -> None:
        heard[rank, chunk] = heard.get((rank, chunk), 0) + 1
        all_heard(rank, chunk, now)

    def pass_on(rank: int, chunk: int, now: int) -> None:
        nonlocal last
        for below in trees[chunk].children[rank]:
            at(now + delay(rank, below), lambda t, b=below: come_down(b, chunk, t))  # type: ignore[misc]
        busy[rank] -= 1
        last = max(last, now)
        start_more(rank, now)

    def come_down(rank: int, chunk: int, now: int) -> None:
        came_down.add((rank, chunk))
        late = endpoint + (added if trees[chunk].children[rank] else 0)
        at(now + late, lambda t: pass_on(rank, chunk, t))

    for rank in range(n):
        start_more(rank, 0)
    while queue:
        now, _, what = heapq.heappop(queue)
        what(now)
    assert len(came_down) == chunks * (n - 1)
    return last


@settings(max_examples=60, deadline=None)
@given(
    power=integers(1, 5),
    chunks=integers(1, 9),
    slots=integers(1, 5),
    kib=integers(1, 64),
    block=sampled_from(("switch", "ring", "full")),
)
def test_finished_ranks_start_the_next_chunk(
    power: int, chunks: int, slots: int, kib: int, block: str
) -> None:
    n, size = 1 << power, 3072 * kib
    plan = plan_of(f"{block}:{n}", "double_binary_tree", 1e9, 500e-9)

    def delay(a: int, b: int) -> int:
        apart = abs(a - b)
        hops = {"switch": 2, "full": 1}.get(block, min(apart, n - apart))
        return hops * 500 + size

    asked = request("all_reduce", size * chunks, splits=chunks, active=slots)
    wanted = walked_ns(n, chunks, slots, 10, reduction_ns(size, MEMORY), delay)
    assert uncontended_ns([plan], asked[None], np.array([MEMORY]))[0] == wanted


def test_two_chunks_on_four_ranks_run_in_sequence() -> None:
    # Links of 50 ns, twice, and 1 byte/ns: 3,000 bytes take 3,100 ns, and 3,000 ns to be added.
    # First chunk, root 3 above 1 above 0 and 2. Leaves send at 10, rank 1 hears at 3,110 and sends
    # at 6,120, rank 3 hears at 9,220 and has ended at 12,230. Rank 1 hears at 15,330 and has ended
    # at 18,340, the leaves hear at 21,440 and have ended at 21,450.
    # Second chunk, root 0 above 2 above 1 and 3. Rank 3 has started at 12,230, rank 1 at 18,340 and
    # sends at 18,350, so rank 2 hears at 21,450, when it begins. It sends at 24,460, rank 0 hears
    # at 27,560 and has ended at 30,570, rank 2 hears at 33,670 and has ended at 36,680, the leaves
    # hear at 39,780 and have ended at 39,790: 3,110 ns before twice the first chunk's time.
    plan = plan_of("switch:4", "double_binary_tree", 1e9, 50e-9)
    asked = request("all_reduce", 6000, splits=2, active=1)
    assert simulate(plan, asked, MEMORY, mode=ALONE).finish_ns == 39_790


def test_simultaneous_child_messages_queue_at_the_switch() -> None:
    # As above, one chunk. Rank 1's port takes 3,000 ns a message: of 0 and 2, which both send at
    # 10, the second is there at 10 + 2 * 3,050 + 3,000. Rank 1 sends at 12,120, rank 3 hears at
    # 18,220, sends at 21,230, rank 1 hears at 27,330 and sends at 30,340, one after the other.
    plan = plan_of("switch:4", "double_binary_tree", 1e9, 50e-9)
    asked = request("all_reduce", 3000, splits=1, active=1)
    assert simulate(plan, asked, MEMORY, mode=IN_TURN).finish_ns == 30_340 + 3_000 + 6_100 + 10


def test_messages_to_the_opposite_ring_rank_go_clockwise() -> None:
    # Root 3 is two links from rank 1 either way. Up they are 1-2 and 2-3, and down 3-0 and 0-1.
    plan = plan_of("ring:4", "double_binary_tree", 1e9, 50e-9)
    asked = request("all_reduce", 3000, splits=1, active=1)
    up, across, down = 10 + 3_050, 2 * 3_050 + 3_010, 2 * 3_050 + 3_010
    report = simulate(plan, asked, MEMORY, mode=IN_TURN)
    assert report.finish_ns == up + 3_010 + across + down + 3_050 + 10
    assert report.busy_ns[0] == 6_000  # rank 0's clockwise link: its report, and the root's answer


def test_trees_over_several_dimensions_send_whole_chunks() -> None:
    # Four ranks, two by two, one chunk. Alone a visit of a pair takes 10 + 3,100 + 3,010 to its
    # root's end and 3,110 more to its leaf's: 6,120 and 9,230.
    plan = plan_of("switch:2,switch:2", "double_binary_tree", 1e9, 50e-9)
    one = request("all_reduce", 3000, splits=1, active=1, baseline=True)
    # Inner pairs, whose leaves are last, then outer ones.
    assert simulate(plan, one, MEMORY, mode=ALONE).finish_ns == 2 * 9_230
    # Bandwidth-aware orders visit inner pairs again, by the other tree. Its leaves were the roots,
    # which have been done 3,110 ns before the others each time: what they send is there when the
    # others come. So the last visit takes 3,010 + 3,100 + 10.
    two = request("all_reduce", 3000, splits=1, active=1)
    assert simulate(plan, two, MEMORY, mode=ALONE).finish_ns == 2 * 9_230 + 6_120


def test_tree_over_three_dimensions_ends_with_the_last_leaf() -> None:
    # Pairs on a ring, a switch and a full mesh: links of 50 ns are crossed once, twice and once,
    # so 3,000 bytes take 3,050, 3,100 and 3,050 ns. Ranks of a pair that begin together end at the
    # root after 10 + d + 3,010 and at the leaf d + 10 later; the leaves of all visits are last.
    plan = plan_of("ring:2,switch:2,full:2", "double_binary_tree", 1e9, 50e-9)
    one = request("all_reduce", 3000, splits=1, active=1, baseline=True)
    whole = {d: 10 + d + 3_010 + d + 10 for d in (3_050, 3_100)}
    inner, middle = whole[3_050], whole[3_100]
    assert simulate(plan, one, MEMORY, mode=ALONE).finish_ns == inner + middle + inner
    # Bandwidth-aware chunks come back by the other trees, whose leaves were the roots before and
    # have been done for d + 10: their message is there when the new root begins, which then takes
    # 3,010 to its own end and d + 10 more to the leaf's.
    two = request("all_reduce", 3000, splits=1, active=1)
    back = [3_010 + d + 10 for d in (3_100, 3_050)]
    assert simulate(plan, two, MEMORY, mode=ALONE).finish_ns == inner + middle + inner + sum(back)


def test_tree_between_rings_carries_the_ring_shard() -> None:
    # Rings of two scatter 6,000 bytes: 10 + 3,050 + 10 + 3,000. The tree of the 3,000 that are left
    # takes 10 + 3,100 + 3,010 + 3,100 + 10 to its leaf, and to its root's end 3,110 less. The outer
    # rings, of leaves and of roots apart, sum 1,500 each way: 10 + 1,550 + 10 + 1,500, 1,550 + 10.
    # Then the other tree: whoever was the root is a leaf now and has sent before the new root is
    # there. Rings gather 3,000 bytes: 10 + 3,050 + 10.
    plan = plan_of("ring:2,switch:2,ring:2", "ring,double_binary_tree,ring", 1e9, 50e-9)
    asked = request("all_reduce", 6000, splits=1, active=1)
    scattered, tree, outer = 6_070, 9_230, 3_070 + 1_560
    assert simulate(plan, asked, MEMORY, mode=ALONE).finish_ns == (
        scattered + tree + outer + 6_120 + 3_070
    )


@pytest.mark.parametrize(("queues", "ends"), [(1, False), (2, True)])
def test_chunks_sharing_a_queue_can_deadlock(queues: int, ends: bool) -> None:
    plan = plan_of("switch:2,switch:2,full:2", "double_binary_tree", 1e10, 936.25e-9)
    asked = request("all_reduce", 1 << 20, splits=8, active=1, queues=queues)
    assert (simulate(plan, asked, 3.35e12, mode=ALONE).unfinished == 0) == ends
    assert uncontended_ns([plan], asked[None], np.array([3.35e12]))[0] > 0
