"""Tables fit the terminal: no value is lost, keys stay whole, shared values are printed once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.__main__ import main
from sweeper.report.tables import blocks, print_table, shared, wrapped

KEY = "67704eb9e8"
HEADER = ["", "design", "cost_usd_per_mtok", "ttft_p99_s", "what"]
ROWS = [
    ["*", KEY, "$1.03", "236 ms", "words that may be broken"],
    ["", "a4cb373565", "$7.75", "176 ms", "row_stationary"],
]


def text(width: int | None) -> str:
    found = blocks(HEADER, ROWS, width)
    return "\n".join("\n".join([*b.header, *(p for row in b.rows for p in row)]) for b in found)


def test_unlimited_width_prints_one_line_per_row() -> None:
    assert text(None).splitlines()[1].split("  ")[:2] == ["*", KEY]
    assert len(text(None).splitlines()) == 3


def test_headers_and_text_wrap_and_numbers_do_not() -> None:
    assert text(50).splitlines() == [
        "   design         cost_   ttft_  what",
        "               usd_per_   p99_s",
        "                   mtok",
        "*  67704eb9e8     $1.03  236 ms  words that may",
        "                                 be broken",
        "   a4cb373565     $7.75  176 ms  row_stationary",
    ]


def test_overflowing_columns_continue_below_with_the_key() -> None:
    found = blocks(HEADER, ROWS, 32)
    assert len(found) > 1
    for block in found:
        assert KEY in block.rows[0][0]
        assert max(map(len, block.header)) <= 32


@given(
    st.lists(
        st.lists(st.text("ab_1 ", min_size=1, max_size=30), min_size=4, max_size=4), min_size=1
    ),
    st.integers(30, 140),
)
def test_wrapped_table_fits_and_keeps_every_word(rows: list[list[str]], width: int) -> None:
    rows = [[row[0].replace(" ", "_")[:12], *row[1:]] for row in rows]
    header = ["key", "first_metric_s", "second", "a_third_with_a_long_name"]
    found = blocks(header, rows, width)
    widest = 12 + 2 + 30  # a key beside one word that cannot be broken
    printed = [part for block in found for row in (block.header, *block.rows) for part in row]
    assert max(map(len, printed)) <= max(width, widest)
    for i, row in enumerate(rows):
        there = " ".join(part for block in found for part in block.rows[i]).split()
        assert all(word in there for cell in row for word in cell.split())


def test_shared_values_are_printed_once() -> None:
    rows = [["", "k1", "l4", "1", ""], ["*", "k2", "l4", "2", ""]]
    assert shared(["", "key", "gpu", "tp", "equal"], rows) == ("gpu l4", [0, 1, 3])
    assert shared(["key", "gpu", "equal"], [["k1", "l4", ""]]) == ("", [0, 1])


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_printed_table_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    header = ["design", *(f"a_metric_of_kind_{i}_s" for i in range(9)), "same"]
    lines = [[f"{k:010x}", *(f"{k + i} ms" for i in range(9)), "alike"] for k in (7, 8)]
    print_table("A title " * 30, header, lines, differing=True)
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said)) <= columns
    assert any(line == "Same for every row: same alike" for line in said)
    assert sum("0000000007" in line for line in said) == (2 if columns == 80 else 1)


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize(
    "words", ["list", "show serving", "show quickstart", "accuracy collectives"]
)
def test_printed_listing_fits_the_terminal(
    words: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(words.split()) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if len(line) > columns and len(line.split()) > 2]


def test_piped_output_is_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table("", ["a"], [["word " * 60]])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_paragraph_wraps_between_words() -> None:
    assert wrapped(f"see {'k' * 20} there", 10) == f"see\n{'k' * 20}\nthere"
