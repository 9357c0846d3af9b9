"""The event loop follows SGLang's rules on random workloads and options, to the last bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.serving.engine.limits import ReplicaLimits
from tests.serving.cases import assert_equal_batches, pure_python
from tests.serving.plain_sglang import Options, Request, simulate

PRICE = (2.0**-7, 2.0**-16)
"""Powers of two: sums of times are exact."""

LONGEST = 420
"""Tokens of the longest request, which fits alone on every engine."""


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    """Draw requests that arrive in bursts."""
    count = draw(st.integers(1, 20))
    gaps = st.lists(st.sampled_from([0, 1, 3, 1 << 15, 1 << 18]), min_size=count, max_size=count)
    arrivals = np.cumsum(draw(gaps)) * 2.0**-20
    lengths = st.tuples(st.integers(2, 300), st.integers(1, 120))
    return [Request(float(at_s), *draw(lengths)) for at_s in arrivals]


@st.composite
def options(draw: st.DrawFn) -> Options:
    """Draw options, often with too little memory; chunks are whole pages."""
    page = draw(st.sampled_from([1, 4, 16]))
    return Options(
        max_running_requests=draw(st.sampled_from([1, 3, 8, 16])),
        chunked_prefill_size=page * draw(st.integers(1, 40)),
        page_size=page,
        pages=(LONGEST + draw(st.integers(40, 600))) // page,
        ignore_eos=draw(st.booleans()),
        schedule_conservativeness=draw(st.sampled_from([0.3, 1.0, 1.3])),
    )


def allowed(chosen: Options) -> ReplicaLimits:
    """Return the limits of a replica with these options."""
    return ReplicaLimits(
        blocks=chosen.pages,
        block_size=chosen.page_size,
        watermark=0.0,
        max_num_seqs=chosen.max_running_requests,
        max_prefill_tokens=1 << 20,
        token_budget=chosen.chunked_prefill_size,
        max_model_len=1 << 20,
        ignore_eos=chosen.ignore_eos,
        schedule_conservativeness=chosen.schedule_conservativeness,
        poll_interval=1,
    )


def compare(requests: list[Request], chosen: Options) -> None:
    """Assert that both schedulers form the same batches at the same times."""
    expected = simulate(requests, chosen, PRICE)
    preemptions = [one.retractions for one in requests]
    assert_equal_batches("sglang", requests, expected, allowed(chosen), PRICE, preemptions)


@settings(max_examples=300, deadline=None)
@given(workloads(), options())
def test_batches_equal_a_plain_reading_of_sglang(requests: list[Request], chosen: Options) -> None:
    compare(requests, chosen)


@settings(max_examples=15, deadline=None)
@given(workloads(), options())
def test_interpreted_batches_equal_it_too(requests: list[Request], chosen: Options) -> None:
    with pure_python():
        compare(requests, chosen)
