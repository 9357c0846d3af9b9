from __future__ import annotations

import pytest

from lab.tables.records import known_rows


def test_rows_of_unknown_names_are_left_out_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [
        {"gpu": "a100", "model": "x"},
        {"gpu": "tpu9", "model": "x"},
        {"gpu": "a100", "model": "y"},
    ]
    known = {"gpu": {"a100"}.__contains__, "model": {"x"}.__contains__}
    for _ in range(2):
        assert known_rows(rows, "runs_of_mine.parquet", **known) == rows[:1]
    assert [record.message for record in caplog.records] == [
        "runs_of_mine.parquet: left out 1 of the unknown gpu 'tpu9', 1 of the unknown model 'y'"
    ]


def test_many_unknown_names_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"gpu": f"g{i}"} for i in range(9)]
    assert known_rows(rows, "many.parquet", gpu=set[str]().__contains__) == []
    assert caplog.records[-1].message.endswith("and 4 other names")
