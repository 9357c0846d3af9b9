"""Numbers that moved without a version are noticed."""

from __future__ import annotations

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sweeper.space import shipped_files
from tests.golden import DIGESTS, digests_of, file_of, read, rows_of, version_of

NAMES = [name for name in shipped_files.spaces() if file_of(name).exists()]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_a_space_are_those_last_looked_at(name: str) -> None:
    version, kept = read(name)
    now = rows_of(name)
    again = f"python -m tests.golden {name}"
    if version != version_of(name):
        pytest.fail(f"the simulator went from version {version} to {version_of(name)}: {again}")
    kept = kept.with_columns(pl.col(c).cast(now.schema[c], strict=False) for c in now.columns)
    # Other processors and libraries round otherwise, in the last digits only.
    assert_frame_equal(now, kept, rel_tol=1e-9, abs_tol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_column_and_key_of_many_points_is_what_it_was(name: str) -> None:
    kept, now = json.loads(DIGESTS.read_text())[name], digests_of(name)
    moved = sorted(column for column in {*kept, *now} if kept.get(column) != now.get(column))
    assert not moved, f"{', '.join(moved)} moved; if that is meant: python -m tests.golden {name}"
