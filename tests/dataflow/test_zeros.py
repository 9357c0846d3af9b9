"""Sparsity inside a mapping's counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.catalog.accelerator import load_accelerator
from simulators.core.errors import UserError
from simulators.dataflow.search.mapper import Found, find
from simulators.dataflow.simulator import DataflowPoint, simulate
from simulators.dataflow.sparsity import Density, Sparsity, with_zeros
from simulators.workload.loop_nest import matmul

LAYER = matmul("g", n=32, c=64, m=48)
EYERISS = load_accelerator("eyeriss_like")


@pytest.fixture(scope="module")
def dense() -> Found:
    """A mapping of the layer, without zeros."""
    return find(LAYER, EYERISS, evaluations=3000)


def test_dense_operands_leave_counts_unchanged(dense: Found) -> None:
    same = with_zeros(dense.mapping, dense.evaluation, LAYER, EYERISS, Sparsity(action="skipping"))
    assert same.traffic == dense.evaluation.traffic
    assert same.cycles == dense.evaluation.cycles
    assert same.energy_pj == pytest.approx(dense.evaluation.energy_pj, rel=1e-9)


def test_two_of_four_sparsity_halves_multiplies_and_cycles(dense: Found) -> None:
    zeros = Sparsity(
        densities={"Weights": Density("structured", n=2, m=4)},
        action="skipping",
        leaders=("Weights",),
    )
    half = with_zeros(dense.mapping, dense.evaluation, LAYER, EYERISS, zeros)
    assert half.compute_cycles == dense.evaluation.compute_cycles // 2
    assert half.mac_energy_pj == dense.evaluation.mac_energy_pj / 2


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0.05, 1.0), layout=st.sampled_from(["bitmask", "run_length", "coordinate"]))
def test_gating_saves_energy_but_no_cycles(dense: Found, share: float, layout: str) -> None:
    densities = {"Weights": Density("uniform", share), "Inputs": Density("uniform", share)}
    gated, skipped = (
        with_zeros(
            dense.mapping,
            dense.evaluation,
            LAYER,
            EYERISS,
            Sparsity(densities=densities, action=action),
        )
        for action in ("gating", "skipping")
    )
    assert gated.compute_cycles == dense.evaluation.compute_cycles
    assert gated.energy_pj <= dense.evaluation.energy_pj * (1 + 1e-9)
    assert skipped.cycles <= gated.cycles
    stored = with_zeros(
        dense.mapping,
        dense.evaluation,
        LAYER,
        EYERISS,
        Sparsity(densities=densities, formats={"Weights": layout}),
    )
    before, after = (
        next(t for t in e.traffic if (t.level, t.tensor) == ("DRAM", "Weights"))
        for e in (dense.evaluation, stored)
    )
    assert after.reads >= before.reads * share


def test_bitmask_format_adds_one_bit_per_word(dense: Found) -> None:
    zeros = Sparsity(
        densities={"Weights": Density("structured", n=1, m=2)}, formats={"Weights": "bitmask"}
    )
    stored = with_zeros(dense.mapping, dense.evaluation, LAYER, EYERISS, zeros)
    before, after = (
        next(t.reads for t in e.traffic if (t.level, t.tensor) == ("DRAM", "Weights"))
        for e in (dense.evaluation, stored)
    )
    assert after == before * (0.5 + 1 / 8)


def test_zeros_are_axes() -> None:
    point = {"network": "mobilenet", "evaluations": 300}
    plain = simulate(DataflowPoint("eyeriss_like", **point))  # type: ignore[arg-type]
    sparse = simulate(
        DataflowPoint(
            "eyeriss_like",
            weight_density="2:4",
            zeros="skipping",
            weight_format="bitmask",
            **point,  # type: ignore[arg-type]
        )
    )
    assert sparse.energy_j < plain.energy_j
    assert sparse.latency_s < plain.latency_s


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight_density": "2/4"}, "not like 0.3, 2:4"),
        ({"zeros": "skiping"}, "did you mean 'skipping'"),
        ({"weight_format": "bitmap"}, "did you mean 'bitmask'"),
    ],
)
def test_invalid_sparsity_options_raise_a_user_error(change: dict[str, object], said: str) -> None:
    point = {"accelerator": "two_level", "layer": "fc", "evaluations": 100, **change}
    with pytest.raises(UserError, match=said):
        simulate(DataflowPoint(**point))  # type: ignore[arg-type]
