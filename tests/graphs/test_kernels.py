"""Whole models as kernel graphs: kernels, totals and comparison with measurements."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis.strategies import (
    DataObject,
    booleans,
    data,
    floats,
    integers,
    lists,
    sampled_from,
)

from lab.tables.fp32 import MODEL_TIMES, TimedTransformer, price_graph, read_cases, unfused_graph
from simulators.catalog.gpu import load_gpu
from simulators.core.calibration import reference_folder
from simulators.graphs.launches import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    backward_launches,
    forward_launches,
)
from simulators.graphs.price import Framework, finish_s, span
from simulators.workload.graphs.graph import Graph, Sketch
from simulators.workload.operators import Elementwise, Gemm

GPT2 = TimedTransformer(
    name="small", code="gpt2", layers=2, hidden=256, heads=4, ffn=1024, vocab=512, max_context=64
)
V100 = load_gpu("v100_pcie")


def _products(launches: tuple[object, ...]) -> Counter[tuple[float, ...]]:
    found: Counter[tuple[float, ...]] = Counter()
    for launch in launches:
        kernel = launch.kernel  # type: ignore[attr-defined]
        if isinstance(kernel, Gemm):
            found[(kernel.batch, kernel.m, kernel.n, kernel.k)] += launch.repeat  # type: ignore[attr-defined, index]
    return found


def _seconds(graph: Graph, *, training: bool = False, fused: bool = False) -> float:
    priced = price_graph(graph, V100, dtype="fp32", training=training, fused=fused)
    return float(priced.seconds.sum())


@pytest.fixture(scope="module")
def reference() -> Path:
    folder = reference_folder()
    if folder is None or not (folder / MODEL_TIMES).is_file():
        pytest.skip("no measured tables: set SWEEPER_REFERENCE to a reference folder")
    return folder


def test_graph_gemms_match_recorded_gemms(reference: Path) -> None:
    recorded = pq.read_table(reference / "gpu_models/op_graphs.parquet").to_pylist()
    names = {
        row["graph"]: row["graph"] for row in pq.read_table(reference / MODEL_TIMES).to_pylist()
    }
    tested = 0
    for case, row in zip(
        read_cases(reference), pq.read_table(reference / MODEL_TIMES).to_pylist(), strict=True
    ):
        if case.is_fused or case.parallelism != "none" or row["graph"] not in names:
            continue
        wanted: Counter[tuple[float, ...]] = Counter()
        for node in (n for n in recorded if n["graph"] == row["graph"]):
            for kind, sizes in ast.literal_eval(node["forward_ops"]):
                if kind not in ("Linear", "BMM"):
                    continue
                inputs = ast.literal_eval(node["input_shapes"])
                if kind == "Linear" and len(inputs) == 2 and len(inputs[1]) == 4:
                    continue  # some products over heads are listed as linear layers
                batch, m, k, n = sizes if kind == "BMM" else (1, *sizes)
                wanted[(batch, m, n, k)] += node["repeat"]
        if not wanted:
            continue
        ours = _products(forward_launches(case.graph(reference), "fp32"))
        lacking = {size: count for size, count in wanted.items() if ours[size] < count}
        assert not lacking, (case.graph_name, lacking)
        tested += 1
    assert tested > 30


def test_linear_layer_has_two_backward_gemms() -> None:
    g = Sketch("mlp")
    x = g.linear(g.input((8, 4)), 16, bias=False)
    g.linear(x, 32, bias=False)
    graph = g.graph()
    products = _products(backward_launches(graph, "fp32"))
    assert products[(1.0, 8.0, 16.0, 32.0)] == 1  # of the second layer's input
    assert products[(1.0, 32.0, 16.0, 8.0)] == 1  # of its weight
    assert sum(products.values()) == 3  # what comes from outside needs no gradient


def test_gradients_of_a_shared_result_are_summed() -> None:
    g = Sketch("residual")
    x = g.linear(g.input((8, 4)), 4, bias=False)
    g.add(x, g.relu(x))
    streams = [k.kernel for k in backward_launches(g.graph(), "fp32")]
    assert sum(isinstance(k, Elementwise) for k in streams) == 2  # relu's own, and the sum


def test_dropout_is_free_in_inference() -> None:
    graph = unfused_graph(GPT2, 1, 32)
    quiet = [launch.node for launch in forward_launches(graph, "fp32")]
    assert not any("dropout" in node for node in quiet)
    noisy = [launch.node for launch in forward_launches(graph, "fp32", training=True)]
    assert any("dropout" in node for node in noisy)


def test_fused_chain_moves_only_inputs_and_outputs() -> None:
    g = Sketch("chain")
    x = g.linear(g.input((8, 4)), 16, bias=False)
    for _ in range(5):
        x = g.relu(x)
    g.linear(x, 4, bias=False)
    fused = forward_launches(g.graph(), "fp32", fused=True)
    (chain,) = [k.kernel for k in fused if isinstance(k.kernel, Elementwise)]
    assert chain.elements * (chain.reads + chain.writes) == 2 * 8 * 16


def test_fusion_does_not_delay_later_gemms() -> None:
    g = Sketch("residual")
    x = g.relu(g.linear(g.input((8, 4)), 4, bias=False))
    y = g.linear(x, 4, bias=False)
    g.add(y, x)
    fused = forward_launches(g.graph(), "fp32", fused=True)
    assert sum(isinstance(k.kernel, Elementwise) for k in fused) == 2


@settings(max_examples=15, deadline=None)
@given(
    code=sampled_from(["bert", "gpt2", "opt"]),
    batch=integers(1, 4),
    length=sampled_from([32, 64]),
)
def test_more_sequences_tokens_or_layers_are_never_faster(
    code: str, batch: int, length: int
) -> None:
    model = TimedTransformer(
        name="m", code=code, layers=2, hidden=128, heads=2, ffn=256, vocab=512, max_context=256
    )
    deeper = TimedTransformer(
        name="m", code=code, layers=4, hidden=128, heads=2, ffn=256, vocab=512, max_context=256
    )
    seconds = _seconds(unfused_graph(model, batch, length))
    assert _seconds(unfused_graph(model, batch + 1, length)) >= seconds
    assert _seconds(unfused_graph(model, batch, 2 * length)) >= seconds
    assert _seconds(unfused_graph(deeper, batch, length)) >= seconds


def test_training_is_slower_and_fusion_is_not() -> None:
    graph = unfused_graph(GPT2, 2, 64)
    assert _seconds(graph, training=True) > _seconds(graph)
    assert _seconds(graph, fused=True) <= _seconds(graph)


def test_tensor_parallel_ranks_split_layer_gemms() -> None:
    whole, part = (unfused_graph(GPT2, 2, 64, tp) for tp in (1, 2))
    assert part.flops == pytest.approx(whole.flops / 2)


def test_slow_host_leaves_the_gpu_idle() -> None:
    graph = unfused_graph(GPT2, 1, 32)
    priced = price_graph(graph, V100, dtype="fp32", training=True)
    launches = float(priced.repeats[priced.of(FORWARD)].sum())
    slow = Framework(launch_s={FORWARD: 1e-3})
    assert span(priced, V100, FORWARD, slow).latency_s == pytest.approx(launches * 1e-3, rel=0.01)
    assert span(priced, V100, FORWARD, Framework()).launch_s == 0.0
    assert span(priced, V100, BACKWARD, slow).launch_s == 0.0


def test_host_reading_results_cannot_run_ahead() -> None:
    times, once = np.full(4, 5.0), np.ones(4)
    free, reads = np.zeros(4, bool), np.array([True, True, True, False])
    assert finish_s(times, once, free, launch_s=1.0) == 21.0  # the first launch, then kernels
    assert finish_s(times, once, reads, launch_s=1.0) == 24.0  # a launch before each
    assert finish_s(times, once, free, launch_s=6.0) == 29.0  # launches, then the last kernel


@given(
    each=lists(floats(0, 10), min_size=1, max_size=8),
    repeat=integers(1, 3),
    launch=floats(0, 5),
    data=data(),
)
def test_timeline_is_at_least_host_and_gpu_time(
    each: list[float], repeat: int, launch: float, data: DataObject
) -> None:
    waits = np.array(data.draw(lists(booleans(), min_size=len(each), max_size=len(each))), bool)
    times, repeats = np.array(each), np.full(len(each), float(repeat))
    end = finish_s(times, repeats, waits, launch)
    assert end >= repeat * sum(each) - 1e-9
    assert end >= repeat * len(each) * launch - 1e-9
    assert end <= repeat * (sum(each) + len(each) * launch) + 1e-9
    assert end >= finish_s(times, repeats, np.zeros(len(each), bool), launch) - 1e-9


def test_depthwise_convolutions_have_a_separate_rate() -> None:
    g = Sketch("separable")
    x = g.conv(g.input((1, 3, 8, 8)), 16, 1)
    g.conv(x, 16, 3, groups=16)
    priced = price_graph(g.graph(), V100, dtype="fp32", training=True)
    plain = span(priced, V100, FORWARD, Framework()).busy_s
    slow = span(priced, V100, FORWARD, Framework(pace={"depthwise": 2.0})).busy_s
    (alone,) = [
        s for s, k in zip(priced.seconds, priced.launches, strict=True) if k.pace == "depthwise"
    ]
    assert slow == pytest.approx(plain + alone)
    paces = [launch.pace for launch in priced.launches]
    assert [p for p in paces if p] == ["depthwise", "depthwise_input", "depthwise_weight"]


def test_interval_contains_the_prediction() -> None:
    priced = price_graph(unfused_graph(GPT2, 2, 64), V100, dtype="fp32")
    part = span(priced, V100, INFERENCE, Framework())
    assert part.lo_s < part.latency_s < part.hi_s
