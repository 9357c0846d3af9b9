"""Evidence lookup: own measurements first, then the nearest GPU with a wider interval."""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fits.kernels.transferred_kernels import is_within
from simulators.catalog.gpu import load_gpu
from simulators.evidence.intervals import Band
from simulators.evidence.lookup import (
    BEST,
    CALIBRATIONS,
    NEW_ARCHITECTURE,
    CalibrationMatch,
    files_behind,
    find,
    kinds,
    nearest_relation,
    notes_on,
    sources,
)
from simulators.evidence.transfer import (
    TransferError,
    TransferKind,
    error_of,
    least_error,
    shipped_errors,
    transfer_kinds,
)
from simulators.kernels.families.family import Entry, entry_of
from simulators.kernels.levels import profile_of
from simulators.kernels.price import price
from simulators.workload.operators import Attention, Elementwise

BAND = Band((0.8, 0.8, 0.8), (1.25, 1.25, 1.25))


def near(kind: str, gpu: str, level: str = BEST) -> list[tuple[str, str]]:
    found = sources(kind, gpu, load_gpu(gpu).architecture, nearest_relation(level))
    return [(source.gpu, source.relation) for source in found]


def decode(name: str = "a") -> Attention:
    return Attention(
        name=name,
        phase="decode",
        requests=8.0,
        query_tokens=8.0,
        pairs=8192.0,
        kv_tokens=8192.0,
        heads=32.0,
        kv_heads=8.0,
        head_dim=128.0,
        dtype="bf16",
        kv_dtype="bf16",
    )


@pytest.mark.parametrize("kind", kinds())
def test_transfer_relations_have_reasons(kind: str) -> None:
    row = kinds()[kind]
    assert row.reason
    assert row.transfers_to in {"none", "architecture", "line", "all"}


def test_own_measurements_come_first_and_zero_shot_excludes_them() -> None:
    assert near("fused", "h200_sxm")[:2] == [("h200_sxm", "own"), ("h100_sxm", "architecture")]
    assert near("fused", "h200_sxm", "zero_shot")[0] == ("h100_sxm", "architecture")
    assert "h200_sxm" not in dict(near("fused", "h200_sxm", "zero_shot"))
    assert near("fused", "h200_sxm", NEW_ARCHITECTURE)[0] == ("b200_sxm", "generation")
    assert near("fused", "l40s")[0] == ("rtx_pro_6000", "generation")
    assert near("fused", "mi300x")[0] == ("h200_sxm", "any")  # 5.3 TB/s and 1,307 TFLOP/s
    assert set(dict(near("fused", "mi300x")).values()) == {"any"}


def test_newer_of_equally_near_gpus_comes_first_and_half_rate_gpus_are_excluded() -> None:
    hopper = [name for name, relation in near("tensor", "h100_pcie") if relation == "generation"]
    assert hopper == ["b200_sxm", "gb200", "a100_sxm"]
    assert "rtx_4090" not in dict(near("tensor", "l4"))
    assert dict(near("tensor", "rtx_4090"))["rtx_4090"] == "own"


def test_cache_dependent_numbers_are_not_transferred() -> None:
    assert near("chain", "rtx_4090") == [("rtx_4090", "own")]
    assert near("chain", "l40s") == []
    norm = Elementwise(name="ffn_norm", elements=1e6, dtype="bf16")
    assert price(norm, load_gpu("rtx_4090")).calibrated
    assert not price(norm, load_gpu("l40s")).calibrated


def found(
    has: Collection[tuple[str, str, str]], gpu: str = "h200_sxm", family: str = "decode.bf16_bf16"
) -> CalibrationMatch[bool] | None:
    """Return the source of vLLM decode numbers of `wanted` among GPUs, frameworks and dtypes."""
    return find(
        "fused",
        gpu,
        load_gpu(gpu).architecture,
        lambda *place: place in has or None,
        family=family,
        framework="vllm",
        precisions=("wanted", "other"),
    )


def test_source_with_the_least_transfer_error_is_chosen() -> None:
    sister, here = ("h100_sxm", "vllm", "wanted"), ("h200_sxm", "trtllm", "wanted")
    assert (
        error_of("decode.bf16_bf16", "architecture").error
        < error_of("decode.bf16_bf16", "own_framework").error
    )
    for order in ([sister, here], [here, sister]):
        best = found(order)
        assert best is not None
        assert (best.gpu, best.framework) == sister[:2]
    own = found([sister, ("h200_sxm", "vllm", "wanted")])
    assert own is not None
    assert own.is_own


def test_own_mla_kernel_of_another_framework_beats_a_slow_transferred_kernel() -> None:
    best = found(
        [("a100_sxm", "vllm", "wanted"), ("h200_sxm", "trtllm", "wanted")],
        family="mla_decode.bf16_bf16",
    )
    assert best is not None
    assert (best.gpu, best.framework) == ("h200_sxm", "trtllm")


def test_interval_covers_transferred_numbers() -> None:
    own, sister = found([("h200_sxm", "vllm", "wanted")]), found([("h100_sxm", "vllm", "wanted")])
    other, far = found([("h200_sxm", "vllm", "other")]), found([("rtx_pro_6000", "vllm", "wanted")])

    def width(one: CalibrationMatch[bool] | None) -> float:
        assert one is not None
        band = one.widened(BAND)
        assert band.lo[0] <= min(BAND.lo[0], one.error.lo)
        assert band.hi[0] >= max(BAND.hi[0], one.error.hi)
        return band.hi[0] / band.lo[0]

    assert width(own) < width(far)
    assert width(own) <= width(sister) < width(far)
    assert width(own) < width(other)


def test_transfer_kind_without_errors_comes_last() -> None:
    seen = {
        "all": {
            "architecture": TransferError(0.1, 0.9, 1.2),
            "vendor": TransferError(0.5, 0.5, 2.0),
        }
    }
    assert error_of("scan", "architecture", seen) == seen["all"]["architecture"]
    assert error_of("scan", "any", seen) == replace(seen["all"]["vendor"], error=math.inf)
    assert error_of("scan", "own", seen).error == 0.0


def test_data_sheet_is_used_where_transfer_errors_are_larger() -> None:
    sheet = shipped_errors()["bf16"]["sheet"]
    assert sheet is not None
    assert error_of("bf16", "generation").error < sheet.error < error_of("bf16", "vendor").error
    assert found([("rtx_pro_6000", "vllm", "wanted")], family="bf16") is None


def test_user_calibration_overrides_shipped_calibrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = load_gpu("l40s")
    assert not price(decode(), gpu).calibrated
    (tmp_path / "catalog" / "kernels" / "fused").mkdir(parents=True)
    own = tmp_path / "catalog" / "kernels" / "fused" / "l40s.toml"
    shutil.copy(CALIBRATIONS / "fused" / "rtx_pro_6000.toml", own)
    monkeypatch.chdir(tmp_path)
    assert price(decode(), gpu).calibrated
    assert own.resolve() in {file.resolve() for file in files_behind(gpu)}


def test_gpus_without_a_timed_kernel_are_named() -> None:
    assert notes_on(["h100_sxm", "t4", "rtx_4090"]) == ()
    (beside,) = notes_on(["h100_sxm", "mi300x", "mi300x"])
    assert beside.startswith("No measured kernels for mi300x: ")
    assert "(mean error elsewhere: mi300x" in beside
    (both,) = notes_on(["l4", "gh200"])
    assert both.startswith("No measured kernels for l4, gh200")


def test_framework_kernels_resolve_to_the_library_of_the_gpu() -> None:
    latent = "mla_decode.bf16_bf16"
    wanted = ("sglang", "blackwell")
    source = transfer_kinds("generation", latent, wanted, ("trtllm", "hopper"), True)
    assert [kind.name for kind in source] == ["generation"]
    other = transfer_kinds(
        "generation", latent, ("sglang", "blackwell"), ("sglang", "hopper"), True
    )
    assert [kind.name for kind in other] == ["generation_framework"]
    here = transfer_kinds("own", latent, wanted, ("trtllm", "blackwell"), True)
    assert [kind.name for kind in here] == ["own_framework"]


def test_gpus_with_the_same_tensor_core_instructions_are_related() -> None:
    wanted, source = ("trtllm", "ampere"), ("trtllm", "blackwell_rtx")
    kinds = transfer_kinds("vendor", "mla_decode.bf16_bf16", wanted, source, True)
    assert [kind.name for kind in kinds] == ["vendor", "instructions"]
    seen = {
        "mla_decode": {
            "vendor": TransferError(0.2, 0.9, 1.2),
            "instructions": TransferError(0.3, 0.5, 2.0),
        }
    }
    assert least_error("mla_decode", kinds, seen)[1].name == "instructions"
    assert (
        least_error("mla_decode", kinds, {"all": {"vendor": TransferError(0.2, 0.9, 1.2)}})[1]
        == kinds[0]
    )
    generation, same = TransferKind("generation"), TransferKind("instructions")
    assert not is_within(same, generation)
    assert not is_within(generation, same)
    assert is_within(TransferKind("architecture"), same)


def test_fp8_keys_are_upcast_without_fp8_tensor_cores() -> None:
    def source_of(gpu: str) -> tuple[str, bool]:
        keys = latent_entry(gpu, ("bf16_fp8", "bf16_bf16"))
        return keys.gpu, keys.numbers == latent_entry(gpu, ("bf16_bf16",)).numbers

    assert source_of("a100_sxm") == ("rtx_pro_6000", True)
    assert source_of("h100_sxm") == ("h200_sxm", False)


def latent_entry(gpu: str, formats: tuple[str, ...]) -> Entry:
    """Return what prompts of latent attention run by if nothing was measured of the GPU."""
    device = load_gpu(gpu)
    profile = profile_of(device, "zero_shot")
    entry = entry_of(device, profile, "mla_prefill", formats)
    assert entry is not None
    return entry
