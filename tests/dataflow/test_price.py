"""Operators on an accelerator, and explanations of counts."""

from __future__ import annotations

import pytest

from simulators.catalog.accelerator import TENSORS, load_accelerator
from simulators.core.contract import Explains
from simulators.core.errors import UserError
from simulators.dataflow.contributions import reasons
from simulators.dataflow.mapping import LevelLoops, LoopNest
from simulators.dataflow.price import price
from simulators.dataflow.search.mapper import find
from simulators.dataflow.simulator import SIMULATOR, DataflowPoint, simulate
from simulators.workload.loop_nest import matmul
from simulators.workload.operators import Attention, Elementwise, Gemm, Norm


def test_operators_are_priced_independently() -> None:
    product = Gemm(name="up", m=8.0, n=64.0, k=32.0)
    twice = Gemm(name="up", m=8.0, n=64.0, k=32.0, repeat=2)
    heads = Attention(
        name="attention",
        phase="decode",
        requests=2.0,
        query_tokens=2.0,
        pairs=128.0,
        kv_tokens=128.0,
        heads=4,
        kv_heads=4,
        head_dim=16,
    )
    one, two, attention = price([product, twice, heads], "two_level", evaluations=2000)
    assert (two.latency_s, two.energy_j) == (2 * one.latency_s, 2 * one.energy_j)
    assert attention.latency_s >= 2 * 2 * 4 * 64 * 16 / 64 / 1e9  # multiplies over multipliers


def test_operators_without_multiplies_stream_through_memory() -> None:
    norm, add = price(
        [
            Norm(name="norm", rows=10.0, cols=100.0),
            Elementwise(name="add", elements=1000.0, reads=2),
        ],
        "two_level",
    )
    # 4 words per cycle at 1 GHz; 16 bit at 8 pJ each.
    assert norm.latency_s == pytest.approx(2000 / 4 / 1e9)
    assert add.energy_j == pytest.approx(3000 * 16 * 8e-12)


def test_fractional_row_is_refused() -> None:
    with pytest.raises(UserError, match="whole and positive"):
        price([Gemm(name="up", m=0.5, n=64.0, k=32.0)], "two_level")


def test_contributions_sum_to_simulated_energy_and_time() -> None:
    point = {
        "accelerator": "gpu_sm_like",
        "network": "mobilenet",
        "layer": "pw3",
        "evaluations": 1000,
    }
    lines, whole = SIMULATOR.explain(point), simulate(DataflowPoint(**point))  # type: ignore[arg-type]
    assert sum(line.energy_j for line in lines) == pytest.approx(whole.energy_j)
    assert sum(line.time_s for line in lines) == pytest.approx(whole.latency_s)
    assert {line.level for line in lines} == {"datasheet"}, "as its rows say"
    assert isinstance(SIMULATOR, Explains)
    assert any("steps of" in line.note or "once" in line.note for line in lines)


def test_explanation_names_the_loop_that_moves_a_tile() -> None:
    layer = matmul("g", n=3, c=4, m=5)
    mapping = LoopNest(
        (
            LevelLoops("DRAM", TENSORS, (("N", 3), ("C", 4))),
            LevelLoops("buffer", TENSORS, (("M", 5),)),
        )
    )
    found = reasons(mapping, layer, load_accelerator("two_level"))
    assert found["DRAM", "Weights"].startswith("3 x (the tile of 5 + 3 steps of C at DRAM")
    assert found["DRAM", "Outputs"].endswith(
        "2 steps of N at DRAM, of which only what is new, reused over C 4)"
    )


def test_remainder_tiles_are_explained() -> None:
    layer, accelerator = matmul("g", n=13, c=29, m=31), load_accelerator("two_level")
    found = find(layer, accelerator, evaluations=4000, remainders=True)
    assert any(
        "the last smaller" in why for why in reasons(found.mapping, layer, accelerator).values()
    )
