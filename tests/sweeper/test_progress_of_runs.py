"""An interrupted run reports its progress when results are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.core.errors import UserError
from sweeper.__main__ import main
from sweeper.report.answers import latest
from sweeper.report.progress import Progress

SPACE = """\
simulator: tests.toys.quadratic
axes: {x: 1..20, y: 1..20, n: [1, 2]}
"""
COMMAND = ["+space=toy", "plot=false", "engine=inline"]


@pytest.fixture
def stopped(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that was stopped after its first part."""
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "toy.yaml").write_text(SPACE)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "add", stop)
        assert main(COMMAND) == 130


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize(
    "command", ["pareto toy", "query toy sensitivity", "show toy knee", "report toy"]
)
def test_interrupted_run_reports_its_progress(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    capsys.readouterr()
    assert main(command.split()) == 0
    said = capsys.readouterr().out
    unfinished = "This run of toy has not finished: 8 of 800 points done, so far only x 1 m"
    assert said.startswith(unfinished)


@pytest.mark.usefixtures("stopped")
def test_json_output_holds_the_progress(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["pareto", "toy", "--json"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("[")
    assert "8 of 800 points done" in said.err


@pytest.mark.usefixtures("stopped")
def test_finished_run_reports_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert latest("toy", "outputs").unfinished
    assert main(COMMAND) == 0
    capsys.readouterr()
    assert main(["pareto", "toy"]) == 0
    assert "so far" not in capsys.readouterr().out
    assert not latest("toy", "outputs").unfinished


@pytest.mark.usefixtures("stopped")
def test_last_run_is_found_by_name_and_definition(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(COMMAND) == 0
    first = latest("toy", "outputs")
    assert not first.others
    assert main([*COMMAND, "space.axes.n=1"]) == 0
    last = latest("toy", "outputs")
    assert last.space.size == 400
    assert last.others == [first.store.definition.id]
    capsys.readouterr()
    assert main(["pareto", "toy", "--json"]) == 0
    said = capsys.readouterr().err
    assert f"earlier ones with other axes are toy@{last.others[0][:6]}" in said
    assert latest(f"toy@{last.others[0][:6]}", "outputs").space.size == 800
    with pytest.raises(UserError, match="no run of 'toy' has the definition ffffff"):
        latest("toy@ffffff", "outputs")


def test_first_run_has_no_reused_points(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a first and a then fewer points are expected than are picked before constraints."""
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "toy.yaml").write_text(
        "simulator: tests.toys.quadratic\n"
        "axes: {label: first plain then plainer, x: 1..20, y: 1..60}\n"
        "constraints: [x > 5]\n"
        "objectives: {cost_usd: min}\n"
    )
    assert main(COMMAND) == 0
    said = capsys.readouterr()
    assert "answered" not in said.out + said.err
