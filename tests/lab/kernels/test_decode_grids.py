"""Grids of decode times never fall, and give back what they were fitted to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.fits.methods.decode_grids import fit_knots, nearest_rising
from simulators.core.jit import Floats
from simulators.kernels.interpolation_grid import interpolated_s, rising
from simulators.workload.operators import Attention


def test_the_nearest_rising_grid_is_the_grid_itself_where_it_rises() -> None:
    grid = np.add.outer(np.arange(4.0), np.arange(5.0))
    assert np.allclose(nearest_rising(grid, np.ones((4, 5))), grid)
    fallen = grid.copy()
    fallen[1, 2] = 9.0
    found = nearest_rising(fallen, np.ones((4, 5)))
    assert np.array_equal(found, rising(found))
    assert np.sum((found - fallen) ** 2) < np.sum((rising(fallen) - fallen) ** 2)


def test_knots_give_back_the_times_they_were_fitted_to() -> None:
    requests, keys = (
        x.reshape(-1) for x in np.meshgrid(2.0 ** np.arange(8), 2.0 ** np.arange(1, 9))
    )
    seconds = 1e-6 * (5.0 + requests * keys / 100.0)
    steps = Attention(
        name="decode",
        phase="decode",
        requests=requests,
        query_tokens=requests,
        pairs=requests * keys,
        kv_tokens=requests * keys,
        heads=8.0,
        kv_heads=1.0,
        head_dim=128.0,
    )

    def form(a: Attention) -> Floats:
        return np.full(np.shape(a.requests), 1e-5)

    knots = fit_knots(steps, seconds, form, alone=False)
    assert np.allclose(interpolated_s(knots, steps, form, form), seconds, rtol=1e-6)
    assert np.isnan(interpolated_s(knots, replace(steps, head_dim=80.0), form, form)).all()
