"""The event loop follows vLLM's rules on random workloads and options, to the last bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.serving.engine.limits import ReplicaLimits
from tests.serving.cases import assert_equal_batches, pure_python
from tests.serving.plain_vllm import Options, Request, simulate

PRICE = (2.0**-7, 2.0**-16)
"""Powers of two: sums of times are exact."""


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    """Draw requests that arrive in bursts."""
    count = draw(st.integers(1, 14))
    gaps = st.lists(st.sampled_from([0, 1, 3, 1 << 15, 1 << 18]), min_size=count, max_size=count)
    arrivals = np.cumsum(draw(gaps)) * 2.0**-20
    lengths = st.tuples(st.integers(2, 300), st.integers(1, 90))
    return [Request(float(at_s), *draw(lengths)) for at_s in arrivals]


@st.composite
def options(draw: st.DrawFn) -> Options:
    """Draw options, often with too little memory; drafts need a budget for all requests."""
    seqs, drafts = draw(st.integers(1, 8)), draw(st.sampled_from([0, 0, 1, 3]))
    threshold = 0 if drafts else draw(st.sampled_from([0, 0, 16, 50]))
    return Options(
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs * (1 + drafts) + draw(st.sampled_from([1, 40, 500])),
        block_size=draw(st.sampled_from([4, 16])),
        blocks=draw(st.integers(102, 300)),
        watermark=draw(st.sampled_from([0.0, 0.05])),
        async_scheduling=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        long_prefill_token_threshold=threshold,
        num_speculative_tokens=drafts,
        num_lookahead_tokens=drafts * draw(st.integers(0, 1)),
        accepts=tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))),
    )


def allowed(chosen: Options) -> ReplicaLimits:
    """Return the limits of a replica with these options."""
    return ReplicaLimits(
        blocks=chosen.blocks,
        block_size=chosen.block_size,
        watermark=chosen.watermark,
        max_num_seqs=chosen.max_num_seqs,
        max_prefill_tokens=chosen.max_num_batched_tokens,
        token_budget=chosen.max_num_batched_tokens,
        max_model_len=1 << 20,
        async_scheduling=chosen.async_scheduling,
        reserve_full_isl=chosen.scheduler_reserve_full_isl,
        long_prefill_token_threshold=chosen.long_prefill_token_threshold,
        num_draft_tokens=chosen.num_speculative_tokens,
        num_lookahead_tokens=chosen.num_lookahead_tokens,
        drafts_beyond_end=True,
        acceptance=(0.0,) * chosen.num_speculative_tokens,
        accept_cycle=chosen.accepts,
    )


def compare(requests: list[Request], chosen: Options) -> None:
    """Assert that both schedulers form the same batches at the same times."""
    expected = simulate(requests, chosen, PRICE)
    preemptions = [one.preemptions for one in requests]
    assert_equal_batches("vllm_v1", requests, expected, allowed(chosen), PRICE, preemptions)


@settings(max_examples=300, deadline=None)
@given(workloads(), options())
def test_batches_equal_a_plain_reading_of_vllm(requests: list[Request], chosen: Options) -> None:
    compare(requests, chosen)


@settings(max_examples=15, deadline=None)
@given(workloads(), options())
def test_interpreted_batches_equal_it_too(requests: list[Request], chosen: Options) -> None:
    with pure_python():
        compare(requests, chosen)
