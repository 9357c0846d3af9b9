"""Every command and question documents its usage, and the shell completes all of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planning.measure.shapes import DTYPES, FAMILIES
from sweeper.__main__ import USAGE, main
from sweeper.commands import COMMANDS
from sweeper.commands.flags import values_of
from sweeper.commands.query import KINDS
from sweeper.commands.setup import SHELLS
from sweeper.commands.show import kinds
from sweeper.report.evidence import stored
from tests.conftest import ROOT


def said(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    with contextlib.suppress(SystemExit):  # of argparse, after its help
        assert main(shlex.split(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_command_help_ends_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(f"{command} --help", capsys)
    _, _, examples = text.partition("For example:\n")
    assert examples.startswith(f"  python -m sweeper {command}")
    assert f"\n  {command} " in USAGE


def test_help_examples_use_existing_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for command, known in COMMANDS.items():
        text = said(f"{command} --help", capsys)
        for line in known["examples"]:
            assert line.split()[0] == command
            options = [w for w in shlex.split(line) if w.startswith("--")]
            assert command == "store" or all(w in text for w in options), line


def test_every_question_has_a_description_and_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = said("query --help", capsys)
    for kind in KINDS:
        sentence = next(line for line in text.splitlines() if line.startswith(f"  {kind} "))
        assert sentence.endswith(".")
        assert f"sweeper query quickstart {kind}" in text


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_accepts_the_completion_script(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = said(f"completion {shell}", capsys)
    assert "sweeper" in text
    if program := shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(text)
        subprocess.run([program, "-n", str(file)], check=True)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("sweeper par", "pareto"),
        ("sweeper pareto quick", "quickstart"),
        ("sweeper query quickstart --slo", "--slo"),
        ("sweeper query quickstart sensi", "sensitivity"),
        ("sweeper +space=quick", "quickstart"),
        ("sweeper +space=quickstart space.axes.scheduler", "space.axes.scheduler="),
    ],
)
def test_completion_suggests_words(line: str, answer: str, tmp_path: Path) -> None:
    """The shell's script asks the program, which writes the words to descriptor 8."""
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1"}
    asked["_ARGCOMPLETE_COMP_WORDBREAKS"] = " \t\n\"'><=;|&(:"
    command = f"{sys.executable} -m sweeper 8>{tmp_path / 'words'} 9>/dev/null"
    subprocess.run(["bash", "-c", command], env={**os.environ, **asked}, cwd=ROOT, check=True)
    assert (tmp_path / "words").read_text().split() == [answer]


def test_both_entry_points_import_modules_of_the_current_folder(tmp_path: Path) -> None:
    """An installed script starts with its own folder in the path, not with the current one."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "toy.py").write_text(
        "from tests.toys.quadratic import SIMULATOR as SIMULATOR"
    )
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "toy.yaml").write_text("simulator: mine.toy\naxes: {x: 1..9}\n")
    script = tmp_path / "bin" / "sweeper"
    script.parent.mkdir()
    script.write_text("import sys\nfrom sweeper.__main__ import main\nsys.exit(main())\n")
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.defpath, "HOME": str(tmp_path)}
    environment["SWEEPER_TRUST"] = "."
    for program in (["-m", "sweeper"], [str(script)]):
        done = subprocess.run(
            [sys.executable, *program, "plan", "+space=toy"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        )
        assert "9 points of the simulator 'mine.toy'" in done.stdout, done.stderr


def test_values_in_the_help_are_those_that_commands_accept() -> None:
    assert values_of("list", "kind") == tuple(sorted(kinds()))
    assert values_of("accuracy", "simulators") == tuple(stored())
    assert values_of("measure", "--ops") == tuple(FAMILIES)
    assert values_of("measure", "--dtype") == tuple(DTYPES)


@pytest.mark.parametrize("command", [f"{c} --help" for c in COMMANDS if c != "ask"] + ["--help"])
def test_help_imports_no_numerical_library(command: str) -> None:
    words = command.split()
    asked = f"from sweeper.__main__ import main; import sys; main({words}); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert not {"numpy", "polars", "pyarrow", "hydra"} & set(done.stdout.split())
