"""A result exists if and only if its file exists."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from simulators.core.errors import UserError
from sweeper.engines.task import Task
from sweeper.samplers import load_sampler
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch, Span
from sweeper.store import parquet as files
from sweeper.store.parquet import check_writable, remove
from sweeper.store.store import Store, adopt, answered_elsewhere, stores_beside
from tests.toys import COUNTING, QUADRATIC, READER, TROUBLE, space, store, sweep

OBJECTIVES = {"cost_usd": "min", "gain": "max"}


def answer(folder: Path, asked: DesignSpace, *batches: Batch) -> Store:
    """Evaluate these batches, one part each."""
    kept = store(folder, asked)
    names = list(OBJECTIVES) if asked.simulator == QUADRATIC else []
    for batch in batches:
        Task(asked, kept, {n: OBJECTIVES[n] for n in names} or {_first(asked): "min"}).answer(batch)
    return kept


def _first(asked: DesignSpace) -> str:
    from simulators.core.contract import load_simulator, objectives_of

    return next(iter(objectives_of(load_simulator(asked.simulator))))


def rows(kept: Store) -> pl.DataFrame:
    """Return all answers in the order of the points."""
    found = kept.scan().collect()
    order = kept.definition.space().index_of(found)
    return found[np.argsort(order)]


def numbers(kept: Store) -> list[int]:
    return sorted(kept.definition.space().index_of(kept.scan().collect()).tolist())


def missing(kept: Store, asked: DesignSpace, *batches: Batch) -> list[int]:
    """Return the numbers that are still to be answered; each must come once."""
    found: list[int] = []
    for batch in kept.missing(asked, batches or [Span(0, len(asked))]):
        found += (batch.index() if isinstance(batch, Span) else batch).tolist()
    assert len(set(found)) == len(found)
    return sorted(found)


def grid(**axes: Any) -> DesignSpace:
    return space(QUADRATIC, {"x": "1..10", "y": "1..6", **axes})


def test_part_holds_points_metrics_and_status(tmp_path: Path) -> None:
    asked = space(
        QUADRATIC, {"x": [1, 3], "n": [2, 13], "bonus": [None, 0.5]}, derived={"d": "x * 10"}
    )
    found = rows(answer(tmp_path, asked, Span(0, 8)))
    expected_first = {
        "x": 1.0,
        "y": 4.0,
        "n": 2,
        "label": "plain",
        "bonus": None,
        "flipped": False,
        "d": 10.0,
        "cost_usd": 8.0,
        "gain": 8.0,
        "whole": 8,
        "status": "ok",
        "reason": None,
        "measured_share": 0.0,
        "fitted_share": 1.0,
        "extrapolated_share": 0.0,
        "datasheet_share": 0.0,
    }
    assert found.row(0, named=True) == expected_first
    dead = found.filter(pl.col("n") == 13)
    assert dead["status"].to_list() == ["infeasible"] * 4
    assert set(dead["reason"]) == {"unlucky: 13"}
    assert dead["cost_usd"].is_null().all()
    assert found.schema["status"] == pl.String  # any reader sees words, not codes


def test_polars_reads_the_result_folder(tmp_path: Path) -> None:
    kept = answer(tmp_path, grid(), Span(0, 30), Span(30, 60))
    assert pl.scan_parquet(f"{kept.results}/*.parquet").collect().height == 60


@given(data=st.data())
@settings(max_examples=40)
def test_missing_points_are_those_without_a_part(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever was answered in whatever order, and whatever files are deleted afterwards."""
    asked = grid()
    folder = tmp_path_factory.mktemp("store")
    kept = store(folder, asked)
    task = Task(asked, kept, OBJECTIVES)
    for _ in range(data.draw(st.integers(0, 5))):
        if data.draw(st.booleans()):
            lo = data.draw(st.integers(0, 59))
            wanted: Batch = Span(lo, data.draw(st.integers(lo + 1, 60)))
        else:
            chosen = data.draw(st.lists(st.integers(0, 59), min_size=1, max_size=9, unique=True))
            wanted = np.array(sorted(chosen), np.int64)
        for batch in list(kept.missing(asked, [wanted])):
            task.answer(batch)
    for name in kept.parts():
        if data.draw(st.booleans()):
            Path(kept.results, name).unlink()
    there = numbers(kept)
    assert len(set(there)) == len(there)
    assert missing(kept, asked) == sorted(set(range(60)) - set(there))
    some = np.arange(0, 60, 7)
    assert missing(kept, asked, some) == sorted(set(some.tolist()) - set(there))
    for batch in list(kept.missing(asked, [Span(0, 60)])):
        task.answer(batch)
    assert numbers(kept) == list(range(60))
    assert missing(kept, asked) == []


def test_parts_record_points_removed_by_constraints(tmp_path: Path) -> None:
    asked = space(QUADRATIC, {"x": "1..10", "y": "1..6"}, constraints=["x > 5"])
    kept = answer(tmp_path, asked, Span(0, 25), Span(25, 60))
    assert missing(kept, asked) == []
    assert len(numbers(kept)) == 30


def test_part_without_rows_is_readable(tmp_path: Path) -> None:
    asked = space(
        QUADRATIC,
        {"x": "1..4", "label": ["a", "b"]},
        constraints=["x > 2"],
        derived={"word": "label || '!'"},
    )
    kept = answer(tmp_path, asked, Span(0, 4), Span(4, 8))
    assert rows(kept)["word"].to_list() == ["a!", "b!", "a!", "b!"]


def test_surviving_worker_does_not_duplicate_rows(tmp_path: Path) -> None:
    """Its part overlaps those of the next run, which were cut otherwise."""
    asked = grid()
    kept = answer(
        tmp_path, asked, Span(0, 20), Span(20, 40), Span(10, 35), Span(30, 50), np.arange(5, 55, 5)
    )
    assert numbers(kept) == list(range(51))
    assert missing(kept, asked) == list(range(51, 60))


def test_extended_axis_evaluates_only_new_points(tmp_path: Path) -> None:
    before = answer(tmp_path, grid(), Span(0, 60))
    asked = grid(y="0..7")
    kept = store(tmp_path, asked)
    new = asked.points(np.array(missing(kept, asked), np.int64))
    assert sorted(new["y"].unique()) == [0.0, 7.0]
    assert len(new) == 20
    assert kept.scan().collect().height == 60
    old = before.scan().collect().sort("x", "y")
    assert_frame_equal(kept.scan().collect().sort("x", "y").select(old.columns), old)


def test_reduced_space_shows_only_its_points(tmp_path: Path) -> None:
    answer(tmp_path, grid(), Span(0, 60))
    asked = space(QUADRATIC, {"x": [2, 3], "y": "1..6"}, constraints=["y <= 4"])
    kept = store(tmp_path, asked)
    assert kept.scan().collect().height == 8
    assert missing(kept, asked) == [4, 5, 10, 11]  # removed by the constraint: no rows, no harm


def test_derived_columns_follow_the_current_space(tmp_path: Path) -> None:
    answer(tmp_path, space(QUADRATIC, {"x": [1, 2]}, derived={"a": "x", "b": "x + 1"}), Span(0, 2))
    kept = store(tmp_path, space(QUADRATIC, {"x": [1, 2]}, derived={"a": "x * 100", "c": "x"}))
    found = rows(kept)
    assert found["a"].to_list() == [100.0, 200.0]
    assert found["c"].to_list() == [1.0, 2.0]
    assert "b" not in found.columns


def test_edited_file_reevaluates_only_dependent_points(tmp_path: Path) -> None:
    sheets = [str(tmp_path / f"{n}.txt") for n in "ab"]
    for sheet in sheets:
        Path(sheet).write_text("5")
    asked = space(READER, {"times": "1..3", "sheet": sheets})
    answer(tmp_path, asked, Span(0, 6))
    Path(sheets[1]).write_text("70")
    kept = store(tmp_path, asked)
    assert missing(kept, asked) == [1, 3, 5]
    answer(tmp_path, asked, *kept.missing(asked, [Span(0, 6)]))
    assert rows(kept)["total"].to_list() == [5.0, 70.0, 10.0, 140.0, 15.0, 210.0]
    Path(sheets[1]).write_text("5")  # as it was: the first answers count again
    assert rows(store(tmp_path, asked))["total"].to_list() == [5.0, 5.0, 10.0, 10.0, 15.0, 15.0]


def test_results_of_another_space_are_reused(tmp_path: Path) -> None:
    theirs = sweep(tmp_path, grid(), name="theirs")
    theirs.run()
    asked = grid(x="5..12", n=[1, 2])
    ours = sweep(tmp_path, asked, name="ours")
    assert [Path(s.folder).name for s in stores_beside(ours.store)] == ["theirs"]
    assert answered_elsewhere(ours.store, asked) == 36
    said: list[str] = []
    seen: Counter[str] = Counter()
    ours.run(lambda part: seen.update(part.rows), said.append)
    assert said[0] == f"36 points already simulated in {tmp_path}/theirs"
    assert seen["ok"] == 8 * 6 * 2 - 36
    assert numbers(ours.store) == list(range(96))
    assert list(adopt(ours.store, asked)) == []


def test_failures_of_another_space_are_reevaluated(tmp_path: Path) -> None:
    sweep(tmp_path, space(TROUBLE, {"n": "0..9", "raises": 4}), name="theirs").run()
    ours = sweep(tmp_path, space(TROUBLE, {"n": "0..12", "raises": 4}), name="ours")
    seen: Counter[str] = Counter()
    ours.run(lambda part: seen.update(part.rows))
    assert seen == {"ok": 3, "error": 1}


@pytest.mark.parametrize("first", ["grid", "random", "grown"])
def test_forgotten_failures_are_reevaluated(tmp_path: Path, first: str) -> None:
    """Whichever part, of whichever definition, holds them; and everything else is kept."""
    cure = tmp_path / "cure"
    axes = {"raises": 5, "dies": 7, "healed": str(cure)}
    asked = space(TROUBLE, {"n": "0..19", **axes})
    if first == "random":
        sweep(tmp_path, asked, sampler=load_sampler("random", points=12, seed=3)).run()
    if first == "grown":
        sweep(tmp_path, space(TROUBLE, {"n": "0..9", **axes})).run()
    task = sweep(tmp_path, asked)
    task.run()
    assert _statuses(task.store) == {"ok": 18, "error": 1, "infeasible": 1}
    cure.touch()
    assert task.store.forget_failures() == 1
    assert numbers(task.store) == [n for n in range(20) if n != 5]
    assert missing(task.store, asked) == [5]
    seen: Counter[str] = Counter()
    task.run(lambda part: seen.update(part.rows))
    assert seen == {"ok": 1}
    assert _statuses(task.store) == {"ok": 19, "infeasible": 1}
    assert task.store.forget_failures() == 0


def _statuses(kept: Store) -> dict[str, int]:
    return Counter(kept.scan().collect()["status"].to_list())


@pytest.mark.parametrize("moment", range(3))
@pytest.mark.parametrize("then", ["retry", "run first"])
def test_forgetting_failures_is_crash_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, then: str
) -> None:
    """At any rename or removal of a file the process may die; nothing is lost or doubled."""
    asked = space(TROUBLE, {"n": "0..19", "raises": 5, "healed": str(tmp_path / "cure")})
    answer(tmp_path, asked, Span(0, 10), Span(10, 20))
    kept = store(tmp_path, asked)
    (tmp_path / "cure").touch()
    calls = iter(range(100))

    def dying(original: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == moment:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr("sweeper.store.store.remove", dying(remove))
        try:
            kept.forget_failures()
        except KeyboardInterrupt:
            assert moment < 2
    if then == "run first":
        sweep(tmp_path, asked).run()
    kept.forget_failures()
    sweep(tmp_path, asked).run()
    assert numbers(kept) == list(range(20))
    assert _statuses(kept) == {"ok": 20}


def test_interrupted_forgetting_keeps_part_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file edited between two retries must not be credited with answers of the old content."""
    sheets = [str(tmp_path / f"{n}.txt") for n in "ab"]
    Path(sheets[0]).write_text("5")
    Path(sheets[1]).write_text("no number")
    asked = space(READER, {"sheet": sheets})
    answer(tmp_path, asked, Span(0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store(tmp_path, asked).forget_failures()
    Path(sheets[0]).write_text("6")
    Path(sheets[1]).write_text("7")
    kept = store(tmp_path, asked)
    kept.forget_failures()
    assert missing(kept, asked) == [0, 1]


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-100], lambda b: b[:90] + b[91:]])
def test_damaged_part_is_named_and_reevaluated(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    kept = answer(tmp_path, grid(), Span(0, 30), Span(30, 60))
    part = Path(kept.results, kept.parts()[1])
    part.write_bytes(damage(part.read_bytes()))
    with pytest.warns(UserWarning, match=f"{part.name} is damaged.*Delete it"):
        assert numbers(kept) == list(range(30))
    with pytest.warns(UserWarning, match="is damaged"):
        assert missing(kept, grid()) == list(range(30, 60))
    with pytest.warns(UserWarning, match="is damaged"):
        assert answered_elsewhere(store(tmp_path, grid(), "next"), grid()) == 30
    answer(tmp_path, grid(), Span(30, 60))
    assert numbers(kept) == list(range(60))


@pytest.mark.parametrize("name", ["000000000010-000000000020", "000000000030-000000000040"])
def test_part_under_the_name_of_another_is_reevaluated(tmp_path: Path, name: str) -> None:
    asked = space(QUADRATIC, axes={"x": "0..9", "y": "0..9"})
    kept = answer(tmp_path, asked, Span(0, 10), Span(10, 20))
    first = kept.parts()[0]
    folder = Path(kept.results)
    shutil.copy(folder / first, folder / f"{kept.definition.id}-{name}.parquet")
    with pytest.warns(UserWarning, match=f"it is a copy of the part {first}"):
        left = [b for b in kept.missing(asked, [Span(0, 20)]) if isinstance(b, Span)]
    done = 20 if name.startswith("000000000030") else 10
    assert [(b.lo, b.hi) for b in left] == ([(10, 20)] if done == 10 else [])
    with pytest.warns(UserWarning, match="left out"):
        assert numbers(kept) == list(range(done))


@pytest.mark.parametrize("has_name", [True, False])
def test_part_named_by_a_reversed_range_is_no_finished_range(
    tmp_path: Path, has_name: bool
) -> None:
    asked = space(QUADRATIC, axes={"x": "0..9", "y": "0..9"})
    kept = answer(tmp_path, asked, Span(0, 10), Span(10, 20))
    first = Path(kept.results, kept.parts()[0])
    named = first.with_name(f"{kept.definition.id}-{20:012d}-{10:012d}.parquet")
    if has_name:
        shutil.copy(first, named)
    else:  # as earlier releases wrote parts
        pq.write_table(pq.read_table(first).replace_schema_metadata({}), named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert numbers(kept) == list(range(20))
        left = next(b for b in kept.missing(asked, [Span(0, 100)]) if isinstance(b, Span))
    assert (left.lo, left.hi) == (20, 100)


def test_bit_flips_never_give_wrong_rows(tmp_path: Path) -> None:
    kept = answer(tmp_path, space(QUADRATIC, {"x": "1..10", "label": ["a", "b"]}), Span(0, 20))
    (part,), sound, whole = kept.parts(), kept.scan().collect(), 0
    file = Path(kept.results, part)
    content, dice = file.read_bytes(), random.Random(0)  # noqa: S311 - dice
    for turn in range(400):
        flipped = bytearray(content)
        for _ in range(dice.choice([1, 1, 2, 8])):
            flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
        file.write_bytes(flipped)
        os.utime(file, ns=(turn, turn))  # a clock may be too coarse to tell two writes apart
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = kept.scan().collect()
        whole += len(found) > 0
        assert found.is_empty() or found.equals(sound)
    assert whole < 20  # what a flip does not reach: words nobody reads


def test_part_without_a_checksum_is_read(tmp_path: Path) -> None:
    kept = answer(tmp_path, grid(), Span(0, 60))
    (part,), sound = kept.parts(), kept.scan().collect()
    meta = json.dumps({k: v for k, v in files.metadata(kept.results, part).items() if k != "seal"})
    table = files.read(kept.results, part).replace_schema_metadata({"sweeper": meta})
    pq.write_table(table, Path(kept.results, part))
    assert_frame_equal(kept.scan().collect(), sound)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"a,b\n1,2\n"])
def test_foreign_file_among_parts_is_named(tmp_path: Path, content: bytes) -> None:
    kept = answer(tmp_path, grid(), Span(0, 60))
    Path(kept.results, "0123456789ab-000000000000-000000000004.parquet").write_bytes(content)
    with pytest.warns(UserWarning, match=r"0123456789ab.* is damaged"):
        assert len(kept.scan().collect()) == 60


def test_unrelated_files_are_left_alone(tmp_path: Path) -> None:
    kept = answer(tmp_path, grid(), Span(0, 60))
    Path(kept.results, "notes.parquet").write_bytes(b"mine")
    assert kept.scan().collect().height == 60


def test_full_disk_is_reported_and_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = answer(tmp_path, grid(), Span(0, 30))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"the disk under .* is full.*run the same command"):
            answer(tmp_path, grid(), Span(30, 60))
    assert [p.name for p in Path(kept.results).iterdir()] == kept.parts()
    assert missing(kept, grid()) == list(range(30, 60))


def test_unwritable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refused)  # root may write anywhere, so pretend
    with pytest.raises(UserError, match=r"may not be written.*outputs=/another/folder"):
        check_writable(str(tmp_path))


def test_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "toy").write_text("in the way")
    with pytest.raises(UserError, match="toy"):
        sweep(tmp_path, grid()).run()


def test_temporary_files_of_dead_writers_are_removed(tmp_path: Path) -> None:
    old, recent = (tmp_path / f".part.parquet.{pid}.tmp" for pid in (1, 2))
    for file in (old, recent):
        file.touch()
    os.utime(old, (0, 0))
    check_writable(str(tmp_path))
    assert [f.exists() for f in (old, recent)] == [False, True]


def test_result_folders_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "we[i]rd *?" / "a=b"
    folder.mkdir(parents=True)
    assert sweep(folder, grid(), name="x=7").run().collect().height == 60
    assert set(sweep(folder, grid(), name="x=7").run().collect().columns) >= {"x", "status"}


def test_point_numbers_of_thirteen_digits_are_in_order(tmp_path: Path) -> None:
    asked = space(QUADRATIC, {"x": "1..10000", "y": "1..10000", "n": "1..100000"})
    spans = [Span(999_999_999_995, 10**12), Span(10**12, 10**12 + 5), Span(7, 9)]
    kept = answer(tmp_path, asked, *spans)
    assert kept.finished() == [Span(7, 9), Span(999_999_999_995, 10**12 + 5)]


@given(numbers=st.lists(st.integers(0, 2**62), unique=True).map(sorted))
def test_removed_points_survive_lost_metadata(
    numbers: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    asked = space(QUADRATIC, {"x": "1..4"})
    kept = store(tmp_path_factory.mktemp("meta"), asked)
    span = Span(0, 2**62 + 1, np.array(numbers, np.int64))
    kept.write(pa.table({"x": [1.0]}), span)
    assert kept.finished()[0].without.tolist() == numbers


def test_url_works_like_a_folder(tmp_path: Path) -> None:
    kept = answer(tmp_path, grid(), Span(0, 30))
    url = Store(f"file://{tmp_path}/toy", kept.definition)
    url.write(files.read(kept.results, kept.parts()[0]), Span(30, 60))
    assert url.finished() == [Span(0, 60)]
    assert url.scan().collect().height == 60


def test_shuffled_chunks_give_the_same_rows(tmp_path: Path) -> None:
    asked = grid(n="1..3")
    whole = rows(answer(tmp_path / "whole", asked, Span(0, 180)))
    order = list(range(180))
    random.Random(4).shuffle(order)  # noqa: S311 - no secret
    pieces = [np.array(sorted(order[i : i + 7]), np.int64) for i in range(0, 180, 7)]
    assert_frame_equal(rows(answer(tmp_path / "pieces", asked, *pieces)), whole, check_exact=True)
    single = [Span(i, i + 1) for i in order]
    assert_frame_equal(rows(answer(tmp_path / "single", asked, *single)), whole, check_exact=True)


def test_points_are_evaluated_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for last in (9, 9, 14):
        sweep(tmp_path, space(COUNTING, {"n": f"0..{last}", "log": str(log)})).run()
    assert sorted(map(int, log.read_text().split())) == list(range(15))


def test_empty_results_have_the_right_columns_and_types(tmp_path: Path) -> None:
    asked = space(QUADRATIC, {"x": "1..4", "bonus": [None]}, derived={"d": "label || '!'"})
    empty = store(tmp_path, asked).scan().collect()
    full = answer(tmp_path, asked, Span(0, 4)).scan().collect()
    assert empty.is_empty()
    assert dict(empty.schema) == dict(full.schema)


def test_many_parts_and_few_parts_give_equal_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = space(QUADRATIC, axes={"x": "0..9", "y": 2, "label": "plain"})
    kept = store(tmp_path, asked)
    for i in range(10):
        Task(asked, kept, {"cost_usd": "min"}).answer(Span(i, i + 1))
    few = kept.scan().collect()
    monkeypatch.setattr("sweeper.store.store._MANY", 3)
    assert_frame_equal(kept.scan().collect(), few, check_exact=True)
