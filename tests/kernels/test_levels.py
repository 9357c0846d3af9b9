"""Levels of information are separate, and results name their evidence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from simulators.catalog.gpu import load_gpu, what_if
from simulators.core.errors import UnknownNameError, UserError
from simulators.evidence.default_rates import measured_gpus
from simulators.evidence.lookup import calibration_file
from simulators.kernels.levels import profile_of
from simulators.kernels.price import price
from simulators.workload.operators import Attention, Elementwise, Gemm

LINEAR = Gemm(name="linear", m=4096.0, n=4096.0, k=4096.0, dtype="fp32")


def test_only_calibrated_gpus_report_calibration() -> None:
    assert price(LINEAR, load_gpu("v100_pcie")).calibrated
    assert not price(LINEAR, load_gpu("l40s")).calibrated


def test_zero_shot_level_excludes_own_measurements() -> None:
    own = profile_of(load_gpu("v100_pcie"), "full")
    sheet = profile_of(load_gpu("v100_pcie"), "zero_shot")
    assert own.gemm["linear"].tiles != sheet.gemm["linear"].tiles
    assert not any(rates.calibrated for rates in sheet.gemm.values())
    assert all(rates.correction is None for rates in sheet.gemm.values())


def test_unmeasured_level_is_refused_with_instructions() -> None:
    with pytest.raises(UserError, match="--measured FILE"):
        price(LINEAR, load_gpu("l40s"), "full")
    with pytest.raises(UnknownNameError, match="did you mean 'zero_shot'"):
        price(LINEAR, load_gpu("l40s"), "zero_shop")


def test_less_information_has_wider_intervals() -> None:
    gpu = load_gpu("a100_pcie_40gb")
    own, sheet = price(LINEAR, gpu, "full"), price(LINEAR, gpu, "zero_shot")
    assert own.hi_s / own.lo_s < sheet.hi_s / sheet.lo_s


def test_interval_holds_the_prediction() -> None:
    sizes = np.array([1.0, 64.0, 4096.0])
    for operator in (
        dataclasses.replace(LINEAR, m=sizes),
        dataclasses.replace(LINEAR, m=sizes, batch=16.0),
        Elementwise(name="add", elements=sizes * 1e6, reads=2.0, dtype="fp32"),
    ):
        priced = price(operator, load_gpu("t4"))
        assert np.all(priced.lo_s <= priced.latency_s)
        assert np.all(priced.latency_s <= priced.hi_s)


def test_values_outside_the_fit_are_flagged() -> None:
    rows = dataclasses.replace(LINEAR, n=np.array([4096.0, 1e6]))
    assert price(rows, load_gpu("v100_pcie")).extrapolated.tolist() == [False, True]
    scaled = what_if(load_gpu("v100_pcie"), bandwidth_scale=2.0)
    assert np.all(price(LINEAR, scaled).extrapolated)


def test_what_if_gpu_uses_the_calibration_of_the_real_gpu() -> None:
    gpu = load_gpu("v100_pcie")
    double = what_if(gpu, clock_scale=2.0)
    assert profile_of(double) == profile_of(gpu)
    assert price(LINEAR, double).latency_s < price(LINEAR, gpu).latency_s


def test_fp32_measurements_do_not_calibrate_tensor_core_kernels() -> None:
    half = dataclasses.replace(LINEAR, dtype="fp16")
    assert not price(half, load_gpu("v100_pcie")).calibrated
    attention = Attention(
        name="attention",
        phase="decode",
        requests=8.0,
        query_tokens=8.0,
        pairs=8192.0,
        kv_tokens=8192.0,
        heads=32.0,
        kv_heads=8.0,
        head_dim=128.0,
    )
    assert not price(attention, load_gpu("v100_pcie")).calibrated


def test_hand_edited_calibration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = calibration_file("fp32", "v100_pcie")
    assert shipped is not None
    (tmp_path / "catalog" / "kernels").mkdir(parents=True)
    forged = tmp_path / "catalog" / "kernels" / "v100_pcie.toml"
    forged.write_text(shipped.read_text().replace('level = "full"', 'level = "full" '))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="change the fit"):
        price(LINEAR, load_gpu("v100_pcie"))


def test_every_shipped_calibration_loads_with_provenance() -> None:
    assert len(measured_gpus()) >= 9
    for calibration in measured_gpus():
        assert profile_of(load_gpu(calibration.name)).level == "full"
