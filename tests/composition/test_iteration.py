"""Time components of an iteration depend on their inputs, and more work takes more time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.price import (
    Iteration,
    Replica,
    iteration,
    part_rows,
    pipeline_iterations,
    stage_iteration,
)
from simulators.composition.replica import load_runtime
from simulators.core.errors import Infeasible
from simulators.kernels.price import flops
from simulators.workload.llm.parallelism import Parallelism, stage_of
from simulators.workload.llm.step import Step, chunk_step, decode_step, prefill_step
from simulators.workload.operators import Attention, Gemm, GroupedGemm

MODELS = ("llama2_7b", "llama2_70b", "mixtral_8x7b", "deepseek_v3", "gpt2")
GPUS = ("h100_sxm", "a100_pcie_40gb", "t4", "mi300x")
PARTS = (
    "tokens_s",
    "prefill_attention_s",
    "decode_attention_s",
    "collective_s",
    "send_recv_s",
)


def replica(
    model: str | LanguageModel = "llama2_7b", gpu: str = "h100_sxm", tp: int = 1, pp: int = 1
) -> Replica:
    device = load_gpu(gpu)
    shape = load_model(model) if isinstance(model, str) else model
    return Replica(shape, device, cluster_for("auto", device), Parallelism(tp, pp))


def seconds(one: Iteration, part: str = "latency_s") -> float:
    return float(np.asarray(getattr(one, part)))


designs = st.builds(
    replica,
    model=st.sampled_from(MODELS[:4]),
    gpu=st.sampled_from(GPUS),
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 2]),
)
counts = st.integers(1, 512)
lengths = st.integers(1, 8192)


@settings(deadline=None, max_examples=60)
@given(design=designs, batch=counts, context=lengths)
def test_larger_decode_batch_is_not_faster(design: Replica, batch: int, context: int) -> None:
    small = iteration(design, decode_step(float(batch), float(context)))
    large = iteration(design, decode_step(float(2 * batch), float(context)))
    assert seconds(large) >= seconds(small) * (1 - 1e-3)


@settings(deadline=None, max_examples=60)
@given(design=designs, batch=counts, context=lengths)
def test_longer_context_is_not_faster(design: Replica, batch: int, context: int) -> None:
    short = iteration(design, decode_step(float(batch), float(context)))
    long = iteration(design, decode_step(float(batch), 2.0 * context))
    assert seconds(long) >= seconds(short)


@settings(deadline=None, max_examples=60)
@given(design=designs, prompt=lengths)
def test_longer_prompt_is_not_faster(design: Replica, prompt: int) -> None:
    short = iteration(design, prefill_step(1.0, float(prompt)))
    long = iteration(design, prefill_step(1.0, 2.0 * prompt))
    assert seconds(long) >= seconds(short) * (1 - 1e-3)


@settings(deadline=None, max_examples=30)
@given(layers=st.integers(1, 100), batch=counts, context=lengths)
def test_more_layers_take_longer(layers: int, batch: int, context: int) -> None:
    step = decode_step(float(batch), float(context))
    fewer = dataclasses.replace(load_model("llama2_7b"), layers=layers)
    more = dataclasses.replace(fewer, layers=layers + 1)
    assert seconds(iteration(replica(more), step)) > seconds(iteration(replica(fewer), step))


@settings(deadline=None, max_examples=40)
@given(design=designs, tokens=counts, decodes=counts, keys=st.integers(0, 100_000))
def test_each_time_component_depends_only_on_its_inputs(
    design: Replica, tokens: int, decodes: int, keys: int
) -> None:
    base = Step(
        prefills=1.0,
        prefill_tokens=float(tokens),
        prefill_pairs=tokens * (tokens + 1) / 2.0,
        prefill_kv_tokens=float(tokens),
        decodes=float(decodes),
        decode_kv_tokens=float(decodes + keys),
        logits_rows=float(decodes),
    )
    # Other attention sums, the same tokens and rows.
    other = dataclasses.replace(
        base,
        prefill_pairs=base.prefill_pairs + 5000.0,
        prefill_kv_tokens=tokens + 5000.0,
        decode_kv_tokens=base.decode_kv_tokens + 77.0,
    )
    a, b = iteration(design, base), iteration(design, other)
    for part in ("tokens_s", "collective_s", "send_recv_s", "tokens_j", "launch_s"):
        assert seconds(a, part) == seconds(b, part)
    only_decodes = dataclasses.replace(
        base, prefills=0.0, prefill_tokens=0.0, prefill_pairs=0.0, prefill_kv_tokens=0.0
    )
    c = iteration(design, only_decodes)
    assert seconds(a, "decode_attention_s") == seconds(c, "decode_attention_s")
    assert seconds(c, "prefill_attention_s") == 0.0
    only_prefills = dataclasses.replace(base, decodes=0.0, decode_kv_tokens=0.0)
    d = iteration(design, only_prefills)
    assert seconds(a, "prefill_attention_s") == seconds(d, "prefill_attention_s")
    assert seconds(d, "decode_attention_s") == 0.0


def test_empty_iteration_takes_no_compute_time() -> None:
    empty = iteration(replica(tp=8, pp=2), Step())
    assert [seconds(empty, part) for part in PARTS] == [0.0] * 5
    assert seconds(empty, "tokens_j") == 0.0


@settings(deadline=None, max_examples=20)
@given(design=designs, batches=st.lists(counts, min_size=1, max_size=20), context=lengths)
def test_column_equals_single_rows(design: Replica, batches: list[int], context: int) -> None:
    column = np.array(batches, np.float64)
    together = iteration(design, decode_step(column, np.full(column.size, float(context))))
    for i, batch in enumerate(batches):
        alone = iteration(design, decode_step(np.array([float(batch)]), np.array([float(context)])))
        for part in (*PARTS, "launch_s", "energy_j"):
            whole = np.broadcast_to(getattr(together, part), column.shape)
            assert whole[i] == np.broadcast_to(getattr(alone, part), (1,))[0]


@settings(deadline=None, max_examples=30)
@given(
    model=st.sampled_from(["llama2_7b", "llama2_70b", "mixtral_8x7b"]),
    tp=st.sampled_from([1, 4]),
    pp=st.sampled_from([2, 4, 8]),
    batch=counts,
)
def test_pipeline_stages_sum_to_the_whole_model(model: str, tp: int, pp: int, batch: int) -> None:
    step = decode_step(float(batch), 1000.0)
    whole = iteration(replica(model, tp=tp), step)
    stages = pipeline_iterations(replica(model, tp=tp, pp=pp), step)
    for part in ("tokens_s", "decode_attention_s", "collective_s", "tokens_j"):
        total = sum(seconds(stage, part) for stage in stages)
        assert total == pytest.approx(seconds(whole, part), rel=1e-9)
    assert all(seconds(stage, "send_recv_s") > 0 for stage in stages[:-1])
    assert seconds(stages[-1], "send_recv_s") == 0.0


@settings(deadline=None, max_examples=40)
@given(
    model=st.sampled_from(["llama2_7b", "llama2_70b", "mixtral_8x7b", "gpt3_175b"]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 3, 8]),
    batch=counts,
    context=lengths,
)
def test_parallel_shards_do_the_work_of_the_whole_model(
    model: str, tp: int, pp: int, batch: int, context: int
) -> None:
    step = decode_step(float(batch), float(context))
    layout, whole = replica(model, tp=tp, pp=pp), replica(model)

    def work(design: Replica, stage: int) -> float:
        rows = part_rows(design, step, stage_of(design.model, design.layout, stage))
        return sum(
            float(np.asarray(flops(row.operator))) * row.operator.repeat
            for row in rows
            if isinstance(row.operator, Gemm | GroupedGemm | Attention)
            and row.operator.name != "router"  # every rank routes
        )

    parts = tp * sum(work(layout, stage) for stage in range(pp))
    assert parts == pytest.approx(work(whole, 0), rel=1e-9)


def test_slowest_stage_has_the_most_work() -> None:
    # 80 layers in 3 stages: 27, 27, 26; the last also has the LM head.
    design = replica("llama2_70b", tp=4, pp=3)
    step = decode_step(64.0, 1024.0)
    times = [seconds(stage) for stage in pipeline_iterations(design, step)]
    assert seconds(iteration(design, step)) == max(times)
    assert seconds(stage_iteration(design, step, 1)) == times[1]


def test_decode_time_is_at_least_weight_bytes_over_bandwidth() -> None:
    # 13.48 GB of fp16 weights, of which the embedding (0.26 GB) is only looked up, at 3.35 TB/s.
    one = iteration(replica("llama2_7b"), decode_step(1.0, 1.0))
    assert seconds(one) > (13.48e9 - 0.26e9) / 3.35e12


def test_cuda_graphs_hide_kernel_launches() -> None:
    step = decode_step(1.0, 16.0)
    graphs = iteration(replica("gpt2"), step)
    eager = iteration(dataclasses.replace(replica("gpt2"), runtime=load_runtime("eager")), step)
    assert seconds(eager) > seconds(graphs)


def test_long_prefill_hides_kernel_launches() -> None:
    eager = dataclasses.replace(replica("llama2_7b"), runtime=load_runtime("eager"))
    short, long = (iteration(eager, prefill_step(1.0, n)) for n in (1.0, 8192.0))
    assert seconds(long, "launch_s") / seconds(long) < 0.01
    assert seconds(short, "launch_s") / seconds(short) > seconds(long, "launch_s") / seconds(long)


def test_short_chunks_behind_a_prefix_are_bound_by_host_launches() -> None:
    eager = dataclasses.replace(replica("llama2_7b"), runtime=load_runtime("eager"))
    host_s = eager.runtime.host_s + 32 * eager.runtime.prompt_layer_s["any"]
    for past in (16.0, 1024.0):
        assert seconds(iteration(eager, chunk_step(32.0, past, 1.0))) == pytest.approx(host_s)


def test_energy_lies_between_idle_power_and_power_limit() -> None:
    design = replica("llama2_70b", tp=8)
    for step in (decode_step(64.0, 1024.0), prefill_step(8.0, 2048.0)):
        one = iteration(design, step)
        watts = seconds(one, "energy_j") / seconds(one) / 8
        assert 70.0 <= watts <= 700.0


def test_model_not_divisible_by_tp_is_infeasible() -> None:
    with pytest.raises(Infeasible, match="tp_does_not_divide_heads"):
        iteration(replica("gpt2", tp=8), decode_step(1.0, 1.0))
