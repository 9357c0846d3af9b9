"""Carbon of serving, worked out by hand from a row's energy, GPUs and rates."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from simulators.catalog.carbon import read_grid
from simulators.core.columns import batch_of
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import SIMULATOR

POINT = {
    "model": "llama3_1_8b",
    "gpu": "h100_sxm",
    "tp": 2,
    "prompt_tokens": 512,
    "output_tokens": 200,
    "qps": 4.0,
    "fidelity": "analytic",
}


def rows(*points: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = SIMULATOR.evaluate(
        batch_of(ServingPoint, *({**POINT, **point} for point in points))
    ).to_pylist()
    assert all(row["status"] == "ok" for row in found)
    return found


def test_electricity_is_energy_times_pue_times_grid() -> None:
    [row] = rows({"grid": "100"})
    kwh_per_mtok = row["energy_j_per_token"] * 1e6 / 3.6e6
    assert row["carbon_g_per_mtok"] == pytest.approx(kwh_per_mtok * 1.25 * 100.0)
    assert row["carbon_g_per_request"] == pytest.approx(row["carbon_g_per_mtok"] * 200e-6)


def test_modules_are_spread_over_their_years_and_tokens() -> None:
    four, eight = rows({}, {"gpu_life_years": 8.0})
    life_s = 4 * 365.25 * 86400
    expected = 2 * 164_000.0 / life_s / four["tokens_per_s"] * 1e6
    assert four["embodied_g_per_mtok"] == pytest.approx(expected)
    assert eight["embodied_g_per_mtok"] == pytest.approx(expected / 2)


def test_nations_differ_by_their_grids_alone() -> None:
    listed, france, poland = rows({}, {"grid": "france"}, {"grid": "poland"})
    assert poland["carbon_g_per_mtok"] / france["carbon_g_per_mtok"] == pytest.approx(662 / 56)
    assert listed["carbon_g_per_mtok"] / france["carbon_g_per_mtok"] == pytest.approx(390 / 56)
    assert poland["energy_j_per_token"] == france["energy_j_per_token"]


def test_gpu_without_a_published_footprint_has_no_embodied_carbon() -> None:
    [row] = rows({"gpu": "l4"})
    assert row["embodied_g_per_mtok"] is None
    assert row["carbon_g_per_mtok"] > 0.0


def test_stored_rows_take_another_grid_without_simulation() -> None:
    point = {**POINT, "grid": ""}
    batch = batch_of(ServingPoint, point)
    done = SIMULATOR.evaluate(batch)
    both = pa.RecordBatch.from_arrays(
        [*batch.columns, *done.columns], [*batch.schema.names, *done.schema.names]
    )
    fields = {"prices": "public_cloud", "usd_per_gpu_hour": None, "grid": "india"}
    found = SIMULATOR.costs(both, {**fields, "gpu_life_years": 4.0})
    [fresh] = rows({"grid": "india"})
    for name in ("carbon_g_per_mtok", "carbon_g_per_request", "embodied_g_per_mtok"):
        assert float(found[name][0]) == pytest.approx(fresh[name], rel=1e-12)


def test_unknown_grid_is_refused() -> None:
    with pytest.raises(UserError, match="unknown grid 'gondor'"):
        read_grid("gondor")
    with pytest.raises(UserError, match="unknown grid '-3'"):
        read_grid("-3")
