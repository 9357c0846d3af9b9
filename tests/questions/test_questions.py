"""User questions as commands with expected words in the answer: one YAML file per theme.

An entry of a file:

    - question: what somebody wanted to know
      command: ask --model llama3_1_8b --gpu h100_sxm  # after `python -m sweeper`; or a list; `lab`
      contains: [words the answer must hold]
      lacks: [words it must not hold]
      exit: 0            # of the last command, 0 unless said
      was: wrong         # wrong, missing or kept: what it was when the question was written down
      before: [...]      # commands that must have run; entries alike in it share their folder
      files: {name: text}                    # written into the folder first
      copies: [names]                        # of `formats/examples`, copied into the folder first
      needs: onnx                            # a package, without which the question is skipped
      columns: 80        # of the terminal, which every line with more than two words fits
      reads: page.html   # the file that holds the answer, instead of what is printed
      verdict, finding: ...                  # of `errata.yaml`, which is also a page
      slow: true         # left to `-m slow`; to `-m accuracy` if the command computes claims
"""

from __future__ import annotations

import contextlib
import functools
import io
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from lab.__main__ import main as lab_main
from sweeper.__main__ import main

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "formats" / "examples"
KEYS = {
    "question",
    "command",
    "contains",
    "lacks",
    "exit",
    "was",
    "before",
    "files",
    "copies",
    "needs",
    "columns",
    "slow",
    "reads",
    "verdict",
    "finding",
}
NEEDED = {"question", "command", "was"}

Entry = dict[str, Any]


def _entries() -> Iterator[Any]:
    """Return every question of every file as a case of its own."""
    for file in sorted(HERE.glob("*.yaml")):
        for number, entry in enumerate(yaml.safe_load(file.read_text(encoding="utf-8")), 1):
            claims = "lab validate" in str(entry["command"])
            slow = pytest.mark.accuracy if claims else pytest.mark.slow
            marks = [slow] if entry.get("slow") else []
            yield pytest.param(entry, id=f"{file.stem}-{number}", marks=marks)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder for each list of commands that come before a question; they run there once."""

    @functools.cache
    def folder(
        before: tuple[str, ...], files: tuple[tuple[str, str], ...], copies: tuple[str, ...]
    ) -> Path:
        made = tmp_path_factory.mktemp("asked")
        with contextlib.chdir(made):
            for name, text in files:
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(text, encoding="utf-8")
            for name in copies:
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(EXAMPLES / name, name)
            for command in before:
                code, said = _run(command)
                assert code == 0, f"{command}\n{said}"
        return made

    return folder


def _run(command: str) -> tuple[int, str]:
    """Return the exit code of a command and everything it wrote; no Ray is started for it."""
    words = shlex.split(command)
    first = words[0] if words else ""
    command_of = main
    if first == "lab":
        command_of, words = lab_main, words[1:]
    if first == "ask" and not {"--help", "-h", "--run-with"} & set(words):
        words += ["--run-with", "inline"]
    elif "=" in first and not any(word.startswith("engine=") for word in words):
        words.append("engine=inline")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = command_of(words)
        except SystemExit as end:  # argparse, of --help
            code = int(end.code or 0)
    return code, said.getvalue()


@pytest.mark.parametrize("entry", _entries())
def test_it_is_answered(entry: Entry, folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(entry) <= KEYS, set(entry) - KEYS
    assert set(entry) >= NEEDED, NEEDED - set(entry)
    assert entry["was"] in ("wrong", "missing", "kept")
    if "needs" in entry:
        pytest.importorskip(entry["needs"], reason=f"the package {entry['needs']} is not installed")
    monkeypatch.delenv("SWEEPER_HOME", raising=False)
    monkeypatch.setenv("COLUMNS", str(entry.get("columns", 100)))
    files = tuple((str(k), str(v)) for k, v in entry.get("files", {}).items())
    commands = entry["command"] if isinstance(entry["command"], list) else [entry["command"]]
    folder = folders(tuple(entry.get("before", ())), files, tuple(entry.get("copies", ())))
    monkeypatch.setenv("SWEEPER_TRUST", str(folder))
    with contextlib.chdir(folder):
        for command in commands[:-1]:
            code, text = _run(command)
            assert code == 0, text
        code, text = _run(commands[-1])
        if "reads" in entry:
            text = Path(entry["reads"]).read_text(encoding="utf-8")
    flat = " ".join(text.split())  # wherever a line is broken
    assert code == entry.get("exit", 0), text
    missing = [words for words in entry.get("contains", ()) if words not in flat]
    unwanted = [words for words in entry.get("lacks", ()) if words in flat]
    wide = [line for line in text.splitlines() if len(line) > entry.get("columns", len(line))]
    assert not [line for line in wide if len(line.split()) > 2], wide
    assert not missing, f"lacks {missing}:\n{text}"
    assert not unwanted, f"holds {unwanted}:\n{text}"
