"""Claims on any part of the measured data: what cannot be judged is a line, not a traceback."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from lab import validate
from lab.claims import dataflow
from lab.tables.rows import evenly
from simulators.core.calibration import reference_folder

GROUPS = ("collectives", "composition", "dataflow", "kernels", "serving", "catalog")
ROWS = 24
"""Of a table that is kept; the others are left out at random."""

SIMULATED = 3
"""The same, where a row is a whole run of an engine."""

FIRST = [(group, 1) for group in GROUPS]
MORE = [(group, seed) for group in GROUPS for seed in range(34) if seed != 1]

REFERENCE = reference_folder()
pytestmark = pytest.mark.skipif(
    REFERENCE is None or not REFERENCE.is_dir(), reason="there is no measured data"
)


@pytest.mark.slow
@pytest.mark.parametrize(("group", "seed"), FIRST)
def test_claims_on_a_part_of_the_tables(group: str, seed: int, tmp_path: Path) -> None:
    _judge(group, seed, tmp_path)


@pytest.mark.accuracy
@pytest.mark.parametrize(("group", "seed"), MORE)
def test_claims_on_more_parts_of_the_tables(group: str, seed: int, tmp_path: Path) -> None:
    _judge(group, seed, tmp_path)


@pytest.mark.parametrize("group", GROUPS)
def test_claims_on_an_empty_folder(group: str, tmp_path: Path) -> None:
    _judged(group, tmp_path)


def _judge(group: str, seed: int, folder: Path) -> None:
    _part_of_the_reference(folder, np.random.default_rng([seed, GROUPS.index(group)]))
    _judged(group, folder)


def _judged(group: str, folder: Path) -> None:
    checks = list(validate.run(group, folder, "all"))
    assert checks
    assert all(check.note for check in checks if check.value is None)
    assert not any(check.value is not None and np.isnan(check.value) for check in checks)


def _part_of_the_reference(folder: Path, draw: np.random.Generator) -> None:
    """Make a folder with some of the tables, and of each some rows, perhaps none."""
    assert REFERENCE is not None
    kept = draw.uniform(0.3, 1.0)
    for source in sorted(file for file in REFERENCE.rglob("*") if file.is_file()):
        if draw.random() > kept:
            continue
        target = folder / source.relative_to(REFERENCE)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix in (".parquet", ".csv"):
            _thin(source, target, draw)
        else:
            target.symlink_to(source)


def _thin(source: Path, target: Path, draw: np.random.Generator) -> None:
    table = _table(source)
    most = SIMULATED if source.parent.name in ("serving_measured", "serving") else ROWS
    count = int(draw.choice([0, 1, most], p=[0.05, 0.1, 0.85]))
    rows = np.sort(draw.permutation(table.num_rows)[:count])
    table = table.take(rows)
    if draw.random() < 0.05:
        table = table.remove_column(int(draw.integers(table.num_columns)))
    if source.suffix == ".csv":
        pyarrow.csv.write_csv(table, target)
    else:
        pyarrow.parquet.write_table(table, target)


@pytest.fixture(autouse=True)
def _short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a claim spends on a search is of no matter here."""
    monkeypatch.setattr(dataflow, "EVALUATIONS", 200)


@functools.cache
def _table(source: Path) -> pa.Table:
    if source.suffix == ".csv":
        return pyarrow.csv.read_csv(source)
    table = pyarrow.parquet.read_table(source)
    return table.take(evenly(table.num_rows, 2000))
