"""Ranks meet: receives wait for sends, collectives for the last rank, and nothing for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulators.collectives.traces.operators import Operator
from simulators.collectives.traces.step import nodes_of
from simulators.collectives.traces.timeline import Timeline, timeline
from simulators.core.errors import UserError


def compute(ident: int, name: str, ns: int, *after: int) -> Operator:
    return Operator(ident, name, "compute", after, duration_ns=ns)


def gather(ident: int, name: str, *after: int, **given: object) -> Operator:
    operator = Operator(ident, name, "collective", after, collective="all_reduce", size_bytes=8)
    return replace(operator, **given)  # type: ignore[arg-type]


def send(ident: int, name: str, peer: int, *after: int, tag: int = 0) -> Operator:
    return Operator(ident, name, "send", after, size_bytes=8, peer=peer, tag=tag)


def recv(ident: int, name: str, peer: int, *after: int, tag: int = 0) -> Operator:
    return replace(send(ident, name, peer, *after, tag=tag), kind="recv")


def run(*programs: list[Operator], talk_ns: int = 100) -> Timeline:
    return timeline(nodes_of(dict(enumerate(programs)), lambda o, rank: talk_ns))


def test_second_pipeline_stage_waits_for_the_receive() -> None:
    step = run(
        [compute(0, "first", 1_000), send(1, "out", 1, 0)],
        [recv(0, "in", 0), compute(1, "second", 500, 0)],
    )
    # Rank 0: compute to 1,000, send to 1,100. Rank 1: receive at 1,100, compute to 1,600.
    assert step.end_ns.tolist() == [1_000, 1_100, 1_100, 1_600]
    assert step.comm_total_ns == 100


def test_collective_starts_when_the_last_rank_arrives() -> None:
    step = run(
        [compute(0, "short", 10), gather(1, "sum", 0), compute(2, "after", 5, 1)],
        [compute(0, "long", 70), gather(1, "sum", 0)],
    )
    assert step.end_ns.tolist() == [10, 170, 175, 70, 170]


def test_rank_groups_are_independent() -> None:
    step = run(
        [gather(0, "pair", group=(0, 1))],
        [gather(0, "pair", group=(0, 1))],
        [compute(0, "slow", 900)],
    )
    assert step.end_ns.tolist() == [100, 100, 900]


def test_receive_does_not_block_sends() -> None:
    step = run(
        [recv(0, "in", 1), send(1, "out", 1)],
        [recv(0, "in", 0), send(1, "out", 0)],
    )
    assert step.finish_ns == 100


def test_messages_with_equal_tags_match_in_order() -> None:
    step = run(
        [compute(0, "a", 50), send(1, "x", 1, 0), send(2, "y", 1, 1)],
        [recv(5, "first", 0), recv(6, "second", 0)],
    )
    assert step.end_ns.tolist()[-2:] == [150, 250]


def test_lifo_order_runs_the_newest_ready_node_first() -> None:
    program = [
        compute(0, "a", 10),
        gather(1, "one", 0),
        gather(2, "two", 0),
        compute(3, "b", 50, 0),
        gather(4, "three", 3),
    ]
    graph = nodes_of({0: program}, lambda o, rank: 100)
    assert timeline(graph, "fifo").start_ns[[1, 2, 4]].tolist() == [10, 110, 210]
    assert timeline(graph, "lifo").start_ns[[1, 2, 4]].tolist() == [210, 10, 110]
    with pytest.raises(UserError, match="did you mean 'fifo'"):
        timeline(graph, "fifi")


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        (([send(1, "lost", 1)], []), r"operator 1 'lost' of rank 0 \(send\): no recv matches it"),
        (([], [recv(2, "wish", 0)]), r"operator 2 'wish' of rank 1 \(recv\): no send matches it"),
        (([send(1, "a", 1, tag=1)], [recv(1, "b", 0, tag=2)]), "no recv matches"),
        (
            ([gather(3, "sum")], []),
            "operator 3 'sum' of rank 0 .*: rank 1 has no matching collective",
        ),
        (([gather(0, "a")], [gather(0, "b", size_bytes=9)]), "does not match"),
        (([gather(0, "a", group=(1,))], []), "is without rank 0"),
    ],
)
def test_unmatched_messages_are_named(programs: tuple[list[Operator], ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(*programs)


def test_deadlock_error_names_the_nodes_of_the_cycle() -> None:
    with pytest.raises(UserError, match=r"4 nodes wait .*: 'out' of rank 0, 'back' of rank 1"):
        run(
            [recv(0, "in", 1), send(1, "out", 1, 0)],
            [recv(0, "back", 0), send(1, "forth", 0, 0)],
        )


def test_collective_order_mismatch_names_the_ranks() -> None:
    one, other = gather(1, "one", group=(0, 1)), gather(2, "other", group=(0, 1, 2))
    with pytest.raises(UserError, match="never end: 'one' of rank 0, 'other' of rank 1"):
        run(
            [one, other],
            [replace(other, id=0), replace(one, id=3)],
            [compute(0, "c", 1), replace(other, after=(0,))],
        )
