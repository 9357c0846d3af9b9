"""From mapping to silicon: equations by hand, areas by node, and the table of published chips."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pyarrow as pa
import pytest

from lab.fits.accelerators.chip_runs import FILE, published_areas
from simulators.catalog.accelerator import Changes, load_accelerator, resized
from simulators.core.columns import schema_of
from simulators.core.errors import UserError
from simulators.core.folder import ACCELERATORS, read_toml
from simulators.dataflow.evaluation import area_mm2, mac_energy_pj
from simulators.dataflow.network import network_graph
from simulators.dataflow.silicon import Losses, MappedLayer, Silicon, calibrated, chip_of
from simulators.dataflow.simulator import SIMULATOR, DataflowPoint, plan_of, simulate

WORK = (MappedLayer(2, 1000.0, 500.0, 3e-6), MappedLayer(1, 100.0, 900.0, 1e-6))
TIME = Losses(2.0, 1.1, {"known": 1.5}, 0.1, 0.5)
ENERGY = Losses(1.2, 0.05, {}, 0.2, 0.4)


def test_time_and_energy_match_a_hand_calculation() -> None:
    silicon = Silicon(TIME, ENERGY, TIME, start_s=1e-6)
    # Layers: twice max(1000 * 2, 500 * 1.1), once max(100 * 2, 900 * 1.1); three starts.
    assert silicon.latency_s(WORK, 1e9, "new") == pytest.approx(4e-6 + 0.99e-6 + 3e-6)
    assert silicon.latency_s(WORK, 1e9, "known") == pytest.approx(6e-6 + 0.99e-6 + 3e-6)
    # 7 uJ of accesses times 1.2; 10 mm2 of 0.05 W for 8 us.
    assert silicon.energy_j(WORK, 10.0, 8e-6, "new") == pytest.approx(8.4e-6 + 4e-6)


def test_partial_overlap_adds_transfers_and_work_as_a_norm() -> None:
    half = Silicon(TIME, ENERGY, TIME, start_s=1e-6, overlap=2.0)
    # 300 cycles of work times 2, 727.27 of transfers times 1.1: root of 600^2 + 800^2; two starts.
    work = [MappedLayer(1, 300.0, 800 / 1.1, 0.0, layers=2)]
    assert half.latency_s(work, 1e9, "new") == pytest.approx(1e-6 + 2e-6)
    none = Silicon(TIME, ENERGY, TIME, start_s=0.0, overlap=1.0)
    assert none.latency_s(work, 1e9, "new") == pytest.approx(1.4e-6)
    assert none.latency_s([MappedLayer(1, 0.0, 0.0, 0.0)], 1e9, "new") == 0.0


def test_tiles_of_a_fused_group_start_its_layers_once() -> None:
    point = DataflowPoint("two_level", network="mobilenet_v2", evaluations=100, residency="network")
    plan = plan_of(point, load_accelerator("two_level"))
    groups = [part for part in plan.parts if part.tiles > 1]
    assert groups
    assert all(part.layers == part.last - part.first for part in groups)
    assert sum(part.layers for part in plan.parts) == len(network_graph("mobilenet_v2").nodes)


def test_fixed_point_multiplies_cost_less_than_half_precision() -> None:
    chip = load_accelerator("eyeriss")
    floating = dataclasses.replace(chip, mac=dataclasses.replace(chip.mac, arithmetic="float"))
    # Horowitz (ISSCC 2014), 45 nm: half precision 1.5 pJ; 16-bit integers between 0.3 and 3.2 pJ.
    ratio = mac_energy_pj(chip) / mac_energy_pj(floating)
    assert ratio == pytest.approx(0.887 / 1.5)
    assert area_mm2(chip) == area_mm2(floating)


def test_unknown_arithmetic_is_refused(tmp_path: Path) -> None:
    file = ACCELERATORS.find("two_level")
    bad = tmp_path / "bad.toml"
    bad.write_text(file.read_text() + 'arithmetic = "decimal"\n')
    with pytest.raises(UserError, match="'decimal', not float or integer"):
        load_accelerator(str(bad))


def test_interval_of_an_unknown_design_is_wider() -> None:
    known, new = TIME.interval(1.0, "known"), TIME.interval(1.0, "new")
    assert new[0] < known[0] < 1.0 < known[1] < new[1]
    assert known[1] == pytest.approx(math.exp(1.6449 * 0.1))


def test_chip_is_slower_and_larger_than_its_mapping() -> None:
    found = simulate(DataflowPoint("nvdla_256", network="resnet50", layer="fc", evaluations=500))
    assert found.chip_latency_s > found.latency_s
    assert found.chip_area_mm2 > found.area_mm2
    for name in ("latency_s", "energy_j", "area_mm2"):
        low, value, high = (getattr(found, f"chip_{name}{end}") for end in ("_lo", "", "_hi"))
        assert low < value < high


def test_evidence_says_whose_chips_were_published() -> None:
    points = [
        {"accelerator": "nvdla_256", "network": "resnet50", "layer": "fc", "evaluations": 100},
        {"accelerator": "nvdla_256", "pe_rows": 64},
        {"accelerator": "two_level"},
    ]
    rows = [{**DataflowPoint(**points[0] | point).__dict__} for point in points]  # type: ignore[arg-type]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema_of(DataflowPoint))
    found = SIMULATOR.evaluate(batch)
    assert found.column("fitted_share").to_pylist() == [1.0, 0.0, 0.0]
    assert found.column("extrapolated_share").to_pylist() == [0.0, 1.0, 1.0]


def test_resized_chip_has_the_interval_of_an_unknown_design() -> None:
    chip = load_accelerator("nvdla_256")
    same, changed = chip_of(WORK, chip), chip_of(WORK, chip, is_changed=True)
    assert same.is_known
    assert not changed.is_known
    assert changed.area_mm2[2] > same.area_mm2[2]


def test_area_falls_with_the_node_and_less_than_its_square() -> None:
    base = load_accelerator("tpu_v1")
    areas = [area_mm2(resized(base, Changes(node_nm=nm))) for nm in (65.0, 28.0, 16.0, 7.0, 2.0)]
    assert areas == sorted(areas, reverse=True)
    assert areas[0] / areas[2] < (65 / 16) ** 2


def test_every_published_figure_has_a_citation() -> None:
    table = read_toml(FILE)
    for row in (*table["rows"], *table["areas"]):
        assert row["cites"]
        assert set(row["cites"]) <= set(table["citations"])
    used = {cite for row in (*table["rows"], *table["areas"]) for cite in row["cites"]}
    assert used == set(table["citations"])


def test_every_published_chip_names_a_fitted_design() -> None:
    designs = {row.design for row in published_areas()}
    assert designs == set(calibrated().area.designs)
    rows = [row for row in read_toml(FILE)["rows"] if "left_out" not in row]
    assert {load_accelerator(row["chip"]).design for row in rows} == set(calibrated().time.designs)
