"""The language of the repository: glossary terms, noun-first docstrings, class names used once.

`CONTRIBUTING.md` holds the glossary. Each check runs per package, and a failure lists file, line
and word. Identifiers are split at underscores and capitals, so `awake_w` and `BoardName` count.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PRODUCT = ("sweeper", "simulators", "planning", "formats", "deploy", "lab")
FOLDERS = (*PRODUCT, "tests", "benchmarks", "docs", "spaces", "conf")
SUFFIXES = {".py", ".md", ".toml", ".yaml"}
THIS = Path(__file__).resolve()

REFUSED = (
    "boards?",
    "lends?|lent|lending|lenders?|loans?|loaned",
    "borrow(s|ed|ing|er|ers)?",
    "donors?",
    "crews?|nursery|nurseries|recruit(s|ed|ing)?",
    "awake|wakes?|woken?|waking",
    "mothers?|fathers?|sons?|daughters?",
    "halted|begun|told",
    "go(es)? on|lets? in|stands? for",
    "nobody measured|nine times in ten|holds? what (they say|it says)",
    "to the wrong side|by the clock",
    "the peer|peers?'s",
    "houses?|rooms?|floors?|doors?",
)
"""Words and phrases of the glossary's last section, with their inflections."""

ALLOWED = {
    r"\.floor\b|\bfloor div(ision)?\b": "the rounding function",
    r"\bexp floor greatest\b": "functions of SQL",
    r"\bboard power\b": "total board power, the power limit in data sheets of AMD and NVIDIA",
    r"\bvisual wake words\b": "a benchmark of MLPerf Tiny",
    r"\bk1board\b": "a product that was submitted to MLPerf Tiny",
}
"""Phrases in which a refused word has its usual technical meaning, with the reason."""

PRONOUNS = {"it", "its", "what", "those", "others", "who", "one", "that"}

_WORD = re.compile(rf"(?<![a-z])({'|'.join(REFUSED)})(?![a-z])".replace(" ", r"[\s#*>_]+"))
_ALLOWED = re.compile("|".join(ALLOWED))
_IDENTIFIER_BREAK = re.compile(r"(?<=[a-z])(?=[A-Z])|_")
_DOCSTRING = re.compile(r'^ *r?"""\s*(.*)', re.MULTILINE)
_GLOSSARY = re.compile(r"^## Glossary\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def package_of(file: Path) -> str:
    """Return the package of a file, two folders deep at most."""
    *folders, _name = file.relative_to(ROOT).parts
    return "/".join(folders[:2]) or "."


def files_by_package() -> dict[str, list[Path]]:
    """Return the text files of the repository by package; "." holds the files of the root."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*")]
    packages = defaultdict(list)
    for file in sorted([*files, *ROOT.glob("*")]):
        if file.suffix in SUFFIXES and file != THIS:
            packages[package_of(file)].append(file)
    return dict(packages)


PACKAGES = files_by_package()
PYTHON = {name: [f for f in files if f.suffix == ".py"] for name, files in PACKAGES.items()}


def refused_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of every refused word; skip the glossary section."""
    text = _GLOSSARY.sub(lambda match: "\n" * match[0].count("\n"), text)
    text = _IDENTIFIER_BREAK.sub(" ", text)
    text = _ALLOWED.sub("", text.lower())
    for match in _WORD.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def pronoun_docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and first line of every docstring that opens with three pronouns."""
    if not any(count_pronouns(line) >= 3 for line in _DOCSTRING.findall(text)):
        return  # parsing every file takes seconds
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            line = (ast.get_docstring(node) or " ").splitlines()[0]
            if count_pronouns(line) >= 3:
                yield node.body[0].lineno, line


def count_pronouns(line: str) -> int:
    """Return how many words of a line are pronouns."""
    return sum(word in PRONOUNS for word in re.findall(r"[a-z]+", line.lower()))


@pytest.mark.parametrize("package", PACKAGES)
def test_package_uses_no_refused_word(package: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word!r}"
        for file in PACKAGES[package]
        for line, word in refused_words(file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", [name for name, files in PYTHON.items() if files])
def test_first_line_of_a_docstring_names_its_subject(package: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in PYTHON[package]
        for line, text in pronoun_docstrings(file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_class_name_is_defined_once() -> None:
    places = defaultdict(list)
    for folder in PRODUCT:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name in re.findall(r"^ *class (\w+)", file.read_text(encoding="utf-8"), re.M):
                places[name].append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize(
    "text",
    [
        "awake_w = 3",
        "class BoardName:",
        "is_borrowed",
        "DONOR_OF",
        "two lenders",
        "they go\non",
        "# they go\n# on",
        "nine times in ten",
        "floor_of(x)",
    ],
)
def test_refused_word_is_found_inside_identifiers_and_across_lines(text: str) -> None:
    assert len(list(refused_words(text))) == 1


@pytest.mark.parametrize(
    "text",
    ["keyboard", "math.floor(x)", "np.floor(x)", "board power", "indoors", "cargo on", "reason"],
)
def test_technical_meaning_of_a_refused_word_is_allowed(text: str) -> None:
    assert list(refused_words(text)) == []


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("Return what it takes of those that wait.", True),
        ("Return the time that a transfer takes.", False),
        ("Items and whatever commits.", False),
    ],
)
def test_docstring_with_three_pronouns_is_refused(line: str, is_refused: bool) -> None:
    code = f'def f():\n    """{line}\n\n    It is one of those that wait.\n    """\n'
    assert list(pronoun_docstrings(code)) == ([(2, line)] if is_refused else [])


def test_glossary_section_may_list_refused_words() -> None:
    page = "# Guide\n\n## Glossary\n\ndonor, loan\n\n## Tests\n\na donor\n"
    assert list(refused_words(page)) == [(9, "donor")]


def test_reported_line_is_the_line_of_the_word() -> None:
    assert list(refused_words("x = 1\n\n# a loan\n")) == [(3, "loan")]
