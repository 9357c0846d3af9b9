"""State-space, encoder and quantization kernels: laws and known answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from simulators.catalog.gpu import load_gpu, what_if
from simulators.evidence.lookup import FRAMEWORKS
from simulators.kernels.families.auxiliary_kernels import Auxiliary
from simulators.kernels.price import flops, moved_bytes, price, roofline_s
from simulators.workload.operators import (
    CausalConvolution,
    Elementwise,
    Embedding,
    EncoderAttention,
    Quantisation,
    StateUpdate,
    StreamMixing,
)

GPUS = ("a100_sxm", "h100_sxm", "b200_sxm", "l40s")


def convolution(requests: float, each: float) -> CausalConvolution:
    tokens = requests * each
    return CausalConvolution(
        name="c", phase="prefill", requests=requests, tokens=tokens, channels=8192.0
    )


def states(
    requests: float, each: float, phase: str = "prefill", rule: str = "delta"
) -> StateUpdate:
    return StateUpdate(
        name="s",
        phase=phase,
        requests=requests,
        tokens=requests * each,
        key_heads=16.0,
        value_heads=32.0,
        rule=rule,
    )


def encoder(requests: float, each: float) -> EncoderAttention:
    return EncoderAttention(
        name="e", requests=requests, tokens=requests * each, heads=16.0, head_dim=64.0
    )


def quantisation(requests: float, each: float) -> Quantisation:
    return Quantisation(name="q", rows=requests * each, cols=4096.0)


def embedding(requests: float, each: float) -> Embedding:
    return Embedding(name="embedding", rows=requests * each, cols=4096.0, dtype="bf16")


MAKERS = (convolution, states, encoder, quantisation, embedding)


def seconds(side: Auxiliary, gpu: str = "h100_sxm", framework: str = "vllm") -> float:
    return float(price(side, load_gpu(gpu), framework=framework).latency_s)


@given(
    make=sampled_from(MAKERS),
    gpu=sampled_from(GPUS),
    framework=sampled_from(FRAMEWORKS),
    requests=integers(1, 128),
    each=integers(1, 16384),
    more=integers(1, 8),
)
def test_time_never_falls_with_more_requests_or_tokens(
    make: Callable[[float, float], Auxiliary],
    gpu: str,
    framework: str,
    requests: int,
    each: int,
    more: int,
) -> None:
    alone = seconds(make(float(requests), float(each)), gpu, framework)
    assert seconds(make(float(requests * more), float(each)), gpu, framework) >= alone
    assert seconds(make(float(requests), float(each * more)), gpu, framework) >= alone


@given(make=sampled_from(MAKERS), gpu=sampled_from(GPUS), requests=integers(1, 128))
def test_latency_is_at_least_the_roofline(
    make: Callable[[float, float], Auxiliary], gpu: str, requests: int
) -> None:
    side = make(float(requests), 700.0)
    assert seconds(side, gpu) >= float(roofline_s(side, load_gpu(gpu)))


def test_state_space_decode_reads_and_writes_every_state() -> None:
    # 8 requests of 32 heads with states of 128 x 128 numbers of four bytes, in and out.
    state_bytes = 8 * 32 * 128 * 128 * 4 * 2
    assert float(moved_bytes(states(8.0, 1.0, "decode"))) == pytest.approx(state_bytes, rel=0.01)


def test_encoder_attention_counts_every_pair() -> None:
    assert float(flops(encoder(2.0, 100.0))) == 4 * 2 * 100 * 100 * 16 * 64


def test_quantization_reads_two_bytes_and_writes_one_and_a_scan_only_reads() -> None:
    assert float(moved_bytes(Quantisation(name="q", rows=10.0, cols=4.0))) == 120.0
    assert float(moved_bytes(Quantisation(name="q", rows=10.0, cols=4.0, scan=True))) == 80.0


def test_embedding_lookup_is_bound_by_indices() -> None:
    # Vidur's table: 2,656 rows of 8,192 numbers in 160 us on an H100, a sixth of its bandwidth.
    rows = Embedding(name="embedding", rows=2656.0, cols=8192.0, dtype="bf16")
    assert seconds(rows) == pytest.approx(1.6e-4, rel=0.1)
    assert float(roofline_s(rows, load_gpu("h100_sxm"))) < 3e-5


def test_only_measured_gpus_and_update_rules_are_calibrated() -> None:
    assert price(states(4.0, 100.0), load_gpu("h100_sxm"), framework="vllm").calibrated
    assert not price(states(4.0, 100.0), load_gpu("l40s"), framework="vllm").calibrated
    assert not price(states(4.0, 100.0, rule="ssd"), load_gpu("h100_sxm")).calibrated
    kimi = states(4.0, 100.0, rule="kda")
    assert price(kimi, load_gpu("l40s"), framework="sglang").calibrated
    assert not price(kimi, load_gpu("h200_sxm"), framework="sglang").calibrated


def test_kimi_delta_attention_also_reads_a_gate_per_key_number() -> None:
    gates = 8 * 32 * 128 * 2
    more = moved_bytes(states(8.0, 1.0, "decode", "kda")) - moved_bytes(states(8.0, 1.0, "decode"))
    assert float(more) == gates


@given(gpu=sampled_from(GPUS), requests=integers(1, 2048))
def test_a_loop_of_one_launch_is_faster_where_l2_keeps_its_state(gpu: str, requests: int) -> None:
    among_others = states(float(requests), 1.0, "decode")
    in_loop = replace(among_others, in_loop=True)
    assert seconds(in_loop, gpu, "sglang") <= seconds(among_others, gpu, "sglang")


def test_the_faster_loop_is_that_of_an_l40s_whose_l2_holds_96_megabytes() -> None:
    # 16 requests of 32 heads: states of 34 MB, in and out in 78 us; SGLang's loop takes 17 us.
    among_others = states(16.0, 1.0, "decode")
    assert seconds(among_others, "l40s", "sglang") > 78e-6
    in_loop = replace(among_others, in_loop=True)
    assert seconds(in_loop, "l40s", "sglang") == pytest.approx(17e-6, rel=0.2)


def test_intervals_contain_the_prediction() -> None:
    side = states(np.array([1.0, 64.0]), np.array([64.0, 4096.0]))  # type: ignore[arg-type]
    priced = price(side, load_gpu("b200_sxm"), framework="sglang")
    assert (priced.lo_s <= priced.latency_s).all()
    assert (priced.latency_s <= priced.hi_s).all()


@given(
    elements=floats(1.0, 1e10),
    more=floats(1.0, 100.0),
    name=sampled_from(("ffn_norm", "ffn_activation", "rotary_cache_write")),
    gpu=sampled_from(("rtx_4090", "rtx_pro_6000", "h100_sxm")),
)
def test_fused_chain_time_is_monotonic_and_benefits_from_l2(
    elements: float, more: float, name: str, gpu: str
) -> None:
    device = load_gpu(gpu)
    one, larger = (Elementwise(name=name, elements=n) for n in (elements, elements * more))
    alone_s = float(price(one, device).latency_s)
    assert float(price(larger, device).latency_s) >= alone_s
    assert float(price(one, what_if(device, l2_scale=2.0)).latency_s) <= alone_s


def test_fused_chain_beyond_l2_is_bound_by_device_memory() -> None:
    device = load_gpu("rtx_4090")
    inside, beyond = (
        Elementwise(name="ffn_norm", elements=n, reads=2.0, writes=2.0) for n in (4e6, 4e8)
    )
    assert float(price(inside, device).latency_s) < float(roofline_s(inside, device))
    assert float(price(beyond, device).latency_s) > 0.99 * float(roofline_s(beyond, device))


def test_unmeasured_smaller_dtypes_write_less_and_have_wider_intervals() -> None:
    device = load_gpu("b200_sxm")
    narrow, narrower = (
        price(Quantisation(name="q", rows=65536.0, cols=8192.0, to=to), device, framework="vllm")
        for to in ("fp8", "fp4")
    )
    assert narrow.calibrated
    assert not narrower.calibrated
    assert narrower.latency_s <= narrow.latency_s
    assert narrower.hi_s / narrower.lo_s > narrow.hi_s / narrow.lo_s


def test_hyper_connections_read_their_streams_twice_or_read_and_write_them() -> None:
    sizes = {"tokens": 8192.0, "hidden": 7168.0, "streams": 4.0, "dtype": "bf16"}
    for phase, measured_s in (("pre", 364.65e-6), ("post", 362.15e-6)):
        # TensorRT-LLM on an H100: both blocks of a layer in 729.3 and 724.3 us.
        mixing = StreamMixing(name="m", phase=phase, in_loop=True, **sizes)  # type: ignore[arg-type]
        assert float(moved_bytes(mixing)) == 9 * 8192 * 7168 * 2
        assert seconds(mixing, "h100_sxm", "trtllm") == pytest.approx(measured_s, rel=0.15)
