"""Whose measurements a GPU is priced by: the nearest there are, and less surely the farther."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from simulators.catalog.gpu import load_gpu
from simulators.evidence.intervals import Band
from simulators.evidence.lookup import (
    CALIBRATIONS,
    calibrations,
    files_behind,
    find,
    kinds,
    lenders,
    notes_on,
)
from simulators.kernels.price import price
from simulators.workload.operators import Attention, Elementwise

BAND = Band((0.8, 0.8, 0.8), (1.25, 1.25, 1.25))


def relations(kind: str, gpu: str, *, own: bool = True) -> list[tuple[str, str]]:
    return list(lenders(kind, gpu, load_gpu(gpu).architecture, own=own))


def decode(name: str = "a") -> Attention:
    return Attention(
        name=name, phase="decode", requests=8.0, query_tokens=8.0, pairs=8192.0, kv_tokens=8192.0,
        heads=32.0, kv_heads=8.0, head_dim=128.0, dtype="bf16", kv_dtype="bf16",
    )  # fmt: skip


@pytest.mark.parametrize("kind", kinds())
def test_who_lends_was_measured_and_says_why(kind: str) -> None:
    row = kinds()[kind]
    assert row.reason
    architectures = {
        load_gpu(board).architecture for board in calibrations(kind) if board != "boards"
    }
    words = [w for table in (row.similar, row.fallback) for some in table.values() for w in some]
    assert set(words) <= {*calibrations(kind), *architectures}
    assert set(row.widen) <= {"similar", "fallback", "precision"}


def test_own_measurements_come_first_and_never_enter_an_answer_without_them() -> None:
    assert relations("fused", "h200_sxm") == [("h200_sxm", "own"), ("h100_sxm", "similar")]
    assert relations("fused", "h200_sxm", own=False) == [("h100_sxm", "similar")]
    assert relations("fused", "h100_sxm", own=False) == [("h200_sxm", "similar")]
    assert relations("fused", "l40s") == [("rtx_pro_6000", "similar"), ("h100_sxm", "fallback")]
    assert relations("fused", "mi300x") == [("h100_sxm", "fallback")]


def test_boards_of_an_architecture_come_by_name_and_one_of_half_rate_lends_to_nobody() -> None:
    boards = [("b200_sxm", "fallback"), ("gb200", "fallback")]
    assert relations("tensor", "h100_pcie")[-2:] == boards
    assert "rtx_4090" not in dict(relations("tensor", "l4"))
    assert dict(relations("tensor", "rtx_4090"))["rtx_4090"] == "own"


def test_nobody_borrows_what_depends_on_a_cache() -> None:
    assert relations("chain", "rtx_4090") == [("rtx_4090", "own")]
    assert relations("chain", "l40s") == []
    norm = Elementwise(name="ffn_norm", elements=1e6, dtype="bf16")
    assert price(norm, load_gpu("rtx_4090")).calibrated
    assert not price(norm, load_gpu("l40s")).calibrated


def test_the_farther_the_lender_the_wider_the_interval() -> None:
    def width(gpu: str, has: str, precision: str = "wanted") -> float:
        found = find(
            "fused", gpu, load_gpu(gpu).architecture,
            lambda board, _whose, kind: (board == has and kind == precision) or None,
            precisions=("wanted", "other"),
        )  # fmt: skip
        assert found is not None
        band = found.widened(BAND)
        return band.hi[0] / band.lo[0]

    own, other = width("h200_sxm", "h200_sxm"), width("h200_sxm", "h200_sxm", "other")
    similar, fallback = width("l40s", "rtx_pro_6000"), width("l40s", "h100_sxm")
    assert own < other == similar < fallback


def test_a_fallback_lends_numbers_alone_where_its_trees_know_only_its_library() -> None:
    def whole(kind: str, gpu: str, has: str) -> bool:
        architecture = load_gpu(gpu).architecture
        found = find(kind, gpu, architecture, lambda board, _whose, _dtype: board == has or None)
        assert found is not None
        return found.whole

    assert whole("fused", "l40s", "rtx_pro_6000")
    assert not whole("fused", "l40s", "h100_sxm")
    assert whole("tensor", "t4", "a100_sxm")


def test_a_users_own_calibration_of_any_kind_stands_before_those_shipped(
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
    (alone,) = notes_on(["h100_sxm", "mi300x", "mi300x"])
    assert alone.startswith("mi300x: no kernel of this GPU was measured")
    (both,) = notes_on(["l4", "gh200"])
    assert both.startswith("l4, gh200: no kernel of these GPUs was measured")
