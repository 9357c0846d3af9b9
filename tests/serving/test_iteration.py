"""Tabulated iteration times against composition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.catalog.cluster import cluster_for, load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.replica import Replica, load_runtime
from simulators.serving.engine.replica import (
    ADDED_S,
    ALL_RANK_TOKENS,
    DECODE_KV,
    DECODES,
    ENERGY_J,
    LAST_STAGE_S,
    LOGITS_ROWS,
    PREFILL_KV,
    PREFILL_PAIRS,
    PREFILL_TOKENS,
    PREFILLS,
    PRICE_COLUMNS,
    RANK_IMBALANCE,
    STAGE_S,
    STEP_COLUMNS,
    TOKENS,
)
from simulators.serving.prices.iteration_table import (
    FINE,
    Hardware,
    grid_value,
    iteration_table,
    octaves,
    place,
    table_price,
)
from simulators.workload.llm.parallelism import Parallelism
from tests.serving.iteration_batches import composed, looked_up, random_batches

COUNT = 300


def replica(model: str, gpu: str, tp: int, pp: int, runtime: str = "graphs") -> Replica:
    sheet = load_gpu(gpu)
    return Replica(
        load_model(model),
        sheet,
        cluster_for("auto", sheet),
        Parallelism(tp, pp),
        runtime=load_runtime(runtime),
    )


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "pp", "runtime", "worst", "usual"),
    [
        # Fitted kernel times jump where a library changes its kernel: between two tabulated sizes
        # a jump is met too early or too late.
        ("llama2_7b", "l40s", 1, 1, "graphs", 0.04, 0.003),
        ("llama2_7b", "a100_sxm", 1, 1, "graphs", 0.04, 0.003),
        ("llama3_1_8b", "h100_sxm", 1, 1, "graphs", 0.04, 0.003),
        ("llama2_70b", "h100_sxm", 8, 1, "graphs", 0.03, 0.002),
        ("llama2_70b", "h100_sxm", 4, 2, "eager", 0.03, 0.002),
        ("mixtral_8x7b", "h100_sxm", 2, 1, "graphs", 0.06, 0.003),
        ("deepseek_v3", "h100_sxm", 8, 2, "graphs", 0.06, 0.003),
    ],
)
def test_interpolated_times_match_composition(
    model: str, gpu: str, tp: int, pp: int, runtime: str, worst: float, usual: float
) -> None:
    one = replica(model, gpu, tp, pp, runtime)
    steps = random_batches(tp, COUNT)
    prices = looked_up(one, steps)
    seconds, joules = composed(one, steps, pp - 1)
    error = np.abs(prices[:, LAST_STAGE_S] / seconds - 1.0)
    assert error.max() < worst
    assert error.mean() < usual
    if pp == 2:
        sender_s, sender_j = composed(one, steps, 0)
        error = np.abs(prices[:, STAGE_S] / sender_s - 1.0)
        assert error.max() < worst
        joules = joules + sender_j
    assert np.abs(prices[:, ENERGY_J] / joules - 1.0).mean() < 2.0 * usual


def test_interpolated_decode_time_lies_between_neighbours() -> None:
    """Whatever jumps there are, the error of an interpolated time is at most their height."""
    one = replica("llama3_1_8b", "h100_sxm", 1, 1)
    draw = np.random.default_rng(3)
    steps, corners = np.zeros((COUNT, STEP_COLUMNS)), []
    decodes = draw.integers(1, 257, COUNT).astype(float)
    context = np.floor(2.0 ** draw.uniform(4, 14, COUNT))
    columns = [DECODES, LOGITS_ROWS, TOKENS]
    steps[:, columns], steps[:, DECODE_KV] = decodes[:, None], decodes * context
    grids = [octaves(n, most) for n, most in ((FINE[2], 1 << 10), (FINE[3], 1 << 17))]
    for below in (True, False):
        near = [
            grid[np.searchsorted(grid, x, "right") - 1 if below else np.searchsorted(grid, x)]
            for grid, x in zip(grids, (decodes, context), strict=True)
        ]
        corner = steps.copy()
        corner[:, DECODES], corner[:, DECODE_KV] = near[0], near[0] * near[1]
        corners.append(composed(one, corner, 0)[0])
    seconds = looked_up(one, steps)[:, LAST_STAGE_S]
    assert (seconds >= corners[0] * (1.0 - 1e-9)).all()
    assert (seconds <= corners[1] * (1.0 + 1e-9)).all()


def test_small_decode_batches_are_exact_at_tabulated_contexts() -> None:
    one = replica("llama2_7b", "a100_sxm", 1, 1)
    steps = np.zeros((COUNT, STEP_COLUMNS))
    steps[:, DECODES] = np.arange(COUNT) % 32 + 1
    steps[:, DECODE_KV] = steps[:, DECODES] * 1024.0
    steps[:, TOKENS] = steps[:, LOGITS_ROWS] = steps[:, DECODES]
    seconds, _ = composed(one, steps, 0)
    assert looked_up(one, steps)[:, LAST_STAGE_S] == pytest.approx(seconds, rel=1e-12)


def test_mixed_batch_reads_weights_once() -> None:
    one = replica("llama2_70b", "h100_sxm", 8, 1)
    steps = np.zeros((COUNT, STEP_COLUMNS))
    steps[:2, DECODES], steps[:2, DECODE_KV], steps[:2, LOGITS_ROWS] = 64, 64_000, 64
    steps[0, PREFILLS] = steps[2, PREFILLS] = 1
    steps[0, PREFILL_TOKENS] = steps[2, PREFILL_TOKENS] = 64
    steps[0, PREFILL_PAIRS] = steps[2, PREFILL_PAIRS] = 64 * 65 / 2
    steps[0, PREFILL_KV] = steps[2, PREFILL_KV] = 64
    steps[:, TOKENS] = np.maximum(steps[:, DECODES] + steps[:, PREFILL_TOKENS], 1)
    mixed, decode, prefill = looked_up(one, steps)[:3, LAST_STAGE_S]
    assert max(decode, prefill) < mixed < 0.8 * (decode + prefill)


def test_grid_lookup_returns_index_and_fraction() -> None:
    grid = octaves(4, 1 << 10)
    assert [grid_value(i, 4) for i in range(grid.size)] == grid.tolist()
    assert [place(float(value), 4, grid.size) for value in grid] == list(range(grid.size))
    assert place(5.5, 4, grid.size) == 5.5


@pytest.mark.parametrize(("ranks", "each"), [(1, 400_000), (64, 12_000), (64, 40_000)])
def test_iterations_beyond_the_table_match_composition(ranks: int, each: int) -> None:
    sheet = load_gpu("h100_sxm")
    one = replace(
        replica("mixtral_8x7b", "h100_sxm", 1, 1),
        cluster=cluster_for("auto", sheet),
        layout=Parallelism(1, 1, min(ranks, 8), ranks),
    )
    steps = np.zeros((1, STEP_COLUMNS))
    tokens, prompt = ranks * each, 2000.0
    steps[0, [TOKENS, ALL_RANK_TOKENS, PREFILL_TOKENS, PREFILL_KV]] = tokens
    steps[0, [PREFILLS, LOGITS_ROWS]] = tokens / prompt
    steps[0, PREFILL_PAIRS] = tokens * (prompt + 1.0) / 2.0
    seconds, _ = composed(one, steps, 0)
    assert looked_up(one, steps)[:, LAST_STAGE_S] == pytest.approx(seconds, rel=0.05)


def test_equal_replicas_share_a_table() -> None:
    one = replica("llama2_7b", "a100_sxm", 1, 1)
    other = replace(one, dtype="bf16")
    assert iteration_table(Hardware("a", one)) is iteration_table(Hardware("a", one))
    assert iteration_table(Hardware("a", one)) is not iteration_table(Hardware("b", other))


def test_mixed_iteration_is_the_sum_minus_the_fixed_cost() -> None:
    one = replica("llama3_1_8b", "h100_sxm", 2, 1)
    hardware = Hardware(repr(one), one)
    both, added = iteration_table(hardware), iteration_table(hardware, additive=True)

    def seconds(step: np.ndarray, tables: object) -> float:
        price = np.zeros(PRICE_COLUMNS)
        return float(table_price(step, tables.shape, tables.table, price)) - price[ADDED_S]

    for step in random_batches(5, 60):
        prefills, decodes = step.copy(), np.zeros(STEP_COLUMNS)
        decodes[[DECODES, LOGITS_ROWS, TOKENS]] = step[DECODES]
        decodes[DECODE_KV] = step[DECODE_KV]
        prefills[[DECODES, DECODE_KV]] = 0.0
        prefills[LOGITS_ROWS] -= step[DECODES]
        prefills[TOKENS] = step[PREFILL_TOKENS]
        if step[PREFILLS] and step[DECODES]:
            parts = seconds(prefills, both) + seconds(decodes, both)
            assert seconds(step, added) == pytest.approx(parts, rel=1e-9)
            # Weights are read twice; measured products may jump down a little with more rows.
            assert seconds(step, added) > 0.99 * seconds(step, both)
        else:
            assert seconds(step, added) == seconds(step, both)


@pytest.mark.parametrize(
    ("cluster", "waits"), [("pcie_server", True), ("pcie_through_host", False)]
)
def test_single_rank_transfer_gets_full_host_bandwidth(cluster: str, waits: bool) -> None:
    """Ranks have separate links, so unbalanced tokens make the other ranks wait."""
    one = replica("qwen3_30b", "rtx_pro_6000", 1, 1, "vllm")
    layout = Parallelism(1, 1, ep=2, attention_dp=2)
    one = replace(one, cluster=load_cluster(cluster), layout=layout, dtype="bf16", kv_dtype="bf16")
    tables, step = iteration_table(Hardware(repr(one), one)), np.zeros(STEP_COLUMNS)
    step[[TOKENS, ALL_RANK_TOKENS]] = 2048.0
    seconds = []
    for step[RANK_IMBALANCE] in (0.0, 1.0):
        price = np.zeros(PRICE_COLUMNS)
        seconds.append(float(table_price(step, tables.shape, tables.table, price)))
    assert (seconds[1] > seconds[0]) == waits


def test_unified_attention_kernel_time_matches_composition() -> None:
    """Its trees are jagged: between tabulated sizes they are met less well than other kernels."""
    apart = replica("llama3_1_8b", "rtx_pro_6000", 1, 1, "vllm")
    apart = replace(apart, dtype="bf16", kv_dtype="bf16")
    one = replace(apart, unified=True)
    steps = random_batches(7, COUNT)
    mixed = (steps[:, PREFILLS] > 0.0) & (steps[:, DECODES] > 0.0)
    together, alone = (looked_up(r, steps)[:, LAST_STAGE_S] for r in (one, apart))
    assert (together[~mixed] == alone[~mixed]).all()
    seconds, joules = composed(one, steps[mixed], 0)
    error = np.abs(together[mixed] / seconds - 1.0)
    assert error.max() < 0.25
    assert error.mean() < 0.03
    assert np.abs(looked_up(one, steps[mixed])[:, ENERGY_J] / joules - 1.0).mean() < 0.015
    assert together[mixed].mean() > 1.05 * alone[mixed].mean()


def test_two_attention_kernels_launch_without_a_unified_kernel() -> None:
    apart = replica("llama3_1_8b", "h100_sxm", 1, 1, "vllm")
    steps = random_batches(7, COUNT)
    together, alone = (looked_up(replace(apart, unified=u), steps) for u in (True, False))
    assert np.array_equal(together, alone)
