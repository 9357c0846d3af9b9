"""Rows are split by whole shapes, and tables that lack something say what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from lab.fits.driver import chosen
from lab.tables.kernels import products
from lab.tables.rows import by_labels, fraction, group_of, joined, numbers, read_table, tidy
from simulators.core.errors import UnknownNameError, UserError


def test_few_matrices_still_leave_some_to_judge_by() -> None:
    bucket = np.array([0.1, 0.3, 0.5, 0.7, 0.9]).repeat(2)
    size = np.ones(10)
    rows = products(size, size, size, size, size, gpu="rtx_4090", dtype="bf16", bucket=bucket)
    assert rows.held_out.sum() == 2
    assert not rows.where(~rows.held_out).held_out.any()


def test_where_there_are_layers_no_other_shapes_are_held_out() -> None:
    size = np.arange(400.0)
    layers = size < 100
    rows = tidy({"m": size}, size, group_of([size]), gpu="t4", kernel="k", from_layers=layers)
    assert not rows.held_out[~layers].any()
    assert 20 < rows.held_out.sum() < 80


def test_joined_rows_keep_their_sides() -> None:
    size = np.arange(50.0)
    one = tidy({"m": size}, size + 1.0, group_of([size]), gpu="t4", kernel="k")
    (both,) = joined([one, one], lambda rows: rows.kernel)
    assert len(both) == 100
    assert np.array_equal(both.held_out, np.tile(one.held_out, 2))
    assert np.array_equal(both.where(both.held_out).bucket, both.bucket[both.held_out])
    assert np.array_equal(one.bucket, fraction(one.group))
    assert len(both.thinned(7)) == 7
    assert np.array_equal(both.drawn(9).seconds, both.drawn(9).seconds)


def test_a_table_that_lacks_something_says_what(tmp_path: Path) -> None:
    file = tmp_path / "some.parquet"
    with pytest.raises(UserError, match="file not found"):
        read_table(file)
    pa.parquet.write_table(pa.table({"gpu": ["a", None], "m": [1, 2]}), file)
    with pytest.raises(UserError, match="lacks the column latency_us\nIt has: gpu, m"):
        read_table(file, ["latency_us"])
    with pytest.raises(UserError, match="lacks the column model"):
        read_table(file, model="x")
    assert numbers(read_table(file, gpu="a"), ["m"])["m"].tolist() == [1.0]
    with pytest.raises(UnknownNameError, match="did you mean 't4'"):
        chosen(["t5"], ["t4", "p100"])


def test_rows_of_every_combination_of_labels_come_in_order() -> None:
    table = pa.table({"a": ["y", "x", "y", "x"], "b": [2, 1, 1, 1], "n": [0, 1, 2, 3]})
    found = [(key, rows["n"].to_pylist()) for key, rows in by_labels(table, "a", "b")]
    assert found == [(("x", 1), [1, 3]), (("y", 1), [2]), (("y", 2), [0])]
