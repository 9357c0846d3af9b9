"""Files are written only inside the folder of their space."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulators.core.errors import UserError
from sweeper.__main__ import main
from sweeper.configuration import Configuration
from sweeper.report.tables import write_text
from sweeper.store import parquet
from tests.conftest import ROOT

TOY = """\
# ours?
simulator: tests.toys.quadratic
axes: {x: 1..3}
objectives: {cost_usd: min}
"""
RUN = ["engine=inline", "plot=false"]


@pytest.mark.parametrize("name", ["..", "...", ".hidden", "a\nb", "a\x1b]0;owned\x07"])
def test_space_name_must_be_a_valid_folder_name(
    workplace: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    home = workplace / "inside"
    home.mkdir()
    os.chdir(home)
    Path(f"{name}.yaml").write_text(TOY)
    assert main([f"+space={name}.yaml", *RUN]) == 2
    assert "is no name of a space" in (said := capsys.readouterr().err)
    assert "\x1b" not in said
    assert sorted(p.name for p in workplace.iterdir()) == ["inside"]
    with pytest.raises(UserError, match="is no name"):
        Configuration("../elsewhere", {})


def test_simulator_given_by_path_writes_inside_the_space_folder(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "a" / "b").mkdir(parents=True)
    (workplace / "toy.py").write_text((ROOT / "tests" / "toys" / "quadratic.py").read_text())
    os.chdir("a/b")
    Path("mine.yaml").write_text(TOY.replace("tests.toys.quadratic", "../../toy.py"))
    assert main(["+space=mine.yaml", *RUN]) == 0
    parts = {file.resolve() for file in workplace.rglob("*.parquet")}
    assert parts
    assert all(file.is_relative_to(Path("outputs/mine").resolve()) for file in parts)
    assert main(["+space=mine.yaml", *RUN]) == 0  # and finds them again
    assert "0 simulated" in capsys.readouterr().out


def test_lock_file_follows_no_symlink(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("toy.yaml").write_text(TOY)
    assert main(["+space=toy.yaml", *RUN]) == 0
    (lock,) = Path("outputs/toy").glob(".*.lock")
    diary = Path("diary")
    diary.write_text("dear")
    lock.unlink()
    lock.symlink_to(diary.resolve())
    assert main(["+space=toy.yaml", *RUN]) == 2
    assert str(lock) in capsys.readouterr().err
    assert diary.read_text() == "dear"


def test_temporary_files_follow_no_symlink(workplace: Path) -> None:
    diary = Path("diary")
    diary.write_text("dear")
    for link in (f".page.html.{os.getpid()}.tmp", f".probe.{os.getpid()}"):
        Path(link).symlink_to(diary)
    write_text(Path("page.html"), "page")
    parquet.check_writable(".")
    assert (diary.read_text(), Path("page.html").read_text()) == ("dear", "page")


@pytest.mark.parametrize("text", ["${oc.env:SECRET}", "x${${n}:SECRET}", "${hydra:runtime.cwd}"])
def test_environment_variables_are_not_expanded(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    Path("toy.yaml").write_text(f"{TOY}derived: {{n: oc.env}}\nwhere: '{text}'\n")
    assert main(["+space=toy.yaml", *RUN]) == 2
    assert "toy.yaml, line 6: " in capsys.readouterr().err
    Path("toy.yaml").write_text(TOY)
    assert main(["+space=toy.yaml", *RUN]) == 0
    written = (f.read_bytes() for f in Path("outputs").rglob("*") if f.is_file())
    assert not any(b"s3cret" in content for content in written)
