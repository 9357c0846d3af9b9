"""The contributor guide: its example files are written and its commands run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import __main__ as lab
from sweeper import __main__ as sweeper
from tests.conftest import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M))
FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```", re.S | re.M)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.S | re.M)
EXAMPLES = [name for name, text in SECTIONS.items() if CONSOLE.search(text)]
COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "sweeper": sweeper.main,
    "lab": lab.main,
}
PROMISED = (
    "GPU",
    "model",
    "price",
    "workload",
    "runtime",
    "scheduler",
    "router",
    "sampler",
    "engine",
    "simulator",
    "calibration",
    "claim",
)


def test_every_extension_point_has_an_example() -> None:
    assert {name.split()[-1] for name in EXAMPLES} == set(PROMISED)


@pytest.mark.slow
@pytest.mark.parametrize("home", ["catalog", "SWEEPER_HOME"])
@pytest.mark.parametrize("section", EXAMPLES)
def test_contributing_example_runs(
    section: str,
    home: str,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Beside the user first, then in the folder that $SWEEPER_HOME names."""
    if home == "SWEEPER_HOME":
        monkeypatch.setenv("SWEEPER_HOME", str(workplace / "mine"))
    for name, text in FILE.findall(SECTIONS["Where things are"] + SECTIONS[section]):
        file = workplace / name.replace(
            "catalog/", "mine/" if home == "SWEEPER_HOME" else "catalog/"
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for block in CONSOLE.findall(SECTIONS[section]):
        for command, expected in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.M):
            python, option, module, *words = shlex.split(command)
            assert (python, option) == ("python", "-m")
            assert not COMMANDS[module](words)
            _check(expected, capsys.readouterr().out)


def _check(expected: str, printed: str) -> None:
    """Check the printed output against the page; `...` matches any text."""
    parts = (" ".join(part.split()) for part in expected.split("..."))
    pattern = ".*".join(re.escape(part) for part in parts)
    assert re.search(pattern, " ".join(printed.split())), f"{expected}\nis not in\n{printed}"
