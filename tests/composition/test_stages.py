"""Time and energy of a pipeline stage, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulators.catalog.cluster import cluster_for, load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.collectives.library_models import EXCHANGE_SMS
from simulators.composition import price
from simulators.composition.operator_prices import Row, compute_rows
from simulators.composition.price import (
    DENSE,
    EMBEDDING,
    EXPERTS,
    HEAD,
    busiest_group,
    iteration,
    launch_s,
    layers_of,
    part_iteration,
    part_rows,
    pass_interval,
    pipeline_iterations,
    stage_iteration,
)
from simulators.composition.replica import Replica, Runtime
from simulators.composition.uncertainty import HalfWidth, unexplained_share
from simulators.kernels.energy import active_idle_w, idle_w_of
from simulators.workload.llm.parallelism import (
    HIGH_THROUGHPUT,
    LOW_LATENCY,
    Parallelism,
    Routing,
    Stage,
    stage_of,
)
from simulators.workload.llm.step import Step, decode_step, prefill_step

SHEET = load_gpu("h100_sxm")
HOST = Runtime(name="by_hand", layer_s=1e-6, host_s=1e-3, sequence_s=1e-5)


def replica(layout: Parallelism, model: str = "llama2_7b", **changes: Any) -> Replica:
    return Replica(load_model(model), SHEET, cluster_for("auto", SHEET), layout, **changes)


def whole(one: Replica) -> Stage:
    return stage_of(one.model, one.layout, 0)


def rows_of(one: Replica, step: Step, only: Sequence[str] = ()) -> list[Row]:
    return part_rows(one, step, whole(one), only)


def named(rows: Sequence[Row], name: str) -> Any:
    """Return the operator or message of that name."""
    [found] = [row.operator for row in rows if row.operator.name == name]
    return found


def test_iteration_time_is_the_sum_of_components_and_waits_draw_power() -> None:
    one = replace(
        part_iteration(replica(Parallelism()), decode_step(1.0, 1.0), DENSE),
        tokens_s=1.0,
        prefill_attention_s=2.0,
        decode_attention_s=4.0,
        mixed_attention_s=8.0,
        collective_s=16.0,
        send_recv_s=32.0,
        launch_s=64.0,
        active_idle_w=10.0,
        tokens_j=1.0,
        prefill_attention_j=2.0,
        decode_attention_j=4.0,
        mixed_attention_j=8.0,
    )
    assert one.busy_s == 63.0
    at_all_levels = replace(one, parts_by_level={0: 3.0, 1: 5.0}, waits_level=1)
    assert at_all_levels.seconds_by_level == {0: 3.0, 1: 5.0 + 64.0}
    assert one.latency_s == 127.0
    assert one.energy_j == 15.0 + 10.0 * (16.0 + 32.0 + 64.0)


def test_attention_groups_split_requests_but_not_a_single_request() -> None:
    step = Step(
        prefills=1.0,
        prefill_tokens=300.0,
        prefill_pairs=900.0,
        prefill_kv_tokens=500.0,
        decodes=8.0,
        decode_kv_tokens=4000.0,
        logits_rows=10.0,
    )
    assert busiest_group(step, 1) is step
    busiest = busiest_group(step, 4)
    assert busiest.prefills == 1.0
    assert busiest.prefill_tokens == 300.0
    assert busiest.prefill_pairs == 900.0
    assert busiest.prefill_kv_tokens == 500.0
    assert busiest.decodes == 2.0
    assert busiest.decode_kv_tokens == 1000.0
    assert busiest.logits_rows == 2.5
    half = busiest_group(replace(step, prefills=2.0), 4)  # two prompts are in two of four groups
    assert half.prefills == 1.0
    assert half.prefill_tokens == 150.0
    assert half.prefill_pairs == 450.0
    assert half.prefill_kv_tokens == 250.0


@pytest.mark.parametrize(("decodes", "tokens", "rows"), [(96.0, 24.0, 24.0), (0.0, 1.0, 1.0)])
def test_attention_groups_split_tokens_and_empty_batches_take_no_time(
    decodes: float, tokens: float, rows: float
) -> None:
    one = replica(Parallelism(attention_dp=4), "mixtral_8x7b")
    priced = rows_of(one, decode_step(decodes, 100.0))
    assert named(priced, "o_proj").m == tokens
    assert named(priced, "lm_head").m == rows
    assert all((row.seconds > 0.0) == (decodes > 0.0) for row in priced if row.part == "tokens")


def test_all_reduces_and_stage_transfers_are_separate_components() -> None:
    priced = rows_of(replica(Parallelism(tp=2, pp=2)), decode_step(8.0, 100.0))
    kinds = {(row.part, getattr(row.operator, "kind", "")) for row in priced}
    assert ("collective", "all_reduce") in kinds
    assert ("send_recv", "send_recv") in kinds
    assert {kind for part, kind in kinds if part == "collective"} == {"all_reduce"}
    assert {kind for part, kind in kinds if part == "send_recv"} == {"send_recv"}


def test_only_requested_components_are_computed() -> None:
    one, step = replica(Parallelism()), decode_step(1.0, 100.0)
    assert {row.part for row in rows_of(one, step, ("tokens",))} == {"tokens"}
    assert {row.part for row in rows_of(one, step, ("decode_attention",))} == {"decode_attention"}
    assert rows_of(one, step, ("prefill_attention",)) == []
    assert {row.part for row in rows_of(one, step)} == {
        "tokens",
        "prefill_attention",
        "decode_attention",
    }


@pytest.mark.parametrize(
    ("chunk", "decodes", "parts"),
    [
        (0.0, 3.0, {"decode_attention"}),
        (5.0, 0.0, {"prefill_attention"}),
        (7.0, 2.0, {"mixed_attention"}),
        (1.0, 1.0, {"mixed_attention"}),
    ],
)
def test_unified_kernel_replaces_prefill_and_decode_kernels_in_mixed_batches(
    chunk: float, decodes: float, parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replica(Parallelism(), unified=True)
    [row] = compute_rows([named(rows_of(one, decode_step(1.0, 1.0)), "o_proj")], one, "tokens")

    def of_one_second(_operators: object, _replica: object, part: str) -> list[Row]:
        return [replace(row, part=part, seconds=1.0)]

    monkeypatch.setattr(price, "is_one_launch", lambda _mixed, _replica: True)
    monkeypatch.setattr(price, "compute_rows", of_one_second)
    step = Step(
        prefills=min(chunk, 1.0),
        prefill_tokens=chunk,
        prefill_pairs=chunk,
        decodes=decodes,
        prefill_kv_tokens=chunk,
        decode_kv_tokens=10.0 * decodes,
    )
    attending = {r.part for r in rows_of(one, step) if "attention" in r.part and r.seconds == 1.0}
    assert attending == parts


def test_energy_counts_every_gpu_of_a_stage() -> None:
    one = replica(Parallelism(tp=2, attention_dp=2), "mixtral_8x7b")
    step = replace(
        decode_step(8.0, 500.0),
        prefills=1.0,
        prefill_tokens=64.0,
        prefill_pairs=2080.0,
        prefill_kv_tokens=64.0,
    )
    rows, made = rows_of(one, step), stage_iteration(one, step, 0)
    assert made.waiting_w == pytest.approx(4.0 * idle_w_of(SHEET))
    assert made.active_idle_w == pytest.approx(4.0 * active_idle_w(SHEET))
    for part in ("tokens", "prefill_attention", "decode_attention"):
        mine = [row for row in rows if row.part == part]
        assert mine
        assert getattr(made, f"{part}_s") == pytest.approx(sum(row.seconds for row in mine))
        assert getattr(made, f"{part}_j") == pytest.approx(4.0 * sum(row.joules for row in mine))
    assert made.mixed_attention_s == made.send_recv_s == 0.0


def test_host_time_counts_chunks_and_decodes() -> None:
    one = replica(Parallelism(), runtime=HOST)
    step = Step(prefills=3.0, decodes=5.0)
    # A millisecond, 8 sequences of 10 us, 32 layers of 1 us.
    assert launch_s(one, step, whole(one), 0.0) == pytest.approx(1e-3 + 8e-5 + 32e-6)
    assert stage_iteration(one, decode_step(5.0, 9.0), 0).launch_s == pytest.approx(1.082e-3)


def test_interval_ends_follow_the_unexplained_share() -> None:
    one, step = replica(Parallelism(pp=2), runtime=HOST), decode_step(4.0, 100.0)
    stages = pipeline_iterations(one, step)
    whole_s = float(sum(stage.latency_s for stage in stages))
    unexplained_s = unexplained_share(HOST, SHEET) * whole_s
    below_s, above_s = ([unexplained_s], [unexplained_s])
    for family, first in stages[0].half_widths.items():
        other = stages[1].half_widths.get(family, HalfWidth())  # one family errs together
        below_s.append(float(first.below_s + other.below_s))
        above_s.append(float(first.above_s + other.above_s))
    assert set(stages[1].half_widths) <= set(stages[0].half_widths)
    lo, hi = pass_interval(one, stages)
    assert lo == pytest.approx(1.0 - math.hypot(*below_s) / whole_s, rel=1e-12)
    assert hi == pytest.approx(1.0 + math.hypot(*above_s) / whole_s, rel=1e-12)


def test_pipelined_iteration_time_is_the_slowest_stage() -> None:
    # Of two equal halves the second has the head, and the first looks up an embedding.
    two, step = replica(Parallelism(pp=2), "llama2_7b"), prefill_step(1.0, 7.0)
    assert iteration(two, step).latency_s == stage_iteration(two, step, 1).latency_s
    assert iteration(two, step).latency_s != stage_iteration(two, step, 0).latency_s


def test_stages_combine_layers_embedding_and_head() -> None:
    layout, step = Parallelism(tp=2), decode_step(1.0, 100.0)
    kinds = {
        model: set(layers_of(replica(layout, model), step).parts)
        for model in ("llama2_7b", "mixtral_8x7b", "deepseek_v3")
    }
    assert kinds["llama2_7b"] == {EMBEDDING, HEAD, DENSE}
    assert kinds["mixtral_8x7b"] == {EMBEDDING, HEAD, EXPERTS}
    assert kinds["deepseek_v3"] == {EMBEDDING, HEAD, DENSE, EXPERTS}


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("tokens", [0.0, 1.0, 300.0])
def test_composed_stage_sends_the_same_activations(tp: int, tokens: float) -> None:
    one = replica(Parallelism(tp=tp, pp=4))
    step = decode_step(tokens, 50.0)
    layers = layers_of(one, step)
    for stage in range(4):
        made, priced = layers.stage(4, stage), stage_iteration(one, step, stage)
        assert made.send_recv_s == priced.send_recv_s
        assert (made.send_recv_s > 0.0) == (stage < 3 and tokens > 0.0)
        assert made.busy_s == pytest.approx(priced.busy_s, rel=1e-12)
        assert made.energy_j == pytest.approx(priced.energy_j, rel=1e-12)
        assert all(layer.send_recv_s == 0.0 for layer in layers.parts.values())


def test_launches_of_a_composed_stage_overlap_with_all_its_work() -> None:
    slow = replace(HOST, launch_layer_s={"any": 200e-6})
    one, step = replica(Parallelism(tp=2, pp=2), runtime=slow), decode_step(8.0, 100.0)
    made, priced = layers_of(one, step).stage(2, 0), stage_iteration(one, step, 0)
    # 16 layers are launched in 3.2 ms, less what the GPU is busy meanwhile.
    waits_s = 1e-3 + 8 * 1e-5 + 16e-6
    assert 0.0 < priced.busy_s < 3.2e-3
    assert priced.launch_s == pytest.approx(waits_s + 3.2e-3 - float(np.asarray(priced.busy_s)))
    assert made.launch_s == pytest.approx(priced.launch_s, rel=1e-12)


def test_cuda_graphs_are_off_with_high_throughput_all_to_all() -> None:
    model, gpu = load_model("deepseek_v3"), load_gpu("h200_sxm")
    step = decode_step(16.0, 100.0)
    waits_s = {}
    for backend in (LOW_LATENCY, HIGH_THROUGHPUT):
        layout = Parallelism(ep=16, attention_dp=16, routing=Routing(backend))
        one = Replica(model, gpu, load_cluster("hgx_h200"), layout, dtype="fp8_block")
        waits_s[backend] = float(np.sum(launch_s(one, step, whole(one), 0.0)))
    assert waits_s[HIGH_THROUGHPUT] > waits_s[LOW_LATENCY]


@pytest.mark.parametrize("backend", [LOW_LATENCY, HIGH_THROUGHPUT])
@pytest.mark.parametrize(("decodes", "pays"), [(32.0 * 512, True), (32.0 * 8, False)])
def test_kernels_of_half_a_batch_hide_the_exchanges_of_the_other(
    decodes: float, pays: bool, backend: str
) -> None:
    """Small halves read all weights twice; large ones compute while the exchanges run.

    High-throughput exchanges leave the products fewer SMs.
    """
    layout = Parallelism(attention_dp=32, ep=32, routing=Routing(backend))
    one = replica(layout, "deepseek_v3", dtype="fp8_block")
    step, half = decode_step(decodes, 2000.0), decode_step(decodes / 2.0, 2000.0)
    both = part_iteration(replace(one, two_batch_overlap=True), step, whole(one))
    lone = part_iteration(one, half, whole(one))
    sms = one.gpu.sm_count
    most = 1.0 if backend == LOW_LATENCY else sms / (sms - EXCHANGE_SMS)
    for part in ("experts_s", "decode_attention_s"):
        longer = float(getattr(both, part)) / (2.0 * float(getattr(lone, part)))
        assert 1.0 - 1e-9 <= longer <= most + 1e-9
    exposed = float(both.collective_s) / (2.0 * float(lone.collective_s))
    assert 0.0 <= exposed < 1.0
    together = part_iteration(one, step, whole(one))
    assert (float(both.latency_s) < float(together.latency_s)) == pays
