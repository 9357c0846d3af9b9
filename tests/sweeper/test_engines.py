"""Engines decide where points are evaluated; a failing point costs one row in every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from benchmarks import driver
from simulators.core.errors import UnknownNameError, UserError
from sweeper.engines import Engine, auto, load_engine
from sweeper.engines import chunks as chunks_module
from sweeper.engines.chunks import Estimate, hinted, measured
from sweeper.engines.task import Limits, Task
from sweeper.samplers import load_sampler
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Span
from sweeper.store.keys import define
from sweeper.store.store import Part, Store
from tests.contracts import check_engine
from tests.sweeper.test_contracts import bowl
from tests.toys import COUNTING, QUADRATIC, TROUBLE, space, sweep


def answers(
    folder: Path, asked: DesignSpace, engine: Engine, **more: Any
) -> tuple[pl.DataFrame, list[str]]:
    """Return all rows in the order of the points, and what the engine said."""
    said: list[str] = []
    counted: Counter[str] = Counter()
    task = sweep(folder, asked, engine=engine, **more)
    rows = task.run(lambda part: counted.update(part.rows), said.append).collect()
    assert sum(counted.values()) == len(rows)
    return rows[np.argsort(asked.index_of(rows))], said


def troubled(last: int = 99, **which: int) -> DesignSpace:
    return space(TROUBLE, {"n": f"0..{last}", **which})


def named(rows: pl.DataFrame) -> list[tuple[int, str, str]]:
    bad = rows.filter(pl.col("status") != "ok").sort("n")
    return [(r["n"], r["status"], r["reason"]) for r in bad.to_dicts()]


def test_failing_point_costs_one_row(tmp_path: Path) -> None:
    rows, _ = answers(tmp_path, troubled(raises=41, dies=77), load_engine("inline"))
    assert named(rows) == [
        (41, "error", "ValueError: cannot square 41"),
        (77, "infeasible", "too_large: on paper"),
    ]
    good = rows.filter(pl.col("status") == "ok")
    assert good["square"].to_list() == [n * n for n in range(100) if n not in (41, 77)]


def test_adjacent_failing_points_are_all_isolated(tmp_path: Path) -> None:
    axes = {"n": "0..9", "raises": [3, 4, 5]}
    rows, _ = answers(tmp_path, space(TROUBLE, axes), load_engine("inline"))
    assert [n for n, *_ in named(rows)] == [3, 4, 5]


class NoWorkers:
    """An engine that does no work."""

    @contextmanager
    def open(self) -> Iterator[NoWorkers]:
        """Start no workers."""
        yield self

    def run(self, *_: object) -> Iterator[Part]:
        """Answer nothing."""
        yield from ()


def chosen_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the engines that `auto` will have chosen, none of which does work."""
    chosen: list[str] = []

    def load(name: str, **_: object) -> NoWorkers:
        chosen.append(name)
        return NoWorkers()

    monkeypatch.setattr(auto, "load_engine", load)
    return chosen


def test_auto_engine_prints_choice_and_reason(tmp_path: Path) -> None:
    _, said = answers(tmp_path, troubled(), load_engine("auto"))
    assert said[0].startswith("using 1 process (100 designs at ")
    assert said[0].endswith(" of work)")
    assert any(line.startswith("engine process: 1 worker in ") for line in said)


@pytest.mark.parametrize(
    ("points", "engine"), [(100, "1 process"), (300, "2 processes"), (20_000, "Ray")]
)
def test_auto_engine_uses_more_workers_for_more_work(
    monkeypatch: pytest.MonkeyPatch, points: int, engine: str
) -> None:
    chosen_by(monkeypatch)
    monkeypatch.setattr(auto, "probed", lambda *_: Estimate(1, 0.1))
    task, said = Task(troubled(), Store("nowhere", define(troubled())), {}), list[str]()
    with auto.Auto(actors=2).open() as pool:
        assert not list(pool.run(task, [], points, said.append))
    assert said[0].startswith(f"using {engine} ")


def test_process_engine_rows_equal_inline_rows(tmp_path: Path) -> None:
    asked = space(QUADRATIC, {"x": "0..60", "y": "0.1..3 log 20", "n": [1, 13]})
    one, _ = answers(tmp_path / "one", asked, load_engine("inline"))
    rows, said = answers(tmp_path / "two", asked, load_engine("process", workers=2))
    assert said[0].startswith("engine process: 2 workers in ")
    assert_frame_equal(rows, one, check_exact=True)


def test_auto_engine_adds_workers_over_search_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten rounds of 100 points, a tenth of a second each: the third is worth actors."""
    chosen = chosen_by(monkeypatch)
    monkeypatch.setattr(auto, "probed", lambda *_: Estimate(1, 0.1))
    task = Task(troubled(), Store("nowhere", define(troubled())), {})
    with auto.Auto(worth_s=25.0, actors=2, several_s=25.0).open() as pool:
        for _ in range(10):
            assert not list(pool.run(task, [], 100, lambda _: None))
    assert chosen == ["process", "ray"]


def test_auto_engine_skips_the_probe_with_a_clear_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred of a tenth of a second are ten seconds: twice the four, not twice the six."""
    chosen = chosen_by(monkeypatch)
    monkeypatch.setattr(auto, "hinted", lambda *_: Estimate(0, 0.1))
    monkeypatch.setattr(auto, "probed", lambda *_: Estimate(64, 0.01))
    task, said = Task(troubled(), Store("nowhere", define(troubled())), {}), list[str]()
    for worth_s in (4.0, 6.0):
        with auto.Auto(worth_s=worth_s, actors=2).open() as pool:
            assert not list(pool.run(task, [], 100, said.append))
    assert chosen == ["ray", "process"]
    assert said[0].startswith("using Ray")


def test_time_estimate_accounts_for_shared_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Shared:
        """A second for what each thousand points have in common."""

        def cost_hint_s(self, batch: pa.RecordBatch) -> np.ndarray:
            thousands = np.unique(batch.column("n").to_numpy() // 1000)
            return np.full(batch.num_rows, len(thousands) / batch.num_rows)

    monkeypatch.setattr(chunks_module, "load_simulator", lambda _: Shared())
    asked = space(TROUBLE, {"n": "0..999999"})
    all_of_them, few = hinted(asked), hinted(asked, 100)
    assert all_of_them is not None
    assert few is not None
    assert all_of_them.point_s < 0.003
    assert few.point_s == pytest.approx(1.0, rel=0.1)


def test_probe_evaluates_only_allowed_points() -> None:
    """A constraint is often there because the simulator refuses the others."""
    asked = space(TROUBLE, {"n": "0..9", "refuses": [4, 5]}, constraints=["n <> refuses"])
    assert measured(asked, len(asked)).probes == 20
    nothing = space(TROUBLE, {"n": "0..9"}, constraints=["n > 99"])
    assert measured(nothing, len(nothing)).probes == 10
    assert hinted(asked) is None


@pytest.mark.parametrize("size", [64, 640, 6400])
def test_probe_covers_every_value_of_the_fastest_axis(size: int) -> None:
    """Even where its period divides the stride of the probes."""
    asked = space(TROUBLE, {"raises": f"1..{size}", "n": "1..8"})
    seen: set[int] = set()
    original = DesignSpace.batch

    def watched(self: DesignSpace, where: Any, kept: Any = None) -> Any:
        seen.update(self.points(where)["n"])
        return original(self, where, kept)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DesignSpace, "batch", watched)
        measured(asked, len(asked))
    assert seen == set(range(1, 9))


def test_probe_stores_no_results(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = space(COUNTING, {"n": "0..5", "log": str(log)})
    answers(tmp_path, asked, load_engine("auto"))
    done = Counter(map(int, log.read_text().split()))
    assert set(done) == set(range(6))
    assert sum(done.values()) == 6 + 6 + 1  # once for the answer, once probed, the first one warm


def test_unknown_engine_lists_known_engines() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'inline'"):
        load_engine("inlin")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("actors", [1, 2])
def test_ray_engine_fulfils_the_contract(local_ray: None, actors: int) -> None:
    check_engine(load_engine("ray", actors=actors), bowl())


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_one_error_one_crash_and_one_hang_cost_three_rows(
    local_ray: None, tmp_path: Path, sampler: str
) -> None:
    asked = troubled(raises=17, exits=42, hangs=80, dies=5)
    # An actor on a machine that is busy with other tests has stalled for 20 seconds.
    engine, limits = load_engine("ray", actors=2), Limits(timeout_s=45.0)
    rows, said = answers(tmp_path, asked, engine, sampler=load_sampler(sampler), limits=limits)
    assert len(rows) == 100
    assert [(n, status) for n, status, _ in named(rows)] == [
        (5, "infeasible"),
        (17, "error"),
        (42, "crash"),
        (80, "timeout"),
    ]
    assert named(rows)[2][2].startswith("crash: ")
    assert named(rows)[3][2] == "timeout: no answer in time"
    assert any(line.startswith("engine ray: 2 workers in") for line in said)


@pytest.mark.slow
def test_slow_first_points_are_evaluated_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = space(COUNTING, {"n": "0..59", "log": str(log), "pause_s": 0.2})
    rows, _ = answers(tmp_path / "rows", asked, load_engine("process"))
    assert len(rows) == len(log.read_text().split()) == 60


@pytest.mark.slow
def test_expensive_points_after_cheap_ones_are_evaluated_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = space(COUNTING, {"pause_s": [0.001, 0.4], "n": "0..19", "log": str(log)})
    rows, _ = answers(tmp_path / "rows", asked, load_engine("process"))
    assert len(rows) == len(log.read_text().split()) == 40


def test_first_points_within_the_limit_are_evaluated_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = space(COUNTING, {"pause_s": 0.3, "n": "0..5", "log": str(log)})
    limits = Limits(timeout_s=0.9)
    rows, _ = answers(tmp_path / "rows", asked, load_engine("process"), limits=limits)
    assert rows["status"].to_list() == ["ok"] * 6
    assert len(log.read_text().split()) == 6


def test_later_round_reuses_measured_point_times(tmp_path: Path) -> None:
    task = Task(troubled(), Store(str(tmp_path), define(troubled())), {})
    team = driver.SimulatedPool(2, point_s=0.5)
    first, later = (
        [p.points for p in team.run(task, [Span(0, 99)], 99, lambda _: None)] for _ in range(2)
    )
    assert max(later) <= 3 < max(first), "about a second of work each"
    few = [p.points for p in team.run(task, [Span(0, 5)], 5, lambda _: None)]
    assert max(few) == 1, "nobody is left idle"


def test_interrupted_probe_assumes_expensive_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = list[float]()
    chosen_by(monkeypatch)
    monkeypatch.setattr(NoWorkers, "run", lambda *given: limits.append(given[-1]) or iter(()))
    monkeypatch.setattr(auto, "probed", lambda *_: Estimate(0, 10.0, "one of them: no answer"))
    task = Task(troubled(), Store("nowhere", define(troubled())), {})
    with auto.Auto(actors=2).open() as pool:
        assert not list(pool.run(task, [], 100, lambda _: None))
    assert limits == [10.0]


@pytest.mark.ray
@pytest.mark.slow
def test_crashes_do_not_affect_other_points(local_ray: None, tmp_path: Path) -> None:
    asked = space(TROUBLE, {"n": "0..11", "exits": [2, 3, 9]})
    rows, _ = answers(tmp_path, asked, load_engine("ray", actors=2))
    assert [(n, status) for n, status, _ in named(rows)] == [
        (2, "crash"),
        (3, "crash"),
        (9, "crash"),
    ]
    assert len(rows) == 36


@pytest.mark.ray
@pytest.mark.slow
def test_search_rounds_share_actors_and_stay_bit_equal(local_ray: None, tmp_path: Path) -> None:
    asked = space(QUADRATIC, {"x": "0..60", "y": "0.1..3 log 20", "n": [1, 13]})
    inline, _ = answers(tmp_path / "one", asked, load_engine("inline"))
    rows, said = answers(tmp_path / "two", asked, load_engine("auto", worth_s=0.0, actors=2))
    assert said[0].startswith("using Ray with ")
    assert_frame_equal(rows, inline, check_exact=True)
    check_engine(load_engine("auto", worth_s=0.0, actors=2), space(QUADRATIC, {"x": "1..30"}))


@pytest.mark.ray
@pytest.mark.slow
def test_user_error_in_an_actor_stops_the_sweep(local_ray: None, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="n=42 means nothing"):
        answers(tmp_path, troubled(refuses=42), load_engine("ray", actors=2))


@pytest.mark.ray
@pytest.mark.slow
def test_more_actors_than_cluster_cpus_are_refused(local_ray: None, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"engine\.actors=5: the cluster has only 2 CPUs"):
        answers(tmp_path, troubled(), load_engine("ray", actors=5))


def test_probe_measures_cheap_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes a second and a row of it a millisecond: a grid of 10,000 takes no hours."""
    monkeypatch.setattr(chunks_module, "_timed", lambda *a: (1.0 + 0.001 * len(a[-1]), len(a[-1])))
    asked = space(TROUBLE, {"n": "0..9999"})
    far, near = measured(asked, 1, 0.5), measured(asked, 10_000, 5000.0)
    assert near.point_s < 0.002 < far.point_s


@pytest.mark.parametrize("block", [1, 3, 50])
def test_estimate_of_slow_unequal_points_is_close(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Every second block of points takes ten times as long."""

    def timed(_: object, __: object, where: np.ndarray) -> tuple[float, int]:
        return float(np.where(where // block % 2, 0.2, 0.02).sum()), len(where)

    monkeypatch.setattr(chunks_module, "_timed", timed)
    asked = space(TROUBLE, {"n": "0..9999"})
    found = measured(asked, 10_000, 0.2, 10.0)
    assert 0.11 / 1.5 < found.point_s < 0.11 * 1.5
    assert found.probes > 20


def test_removed_points_do_not_lower_the_time_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def timed(_: object, space: DesignSpace, where: np.ndarray) -> tuple[float, int]:
        answered = space.count(where)
        return 0.01 * answered, answered

    monkeypatch.setattr(chunks_module, "_timed", timed)
    asked = space(TROUBLE, {"n": "0..9999"}, constraints=["n >= 5000"])
    assert measured(asked, 10_000, 100.0).point_s == pytest.approx(0.005, rel=0.2)
