"""A point key covers the values and the content of every file that the values refer to."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.core.errors import UserError
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Span
from sweeper.store.keys import Definition, define, keys
from tests.toys import QUADRATIC, READER, space
from tests.toys.reader import SHARED


def keys_of(asked: DesignSpace) -> list[str]:
    return keys(define(asked), asked.points(Span(0, len(asked)))).to_list()


@pytest.fixture
def sheets(tmp_path: Path) -> list[str]:
    """Three files a point may read."""
    files = [tmp_path / f"{name}.txt" for name in "abc"]
    for number, file in enumerate(files):
        file.write_text(str(number + 1))
    return [str(file) for file in files]


def touch(file: str, text: str) -> None:
    """Change a file and its time, however coarse the clock of the file system."""
    before = Path(file).stat().st_mtime_ns
    Path(file).write_text(text)
    os.utime(file, ns=(before + 10**9, before + 10**9))


def test_changed_file_changes_only_keys_of_dependent_points(
    sheets: list[str],
) -> None:
    asked = space(READER, {"times": "1..3", "sheet": sheets})
    before = keys_of(asked)
    touch(sheets[1], "20")
    after = keys_of(asked)
    changed = [
        row["sheet"]
        for row, old, new in zip(asked.points(Span(0, 9)).to_dicts(), before, after, strict=True)
        if old != new
    ]
    assert changed == [sheets[1]] * 3


def test_restored_content_restores_the_key(sheets: list[str]) -> None:
    asked = space(READER, {"sheet": sheets})
    before, name = keys_of(asked), define(asked).id
    touch(sheets[1], "20")
    assert define(asked).id != name
    touch(sheets[1], "2")
    assert (keys_of(asked), define(asked).id) == (before, name)


def test_shared_file_is_part_of_every_key(
    sheets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared.txt"
    shared.write_text("one")
    asked = space(READER, {"sheet": sheets})
    without = keys_of(asked)
    monkeypatch.setenv(SHARED, str(shared))
    first = keys_of(asked)
    touch(str(shared), "two")
    assert len({*without, *first, *keys_of(asked)}) == 9


def test_missing_file_is_a_user_error(sheets: list[str]) -> None:
    asked = space(READER, {"sheet": [*sheets, "nowhere.txt"]})
    with pytest.raises(UserError, match=r"nowhere\.txt"):
        define(asked)


def test_point_key_is_independent_of_the_space() -> None:
    small = space(QUADRATIC, {"x": [2, 3], "n": 7})
    large = space(
        QUADRATIC,
        {"bonus": [1.5, None], "n": "5..9", "label": ["z", "plain"], "x": "0..10"},
        derived={"twice": "x * 2"},
        constraints=["x > 1"],
    )
    places = large.index_of(small.points(Span(0, 2)))
    points = large.points(places)
    assert keys(define(large), points).to_list() == keys_of(small)


def test_zipped_and_plain_axes_give_equal_keys() -> None:
    zipped = space(QUADRATIC, {"x": [1, 2], "n": [3, 4]}, zip=[["x", "n"]])
    plain = space(QUADRATIC, {"n": [3, 4], "x": [1, 2]})
    assert set(keys_of(zipped)) < set(keys_of(plain))


@given(data=st.data())
def test_keys_of_different_points_differ(data: st.DataObject) -> None:
    values = st.lists(st.integers(-100, 100), min_size=1, max_size=6, unique=True)
    asked = space(
        QUADRATIC, {"x": data.draw(values), "y": data.draw(values), "n": data.draw(values)}
    )
    found = keys_of(asked)
    assert len(set(found)) == len(asked)
    order = np.array(data.draw(st.permutations(range(len(asked)))), np.int64)
    assert keys(define(asked), asked.points(order)).to_list() == [found[i] for i in order]


def test_swapping_values_of_two_axes_changes_the_key() -> None:
    asked = space(QUADRATIC, {"x": [1, 2], "y": [1, 2]})
    assert len(set(keys_of(asked))) == 4


def test_definition_survives_json() -> None:
    asked = space(
        QUADRATIC,
        {"x": "0.1..7 log 5", "bonus": [None, 2.5], "flipped": [True, False], "label": ["ä", 'q"']},
        derived={"d": "x + 1"},
        constraints=["x > 0.2"],
    )
    written = define(asked)
    back = Definition.from_json(written.to_json())
    assert (back.id, back.to_json()) == (written.id, written.to_json())
    assert back.space() == asked


def test_definition_hash_covers_axes_order_and_values() -> None:
    axes = {"x": "1..4", "y": "1..3"}
    spaces = [
        space(QUADRATIC, axes),
        space(QUADRATIC, {"x": "1..5", "y": "1..3"}),
        space(QUADRATIC, {"y": "1..3", "x": "1..4"}),
        space(QUADRATIC, axes, constraints=["x > 1"]),
        space(QUADRATIC, axes, derived={"d": "x"}),
        space(QUADRATIC, {**axes, "label": "other"}),
    ]
    assert len({define(asked).id for asked in spaces}) == len(spaces)
