"""What the loop over events asks of ranks and links, whatever these do with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulators.collectives.algorithms.steps import BINARY, NO_TREE
from simulators.collectives.events import loop
from simulators.collectives.events import state as at
from simulators.collectives.events.event_queue import LENGTH, pop, push

Call = tuple[object, ...]
START, HAPPEN = loop._start_all.py_func, loop._process_event.py_func
DELIVER = loop._deliver.py_func
"""As they are; a test replaces what the loop calls."""


class Calls(list[Call]):
    """What was called with what but the state, in order; answers are given beforehand."""

    def named(self, name: str, *answers: object) -> Any:
        """Return a function that notes its calls, and answers with each of `answers` in turn."""
        left = list(answers)

        def note(state: object, *arguments: float) -> object:
            self.append((name, *arguments))
            return left.pop(0) if left else None

        return note


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Return a list that notes every call out of the loop, all of which do nothing."""
    calls = Calls()
    for name in (
        "_start_all",
        "_process_event",
        "_deliver",
        "flow",
        "advance",
        "serve",
        "finish",
        "receive",
        "receive_in_tree",
        "join",
        "send",
        "send_in_tree",
        "start",
    ):
        monkeypatch.setattr(loop, name, calls.named(name))
    monkeypatch.setattr(loop, "pop", pop.py_func)
    return calls


def state_with(events: list[tuple[int, int]], *, mode: int = at.IN_TURN, capacity: int = 64) -> Any:
    """Return a state with events of these times and numbers ahead, and 7 unfinished streams."""
    state = SimpleNamespace(
        clock=np.zeros(at.COUNTERS, np.int64),
        report=np.zeros(at.UNFINISHED + 1, np.int64),
        event=np.zeros(2, np.int64),
        queue=np.zeros((capacity, 3), np.int64),
        settings=SimpleNamespace(mode=mode, reserve=2),
        shared_until_ns=np.full(1, -1.0),
    )
    state.clock[[at.SPARES, at.STREAMS_LEFT]] = 9, 7
    for time, what in events:
        push.py_func(state.queue, state.clock, time, what)
    return state


FLOWS: Call = ("flow", loop.FOREVER_NS)


def test_events_run_in_time_order_until_the_queue_is_empty(calls: Calls) -> None:
    events = [(5, at.HOP + 4 * 7), (3, at.READY + 4 * 9), (3, at.RECEIVE + 4 * 2)]
    state = state_with(events)
    loop.run.py_func(state, 100)
    assert calls == [
        ("_start_all",),
        ("_process_event", at.READY, 9, 3),
        ("_process_event", at.RECEIVE, 2, 3),
        ("_process_event", at.HOP, 7, 5),
    ]
    assert state.report[at.UNFINISHED] == 7
    assert state.shared_until_ns[0] == -1.0


def test_run_stops_at_the_limit_of_link_events(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_with([(time, at.HOP) for time in range(5)])

    def happen(state: Any, *_: int) -> None:
        state.report[at.LINK_EVENTS] += 1

    monkeypatch.setattr(loop, "_process_event", happen)
    loop.run.py_func(state, 3)
    assert (state.report[at.LINK_EVENTS], state.clock[LENGTH]) == (3, 2)


@pytest.mark.parametrize(
    ("waiting", "flying", "capacity", "spares", "has_space"),
    [
        (1, 0, 4, 9, True),  # with two in reserve three of four are taken
        (2, 0, 4, 9, False),
        (1, 1, 4, 9, False),
        (1, 0, 9, 3, True),
        (1, 0, 9, 2, False),
    ],
)
def test_run_requests_more_memory_before_the_reserve_is_used(
    calls: Calls, waiting: int, flying: int, capacity: int, spares: int, has_space: bool
) -> None:
    state = state_with([(3, at.RECEIVE)] * waiting, capacity=capacity)
    state.clock[[at.FLYING, at.SPARES]] = flying, spares
    loop.run.py_func(state, 100)
    assert state.report[at.UNFINISHED] == (7 if has_space else at.NO_CAPACITY)
    assert len(calls) == 1 + int(has_space)


def test_messages_sharing_links_advance_to_the_next_event(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One flies; nothing is ahead. It arrives at 20, which is an event, and nothing flies any more.
    state = state_with([], mode=at.SHARED)
    state.clock[at.FLYING] = 1
    note = calls.named("flow", 1)

    def flow(state: Any, following_ns: float) -> Any:
        push.py_func(state.queue, state.clock, 20, at.RECEIVE)
        state.clock[at.FLYING] = 0
        return note(state, following_ns)

    monkeypatch.setattr(loop, "flow", flow)
    loop.run.py_func(state, 100)
    assert calls == [("_start_all",), FLOWS, ("_process_event", at.RECEIVE, 0, 20)]
    assert state.shared_until_ns[0] == 20.0


def test_messages_advance_to_the_only_event(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_with([(50, at.RECEIVE)], mode=at.SHARED)
    state.clock[at.FLYING] = 1
    monkeypatch.setattr(loop, "_process_event", lambda state, *_: state.clock.fill(0))
    loop.run.py_func(state, 100)
    assert calls == [("_start_all",), ("flow", 50)]


def test_messages_do_not_advance_between_simultaneous_events(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One flies and does not arrive until 50, when two events happen; the second takes it away.
    state = state_with(
        [(50, at.RECEIVE), (60, at.RECEIVE + 8), (50, at.RECEIVE + 4)], mode=at.SHARED
    )
    state.clock[at.FLYING] = 1
    note = calls.named("_process_event")

    def happen(state: Any, what: int, index: int, now: int) -> None:
        note(state, what, index, now)
        assert state.shared_until_ns[0] == (60.0 if index == 2 else -1.0)
        state.clock[at.FLYING] = int(index == 0)

    monkeypatch.setattr(loop, "_process_event", happen)
    loop.run.py_func(state, 100)
    assert calls == [
        ("_start_all",),
        ("flow", 50),
        ("_process_event", at.RECEIVE, 0, 50),
        ("_process_event", at.RECEIVE, 1, 50),
        ("_process_event", at.RECEIVE, 2, 60),
    ]


def test_all_streams_join_before_any_queue_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two ranks of three chunks, the first of which waits in the second of two queues.
    calls = Calls()
    monkeypatch.setattr(loop, "join", calls.named("join"))
    monkeypatch.setattr(loop, "start", calls.named("start"))
    monkeypatch.setattr(loop, "line_of", lambda state, rank, who, p: 10 * rank + 1 + who % 3 + p)
    state: Any = SimpleNamespace(
        settings=SimpleNamespace(streams=3, ranks=2, queues=2),
        clock=np.zeros(at.COUNTERS, np.int64),
        phases=SimpleNamespace(turn_of=np.array([[1, 5], [5, 5]])),
    )
    START(state)
    assert calls == [
        ("join", 0, 0, 0),
        ("join", 0, 1, 0),
        ("join", 0, 2, 0),
        ("start", 0, 0),
        ("start", 1, 0),
        ("join", 1, 3, 0),
        ("join", 1, 4, 0),
        ("join", 1, 5, 0),
        ("start", 10, 0),
        ("start", 11, 0),
    ]
    assert state.clock[at.STREAMS_LEFT] == 6


@pytest.mark.parametrize(
    ("what", "index", "answers", "wanted"),
    [
        (at.READY, 2, {"send": True}, ["send", "finish"]),
        (at.READY, 2, {"send": False}, ["send"]),
        (at.READY, 3, {"send_in_tree": True}, ["send_in_tree", "finish"]),
        (at.READY, 3, {"send_in_tree": False}, ["send_in_tree"]),
        (at.HOP, 4, {"advance": True}, ["advance", "serve"]),
        (at.HOP, 4, {"advance": False, "_deliver": loop.NO_STREAM}, ["advance", "_deliver"]),
        (at.HOP, 4, {"advance": False, "_deliver": 0}, ["advance", "_deliver", "receive"]),
        (at.RECEIVE, 4, {}, ["receive"]),
    ],
)
def test_event_dispatches_to_a_message_or_a_stream(
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
    what: int,
    index: int,
    answers: dict[str, object],
    wanted: list[str],
) -> None:
    for name, answer in answers.items():
        monkeypatch.setattr(loop, name, calls.named(name, answer))
    state: Any = SimpleNamespace(
        stream=np.zeros((5, at.STREAM_FIELDS), np.int64),
        phases=SimpleNamespace(shape=np.array([NO_TREE, BINARY])),
        report=np.zeros(at.UNFINISHED + 1, np.int64),
    )
    state.stream[3, at.STAGE] = 1
    HAPPEN(state, what, index, 30)
    assert [call[0] for call in calls] == wanted
    who = 0 if what == at.HOP else index
    assert all(
        call[1:] == {"advance": (index,), "receive": (who, 30)}.get(str(call[0]), (index, 30))
        for call in calls
    )
    assert state.report[at.LINK_EVENTS] == int(what == at.HOP)


@pytest.mark.parametrize(
    ("slot", "shape", "matched", "to_send", "who", "is_heard"),
    [
        (4, NO_TREE, -1, 1, 8, False),  # asked for: whoever waits for it hears it
        (4, NO_TREE, -2, 1, 8, False),
        (4, NO_TREE, 0, 1, loop.NO_STREAM, False),  # not yet asked for
        (3, BINARY, -1, 1, 8, False),  # from a dimension that is no tree
        (4, BINARY, -1, 1, loop.NO_STREAM, True),
        (5, BINARY, 3, 1, loop.NO_STREAM, True),
        (5, BINARY, 3, 0, loop.NO_STREAM, True),
        (5, BINARY, 3, at.WAITING, loop.NO_STREAM, False),  # it comes too early
        (6, BINARY, -1, at.WAITING, 8, False),  # for the other visit
        (6, BINARY, 0, at.WAITING, loop.NO_STREAM, False),
    ],
)
def test_message_is_delivered_to_the_waiting_receiver(
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
    slot: int,
    shape: int,
    matched: int,
    to_send: int,
    who: int,
    is_heard: bool,
) -> None:
    # Message 3 goes to chunk 2 of rank 2, of three chunks each; slots 4 and 5 are its tree's.
    monkeypatch.setattr(loop, "tree_slot", lambda state, p: 4 * p)
    state: Any = SimpleNamespace(
        messages=np.zeros((5, at.MESSAGE_FIELDS), np.int64),
        settings=SimpleNamespace(streams=3),
        spare=np.array([0, 1, 2, 77, 78]),
        clock=np.zeros(at.COUNTERS, np.int64),
        report=np.zeros(at.UNFINISHED + 1, np.int64),
        matched=np.zeros((9, 8), np.int64),
        stream=np.zeros((9, at.STREAM_FIELDS), np.int64),
        phases=SimpleNamespace(shape=np.array([NO_TREE, shape])),
    )
    state.messages[3, [at.TO, at.STREAM, at.SLOT]] = 2, 2, slot
    state.clock[at.SPARES], state.report[at.DELIVERED] = 3, 10
    state.matched[8, slot] = matched
    state.stream[8, [at.STAGE, at.TO_SEND]] = 1, to_send
    assert DELIVER(state, 3, 30) == who
    assert calls == ([("receive_in_tree", 8, slot, 30)] if is_heard else [])
    assert state.spare.tolist() == [0, 1, 2, 3, 78]
    assert (state.clock[at.SPARES], state.report[at.DELIVERED]) == (4, 11)
    assert state.matched.sum() == state.matched[8, slot] == matched + 1
