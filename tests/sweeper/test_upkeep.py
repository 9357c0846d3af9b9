"""Compaction and merging never lose, repeat or change a row."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from simulators.core.errors import UserError
from sweeper.__main__ import main
from sweeper.engines.task import Task
from sweeper.report.answers import latest
from sweeper.report.run_folder import runs
from sweeper.space.points import Batch, Span
from sweeper.store import upkeep
from sweeper.store.store import Store
from sweeper.store.upkeep import compact, copy, definitions, quarantine_corrupt
from tests.toys import QUADRATIC, space, store

ASKED = space(QUADRATIC, axes={"x": "0..9", "y": "0..9"})
BATCHES = st.one_of(
    st.tuples(st.integers(0, 99), st.integers(1, 30)).map(
        lambda ends: Span(ends[0], min(ends[0] + ends[1], 100))
    ),
    st.sets(st.integers(0, 99), min_size=1, max_size=20).map(
        lambda numbers: np.array(sorted(numbers), np.int64)
    ),
)


def answered(folder: Path, *batches: Batch) -> Store:
    kept = store(folder, ASKED)
    task = Task(ASKED, kept, {"cost_usd": "min"})
    for batch in batches:
        task.answer(batch)
    return kept


def rows(kept: Store) -> pl.DataFrame:
    found = kept.scan().collect()
    return found[np.argsort(ASKED.index_of(found))]


@given(st.lists(BATCHES, min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_compaction_keeps_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Batch]
) -> None:
    kept = answered(tmp_path_factory.mktemp("compact"), *batches)
    before, missing = rows(kept), list(kept.missing(ASKED, [Span(0, 100)]))
    found = compact(kept)
    assert found.parts >= found.left == len(kept.parts())
    assert_frame_equal(rows(kept), before, check_exact=True)
    left = list(kept.missing(ASKED, [Span(0, 100)]))
    assert sorted(i for b in left for i in _numbers(b)) == sorted(
        i for b in missing for i in _numbers(b)
    )
    everything = pl.scan_parquet(f"{kept.results}/*.parquet").collect()
    assert len(everything) == len(before)  # as anybody reads them, without the store


def _numbers(batch: Batch) -> list[int]:
    return [int(i) for i in (batch.index() if isinstance(batch, Span) else batch)]


def test_compaction_merges_parts(tmp_path: Path) -> None:
    kept = answered(tmp_path, *(Span(i, i + 1) for i in range(100)))
    assert compact(kept) == upkeep.Kept(100, 1)
    assert compact(kept) == upkeep.Kept(1, 1)
    assert [len(d.parts()) for d in definitions(kept)] == [1]


def test_killed_compaction_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = answered(tmp_path, *(Span(i, i + 10) for i in range(0, 100, 10)), np.array([3, 7]))
    before = rows(kept)
    taken = []

    def stop(folder: str, name: str) -> None:
        taken.append(name)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "remove", stop)
        with pytest.raises(KeyboardInterrupt):
            compact(kept)
    assert len(kept.parts()) == 12
    assert_frame_equal(rows(kept), before, check_exact=True)
    compact(kept)
    assert len(kept.parts()) == 1
    assert_frame_equal(rows(kept), before, check_exact=True)


def test_damaged_part_is_quarantined_and_reevaluated(tmp_path: Path) -> None:
    kept = answered(tmp_path, Span(0, 50), Span(50, 100))
    part = Path(kept.results, kept.parts()[1])
    part.write_bytes(part.read_bytes()[:-9])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert compact(kept).damaged == (part.name,)
    assert list(kept.missing(ASKED, [Span(0, 100)])) == [Span(50, 100)]


def test_all_damaged_parts_are_quarantined(tmp_path: Path) -> None:
    kept = answered(tmp_path, Span(0, 100))
    part = Path(kept.results, kept.parts()[0])
    part.write_bytes(part.read_bytes()[:-9])
    assert definitions(kept) == []
    assert quarantine_corrupt(kept) == upkeep.Kept(1, 0, (part.name,))
    assert kept.parts() == []


def test_result_folders_are_merged_once(tmp_path: Path) -> None:
    mine = answered(tmp_path / "mine", Span(0, 60))
    answered(tmp_path / "theirs", Span(0, 60), Span(60, 100))
    source, target = str(tmp_path / "theirs"), str(tmp_path / "mine")
    before = rows(mine)
    assert copy(source, target, "toy") == (1, 1)
    assert copy(source, target, "toy") == (0, 2)
    assert len(rows(mine)) == 100
    assert_frame_equal(rows(mine)[:60], before, check_exact=True)
    with pytest.raises(UserError, match="into itself"):
        copy(source, source, "toy")


SPACE = "simulator: tests.toys.counting\naxes: {n: 0..19, log: log.txt}\n"


def test_merged_results_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "toy.yaml").write_text(SPACE)
    words = ["+space=toy", "plot=false", "engine=inline"]
    assert main([*words, "outputs=there"]) == 0
    assert main(["store", "merge", "there", "--outputs", "here"]) == 0
    assert "toy: copied 2 parts from there; 0 parts existed already" in capsys.readouterr().out
    assert main(["pareto", "toy", "--outputs", "here"]) == 0
    assert main([*words, "outputs=here"]) == 0
    assert (tmp_path / "log.txt").read_text().count("\n") == 20
    assert main(["store", "prune", "toy", "--outputs", "here"]) == 0
    assert "toy: compacted 2 parts to 1" in capsys.readouterr().out
    assert main(["store", "merge", "nowhere", "--outputs", "here"]) == 2


def test_last_run_stays_last_after_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "toy.yaml").write_text(SPACE)
    words = ["+space=toy", "plot=false", "engine=inline"]
    for count in (3, 4):
        assert main([*words, f"space.axes.n=0..{count}", "outputs=there"]) == 0
    assert main([*words, "outputs=here"]) == 0
    mine = latest("toy", "here")
    assert main(["store", "merge", "there", "--outputs", "here"]) == 0
    found = runs("here", "toy")
    assert len(found) == 3
    assert latest("toy", "here").folder == found[-1] == mine.folder
    assert main(["store", "merge", "there", "--outputs", "empty"]) == 0
    assert len(latest("toy", "empty").space) == 5  # of those merged, the last that was asked
