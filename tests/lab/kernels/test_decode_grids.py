"""Grids of decode times never fall, and give back what they were fitted to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lab.fits.kernels.fused_kernels import fit_grids, nearest_rising, places
from lab.fits.kernels.kernel_calibration import grid_table
from lab.tables.rows import Floats, Rows, Sizes, tidy
from simulators.kernels.corrections import (
    Numbers,
    grids_from,
    interpolated_s,
    rising,
)
from simulators.workload.operators import Attention


def test_the_nearest_rising_grid_is_the_grid_itself_where_it_rises() -> None:
    grid = np.add.outer(np.arange(4.0), np.arange(5.0))
    assert np.allclose(nearest_rising(grid, np.ones((4, 5))), grid)
    fallen = grid.copy()
    fallen[1, 2] = 9.0
    found = nearest_rising(fallen, np.ones((4, 5)))
    assert np.array_equal(found, rising(found))
    assert np.sum((found - fallen) ** 2) < np.sum((rising(fallen) - fallen) ** 2)


def steps(requests: Floats, tokens: Floats, **more: Any) -> Attention:
    return Attention(
        name="decode",
        phase="decode",
        requests=requests,
        query_tokens=requests,
        pairs=requests * tokens,
        kv_tokens=requests * tokens,
        kv_heads=1.0,
        **{"heads": 8.0, "head_dim": 128.0} | more,
    )


def of_sizes(sizes: Sizes) -> Attention:
    return steps(sizes["requests"], sizes["tokens"])


def form(attention: Attention, numbers: Numbers) -> Floats:
    """Return a form that knows of the bytes and not of the launch."""
    return numbers["rate"] * np.asarray(attention.kv_tokens, np.float64) + 1e-5


def timed(octaves: int) -> Rows:
    """Return steps at powers of two, half as long as the form says from a thousand tokens on."""
    requests, tokens = (
        x.reshape(-1) for x in np.meshgrid(2.0 ** np.arange(octaves), 2.0 ** np.arange(octaves))
    )
    seconds = form(steps(requests, tokens), {"rate": 1e-8}) * np.where(tokens >= 1024.0, 0.5, 1.0)
    group = np.arange(requests.size, dtype=np.uint64)
    sizes = {"requests": requests, "tokens": tokens}
    return tidy(sizes, seconds, group, gpu="h100_sxm", operator_of=of_sizes)


def test_grids_give_back_what_they_were_fitted_to_and_rise_where_it_falls() -> None:
    rows = timed(12)
    table = fit_grids(rows, form, {"rate": 1e-8}, lambda _rows, near: near)
    read = interpolated_s(grids_from(grid_table(table)), rows.operator, form)
    assert np.median(np.abs(np.log(read / rows.seconds))) < 0.02
    grid = read.reshape(12, 12)
    assert np.all(np.diff(grid, axis=0) >= 0.0)
    assert np.all(np.diff(grid, axis=1) >= 0.0)


def test_what_no_grid_was_laid_for_follows_its_packing() -> None:
    rows = timed(12)
    table = fit_grids(rows, form, {"rate": 1e-8}, lambda _rows, near: near)
    known, narrow, few = (
        interpolated_s(table, steps(np.array([64.0]), np.array([96.0]), **more), form)
        for more in ({}, {"head_dim": 80.0}, {"heads": 2.0})
    )
    assert narrow == pytest.approx(known, rel=0.05)
    assert few == pytest.approx(known, rel=0.05)


def test_a_window_hides_keys_and_not_the_context() -> None:
    requests, tokens = np.array([4.0]), np.array([4096.0])
    seen = steps(requests, np.array([128.0]), window=128.0, context_tokens=requests * tokens)
    assert places(seen).tolist() == [[2.0, 12.0]]
    assert places(steps(requests, tokens)).tolist() == [[2.0, 12.0]]
