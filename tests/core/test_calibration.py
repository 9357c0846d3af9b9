"""Calibration files are complete, have checksums and name their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning.calibrate.measurements import write_sealed
from simulators.core.calibration import read_calibration, read_choice, reference_folder
from simulators.core.errors import UserError
from tests.calibrations import fitted_tables

BODY = """[provenance]
measured = "table.csv"
sha256 = "{digest}"
rows = 3
split = "whole shapes"
held_out_mape = 0.05

[gemm]
compute = 0.8
"""


def test_written_calibration_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "gpu.toml"
    write_sealed(file, BODY)
    assert read_calibration(file)["gemm"]["compute"] == 0.8
    assert read_calibration(file)["provenance"]["rows"] == 3


def test_parsed_calibration_is_cached_by_hash_and_damaged_caches_are_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = [tmp_path / f"{name}.toml" for name in "abc"]
    for file in files:
        write_sealed(file, BODY)
    first = read_calibration(files[0])
    (kept,) = (tmp_path / "cache").rglob("*.json")
    assert read_calibration(files[1]) == first
    kept.write_text(kept.read_text()[:20])
    assert read_calibration(files[2]) == first


def test_hand_edited_number_fails_the_checksum(tmp_path: Path) -> None:
    file = tmp_path / "gpu.toml"
    write_sealed(file, BODY)
    file.write_text(file.read_text().replace("0.8", "0.9"))
    with pytest.raises(UserError, match="does not match its hash"):
        read_calibration(file)


def test_calibration_without_a_checksum_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gpu.toml"
    file.write_text(BODY)
    with pytest.raises(UserError, match="is missing"):
        read_calibration(file)


def test_calibration_without_provenance_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gpu.toml"
    write_sealed(file, "[gemm]\ncompute = 0.8\n")
    with pytest.raises(UserError, match="lacks measured, sha256"):
        read_calibration(file)


def test_missing_calibration_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.toml"):
        read_calibration(tmp_path / "nothing.toml")


def test_calibration_names_the_fitted_tables(tmp_path: Path) -> None:
    file = tmp_path / "gpu.toml"
    write_sealed(file, BODY.format(digest="a" * 64))
    assert fitted_tables([file]) == {("table.csv", "a" * 64)}


def test_reference_folder_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPER_REFERENCE", str(tmp_path))
    assert reference_folder() == tmp_path
    monkeypatch.setenv("SWEEPER_REFERENCE", str(tmp_path / "absent"))
    assert reference_folder() is None


def test_user_written_numbers_need_no_checksum_but_fitted_numbers_do(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[runtime]\nhost_s = 1e-3\n")
    assert read_choice(file) == {"runtime": {"host_s": 1e-3}}
    file.write_text(BODY)
    with pytest.raises(UserError, match="is missing"):
        read_choice(file)
