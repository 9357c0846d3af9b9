"""Rows that a user measured, and mistakes in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.composition.family import fit_family
from simulators.core.errors import UserError

HEAD = "model,gpu,framework,tp,clients,prompt_tokens,output_tokens,tpot_s,ttft_s\n"


def rows(
    file: Path, framework: str = "vllm", tp: str = "1", more: str = "4,1024,128,0.01,"
) -> Path:
    """Return the file, written with one row."""
    file.write_text(f"{HEAD}llama3_1_8b,h100_sxm,{framework},{tp},{more}\n")
    return file


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("4,1024,128,0,", "tpot_s of a measured row is 0; it must be a number of seconds above"),
        ("4,1024,128,-0.01,", "tpot_s of a measured row is -0.01"),
        ("4,1024,128,,0.1", "tpot_s of a measured row is None"),
        ("4,1024,128,fast,", "tpot_s of a measured row is fast"),
        ("4,1024,128,0.01,-1", "ttft_s of a measured row is -1"),
        ("0,1024,128,0.01,", "clients of a measured row is 0; it must be at least 1"),
    ],
)
def test_a_number_that_is_no_measurement_is_told(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit_family(rows(tmp_path / "mine.csv", more=more))


@pytest.mark.parametrize("framework", ["trtllm_cutlass", "trtllm_session", "sglagn"])
def test_rows_are_of_a_framework_and_not_of_a_runtime(tmp_path: Path, framework: str) -> None:
    with pytest.raises(UserError, match="Known: sglang, trtllm, vllm"):
        fit_family(rows(tmp_path / "mine.csv", framework))


@pytest.mark.parametrize("name", ["vllm", "graphs", "mine@home"])
def test_a_runtime_of_ones_own_hides_no_shipped_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="give the file another name"):
        fit_family(rows(tmp_path / f"{name}.csv"))


def test_a_file_that_is_no_table_is_told(tmp_path: Path) -> None:
    (tmp_path / "void.csv").write_text("")
    with pytest.raises(UserError, match="cannot be read"):
        fit_family(tmp_path / "void.csv")


def test_an_empty_cell_is_what_is_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named, empty = (
        fit_family(rows(tmp_path / f"{name}.csv", tp=tp)).read_text()
        for name, tp in (("named", "1"), ("empty", ""))
    )
    factors = [text[text.index("factor") :].split("\n")[0] for text in (named, empty)]
    assert factors[0] == factors[1]
