"""Sparsity inside a mapping's counts, and fused layers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.catalog.accelerator import load_accelerator
from simulators.core.errors import UserError
from simulators.dataflow.fusion import feeds, fused, in_pairs
from simulators.dataflow.mapping import chains, network, network_names
from simulators.dataflow.search.mapper import Found, find
from simulators.dataflow.simulator import DataflowPoint, simulate
from simulators.dataflow.sparsity import Density, Sparsity, with_zeros
from simulators.workload.loop_nest import Layer, conv, matmul

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


def mapper(layer: Layer, accelerator: object) -> Found:
    return find(layer, accelerator, evaluations=4000)  # type: ignore[arg-type]


def test_fused_intermediate_tensor_stays_on_chip() -> None:
    first, second = matmul("up", n=32, c=64, m=96), matmul("down", n=32, c=96, m=64)
    pair = fused(first, second, EYERISS, mapper)
    assert pair is not None
    for found, tensor in zip(pair, ("Outputs", "Inputs"), strict=True):
        outer = [t for t in found.evaluation.traffic if (t.level, t.tensor) == ("DRAM", tensor)]
        assert sum(sum(t.totals) for t in outer) == 0
        assert tensor in found.mapping.levels[1].keep
    apart = [mapper(layer, EYERISS) for layer in (first, second)]
    together = [found for _, found in in_pairs([first, second], EYERISS, mapper)]
    assert sum(f.evaluation.energy_pj for f in together) < sum(
        f.evaluation.energy_pj for f in apart
    )


def test_layers_that_do_not_fit_are_not_fused() -> None:
    large = conv("a", m=256, c=64, r=1, s=1, p=112, q=112)
    assert fused(large, conv("b", m=8, c=256, r=1, s=1, p=112, q=112), EYERISS, mapper) is None
    assert not feeds(large, conv("b", m=8, c=255, r=1, s=1, p=112, q=112))


@pytest.mark.parametrize("name", network_names())
def test_fused_chains_cover_the_network_in_order(name: str) -> None:
    layers = [layer for chain in chains(name) for layer in chain]
    assert sum(layer.macs for layer in layers) == sum(
        layer.macs * times for layer, times in network(name)
    )


def test_zeros_and_fusion_are_axes() -> None:
    point = {"network": "mobilenet", "evaluations": 300}
    plain = simulate(DataflowPoint("eyeriss_like", **point))  # type: ignore[arg-type]
    shared = simulate(DataflowPoint("eyeriss_like", fused=True, **point))  # type: ignore[arg-type]
    assert shared.dram_bytes < plain.dram_bytes
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
        ({"fused": True, "layer": "fc"}, "whole network"),
    ],
)
def test_invalid_sparsity_options_raise_a_user_error(change: dict[str, object], said: str) -> None:
    point = {"accelerator": "two_level", "layer": "fc", "evaluations": 100, **change}
    with pytest.raises(UserError, match=said):
        simulate(DataflowPoint(**point))  # type: ignore[arg-type]
