"""Each function of the event loop on hand-written states.

What a batch costs is one second a stage, if nothing else is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np
import pytest

from simulators.core.jit import Floats
from simulators.serving.engine import loop, service
from simulators.serving.engine import replica as at
from simulators.serving.engine.batches import draw
from simulators.serving.engine.kv_cache import allocate
from simulators.serving.engine.loop import delay_first_tokens
from simulators.serving.engine.replica import ReplicaState, View, pop_waiting, schedule_request
from simulators.serving.engine.token_gaps import gap_bin
from tests.serving.cases import asked, limits, linear_price, pure_python

PRICE = linear_price.py_func


@pytest.fixture(autouse=True)
def in_python() -> Iterator[None]:
    """Let all kernels run as written, so that policies may be Python functions of a test."""
    with pure_python():
        yield


def before(
    arrival_s: list[float],
    *,
    replicas: int = 1,
    clients: int = 0,
    log_rows: int = 0,
    **allowed: Any,
) -> ReplicaState:
    """Return the state before requests of 10 tokens arrive that ask for 100."""
    count = len(arrival_s)
    requests = asked(np.array(arrival_s), np.full(count, 10), np.full(count, 100))
    requests.__dict__["clients"] = clients
    return service.initial_state(
        limits(**allowed),
        requests,
        replicas,
        log_rows,
        np.zeros(1, np.int64),
        np.array([1.0, 0, 0]),
    )


def one_that_waits(now: float, view: View) -> int:
    """Schedule the head of the queue alone, in one block."""
    if view.pool[at.WAITING] > 0:
        who = pop_waiting(view.pool, view.waiting)
        allocate(view.pool, view.request, who, 1, 0)
        schedule_request(view, who, int(view.request[who, at.PROMPT]))
    return 1


def all_idle(holds: int = at.UNTIL_CHANGED) -> Any:
    """Return a scheduler of one token for everybody idle."""

    def schedule(now: float, view: View) -> int:
        for i in range(view.pool[at.RUNNING]):
            schedule_request(view, int(view.running[i]), 1)
        view.pool[at.RUNNING] = 0
        return holds

    return schedule


def decoding(state: ReplicaState, replica: int, done: dict[int, int]) -> None:
    """Make requests idle on a replica, by number the tokens that are done."""
    for place, (who, tokens) in enumerate(done.items()):
        state.request[who, at.NUM_COMPUTED], state.request[who, at.BLOCKS] = (
            tokens,
            -(-tokens // 16),
        )
        state.running[replica, place] = who
    state.pool[replica, at.RUNNING] = state.pool[replica, at.NUM_RUNNING] = len(done)


def test_unfinished_requests_are_counted() -> None:
    state = before([0.0] * 4)
    state.clock[at.NEXT_LISTED] = 4  # no further arrivals
    state.times[:, at.COMPLETED] = [-1.0, 0.0, 0.5, -1.0]
    assert loop.run.py_func(None, None, None, state) == 2


@pytest.mark.parametrize(
    ("ends_s", "arrival_s", "clients", "wanted"),
    [
        ([3.0, 1.0, 2.0], inf, 0, (1, inf)),
        ([1.0, 1.0, 2.0], inf, 0, (0, inf)),  # at one instant in the order of replicas
        ([3.0, 1.0, 2.0], 1.5, 0, (1, 1.5)),
        ([3.0, 1.0, 2.0], inf, 1, (1, np.nextafter(2.0, inf))),
        ([1.0, 3.0, 2.0], inf, 1, (0, np.nextafter(2.0, inf))),
        ([3.0, 2.0, 1.0], inf, 1, (2, np.nextafter(2.0, inf))),
        ([2.0, 1.0, 1.0], inf, 1, (1, np.nextafter(1.0, inf))),
        ([3.0, 1.0, 2.0], 1.5, 1, (1, 1.5)),
        ([3.0, 1.0, 2.0], 1.0, 0, "arrives"),  # arrivals come first
        ([3.0, 1.0, 2.0], 0.5, 1, "arrives"),
        ([3.0, 1.0, inf], 2.0, 0, (1, 2.0)),
    ],
)
def test_earliest_replica_advances_to_the_next_event(
    ends_s: list[float],
    arrival_s: float,
    clients: int,
    wanted: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = before([arrival_s, arrival_s], replicas=3, clients=clients)
    state.ends[:, 0], state.pool[:, at.IN_FLIGHT] = ends_s, 1
    state.finishes[:] = ends_s[: state.finishes.size]
    happened: list[object] = []

    def over() -> None:
        state.finishes[:] = inf
        state.pool[:, at.IN_FLIGHT], state.clock[at.NEXT_LISTED] = 0, 2

    def advance(
        schedule: Any, price: Any, state: ReplicaState, who: int, until: float, one: bool
    ) -> None:
        assert one == (clients > 0)
        happened.append((who, until))
        over()

    def route_arrivals(route: Any, price: Any, state: ReplicaState, now: float) -> None:
        assert now == arrival_s
        happened.append("arrives")
        over()

    monkeypatch.setattr(loop, "advance", advance)
    monkeypatch.setattr(loop, "route_arrivals", route_arrivals)
    loop.run.py_func(None, None, None, state)
    assert happened == [wanted]


def test_only_replicas_with_new_requests_schedule() -> None:
    state = before([2.0, 2.0, 7.0], replicas=3, log_rows=9)
    left = loop.run.py_func(one_that_waits, lambda *_: 1, PRICE, state)
    assert left == 3  # they are never scheduled again once idle
    assert state.log[: state.clock[at.LOG_ROWS], :3].tolist() == [
        [1, 2.0, 3.0],
        [1, 3.0, 4.0],
        [1, 7.0, 8.0],
    ]


def test_router_sees_waiting_running_and_just_routed_requests() -> None:
    state = before([5.0, 5.0, 6.0], replicas=2)
    state.pool[:, at.WAITING], state.pool[:, at.NUM_SWAPPED] = [1, 2], [4, 0]
    state.pool[:, at.NUM_RUNNING] = [3, 7]
    state.load[at.LOAD_CHANGED] = 1
    state.clock[at.ARRIVED] = 4
    state.gauge[:, at.CLOCK_S] = 3.0
    seen = []

    def route(arrived: int, queued: Any, running: Any, found: Any, draws: Any) -> int:
        assert not found.any()
        seen.append((int(arrived), queued.tolist(), running.tolist(), draws.tolist()))
        return 1

    assert loop.route_arrivals.py_func(route, PRICE, state, 5.0) == 6
    draws = state.draws.tolist()
    assert seen == [(4, [5, 2], [3, 7], draws[0]), (5, [5, 3], [3, 7], draws[1])]
    assert state.request[:, at.REPLICA].tolist() == [1, 1, at.UNROUTED]
    assert state.request[:2, at.ARRIVAL_ORDER].tolist() == [4, 4]  # they share the order of arrival
    assert state.load[at.LOAD_CHANGED].tolist() == [0, 1]
    assert state.gauge[:, at.REQUEST_SECONDS].tolist() == [0.0, 18.0]  # nine for two seconds


def test_released_request_is_routed_before_a_simultaneous_listed_one() -> None:
    state = before([5.0, 5.0, 0.0], clients=2)
    state.released[0], state.released_req[0], state.clock[at.HEAP_SIZE] = 5.0, 2, 1
    state.times[:, at.SERVICE] = -1.0  # all have passed the frontend
    assert loop.route_arrivals.py_func(lambda *_: 0, PRICE, state, 5.0) == 3
    assert state.waiting[0, :3].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("stages", "waiting", "idle", "swapped", "repeats"),
    [(1, 1, 1, 1, 5), (2, 0, 0, 0, 5), (2, 1, 0, 0, 0), (2, 0, 1, 0, 0), (2, 0, 0, 1, 0)],
)
def test_unscheduled_request_stops_batch_repetition(
    stages: int, waiting: int, idle: int, swapped: int, repeats: int
) -> None:
    state = before([0.0], stages=stages)
    state.pool[0, [at.IN_FLIGHT, at.WAITING, at.RUNNING, at.NUM_SWAPPED]] = (
        stages,
        waiting,
        idle,
        swapped,
    )
    state.rounds[:, at.REPEATS] = 5
    assert loop.form_batches.py_func(None, None, state, 0, 1.0) == stages
    assert (state.rounds[:, at.REPEATS] == repeats).all()


def test_batches_are_formed_while_a_pipeline_slot_is_free() -> None:
    # The second replica has three stages and one batch in flight; its ring continues with places 1
    # and 2. Four blocks of a quarter of a second are moved before the first of the two, once.
    state = before([0.0] * 3, replicas=2, stages=3, move_s=0.25)
    state.pool[1, [at.OLDEST, at.IN_FLIGHT, at.BLOCKS_TO_MOVE]] = 2, 1, 4
    state.in_flight[1] = [1, 2, 0]
    state.waiting[1, :3], state.pool[1, at.WAITING] = [0, 1, 2], 3
    state.rounds[:, at.REPEATS] = 5
    assert loop.form_batches.py_func(one_that_waits, PRICE, state, 1, 5.0) == 3
    assert state.ends.tolist() == [[0.0, 0.0, 0.0], [0.0, 5.0 + 1.0 + 3.0, 5.0 + 1.0 + 4.0]]
    assert state.batch[[4, 5], 0].tolist() == [0, 1]
    assert state.sizes.tolist() == [0, 0, 0, 0, 1, 1]
    assert state.rounds[4].tolist() == state.rounds[5].tolist() == [0, 0, 1, 1]
    assert state.rounds[:3, at.REPEATS].tolist() == [5, 5, 5]
    assert state.pool[:, at.WAITING].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("free", "holds", "repeats"),
    [
        ((7, 3), at.UNTIL_CHANGED, 32),  # two rounds of a block each on the second rank
        ((5, 99), at.UNTIL_CHANGED, 32),  # and for two requests each on the first
        ((99, 1), at.UNTIL_CHANGED, 0),
        ((99, 0), at.UNTIL_CHANGED, 0),
        ((99, 99), at.UNTIL_CHANGED, 95),  # the last request's tokens but for two
        ((99, 99), 9, 8),
        ((99, 99), 2, 1),
        ((99, 99), 1, 0),
    ],
)
def test_ranks_repeat_by_the_minimum_count(free: tuple[int, int], holds: int, repeats: int) -> None:
    state = before([0.0] * 3, replicas=2, ranks=2, move_s=0.25)
    decoding(state, 2, {0: 12, 1: 13})
    decoding(state, 3, {2: 14})
    state.pool[:, at.FREE_BLOCKS] = [0, 0, *free]
    state.pool[2:, at.BLOCKS_TO_MOVE] = [4, 12]
    assert loop.form_batches.py_func(all_idle(holds), PRICE, state, 3, 5.0) == 2
    assert state.rounds[2:, at.REPEATS].tolist() == [repeats, repeats]
    assert state.rounds[2:, at.COUNTS_ITERATION].tolist() == [1, 0]
    assert state.rounds[2:, at.KEYS_PER_REPEAT].tolist() == [
        4,
        4,
    ]  # two decodes on the busiest of two
    assert state.ends[:, 0].tolist() == [0.0, 0.0, 9.0, 9.0]  # moved for three seconds
    assert not state.rounds[:2].any()


def test_rank_without_a_batch_is_ignored() -> None:
    state = before([0.0] * 2, ranks=2)
    decoding(state, 1, {0: 12})
    state.sizes[0] = 3  # of the last time
    assert loop.form_rank_batches.py_func(all_idle(), PRICE, state, 0, 5.0) == 1
    assert state.sizes.tolist() == [0, 1]
    assert state.rounds[:, at.COUNTS_ITERATION].tolist() == [0, 1]
    assert state.ends[:, 0].tolist() == [0.0, 6.0]
    decoding(state, 0, {1: 12})
    assert loop.form_rank_batches.py_func(all_idle(), PRICE, state, 0, 5.5) == 0  # one is at work
    assert state.pool[0, at.RUNNING] == 1
    state.pool[0, at.RUNNING] = state.pool[1, at.IN_FLIGHT] = 0
    assert loop.form_rank_batches.py_func(all_idle(), PRICE, state, 0, 6.0) == 0  # nobody is there


@pytest.mark.parametrize(
    ("tokens", "keys", "busiest"),
    [([9, 5, 5], [1, 7, 8], 2), ([9, 6, 5], [1, 7, 8], 1), ([9, 5, 5], [1, 7, 7], 1)],
)
def test_all_ranks_take_the_time_of_the_busiest(
    tokens: list[float], keys: list[float], busiest: int
) -> None:
    state = before([0.0], ranks=3, replicas=2)
    state.sizes[3:] = [0, 1, 1]  # the first has no batch; what it had is stale
    state.step[3:, at.TOKENS], state.step[3:, at.DECODE_KV] = tokens, keys
    state.step[3:, at.DECODES] = [1.0, 2.0, 3.0]
    assert loop.combine_ranks.py_func(state, 3) == 3 * (busiest + 1)
    wanted = 3.0 * state.step[3 + busiest]
    wanted[at.ALL_RANK_TOKENS] = tokens[1] + tokens[2]
    wanted[at.RANK_IMBALANCE] = 0.5  # the first waits for all tokens, not for two thirds of them
    assert state.priced[[4, 5]].tolist() == [wanted.tolist()] * 2
    assert not state.priced[:4].any()


@pytest.mark.parametrize(
    ("tokens", "uneven"), [([7, 7, 7], 0.0), ([9, 3, 0], 0.5), ([6, 4, 2], 0.25)]
)
def test_communication_wait_is_longest_for_the_least_loaded_rank(
    tokens: list[float], uneven: float
) -> None:
    state = before([0.0], ranks=3, replicas=1)
    state.sizes[:] = 1
    state.step[:, at.TOKENS] = tokens
    loop.combine_ranks.py_func(state, 0)
    assert state.priced[:, at.RANK_IMBALANCE].tolist() == [uneven] * 3


def test_batch_is_repeatable_unless_a_request_may_return() -> None:
    state = before([0.0] * 3, swap_capacity=9, watermark=0.0)
    decoding(state, 0, {0: 12, 1: 20})
    pool = state.pool[0]
    pool[[at.TOTAL_BLOCKS, at.FREE_BLOCKS, at.MAX_USED_BLOCKS, at.ELAPSED, at.IN_FLIGHT]] = (
        50,
        44,
        5,
        8,
        2,
    )
    state.rounds[0, at.REPEATED] = 3
    assert loop.schedule_batch.py_func(all_idle(7), state, 0, 0, 5.0) == 7
    assert pool[[at.MAX_USED_BLOCKS, at.ELAPSED, at.IN_FLIGHT]].tolist() == [6, 0, 3]
    assert (state.sizes[0], state.rounds[0, at.REPEATED]) == (2, 0)
    assert state.step[0, [at.DECODES, at.DECODE_KV]].tolist() == [2.0, 32.0]
    assert loop.schedule_batch.py_func(all_idle(7), state, 0, 0, 5.0) == 0
    assert (pool[at.BATCH_SIZE], pool[at.IN_FLIGHT]) == (0, 3)

    def puts_out(now: float, view: View) -> int:
        """Seat the only one and put request 2 on the host, where it would fit again."""
        view.request[2, at.BLOCKS], view.pool[at.NUM_SWAPPED], view.pool[at.SWAPPED_LAST] = 1, 1, 2
        return int(all_idle(7)(now, view))

    decoding(state, 0, {0: 12})
    assert loop.schedule_batch.py_func(puts_out, state, 0, 0, 5.0) == 1
    # It comes back at the next decision, in the order of arrival.
    decoding(state, 0, {0: 12})
    state.request[:, at.ARRIVAL_ORDER] = [5, 6, 1]
    assert loop.schedule_batch.py_func(all_idle(7), state, 0, 0, 5.0) == 7
    assert state.batch[0, :2].tolist() == [2, 0]
    assert pool[at.NUM_SWAPPED] == 0


def test_batch_stalls_on_busy_stages() -> None:
    # Ready at 2, the first stage is free at 3 and the second at 10: a second before it begins and
    # six in between. Whoever ended at 2 has waited from there.
    state = before([0.0] * 3, stages=2, log_rows=1)
    state.batch[0, :3], state.sizes[0] = [0, 1, 2], 3
    state.stages[0] = [3.0, 10.0]
    state.step[0, at.TOKENS] = 3.0
    state.rounds[0, at.COUNTS_ITERATION] = 1
    state.times[:, at.SCHEDULED], state.times[:, at.LAST_END] = [-1.0, 0.0, 0.5], [-1.0, 0.0, 2.0]
    for _ in range(2):
        state.timing[0] = 9.0
        state.stages[0] = [3.0, 10.0]
        assert loop.launch.py_func(PRICE, state, 0, 0, 1.0, 2.0) == 11.0
    assert state.times[:, at.SCHEDULED].tolist() == [1.0, 0.0, 0.5]
    assert state.times[:, at.STALLED].tolist() == [2 * 6.0, 2 * (3.0 + 6.0), 2 * (1.0 + 6.0)]
    assert state.timing[0, :3].tolist() == [11.0, 0.0, 0.0]
    assert state.pool[0, [at.ITERATIONS, at.BATCHED_REQUESTS, at.BATCHED_TOKENS]].tolist() == [
        2,
        6,
        6,
    ]
    assert state.clock[at.LOG_ROWS] == 1  # the log has space for one row


@pytest.mark.parametrize("checked", [1, 3])
def test_batch_totals_sum_over_requests(checked: int) -> None:
    request = np.zeros((5, at.REQUEST_COLUMNS), np.int64)
    request[:, at.PROMPT], request[:, at.NUM_COMPUTED] = [10, 10, 100, 50, 80], [12, 30, 65, 30, 64]
    batch, tokens = np.array([0, 1, 2, 3, 4]), np.array([1, 1, 10, 20, 4])
    step = np.full(at.STEP_COLUMNS, 7.0)
    assert loop.sum_batch.py_func(request, batch, tokens, 5, checked, step) == 34 + 2 * checked
    wanted: Floats = np.zeros(at.STEP_COLUMNS)
    wanted[at.TOKENS] = wanted[at.ALL_RANK_TOKENS] = 34 + 2 * checked
    wanted[at.LOGITS_ROWS] = 2 * checked + 1  # the prompt whose last tokens these are
    wanted[at.PREFILLS], wanted[at.PREFILL_TOKENS] = 3.0, 34.0
    wanted[at.PREFILL_PAIRS] = 650 + 55 + 600 + 210 + 256 + 10
    wanted[at.PREFILL_KV] = 75 + 50 + 68
    wanted[at.DECODES], wanted[at.DECODE_KV] = 2.0, 42.0
    wanted[at.PREFILL_SQUARES] = 100 + 400 + 16
    wanted[at.PREFILL_PAST] = 128 + 64 + 64
    assert step.tolist() == wanted.tolist()


def in_flight_at(state: ReplicaState, done: dict[int, int], tokens: list[int]) -> None:
    """Put requests in the first slot's batch."""
    decoding(state, 0, done)
    state.batch[0, : len(done)], state.tokens[0, : len(done)] = list(done), tokens
    state.sizes[0], state.pool[0, at.RUNNING] = len(done), 0


def test_repeated_batch_emits_one_token_per_repetition() -> None:
    # Three rounds after the first: the first is complete, the second outgrows its block.
    state = before([0.0] * 3)
    in_flight_at(state, {0: 12, 1: 30, 2: 12}, [1, 1, 1])
    state.request[0, at.OUTPUT] = 6
    state.rounds[0, at.REPEATED] = 3
    state.timing[0, :3] = 5.0, 0.75, 0.5  # first end, longest later one, waits in them
    state.times[:, at.LAST_TOKEN], state.times[:, at.LONGEST_GAP] = [4.0, 4.5, 5.0], [0.0, 0.0, 2.0]
    state.pool[0, [at.ELAPSED, at.FREE_BLOCKS]] = 2, 100
    assert loop.finish.py_func(state, 0, 0, 7.0) == 3
    assert state.request[:, at.NUM_COMPUTED].tolist() == [16, 34, 16]
    assert state.request[:, at.BLOCKS].tolist() == [0, 3, 1]
    assert state.times[:, at.COMPLETED].tolist() == [7.0, -1.0, -1.0]
    assert state.times[:, at.STALLED].tolist() == [0.5] * 3
    assert state.times[:, at.LONGEST_GAP].tolist() == [1.0, 0.75, 2.0]
    assert (
        state.times[:, at.LAST_TOKEN].tolist() == state.times[:, at.LAST_END].tolist() == [7.0] * 3
    )
    assert [int(state.gaps[gap_bin.py_func(gap)]) for gap in (1.0, 0.5, 0.0)] == [1, 1, 1]
    assert (state.gaps.sum(), state.gauge[0, at.GAPS_S]) == (3, 1.5)
    assert state.running[0, : state.pool[0, at.RUNNING]].tolist() == [1, 2]
    assert state.pool[0, [at.ELAPSED, at.FREE_BLOCKS, at.NUM_RUNNING]].tolist() == [6, 101, 2]


def test_single_repetition_has_separate_wait_and_first_end() -> None:
    state = before([0.0])
    in_flight_at(state, {0: 12}, [1])
    state.rounds[0, at.REPEATED] = 1
    state.timing[0, :3] = 5.0, 0.75, 0.5
    state.times[0, [at.FIRST_TOKEN, at.LAST_TOKEN]] = 0.0  # at the very start
    loop.finish.py_func(state, 0, 0, 5.75)
    assert state.request[0, at.NUM_COMPUTED] == 14
    assert state.times[0, [at.FIRST_TOKEN, at.LONGEST_GAP, at.STALLED]].tolist() == [0.0, 5.0, 0.5]


def test_last_prefill_chunk_emits_the_first_token() -> None:
    # The first chunk ends its prompt, the second not, the third is asked for one token alone.
    state = before([0.0] * 4)
    in_flight_at(state, {0: 4, 1: 3, 2: 4, 3: 12}, [6, 6, 6, 1])
    state.request[:, at.OUTPUT] = [5, 5, 1, 5]
    state.timing[0] = 99.0  # of an earlier batch
    state.times[:, at.LAST_TOKEN] = [-1.0, -1.0, -1.0, 6.5]
    assert loop.finish.py_func(state, 0, 0, 7.0) == 4
    assert state.request[:, at.NUM_COMPUTED].tolist() == [11, 9, 11, 13]
    assert state.times[:, at.FIRST_TOKEN].tolist() == [7.0, -1.0, 7.0, -1.0]
    assert state.times[:, at.LAST_TOKEN].tolist() == [7.0, -1.0, 7.0, 7.0]
    assert state.times[:, at.COMPLETED].tolist() == [-1.0, -1.0, 7.0, -1.0]
    assert state.times[:, at.STALLED].tolist() == [0.0] * 4
    assert state.times[3, at.LONGEST_GAP] == 0.5
    assert state.gaps[gap_bin.py_func(0.5)] == state.gaps.sum() == 1
    assert state.pool[0, at.ELAPSED] == 1


@pytest.mark.parametrize(("closed", "logged"), [(True, [4.0]), (False, [4.0, 5.0])])
def test_batches_complete_up_to_a_time(closed: bool, logged: list[float]) -> None:
    # One in flight ends at 4 and two wait, each for a second; the third would end at 6.
    state = before([0.0] * 3, log_rows=9)
    in_flight_at(state, {0: 12}, [1])
    state.pool[0, at.IN_FLIGHT], state.ends[0, 0] = 1, 4.0
    state.waiting[0, :2], state.pool[0, at.WAITING] = [1, 2], 2
    assert loop.advance.py_func(one_that_waits, PRICE, state, 0, 6.0, closed) == logged[-1] + 1.0
    assert state.log[: state.clock[at.LOG_ROWS], 1].tolist() == logged
    state.pool[0, at.WAITING] = 0
    assert loop.advance.py_func(one_that_waits, PRICE, state, 0, inf, closed) == inf
    assert state.pool[0, at.IN_FLIGHT] == 0


def test_next_batch_of_a_pipeline_is_the_oldest() -> None:
    # Places 1 and 2 of three are in flight, from the last of the ring on.
    state = before([0.0] * 2, stages=3)
    decoding(state, 0, {0: 12, 1: 12})
    state.pool[0, at.RUNNING] = 0
    for place, who in ((1, 0), (2, 1)):
        state.batch[place, 0], state.tokens[place, 0], state.sizes[place] = who, 1, 1
    state.in_flight[0] = [2, 0, 1]
    state.ends[0] = [99.0, 4.0, 4.5]
    state.pool[0, [at.OLDEST, at.IN_FLIGHT]] = 2, 2
    assert loop.advance.py_func(one_that_waits, PRICE, state, 0, 4.2, False) == 4.5
    assert state.pool[0, [at.OLDEST, at.IN_FLIGHT]].tolist() == [0, 1]
    assert state.request[:, at.NUM_COMPUTED].tolist() == [13, 12]


@pytest.mark.parametrize(("survival", "accepted"), [((1.0, 1.0), 2), ((1.0, 0.0), 1), ((1.0,), 1)])
def test_accepted_draft_tokens_are_emitted_with_the_decode_token(
    survival: tuple[float, ...], accepted: int
) -> None:
    # The second is asked for one token more, the third ends its prompt and has no drafts yet, the
    # fourth is in the middle of it.
    state = before([0.0] * 4, num_draft_tokens=len(survival), acceptance=survival)
    in_flight_at(state, {0: 11, 1: 13, 2: 4, 3: 3}, [1, 1, 6, 6])
    state.request[1, at.OUTPUT] = 5
    state.pool[0, at.NUM_DRAFTS] = len(survival)
    assert draw.py_func(state, 0, 0, 0)[1] == 3 + accepted  # keys of the first two
    loop.finish.py_func(state, 0, 0, 7.0)
    assert state.request[:, at.NUM_COMPUTED].tolist() == [12 + accepted, 15, 11, 9]
    assert (state.times[:, at.COMPLETED] == 7.0).tolist() == [False, True, False, False]
    decoding(state, 0, {0: 12})
    assert (
        loop.schedule_batch.py_func(all_idle(7), state, 0, 0, 8.0) == 7
    )  # drawn as it is repeated
    assert state.step[0, at.TOKENS] == 1.0 + len(survival)


def test_first_tokens_are_visible_at_the_end_of_prefill() -> None:
    # The first two read their prompts in the batch that ends now, the third long ago.
    state = before([0.0] * 3)
    decoding(state, 0, {0: 11, 1: 11, 2: 30})
    state.times[:, at.FIRST_TOKEN], state.times[:, at.LAST_TOKEN] = [7.0, 7.0, 3.0], 7.0
    state.times[:, at.LAST_END] = 7.0
    assert delay_first_tokens.py_func(state, 0, 7.0, 9.0) == 3
    assert state.times[:, at.FIRST_TOKEN].tolist() == [9.0, 9.0, 3.0]
    assert state.times[:, at.LAST_TOKEN].tolist() == [9.0, 9.0, 7.0]
    delay_first_tokens.py_func(state, 0, 9.0, 11.0)
    assert state.times[:, at.FIRST_TOKEN].tolist() == [9.0, 9.0, 3.0]
