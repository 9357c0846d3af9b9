"""Devices by their data sheets: steady state by hand, limits, and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.codesign.device import (
    DeviceFactors,
    FullLoad,
    calibrated,
    device_of,
    kv_bytes,
    narrowest,
    steady,
    sustained,
)
from simulators.core.errors import Infeasible, UserError

MODEL = load_model("llama2_70b")
LOAD = FullLoad(prompt=294.0, output=294.0)
IDEAL = DeviceFactors(compute=1.0, fp4=1.0, power=0.5, memory=1.0)


def test_keys_and_values_of_a_token_are_counted_in_fp8() -> None:
    assert kv_bytes(MODEL) == 2 * 80 * 8 * 128


def test_power_limit_lowers_the_rate_of_the_pcie_card() -> None:
    sxm, pcie = (device_of(load_gpu(name)) for name in ("h100_sxm", "h100_pcie"))
    assert sustained(sxm, "fp8", IDEAL) == pytest.approx(sxm.peak_flops["fp8"], rel=1e-3)
    watts = (350.0 / 1.5129e15) / (700.0 / 1.9789e15)
    assert sustained(pcie, "fp8", IDEAL) == pytest.approx(1.5129e15 * watts**0.5)


def test_no_device_exceeds_its_peak() -> None:
    for name in ("a100_sxm", "h100_sxm", "gb300", "mi355x", "vr200"):
        device = device_of(load_gpu(name))
        found = steady(device, MODEL, LOAD, calibrated())
        flops_per_token = 2.0 * MODEL.active_parameters * (1.0 + LOAD.prompt / LOAD.output)
        assert found.tokens_per_s * flops_per_token < device.peak_flops[narrowest(device)]


@pytest.mark.parametrize("field", ["hbm_bytes_per_s", "link_bytes_per_s", "tdp_w", "hbm_bytes"])
def test_a_better_device_is_never_slower(field: str) -> None:
    device = device_of(load_gpu("h100_sxm"))
    better = replace(device, **{field: 1.5 * getattr(device, field)})
    rates = [steady(one, MODEL, LOAD, calibrated()).tokens_per_s for one in (device, better)]
    assert rates[1] >= rates[0]


def test_a_limit_of_the_step_costs_throughput_and_is_met() -> None:
    device = device_of(load_gpu("b200_sxm"))
    free, limited = (
        steady(device, MODEL, one, calibrated()) for one in (LOAD, replace(LOAD, tpot_s=0.03))
    )
    assert limited.step_s <= 0.03
    assert limited.tokens_per_s < free.tokens_per_s


def test_impossible_devices_are_infeasible() -> None:
    device = device_of(load_gpu("h100_sxm"))
    with pytest.raises(Infeasible, match="fp4"):
        steady(device, MODEL, LOAD, calibrated(), "fp4")
    with pytest.raises(Infeasible, match="fit"):
        steady(replace(device, hbm_bytes=1e9, domain=2), MODEL, LOAD, calibrated())
    with pytest.raises(Infeasible, match="fit"):
        steady(device, MODEL, replace(LOAD, tpot_s=1e-6), calibrated())


def test_windows_and_states_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="gpt_oss_120b"):
        kv_bytes(load_model("gpt_oss_120b"))
