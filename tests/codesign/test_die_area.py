"""Dies of other sizes: what is sold has its own area, and more of anything has more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulators.catalog.gpu import GPUS, dies, load_gpu, what_if
from simulators.codesign.simulator import SIMULATOR, CodesignPoint, fitted, gpu_area_mm2, has_die
from simulators.core.columns import batch_of
from simulators.core.errors import UserError

POINT: dict[str, Any] = {
    "model": "llama3_1_8b",
    "gpu": "h100_sxm",
    "accelerator": "nothing",
    "qps": 1.0,
    "fidelity": "analytic",
    "requests": 200,
}


def answer(**choices: Any) -> dict[str, Any]:
    [row] = SIMULATOR.evaluate(batch_of(CodesignPoint, POINT | choices)).to_pylist()
    return dict(row)


def test_gpus_with_the_same_die_have_the_same_area() -> None:
    for gpu in ("h100_sxm", "h100_pcie", "h200_sxm"):
        assert gpu_area_mm2(load_gpu(gpu)) == pytest.approx(814.0)
    assert not has_die(load_gpu("b200_sxm"))
    assert all(GPUS.find(gpu) for die in dies() for gpu in die.gpus)


@pytest.mark.parametrize("gpu", ["a100_sxm", "h100_sxm", "l4"])
def test_area_grows_with_sms_bandwidth_and_l2_but_not_with_clock(gpu: str) -> None:
    device = load_gpu(gpu)
    for size in ("sm", "bandwidth", "l2"):
        more, less = (
            gpu_area_mm2(what_if(device, **{f"{size}_scale": scale})) for scale in (2.0, 0.5)
        )
        assert less < gpu_area_mm2(device) < more < 2.0 * gpu_area_mm2(device)
    assert gpu_area_mm2(what_if(device, clock_scale=1.5)) == pytest.approx(gpu_area_mm2(device))
    everything = what_if(device, sm_scale=2.0, bandwidth_scale=2.0, l2_scale=2.0)
    assert gpu_area_mm2(everything) == pytest.approx(2.0 * gpu_area_mm2(device), rel=0.01)


def test_fitted_area_scales_with_the_areas_of_the_dies() -> None:
    model = fitted(dies())
    assert min(model.weights) > 0.0
    doubled = fitted(
        [replace(die, mm2=2.0 * die.mm2, transistors=2.0 * die.transistors) for die in dies()]
    )
    assert doubled.mm2(dies()[0]) == pytest.approx(2.0 * model.mm2(dies()[0]), rel=1e-4)


def test_scaled_gpu_without_an_accelerator_reports_die_area() -> None:
    whole, half = answer(), answer(sm_scale=0.5)
    assert whole["area_mm2"] == pytest.approx(814.0)
    assert half["area_mm2"] < 600.0
    assert half["ttft_mean_s"] > whole["ttft_mean_s"]
    assert half["datasheet_share"] + half["extrapolated_share"] > 0.9


def test_missing_die_or_missing_array_is_reported() -> None:
    assert str(answer(gpu="b200_sxm")["reason"]).startswith("die_unknown: the die area")
    with pytest.raises(UserError, match="pe_rows: sizes of an array, and accelerator is nothing"):
        answer(pe_rows=64)
