"""Calibration files are whole, sealed and say where they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.fits.driver import fitted_tables, write_calibration
from simulators.core.calibration import read_calibration, read_choice, reference_folder
from simulators.core.errors import UserError

BODY = """[provenance]
measured = "table.csv"
sha256 = "{digest}"
rows = 3
split = "whole shapes"
held_out_mape = 0.05

[gemm]
compute = 0.8
"""


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    write_calibration(file, BODY)
    assert read_calibration(file)["gemm"]["compute"] == 0.8
    assert read_calibration(file)["provenance"]["rows"] == 3


def test_what_was_parsed_is_kept_by_its_hash_and_parsed_again_where_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = [tmp_path / f"{name}.toml" for name in "abc"]
    for file in files:
        write_calibration(file, BODY)
    first = read_calibration(files[0])
    (kept,) = (tmp_path / "cache").rglob("*.json")
    assert read_calibration(files[1]) == first
    kept.write_text(kept.read_text()[:20])
    assert read_calibration(files[2]) == first


def test_a_number_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    write_calibration(file, BODY)
    file.write_text(file.read_text().replace("0.8", "0.9"))
    with pytest.raises(UserError, match="does not match its hash"):
        read_calibration(file)


def test_a_file_without_a_seal_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    file.write_text(BODY)
    with pytest.raises(UserError, match="is missing"):
        read_calibration(file)


def test_a_file_without_provenance_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    write_calibration(file, "[gemm]\ncompute = 0.8\n")
    with pytest.raises(UserError, match="lacks measured, sha256"):
        read_calibration(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.toml"):
        read_calibration(tmp_path / "nothing.toml")


def test_a_calibration_names_the_tables_it_rests_on(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    write_calibration(file, BODY.format(digest="a" * 64))
    assert fitted_tables([file]) == {("table.csv", "a" * 64)}


def test_the_reference_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_REFERENCE", str(tmp_path))
    assert reference_folder() == tmp_path
    monkeypatch.setenv("SWEEPER_REFERENCE", str(tmp_path / "absent"))
    assert reference_folder() is None


def test_numbers_of_a_users_own_need_no_seal_but_those_of_a_fit_do(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[runtime]\nhost_s = 1e-3\n")
    assert read_choice(file) == {"runtime": {"host_s": 1e-3}}
    file.write_text(BODY)
    with pytest.raises(UserError, match="is missing"):
        read_choice(file)
