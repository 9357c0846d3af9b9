"""A worker decodes, filters, evaluates, writes and summarizes points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulators.core.contract import load_simulator
from sweeper.engines.task import Task, evaluate
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Span
from sweeper.store.keys import define
from sweeper.store.store import Part, Store
from tests.toys import QUADRATIC, TROUBLE, quadratic, space, store

WANTED: dict[str, Any] = {"cost_usd": "min", "gain": "max"}


def bowl(**more: Any) -> DesignSpace:
    return space(QUADRATIC, {"x": "1..6", "y": "1..6", "n": [1, 13]}, **more)


def part_of(folder: Path, asked: DesignSpace, **more: Any) -> Part:
    return Task(asked, store(folder, asked), WANTED, **more).answer(Span(0, len(asked)))


def test_part_summary_counts_rows_reasons_and_removed_points(tmp_path: Path) -> None:
    part = part_of(tmp_path, bowl(constraints=["x <> 6"]))
    assert part.points == 72
    assert part.rows == {"ok": 30, "infeasible": 30}
    assert part.reasons == {"unlucky": 30}
    assert part.seconds > 0


def test_part_summary_holds_its_front(tmp_path: Path) -> None:
    """On paper: from the bottom of the bowl at (3, 4) the gain rises towards (6, 6)."""
    part = part_of(tmp_path, bowl())
    costs, gains = part.front.T
    assert (costs.min(), gains.max()) == (0.0, 36.0)
    order = np.argsort(costs)
    assert (np.diff(gains[order]) > 0).all()
    assert len(part.front) == len(np.unique(part.front, axis=0))


def test_result_condition_limits_the_front(tmp_path: Path) -> None:
    part = part_of(tmp_path, bowl(), where="gain <= 20")
    assert part.front[:, 1].max() == 20.0


def test_failing_batch_is_split_to_the_failing_point() -> None:
    asked = space(TROUBLE, {"n": "0..99", "raises": 63, "dies": 62})
    rows = evaluate(load_simulator(TROUBLE), asked.batch(Span(0, 100))).to_pylist()
    bad = {i: (row["status"], row["reason"]) for i, row in enumerate(rows) if row["status"] != "ok"}
    assert bad == {
        62: ("infeasible", "too_large: on paper"),
        63: ("error", "ValueError: cannot square 63"),
    }


def test_abandoned_point_has_a_row_without_metrics(tmp_path: Path) -> None:
    asked = bowl()
    kept = store(tmp_path, asked)
    part = Task(asked, kept, WANTED).give_up(Span(4, 5), "timeout", "timeout: no answer in time")
    assert (part.rows, part.reasons) == ({"timeout": 1}, {"timeout": 1})
    row = kept.scan().collect().row(0, named=True)
    assert (row["status"], row["cost_usd"], row["x"]) == ("timeout", None, 1.0)


def test_simulators_may_define_status_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = quadratic.Quadratic.evaluate

    def recoded(self: quadratic.Quadratic, batch: pa.RecordBatch) -> pa.RecordBatch:
        results = original(self, batch)
        status = results["status"].cast(pa.string()).dictionary_encode()
        status = pa.DictionaryArray.from_arrays(status.indices.cast(pa.int8()), status.dictionary)
        place = results.schema.names.index("status")
        return results.set_column(place, results.schema.field("status"), status)

    expected = part_of(tmp_path / "usual", bowl())
    monkeypatch.setattr(quadratic.Quadratic, "evaluate", recoded)
    part = part_of(tmp_path / "own", bowl())
    assert part.rows == expected.rows
    assert np.array_equal(part.front, expected.front)
    assert part_of(tmp_path / "none", space(QUADRATIC, {"x": 1, "n": 13})).rows == {"infeasible": 1}


def test_large_chunk_is_written_in_several_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.engines.task.PART", 10)
    asked = bowl()
    kept = Store(str(tmp_path), define(asked))
    parts = list(Task(asked, kept, WANTED).answer_in_parts(Span(0, 72)))
    assert max(part.points for part in parts) <= 10
    assert sum(part.points for part in parts) == 72
    assert kept.finished() == [Span(0, 72)]
    index = np.arange(3, 70, 2)
    other = Store(str(tmp_path / "other"), define(asked))
    parts = list(Task(asked, other, WANTED).answer_in_parts(index))
    assert len(parts) == 4
    assert other.answered(asked).tolist() == index.tolist()
