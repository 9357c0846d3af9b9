"""The table of claims: figures beside limits and a peer's, ranges of many lines, what is absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulators.core.contract import COVERAGE, PARITY, Check
from sweeper.__main__ import main
from sweeper.report import evidence
from sweeper.report.headlines import END, START, Headline, missed, with_figures

KNOWN = {
    "mine": [
        Check("board sheet", 13.36, "%", rows=17, peer=5.31),
        Check("ten rows", 2.04, "%", 3.0, ok=True, rows=17),
        Check("board far", 11.64, "%", 7.0, ok=False, rows=10),
        Check("held", 99.0, "%", 85.0, ok=False, rows=40, kind=COVERAGE),
        Check("equal a", 0.0, "s", 1e-5, ok=True, rows=3, kind=PARITY),
        Check("equal b", 1.0, "s", 1e-5, ok=False, rows=4, kind=PARITY),
        Check("gone", None, "%"),
    ]
}


def cells(*names: str) -> tuple[str, ...]:
    lines = [(f"l{i}", name) for i, name in enumerate(names)]
    return Headline("mine", "boards", lines, "what was known", "Peer").cells(KNOWN)


@pytest.mark.parametrize(
    ("name", "ours", "rows"),
    [
        ("board sheet", "13.4 %", "17"),
        ("ten rows", "2.0 % (limit 3)", "17"),
        ("board far", "11.6 % (misses 7)", "10"),
        ("held", "99.0 % (too wide)", "40"),
        ("equal *", "1 of 2 within limits", "7"),
        ("board *", "11.6 to 13.4 % (0 of 1 within limits)", "27"),
        ("gone", "absent", "-"),
        ("unknown", "absent", "-"),
    ],
)
def test_a_figure_stands_beside_its_limit(name: str, ours: str, rows: str) -> None:
    found = Headline("mine", "boards", [("", name)], "known").cells(KNOWN)
    assert (found[1], found[3]) == (ours, rows)


def test_a_peer_stands_beside_the_line_it_answers() -> None:
    claim, ours, peer, rows, said = cells("board sheet", "ten rows", "board far")
    assert claim == "mine: boards"
    assert ours == "l0 13.4 %; l1 2.0 % (limit 3); l2 11.6 % (misses 7)"
    assert (peer, rows, said) == ("Peer: l0 5.3 %", "17; 10", "what was known")


def test_errors_that_miss_are_listed_and_other_kinds_are_not() -> None:
    head, _, *lines, _, end = missed(KNOWN).splitlines()
    assert head == "<details><summary>All 1 errors beyond their limits</summary>"
    assert (lines, end) == (["- board far 11.6 % (misses 7)"], "</details>")


def test_figures_are_put_between_their_marks_and_again_the_same() -> None:
    ask = "Deadlines: 1 s.\n3 of 4 accuracy checks.\nPrices: more\n"
    page = f"before\n{START}\nformer\n{END}\nafter\n{ask}"
    once = with_figures(page, evidence.stored())
    assert once.startswith(f"before\n{START}\n| claim | ours |")
    assert "former" not in once
    assert "accuracy checks" not in once
    assert "\nDeadlines: 1 s.\n" in once
    assert once.endswith("\nPrices: more\n")
    assert with_figures(once, evidence.stored()) == once


def test_stored_checks_are_printed_without_measured_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SWEEPER_REFERENCE", str(tmp_path / "nowhere"))
    assert main(["validate", "collectives", "--stored", "--json"]) in (0, 1)
    names = [line["name"] for line in json.loads(capsys.readouterr().out)]
    assert names == [check.name for check in evidence.stored()["collectives"]]


def test_a_page_of_ones_own_tables_leaves_what_is_shipped_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(evidence, "FILE", tmp_path / "shipped.json")
    page = tmp_path / "mine.md"
    main(["validate", "catalog", "--reference", str(tmp_path), "--write", str(page)])
    assert page.read_text(encoding="utf-8").startswith(
        "# Accuracy\n\nWritten by `python -m sweeper"
    )
    assert not evidence.FILE.exists()
