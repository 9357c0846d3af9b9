"""Messages on links and in queues, followed by hand.

Links take 100 ns and 1 byte/ns, a rank 10 ns before its first message and after each it hears, and
to add m bytes, of which it reads two and writes one, 3/2 m ns. So a message of 1,000 bytes takes
1,100 ns over a link and 1,500 ns to be added.
"""

from __future__ import annotations

import numpy as np
import pytest

from simulators.collectives.events.links import DOWN, LEAF_DOWN, LEAF_UP, UP
from simulators.collectives.events.loop import run
from simulators.collectives.events.run import Report, simulate, state_of, uncontended_ns
from simulators.collectives.events.state import IN_TURN, SHARED
from simulators.collectives.phase_model import flow_shop_ns
from simulators.collectives.topologies.plan import plan_of
from simulators.core.jit import Floats, Ints
from tests.parity.astra_sim import request

AR, AG, RS, A2A = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
MEMORY = 2e9


def asking(
    collective: str, size: int, *, splits: int = 1, active: int = 1, queues: int = 1
) -> Ints:
    """Return a request, by default of one chunk."""
    return request(collective, size, splits=splits, active=active, queues=queues)


def taken(
    network: str,
    algorithm: str,
    collective: str,
    size: int,
    *,
    mode: int = IN_TURN,
    every_rank: bool = False,
    **settings: int,
) -> Report:
    """Return what a run of so many bytes reports; of all-gathers they are a rank's share."""
    plan, asked = plan_of(network, algorithm, 1e9, 100e-9), asking(collective, size, **settings)
    return simulate(plan, asked, MEMORY, mode=mode, every_rank=every_rank)


def alone_ns(network: str, algorithm: str, collective: str, size: int, **settings: int) -> int:
    """Return the time without contention."""
    plan, asked = plan_of(network, algorithm, 1e9, 100e-9), asking(collective, size, **settings)
    return int(uncontended_ns([plan], asked[None], np.array([MEMORY]))[0])


def links_ns(network: str, algorithm: str, collective: str) -> Floats:
    """Return how long each link of each rank is in use, for 1,000 bytes."""
    plan = plan_of(network, algorithm, 1e9, 100e-9)
    asked = asking(collective, 1_000)
    state = state_of(plan, asked, MEMORY, every_rank=True, mode=IN_TURN, slack=1)
    run(state, 1_000)
    return state.busy_ns.reshape(plan.ranks, -1)


# Four ranks with links between all of them; what is cut is cut into 1,000 bytes.
STEP = 1_100 + 10
MESH = [
    ("ring", RS, 4_000, 10 + 3 * (STEP + 1_500)),
    ("ring", AG, 1_000, 10 + 3 * STEP),
    ("ring", AR, 4_000, 10 + 3 * (STEP + 1_500) + 3 * STEP),
    ("ring", A2A, 4_000, 10 + 6 * STEP),  # a block to the third rank passes two others
    ("direct", RS, 4_000, 10 + STEP + 1_500),
    ("direct", AG, 1_000, 10 + STEP),
    ("direct", A2A, 4_000, 10 + STEP),
    ("direct", AR, 4_000, 10 + STEP + 1_500 + STEP),
    ("direct:1", RS, 4_000, 10 + 3 * STEP + 2 * 1_500),  # every second is charged for adding
    ("direct:1", AG, 1_000, 10 + 3 * STEP),
    ("direct:1", AR, 4_000, 10 + 6 * STEP + 2 * 1_500),
    ("direct:2", AG, 1_000, 10 + 2 * STEP),  # the third when the first has come
    ("direct:9", AG, 1_000, 10 + STEP),
    ("halving_doubling", RS, 4_000, 10 + (2_100 + 10) + (STEP + 1_500)),
    ("halving_doubling", AG, 1_000, 10 + STEP + (2_100 + 10)),
    ("halving_doubling", AR, 4_000, 10 + 2 * (2_100 + 10) + 2 * STEP + 1_500),
    ("ring", "broadcast", 1_000, 10 + 3 * STEP),
    ("direct", "broadcast", 1_000, 10 + STEP),
    ("halving_doubling", "broadcast", 1_000, 10 + 2 * STEP),
    ("direct", "send_recv", 1_000, 10 + STEP),
]


@pytest.mark.parametrize(("algorithm", "collective", "size", "wanted"), MESH)
def test_algorithm_times_on_four_ranks_match_closed_forms(
    algorithm: str, collective: str, size: int, wanted: int
) -> None:
    assert alone_ns("full:4", algorithm, collective, size) == wanted
    for mode in (IN_TURN, SHARED):
        for every_rank in (False, True):
            report = taken("full:4", algorithm, collective, size, mode=mode, every_rank=every_rank)
            assert report.finish_ns == wanted
            assert report.sent == report.delivered == report.link_events or mode == SHARED


def test_halving_doubling_on_eight_ranks_matches_the_sum_of_steps() -> None:
    halves = (4_000, 2_000, 1_000)
    down = sum(100 + m + 10 for m in halves)
    wanted = 10 + down + 3_000 + 1_500 + down
    assert alone_ns("full:8", "halving_doubling", AR, 8_000) == wanted
    assert taken("full:8", "halving_doubling", AR, 8_000).finish_ns == wanted


def test_messages_of_a_rank_serialize_at_the_port() -> None:
    # To the next rank at 10, to the one after at 1,010; of the two that go to a rank the second is
    # at the switch at 2,110 and there at 3,210.
    report = taken("switch:3", "direct", AG, 1_000)
    assert report.finish_ns == 10 + 3 * 1_000 + 2 * 100 + 10
    assert report.busy_ns[0] == 2_000
    # Side by side both take twice as long, and nothing is stored at the switch.
    shared = taken("switch:3", "direct", AG, 1_000, mode=SHARED)
    assert shared.finish_ns == 10 + 2 * 1_000 + 2 * 100 + 10
    assert shared.busy_ns[0] == 2_000


@pytest.mark.parametrize("every_rank", [False, True])
def test_ring_messages_take_the_shorter_direction_and_clockwise_on_ties(
    every_rank: bool,
) -> None:
    # Clockwise a rank's own to the next, its own to the one after, and what passes by, which is
    # there at 2,110 and leaves then. Anticlockwise goes but one.
    report = taken("ring:4", "direct", AG, 1_000, every_rank=every_rank)
    assert report.finish_ns == 10 + 3 * 1_000 + 2 * 100 + 10
    assert report.busy_ns[0] == 3_000
    shared = taken("ring:4", "direct", AG, 1_000, mode=SHARED, every_rank=every_rank)
    assert shared.finish_ns == 10 + 3 * 1_000 + 2 * 100 + 10


@pytest.mark.parametrize("every_rank", [False, True])
def test_direct_all_gather_starts_after_the_whole_reduce_scatter(every_rank: bool) -> None:
    # From both neighbours at 1,110, from opposite at 3,210, added by 4,720; then all of it again,
    # without adding: another 3,200 and 10.
    report = taken("ring:4", "direct", AR, 4_000, every_rank=every_rank)
    assert report.finish_ns == 4_720 + 3_200 + 10


@pytest.mark.parametrize("every_rank", [False, True])
def test_dimensions_use_separate_links(every_rank: bool) -> None:
    # Inside 2,000 bytes once each way, outside shares of 500 of them three times each way.
    report = taken("full:2,full:4", "ring", AR, 4_000, every_rank=every_rank)
    assert report.busy_ns == (4_000, 3_000, 0, 0)


def test_halving_partners_use_both_ring_directions() -> None:
    # Rank 0 sends 4,000 bytes to its neighbour, 2,000 to the second and 1,000 to the fourth, and
    # passes on 1,000 of three others; of the neighbour's, all but the last go the other way.
    report = taken("ring:8", "halving_doubling", RS, 8_000)
    assert report.busy_ns[0] == 4_000 + 2_000 + 4 * 1_000


@pytest.mark.parametrize("collective", [AR, AG, RS, A2A])
def test_single_rank_sends_no_message(collective: str) -> None:
    assert alone_ns("full:1,full:1", "ring", collective, 4_000) == 0


@pytest.mark.parametrize(
    ("queues", "active", "wanted"),
    [
        (1, 1, 2 * (10 + 3 * STEP)),  # one chunk after the other
        (1, 2, 10 + 6 * 1_000 + 100 + 10),  # both clockwise: the link never rests
        (2, 2, 10 + 3 * STEP),  # the second half of the queues goes the other way
    ],
)
@pytest.mark.parametrize("every_rank", [False, True])
def test_second_half_of_queues_runs_anticlockwise(
    queues: int, active: int, wanted: int, every_rank: bool
) -> None:
    report = taken(
        "ring:4", "ring", AG, 2_000, splits=2, active=active, queues=queues, every_rank=every_rank
    )
    assert report.finish_ns == wanted


@pytest.mark.parametrize(
    ("collective", "chunks", "active", "queues", "rounds"),
    [
        (AG, 7, 3, 3, 3),  # three queues of one at a time: 3, 2 and 2 chunks
        (AG, 7, 1, 3, 3),
        (AG, 7, 4, 3, 2),  # of two at a time
        (AR, 7, 3, 3, 7),  # half of three queues is one
        (AR, 7, 4, 4, 4),
        (AR, 7, 8, 4, 2),
        (AR, 7, 6, 6, 3),
        (AR, 7, 1, 1, 7),
        (AR, 7, 7, 1, 1),
    ],
)
def test_dimension_processes_a_limited_number_of_chunks(
    collective: str, chunks: int, active: int, queues: int, rounds: int
) -> None:
    each = {AG: 10 + 3 * STEP, AR: 10 + 3 * (STEP + 1_500) + 3 * STEP}[collective]
    size = {AG: 1_000, AR: 4_000}[collective] * chunks
    wanted = each * rounds
    settings = {"splits": chunks, "active": active, "queues": queues}
    assert alone_ns("full:4", "ring", collective, size, **settings) == wanted


def test_chunk_waits_for_the_slower_dimension() -> None:
    # Two rings of two; a chunk of 4,000 bytes scatters 2,000 inside, sums 1,000 each way outside
    # and gathers 2,000 inside.
    scatter, outer, gather = 10 + 2_110 + 3_000, 10 + STEP + 1_500 + STEP, 10 + 2_110
    assert alone_ns("full:2,full:2", "ring", AR, 4_000) == scatter + outer + gather
    assert (scatter, outer, gather) == (5_120, 3_730, 2_120)
    # Of two chunks, one at a time, the second scatters until 10,240. The first is back from outside
    # at 8,850 and gathers behind it; the second is outside until 13,970 and gathers last.
    for wanted, chunks, active in ((13_970 + 2_120, 2, 1), (10_970, 2, 2)):
        settings = {"splits": chunks, "active": active}
        assert alone_ns("full:2,full:2", "ring", AR, 4_000 * chunks, **settings) == wanted
        report = taken("full:2,full:2", "ring", AR, 4_000 * chunks, every_rank=True, **settings)
        assert (report.finish_ns == wanted) == (active == 1)  # two at once share links


def test_four_chunks_queue_for_both_dimensions() -> None:
    # One at a time, as above. Inside, the others wait from the start: the second scatters until
    # 10,240, the third until 15,360 and the fourth until 20,480; then the first gathers, which has
    # been back since 8,850, until 22,600, and after it the second and the third. The fourth is
    # outside until 24,210, when the second gathers: last from 26,840 to 28,960.
    wanted = 20_480 + 4 * 2_120
    settings = {"splits": 4, "active": 1}
    assert alone_ns("full:2,full:2", "ring", AR, 16_000, **settings) == wanted
    report = taken("full:2,full:2", "ring", AR, 16_000, every_rank=True, **settings)
    assert report.finish_ns == wanted


@pytest.mark.parametrize(("first", "second"), [(2, 1), (3, 2), (5, 3)])
def test_five_chunks_with_three_slots_take_two_rounds(first: int, second: int) -> None:
    phases = np.array([[0, 0, 0, 0], [1, 0, 0, 0]])
    durations = np.array([first, second])
    assert flow_shop_ns(5, phases, durations, 3, 1) == 2 * first + second


def test_all_gather_over_two_dimensions_uses_both() -> None:
    # 1,000 bytes three times outside, then the 4,000 of all four inside.
    assert alone_ns("full:2,full:4", "ring", AG, 1_000) == 10 + 3 * STEP + 10 + 4_100 + 10


def test_two_queues_of_a_dimension_run_concurrently() -> None:
    # The second half of the queues gathers: as the first chunk is back it does so at once, at
    # 8,850, while the third scatters. The last scatters until 20,480, sums until 24,210, gathers.
    settings = {"splits": 4, "active": 1, "queues": 2}
    wanted = 20_480 + 3_730 + 2_120
    assert alone_ns("full:2,full:2", "ring", AR, 16_000, **settings) == wanted


@pytest.mark.parametrize(("over", "wanted"), [(1, 6_000), (2, 7_000)])
def test_messages_share_leaf_uplinks(over: int, wanted: int) -> None:
    # Two leaves of two ranks. With one uplink a leaf the four messages that leave it follow each
    # other there from 1,110 to 5,110, the last is down in its leaf at 6,310 and there at 7,410.
    # With two, messages to either rank of the other leaf have one to themselves: rank 0 sends to
    # rank 3 last, at 2,010, and finds its way free.
    report = taken(f"fat_tree:4:2:{over}", "direct", AG, 1_000)
    assert report.finish_ns == 10 + wanted + 4 * 100 + 10


def test_messages_to_other_leaves_queue_at_the_source_leaf() -> None:
    # To five others in three leaves, with half a link's rate out of each: the last comes to its
    # leaf at 5,110, behind three of 2,000 ns each since 2,110, so to the spine at 10,210, when the
    # one before has gone down. It is in its leaf at 12,310 and there at 13,410.
    report = taken("fat_tree:6:2:4", "direct", "broadcast", 1_000)
    assert report.finish_ns == 13_410 + 10
    # All four out of the first leaf, and two into each other one.
    busy_ns = links_ns("fat_tree:6:2:4", "direct", "broadcast")
    assert busy_ns[:, LEAF_UP].tolist() == [8_000, 0, 0, 0, 0, 0]
    assert busy_ns[:, LEAF_DOWN].tolist() == [0, 0, 4_000, 0, 4_000, 0]
    assert busy_ns[:, UP].tolist() == [5_000, 0, 0, 0, 0, 0]
    assert busy_ns[:, DOWN].tolist() == [0, 1_000, 1_000, 1_000, 1_000, 1_000]


def test_fat_trees_of_an_outer_dimension_are_separate() -> None:
    # As with one uplink above, then 4,000 bytes to the neighbour inside.
    report = taken("full:2,fat_tree:4:2:2", "direct", AG, 1_000, every_rank=True)
    assert report.finish_ns == 7_420 + 10 + 4_100 + 10


def test_tree_messages_are_routed_around_a_ring() -> None:
    # Root 7 above 3 above 1 and 5 above the others. Clockwise go, up and down, 0-1, 1-2-3, 3-4-5
    # and so on, and, as neither way is shorter, 3-4-5-6-7 and 7-0-1-2-3; the rest anticlockwise.
    assert links_ns("ring:8", "double_binary_tree", AR)[:, :2].T.tolist() == [
        [2_000, 3_000, 2_000, 2_000, 3_000, 2_000, 1_000, 1_000],
        [0, 1_000, 2_000, 1_000, 1_000, 2_000, 1_000, 0],
    ]


def test_flows_share_oversubscribed_leaf_bandwidth_equally() -> None:
    # Four flows leave each leaf over one link's worth of uplinks: 4,000 ns.
    report = taken("fat_tree:4:2:2", "direct", AG, 1_000, mode=SHARED)
    assert report.finish_ns == 10 + 4 * 1_000 + 4 * 100 + 10
    # Without oversubscription ports are narrower: three flows each.
    report = taken("fat_tree:4:2:1", "direct", AG, 1_000, mode=SHARED)
    assert report.finish_ns == 10 + 3 * 1_000 + 4 * 100 + 10


def test_traffic_inside_a_leaf_uses_no_uplink() -> None:
    # Rank 1's message to rank 2 does.
    report = taken("fat_tree:4:2:1", "ring", "send_recv", 1_000)
    assert report.finish_ns == 10 + 4 * 1_100 + 10
    assert report.link_events == 2 + 4 + 2 + 4
    assert taken("fat_tree:2:2:1", "ring", "send_recv", 1_000).finish_ns == 10 + 2 * 1_100 + 10
