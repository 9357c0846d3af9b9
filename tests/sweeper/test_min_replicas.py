"""The minimum-replicas search equals exhaustive search."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.core.contract import load_simulator
from sweeper.commands.ask.question import parsed
from sweeper.engines.task import evaluate
from sweeper.query.pareto import qualifying
from sweeper.questions import QUESTIONS, BuildsQuestions, plugin_of
from sweeper.samplers import Round
from sweeper.samplers._min_replicas import MinReplicasSearch
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import numbers
from sweeper.sweep import Sweep

COLUMNS = ("wait_s",)


class Deadline:
    """A wait that must not be exceeded; of some designs it is prefilter."""

    columns = COLUMNS

    def __init__(self, limit_s: float, *, foresees: bool = False) -> None:
        self.limit_s, self.foresees = limit_s, foresees

    def misses(self, rows: pl.DataFrame) -> np.ndarray:
        return rows["wait_s"].fill_null(np.inf).to_numpy() / self.limit_s

    def prefilter(self, batch: pa.RecordBatch) -> np.ndarray:
        if not self.foresees:
            return np.ones(batch.num_rows)
        found = evaluate(load_simulator("tests.toys.fleet"), batch)
        return np.nan_to_num(found.column("wait_s").to_numpy(zero_copy_only=False), nan=np.inf) / (
            1.1 * self.limit_s
        )


def space_of(load: float, luck: float, most: int, least: int = 1) -> DesignSpace:
    return DesignSpace.of(
        "tests.toys.fleet",
        site=["here", "there"],
        speed=[1.0, 2.5, 4.0, 90.0],
        group=[1, 2, 4],
        load=load,
        luck=luck,
        copies=f"1..{most}",
        derived={"servers_of_all": '"group" * copies'},
        constraints=[f'"group" * copies <= {most}', f"copies >= {least} OR speed = 4.0"],
    )


@settings(max_examples=25)
@given(
    load=st.floats(0.5, 80.0),
    limit_s=st.floats(0.05, 5.0),
    most=st.sampled_from([1, 3, 8, 24]),
    least=st.sampled_from([1, 2, 3]),
    foresees=st.booleans(),
)
def test_min_replicas_search_finds_the_smallest_fleet_per_scenario(
    load: float, limit_s: float, most: int, least: int, foresees: bool
) -> None:
    space = space_of(load, 0.0, most, least)
    simulator = load_simulator("tests.toys.fleet")
    tried: dict[int, dict] = {}

    def answered() -> pl.LazyFrame:
        return pl.DataFrame(list(tried.values())).lazy()

    sampler = MinReplicasSearch(
        "copies", "servers_of_all", ("site",), Deadline(limit_s, foresees=foresees)
    )
    for round_ in sampler.rounds(space, answered):
        assert isinstance(round_, Round)
        assert round_.later >= 0
        for batch in round_:
            found = pl.DataFrame(pl.from_arrow(evaluate(simulator, space.batch(batch))))
            rows = pl.concat([space.points(batch), found], how="horizontal")
            for number, row in zip(numbers(batch).tolist(), rows.to_dicts(), strict=True):
                assert number not in tried, "no design is tried twice"
                tried[number] = row
    every = np.arange(space.size)
    kept = space.kept(every)
    every = every if kept is None else every[kept]
    all_rows = pl.concat(
        [
            space.points(every),
            pl.DataFrame(pl.from_arrow(evaluate(simulator, space.batch(every)))),
        ],
        how="horizontal",
    )
    assert smallest(all_rows, limit_s) == smallest(answered().collect(), limit_s)
    assert answered().collect()["site"].n_unique() == 2, "each site has a row that says why"
    assert len(sampler.screened) == 2
    known = [one.probability for one in sampler.screened if one.probability is not None]
    assert all(0.0 <= probability <= 1.0 for probability in known)


def smallest(rows: pl.DataFrame, limit_s: float) -> list[tuple[str, int]]:
    does = rows.filter(pl.col("wait_s") <= limit_s)
    return sorted(does.group_by("site").agg(pl.col("servers").min()).rows())


@pytest.mark.parametrize("luck", [0.0, 0.05])
def test_min_replicas_search_evaluates_few_points(tmp_path: Path, luck: float) -> None:
    space = space_of(40.0, luck, 24)
    sweep = Sweep.of(space, outputs=str(tmp_path / "rows"), engine="inline")
    sampler = MinReplicasSearch("copies", "servers_of_all", ("site",), Deadline(0.5))
    results = Sweep(space, sampler, sweep.engine, sweep.store, sweep.objectives).run()
    rows = qualifying(results).collect()
    assert rows.height < space.size / 4
    whole = Sweep.of(space, outputs=str(tmp_path / "all"), engine="inline").run()
    assert smallest(rows, 0.5) == smallest(qualifying(whole).collect(), 0.5)


def test_memory_of_a_search_does_not_grow_with_the_sizes() -> None:
    space = space_of(40.0, 0.0, 1_000_000)
    sampler = MinReplicasSearch("copies", "servers_of_all", ("site",), Deadline(0.5))
    tracemalloc.start()
    first = list(next(iter(sampler.rounds(space, pl.LazyFrame))))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0 < sum(map(len, first)) < 100
    assert peak_bytes < 400e6, "24 designs of a million sizes are no table"


def test_a_question_about_a_million_gpus_has_few_sizes() -> None:
    words = ["--model", "llama2_7b", "--gpu", "h100_sxm", "--gpus", "1000000", "--qps", "1"]
    asks = plugin_of(load_simulator("serving"), QUESTIONS)
    assert isinstance(asks, BuildsQuestions)
    sizes = parsed(asks, words)[1].space["axes"]["replicas"]
    assert sizes[:4096] == [*range(1, 4097)]
    assert sizes[-1] == 1_000_000
    assert all(a < b <= a * (1 + 1 / 2048) for a, b in itertools.pairwise(sizes[4095:]))
    assert len(sizes) < 25_000
