"""Densities and sparse tensor cores: cases worked out by hand and laws."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.core.errors import UserError
from simulators.dataflow.sparsity import Density, empty_probability, hypergeometric, metadata_bits
from tests.parity.sparse_tensor_cores import (
    SparseProduct,
    expected_groups,
    tensor_core_cycles,
)


@given(tile=st.integers(1, 30), more=st.integers(0, 60), share=st.floats(0, 0.99))
def test_single_lanes_take_one_cycle_per_nonzero(tile: int, more: int, share: float) -> None:
    whole = tile + more
    filled = round(share * whole)
    empty = hypergeometric(0, tile, filled, whole)  # an empty tile takes a round as well
    rounds = expected_groups(share, tile, whole, 1)
    assert math.isclose(rounds - empty, tile * filled / whole, rel_tol=1e-9, abs_tol=1e-9)


def test_empty_tile_probability_is_hypergeometric() -> None:
    # Two words of four, two of which are filled: one pair in six is empty.
    assert empty_probability(Density("uniform", 0.5), 2, 4) == pytest.approx(1 / 6)
    assert empty_probability(Density("structured", n=2, m=4), 4, 16) == 0.0
    assert empty_probability(Density("banded", 0.25), 4, 16) == 0.75


def test_sparse_formats_cost_their_metadata_bits() -> None:
    assert metadata_bits("bitmask", 64, 16) == 64
    assert metadata_bits("coordinate", 64, 16) == 16 * 6
    assert metadata_bits("run_length", 64, 16) == 16 * 6
    assert metadata_bits("none", 64, 16) == 0


def test_packed_lanes_take_whole_cycles() -> None:
    assert expected_groups(1.0, 32, 1024, 16) == 2.0
    assert expected_groups(0.0, 32, 1024, 16) == 1.0


@given(w=st.sampled_from([0.25, 1 / 3, 0.5, 1.0]), i=st.floats(0.1, 1.0))
def test_sparse_cores_lie_between_dense_and_ideal(w: float, i: float) -> None:
    product = SparseProduct(512, 1024, 384, weights=w, inputs=i)
    dense = tensor_core_cycles("tc", product)
    flexible = tensor_core_cycles("stc_flexible", product)
    assert dense * w * (1 - 1e-9) <= flexible <= dense * (1 + 1e-9)
    assert dense * w * i <= tensor_core_cycles("dstc", product)


def test_densities_outside_their_range_are_refused() -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        Density("uniform", 1.5)
    with pytest.raises(UserError, match="n of m"):
        Density("structured", n=5, m=4)
