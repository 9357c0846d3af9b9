"""GPUs: data sheets are complete and consistent, and mistakes in a user's own are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu, what_if
from simulators.catalog.price import load_prices
from simulators.core.errors import UserError
from simulators.core.folder import GPUS
from simulators.evidence.lookup import notes_on
from simulators.kernels.price import price
from simulators.workload.operators import Gemm

ASKED_FOR = (
    "p4",
    "t4",
    "p100_pcie",
    "v100_sxm",
    "v100_pcie",
    "a100_pcie_40gb",
    "a100_sxm_40gb",
    "a100_pcie_80gb",
    "a100_sxm",
    "a10",
    "a40",
    "l4",
    "l40s",
    "h100_sxm",
    "h100_pcie",
    "h200_sxm",
    "b200_sxm",
    "gb200",
    "rtx_3090",
    "rtx_4090",
    "rtx_pro_6000",
    "mi100",
    "mi210",
    "mi250",
    "mi300x",
    "mi325x",
    "mi350x",
    "mi355x",
    "b300_sxm",
    "gb300",
    "h20",
    "h800",
    "h100_nvl",
    "h200_nvl",
    "gh200",
    "gh200_144gb",
    "rtx_5090",
    "rtx_a5000",
    "vr200",
    "mi455x",
    "h20_3e",
    "rtx_pro_5000",
    "rtx_pro_4500",
    "gb10",
    "jetson_thor",
)
HELD_BACK = ("h20", "h20_3e")  # whose rates are below, or above, what its SMs would do
INTEGRATED = ("gb10", "jetson_thor", "m3_ultra", "m4_max", "strix_halo")  # one per machine
DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", "int4")


@pytest.mark.parametrize("name", ASKED_FOR)
def test_data_sheet_is_complete(name: str) -> None:
    gpu = load_gpu(name)
    assert set(gpu.peak_flops) <= set(DTYPES)
    assert "fp32" in gpu.peak_flops
    assert len(gpu.source) > 40
    assert gpu.idle_w is not None
    assert 0 < gpu.idle_w < 0.3 * gpu.tdp_w
    assert gpu.pcie_bytes_per_s > 0


@pytest.mark.parametrize("name", [name for name in ASKED_FOR if name not in HELD_BACK])
def test_peak_rates_are_whole_operations_per_sm_and_clock(name: str) -> None:
    # Published fp32 rates: 64, 128 or 256 operations per SM and clock, matrix units 256 and more.
    gpu = load_gpu(name)
    per_clock = gpu.peak_flops["fp32"] / gpu.sm_count / gpu.clock_hz
    assert any(per_clock == pytest.approx(whole, rel=0.1) for whole in (128, 256, 512))


@pytest.mark.parametrize("name", ASKED_FOR)
def test_peak_flops_grow_as_dtypes_get_smaller(name: str) -> None:
    peaks = load_gpu(name).peak_flops
    sized = [peaks[d] for d in ("fp32", "fp16", "int8", "fp4") if d in peaks]
    assert sized == sorted(sized)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "h100_sxm"),
        ("a100", "a100_sxm"),
        ("a100_sxm_80gb", "a100_sxm"),
        ("h200", "h200_sxm"),
        ("b200", "b200_sxm"),
        ("v100", "v100_sxm"),
    ],
)
def test_gpu_alias_loads_the_same_gpu(alias: str, name: str) -> None:
    assert load_gpu(alias) == load_gpu(name)


@pytest.mark.parametrize("name", GPUS.names())
def test_every_gpu_has_a_default_cluster(name: str) -> None:
    gpu = load_gpu(name)
    assert cluster_for("auto", gpu).gpus_per_node >= (1 if name in INTEGRATED else 8)


def test_memory_of_eight_gpus_matches_the_system_data_sheet() -> None:
    assert 8 * load_gpu("b300_sxm").hbm_bytes == pytest.approx(2.3e12, rel=0.01)
    assert 8 * load_gpu("h100_sxm").hbm_bytes == 640 * 2**30


@pytest.mark.parametrize(
    ("name", "chips", "dtype", "system_flops"),
    [
        ("vr200", 72, "fp8", 1.26e18),  # Vera Rubin NVL72: 1,260 PFLOPS
        ("mi455x", 72, "fp4", 2.9e18),  # Helios: 2.9 EFLOPS
        ("tpu_v7x", 9216, "fp8", 42.5e18),  # Ironwood pod: 42.5 EFLOPS
        ("trainium2", 64, "fp8", 83.2e15),  # Trn2 UltraServer: 83.2 PFLOPS
        ("trainium3", 144, "fp8", 362e15),  # Trn3 UltraServer: 362 PFLOPS
    ],
)
def test_rates_of_all_chips_match_the_system_data_sheet(
    name: str, chips: int, dtype: str, system_flops: float
) -> None:
    assert chips * load_gpu(name).peak(dtype) == pytest.approx(system_flops, rel=0.01)


def test_memory_size_as_text_is_refused(tmp_path: Path) -> None:
    text = GPUS.find("h100_sxm").read_text().replace("85_899_345_920", '"80 GB"')
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match="hbm_bytes is '80 GB'; it must be of type int"):
        load_gpu(str(path))


@given(sms=st.floats(0.1, 4), clock=st.floats(0.1, 4), bandwidth=st.floats(0.1, 4))
def test_what_if_peaks_scale_with_sms_and_clock(sms: float, clock: float, bandwidth: float) -> None:
    real = load_gpu("h100_sxm")
    scaled = what_if(real, sm_scale=sms, clock_scale=clock, bandwidth_scale=bandwidth)
    per_sm_and_clock = real.peak("fp16") / real.sm_count / real.clock_hz
    assert scaled.peak("fp16") == pytest.approx(
        per_sm_and_clock * scaled.sm_count * scaled.clock_hz
    )
    assert scaled.measured_as in ("", "h100_sxm")
    assert scaled.hbm_bytes == real.hbm_bytes


LIKE = """like = "h100_sxm"
hbm_bytes = 103_079_215_104
"""


def own(folder: Path, name: str, text: str) -> Path:
    file = folder / "catalog" / "gpus" / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_gpu_declared_like_another_inherits_facts_measurements_and_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own(tmp_path, "my_gpu", LIKE)
    own(tmp_path, "faster", 'like = "H100"\nhbm_bytes_per_s = 4.5e12\n[peak_flops]\nfp8 = 3e15\n')
    mine, faster, shipped = load_gpu("my_gpu"), load_gpu("faster"), load_gpu("h100_sxm")
    assert (mine.name, mine.hbm_bytes, mine.sm_count) == ("my_gpu", 96 * 2**30, shipped.sm_count)
    assert mine.measured_as == faster.measured_as == "h100_sxm"
    assert mine.is_copy
    assert not mine.is_what_if
    assert faster.is_what_if
    assert faster.peak_flops == {**shipped.peak_flops, "fp8": 3e15}
    assert load_prices().usd_per_gpu_hour(mine) == load_prices().usd_per_gpu_hour(shipped)
    operator = Gemm(name="any", m=64.0, n=4096.0, k=4096.0, dtype="bf16")
    times = [price(operator, gpu).latency_s for gpu in (shipped, mine, faster)]
    assert times[0] == times[1] > times[2]
    assert not price(operator, mine).extrapolated.any()


def test_copied_data_sheet_gets_a_hint_about_the_like_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = GPUS.find("h100_sxm").read_text(encoding="utf-8")
    own(tmp_path, "copied", "\n".join(x for x in text.splitlines() if not x.startswith("aliases")))
    own(tmp_path, "my_gpu", LIKE)
    assert 'copied has the rates of h100_sxm: with  like = "h100_sxm"' in " ".join(
        notes_on(["copied"])
    )
    assert notes_on(["h100_sxm", "my_gpu"]) == ()


@pytest.mark.parametrize("name", ["h1000", "itself"])
def test_like_key_requires_an_existing_different_gpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own(tmp_path, "itself", f'like = "{name}"\n')
    with pytest.raises(UserError, match=r"unknown gpu 'h1000'|name another GPU"):
        load_gpu("itself")
