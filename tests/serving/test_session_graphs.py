"""Sessions of agents replay in causal order, on lanes, with a warm-up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.core.errors import UserError
from simulators.core.folder import PACKAGE
from simulators.serving.demand.prefixes import ChainedPaths, Prefixes
from simulators.serving.demand.requests import Requests, requests_of
from simulators.serving.demand.session_graph import (
    OWN_NODE,
    SessionTrace,
    SessionTraces,
    grown_paths,
    hashed_paths,
    ordered_session,
    played,
)
from simulators.serving.demand.sessions import drawn_sessions
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.options import ArrivalsConfig, CacheConfig, LengthsConfig, SessionsConfig
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate
from tests.serving.cases import asked, limits, run

TINY = 1e-9


def session(rng: np.random.Generator, agents: int, most: int = 4) -> SessionTrace:
    """Return a session with a main agent, sub-agents, forks, joins and recorded gaps."""
    rows: list[list[Any]] = [[] for _ in range(6)]
    start, end, stream, prompt, output = rows[:5]
    edges: list[tuple[int, int, bool, float]] = []

    def turn(agent: int, begin: float, tokens: int, is_fresh: bool) -> int:
        values = (begin, begin + rng.random(), agent, tokens, 1 + int(rng.integers(6)), is_fresh)
        for column, value in zip(rows, values, strict=True):
            column.append(value)
        return len(start) - 1

    mains = [turn(0, 0.0, 20, True)]
    ended: list[int] = []
    for agent in range(1 + agents):
        chain = mains if agent == 0 else []
        if agent:
            owner = mains[int(rng.integers(len(mains)))]
            on_dispatch = bool(rng.integers(2))
            base = start[owner] if on_dispatch else end[owner]
            delay = float(rng.random())
            chain.append(turn(agent, base + delay, 30, True))
            edges.append((owner, chain[0], on_dispatch, delay))
        for _ in range(int(rng.integers(most))):
            gap = float(rng.random())
            grown = prompt[chain[-1]] + output[chain[-1]] + 10
            chain.append(turn(agent, end[chain[-1]] + gap, grown, False))
            edges.append((chain[-2], chain[-1], False, gap))
        if agent:
            ended.append(chain[-1])
    if ended:
        last = max(end[i] for i in [*ended, mains[-1]])
        joined = turn(0, last + 0.5, prompt[mains[-1]] + 50, False)
        edges += [(i, joined, False, last + 0.5 - end[i]) for i in [*ended, mains[-1]]]
    columns = {"start_s": start, "end_s": end, "stream": stream, "prompt_tokens": prompt}
    paths = grown_paths(*(np.array(column) for column in rows[2:]))
    return ordered_session("drawn", {**columns, "output_tokens": output}, edges, paths)


def as_requests(traces: SessionTraces, lanes: int, duration_s: float = 0.0) -> Requests:
    """Return the requests of lanes."""
    found = played(traces, lanes, duration_s, iter(np.linspace(0.0, 1.0, lanes).tolist()))
    plain = asked(np.zeros(found.play.size), found.prompt_tokens, found.output_tokens)
    return dataclasses.replace(
        plain, clients=lanes, session=found.play, prefixes=found.paths, graph=found.graph
    )


def served(requests: Requests, scheduler: str = "vllm_v1", replicas: int = 1) -> ReplicaState:
    """Serve requests with a prefix cache."""
    allowed = limits(scheduler, prefix_caching=True, token_budget=512)
    return run(requests, scheduler, allowed=allowed, replicas=replicas)


def assert_causal(requests: Requests, state: ReplicaState) -> None:
    """Every request is sent at the latest of its edges, and after all it waits for."""
    graph, count = requests.graph, len(requests.prompt_tokens)
    assert graph is not None
    sent, answered = (
        state.times[:, at.SENT],
        state.times[:, at.COMPLETED] + state.times[:, at.LAG_S],
    )
    was_sent = state.times[:, at.COMPLETED] >= 0.0
    latest = np.full(count, -np.inf)
    between = (graph.before < count) & (graph.after < count)
    for edge in np.flatnonzero(between):
        before, after = graph.before[edge], graph.after[edge]
        if not was_sent[after]:
            continue
        assert was_sent[before]
        base = sent[before] if graph.on_dispatch[edge] else answered[before]
        assert sent[after] >= base + graph.delay_s[edge] - TINY
        latest[after] = max(latest[after], base + graph.delay_s[edge])
    gated = np.zeros(count, bool)
    gated[graph.after[(graph.before >= count) & (graph.after < count)]] = True
    known = was_sent & ~gated & np.isfinite(latest)
    np.testing.assert_allclose(sent[known], latest[known], atol=TINY)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lanes=st.integers(1, 5),
    duration_s=st.sampled_from([0.0, 3.0, 8.0]),
    replicas=st.integers(1, 3),
)
def test_no_request_precedes_those_it_waits_for(
    seed: int, lanes: int, duration_s: float, replicas: int
) -> None:
    rng = np.random.default_rng(seed)
    traces = SessionTraces(tuple(session(rng, int(rng.integers(4))) for _ in range(6)))
    requests = as_requests(traces, lanes, duration_s)
    state = served(requests, replicas=replicas)
    assert_causal(requests, state)
    times, graph = state.times, requests.graph
    assert graph is not None
    completed = times[:, at.COMPLETED] >= 0.0
    if not duration_s:
        assert completed.all()
    warm = graph.is_warmup
    assert completed[warm].all()
    window_s, end_s, _ = state.sending
    measured = times[completed & ~warm]
    assert (measured[:, at.SENT] >= window_s - TINY).all()
    assert (measured[:, at.SENT] <= end_s + TINY).all()
    if warm.any():
        assert (times[warm, at.COMPLETED] <= window_s + TINY).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), lanes=st.integers(1, 4))
def test_a_lane_plays_one_session_at_a_time(seed: int, lanes: int) -> None:
    rng = np.random.default_rng(seed)
    traces = SessionTraces(tuple(session(rng, 2) for _ in range(7)))
    requests = as_requests(traces, lanes)
    times = served(requests).times
    assert requests.session is not None
    begin = np.array([times[requests.session == p, at.SENT].min() for p in range(7)])
    end = np.array([times[requests.session == p, at.COMPLETED].max() for p in range(7)])
    assert (np.diff(begin) >= 0.0).all()  # in the order of the file
    for moment in begin:
        assert np.count_nonzero((begin <= moment) & (end > moment)) <= lanes
    for later in range(lanes, 7):  # at once when a session is drained
        assert np.abs(end - begin[later]).min() < TINY


def test_a_seed_repeats_a_load() -> None:
    point = ServingPoint(
        model="llama3_1_8b",
        gpu="h100_sxm",
        scheduler="vllm_v1",
        workload="agentic",
        requests=0,
        qps=None,
        arrivals=ArrivalsConfig(process="closed", clients=8),
        sessions=SessionsConfig(duration_s=900.0),
        cache=CacheConfig(prefix_caching=True),
    )
    first, again, other = (simulate(dataclasses.replace(point, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first.ttft_mean_s != other.ttft_mean_s
    assert first.window_s == pytest.approx(900.0)
    assert 0.8 < (first.prefix_hit_ratio or 0.0) < 1.0


def test_rejected_requests_pass_their_dependents_on() -> None:
    rng = np.random.default_rng(3)
    traces = SessionTraces(tuple(session(rng, 3) for _ in range(4)))
    requests = as_requests(traces, 2)
    kept = np.flatnonzero(requests.prompt_tokens < 60)
    assert 0 < kept.size < requests.prompt_tokens.size
    state = served(requests.take(kept))
    assert (state.times[:, at.COMPLETED] >= 0.0).all()


def test_recorded_idle_time_is_cut() -> None:
    paths = grown_paths(
        np.zeros(2, int), np.array([8, 20]), np.array([4, 4]), np.array([True, False])
    )
    columns = {"start_s": [0.0, 1e4], "end_s": [1.0, 1e4 + 1.0], "stream": [0, 0]}
    found = ordered_session(
        "idle",
        {**columns, "prompt_tokens": [8, 20], "output_tokens": [4, 4]},
        [(0, 1, False, 9999.0)],
        paths,
    )
    assert found.start_s.tolist() == [0.0, 301.0]
    assert found.delay_s.tolist() == [300.0]


def test_requests_that_wait_for_each_other_are_refused() -> None:
    columns = {
        name: [1, 1] for name in ("start_s", "end_s", "stream", "prompt_tokens", "output_tokens")
    }
    paths = Prefixes(np.array([OWN_NODE] * 2), np.array([1, 1]), np.array([1, 2]))
    with pytest.raises(UserError, match="2 requests wait for each other"):
        ordered_session("loop", columns, [(0, 1, False, 0.0), (1, 0, False, 0.0)], paths)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12),
    st.integers(1, 8),
)
def test_hashed_paths_share_what_a_dictionary_of_blocks_shares(
    contents: list[list[int]], block: int
) -> None:
    known: dict[tuple[int, ...], int] = {}
    hashes = [
        [known.setdefault(tuple(row[: i + 1]), len(known)) for i in range(len(row))]
        for row in contents
    ]
    prompt = np.array([block * len(row) for row in contents])
    paths = hashed_paths(hashes, block, prompt, np.full(prompt.size, 2))
    own = paths.nodes == OWN_NODE
    nodes = np.where(own, paths.nodes.max() + 1 + np.cumsum(own), paths.nodes)
    hits = Prefixes(nodes, paths.ends, paths.stops).max_prefix_hits()
    seen: set[int] = set()
    for row, hit in zip(hashes, hits.tolist(), strict=True):
        assert hit == block * next((i for i, key in enumerate(row) if key not in seen), len(row))
        seen |= set(row)


def test_drawn_sessions_have_the_published_statistics() -> None:
    found = drawn_sessions("agentic", 0, 0, 200).sessions
    prompt, output, stream = (
        np.concatenate([getattr(one, name) for one in found])
        for name in ("prompt_tokens", "output_tokens", "stream")
    )
    assert prompt.size / 200 == pytest.approx(98_827 / 393, rel=0.15)
    assert np.median(prompt[stream == 0]) == pytest.approx(254_000, rel=0.15)
    assert np.median(prompt[stream > 0]) == pytest.approx(64_000, rel=0.15)
    assert np.median(prompt) == pytest.approx(142_016, rel=0.15)
    assert prompt.sum() / 200 == pytest.approx(21.6e9 / 393, rel=0.15)
    assert np.median(output) == pytest.approx(444, rel=0.05)
    assert output.mean() == pytest.approx(1_073, rel=0.05)
    share = np.mean([(one.stream > 0).any() for one in found])
    assert share == pytest.approx(175 / 393, abs=0.07)
    hits = 0
    for one in found:
        assert isinstance(one.paths, ChainedPaths)
        hits += one.paths.expanded().max_prefix_hits().sum()
    assert hits / prompt.sum() == pytest.approx(0.983, abs=0.006)


def test_sessions_bring_their_own_lengths() -> None:
    point = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", workload="agentic", prompt_tokens=9)
    with pytest.raises(UserError, match="prompt_tokens has no meaning for sessions of agents"):
        requests_of(point)
    chat = dataclasses.replace(
        point, workload="chat", prompt_tokens=0, sessions=SessionsConfig(duration_s=9.0)
    )
    with pytest.raises(UserError, match="workload 'chat' has no sessions of agents"):
        requests_of(chat)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[sessions]\n", "[sessions]\ncontext = 8\n", "unknown field `context`"),
        ("probability = [0.0, 0.5, 0.9, 0.99, 1.0]\n", "probability = []\n", "must rise from 0"),
        ("[sessions]\n", "[[output]]\nconstant = 8\n[sessions]\n", r"one \[\[output\]\]"),
    ],
)
def test_malformed_statistics_of_sessions_are_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = (PACKAGE / "serving/calibration/workloads/agentic.toml").read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        drawn_sessions(str(path), 0, 1, 1)


@pytest.mark.parametrize("changes", [{"shape": "bench_serving"}, {"spread": 0.5}])
def test_distribution_of_lengths_is_refused_for_sessions(changes: dict[str, Any]) -> None:
    point = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", workload="agentic", requests=50)
    with pytest.raises(UserError, match="has no meaning for sessions of agents"):
        requests_of(dataclasses.replace(point, lengths=LengthsConfig(**changes)))


def test_open_arrivals_of_sessions_follow_the_rate() -> None:
    point = ServingPoint(
        model="llama3_1_8b", gpu="h100_sxm", workload="agentic", requests=2_000, qps=5.0
    )
    found = requests_of(point)
    assert found.graph is not None
    sessions = found.graph.opened.size - 1  # and the gate of the measurement
    mean_gap_s = found.graph.opened_s[:-1].max() / sessions
    assert mean_gap_s == pytest.approx(found.prompt_tokens.size / sessions / 5.0, rel=0.6)
