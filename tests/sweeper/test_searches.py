"""Searches find fronts, use earlier results and rank designs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from simulators.core.errors import UserError
from sweeper.query.fronts import hypervolume
from sweeper.query.pareto import minimised, pareto_front
from sweeper.samplers import MEETS, Goal, Observations, Search, load_sampler
from sweeper.samplers._search_driver import SearchDriver, ranked, scenario_numbers
from sweeper.samplers.halving import cheap_metrics, predicted
from sweeper.space.design_space import DesignSpace
from sweeper.sweep import Sweep
from tests.toys import QUADRATIC, space

GOALS = {"cost_usd": "min", "gain": "max"}


def plane(**more: Any) -> DesignSpace:
    return space(QUADRATIC, {"x": "0..40 lin 41", "y": "0..40 lin 41", "n": [1, 2]}, **more)


def share_found(folder: Path, name: str, **options: Any) -> float:
    """Return the share of the whole front's hypervolume that a search finds."""
    whole = Sweep.of(plane(), outputs=str(folder / "all" / "rows")).run()
    found = Sweep.of(plane(), outputs=str(folder / name / "rows"), sampler=name, **options).run()
    fronts = [minimised(pareto_front(rows, GOALS), GOALS) for rows in (found, whole)]  # type: ignore[arg-type]
    worst = np.max(fronts[1], axis=0) + 1.0
    ours, best = (hypervolume(front, worst.tolist()) for front in fronts)
    return ours / best


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nsga2", "halving"])
def test_search_finds_most_of_the_front_with_a_fifth_of_the_points(
    name: str, tmp_path: Path
) -> None:
    assert share_found(tmp_path, name, points=680) > 0.995
    assert share_found(tmp_path, "random", points=680) < 0.99


@pytest.mark.slow
def test_bayesian_search_beats_random_sampling(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the extra search")
    ours = share_found(tmp_path, "bayes", points=60)
    assert ours > share_found(tmp_path, "random", points=60)


def test_ranking_prefers_feasible_designs_per_scenario() -> None:
    observed = Observations(
        index=np.arange(4),
        losses=np.array([[5.0], [1.0], [7.0], [math.inf]]),
        tier=np.array([MEETS, MEETS + 1, MEETS, MEETS + 2]),
        group=np.array([0, 0, 1, 0]),
        excess=np.zeros(4),
    )
    assert ranked(observed)[0].tolist() == [0, 1, 0, 2]


def test_infeasible_designs_are_ranked_by_constraint_violation() -> None:
    none, missed = np.zeros(3, np.int64), np.full(3, MEETS + 1)
    losses, excess = np.array([[1.0], [2.0], [3.0]]), np.array([0.7, 0.1, 0.4])
    assert ranked(Observations(np.arange(3), losses, missed, none, excess))[0].tolist() == [2, 0, 1]


@pytest.mark.parametrize("name", ["nsga2", "halving", "bayes"])
def test_smaller_search_evaluates_a_subset(name: str) -> None:
    if name == "bayes":
        pytest.importorskip("optuna", reason="needs the extra search")
    goal = Goal({"cost_usd": "min"})
    few, more = (
        next(SearchDriver(load_sampler(name, points=p), goal).rounds(plane(), pl.LazyFrame))  # type: ignore[arg-type]
        for p in (15, 400)
    )
    chosen, all_of_them = (set(np.concatenate([np.asarray(b) for b in r])) for r in (few, more))  # type: ignore[misc]
    assert len(chosen) == 15
    assert chosen < all_of_them
    assert len(set(plane().points(np.array(sorted(chosen)))["x"])) > 7  # they are spread


def test_conditional_axis_is_active_only_with_its_condition() -> None:
    asked = space(QUADRATIC, {"x": [1, 2], "label": ["a", "b"], "y": "0..4"}, when={"y": "x = 2"})
    rows = asked.points(np.flatnonzero(asked.kept(np.arange(len(asked)))))
    assert rows.filter(pl.col("x") == 1)["y"].unique().to_list() == [0.0]
    assert rows.filter(pl.col("x") == 2)["y"].n_unique() == 5
    with pytest.raises(UserError, match="`when` names 'z'"):
        space(QUADRATIC, {"x": 1}, when={"z": "x = 2"})
    with pytest.raises(UserError, match="`when` is a mapping from axes to the SQL condition"):
        space(QUADRATIC, {"x": 1}, when={"x": None})


def test_inactive_union_axis_stays_at_its_first_value() -> None:
    branches = [{"label": "a", "y": 5}, {"label": "b'", "y": [1, 2]}]
    asked = space(QUADRATIC, {"x": [1, 2]}, union=branches, when={"y": "x = 2"})
    rows = asked.points(np.flatnonzero(asked.kept(np.arange(len(asked)))))
    left = rows.select("x", "label", "y").rows()
    assert left == [(1, "a", 5), (1, "b'", 1), (2, "a", 5), (2, "b'", 1), (2, "b'", 2)]
    with pytest.raises(UserError, match="one value for each choice of x"):
        space(QUADRATIC, {"x": [1, 2], "y": [3, 4]}, zip=[["x", "y"]], when={"y": "n = 2"})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"points": 0}, "sampler.points=0"),
        ({"population": 1}, "two designs"),
    ],
)
def test_invalid_search_option_raises_a_user_error(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        load_sampler("nsga2", **options)


def test_offspring_are_split_evenly_among_scenarios() -> None:
    designs = space(QUADRATIC, {"x": list(range(9)), "y": list(range(9)), "n": [1, 2, 3, 4]})
    sampler: Any = load_sampler("nsga2", population=16, points=64)
    search = sampler.search(designs, Goal({"cost_usd": "min"}, given=("n",)))
    first = search.ask()
    scenario = designs.points(first)["n"].to_numpy()
    of_two = first[scenario <= 2]  # of the others nothing was heard
    none = np.zeros(len(of_two), np.int64)
    losses = np.arange(float(len(of_two)))[:, np.newaxis]
    search.tell(Observations(of_two, losses, none, scenario[scenario <= 2], 0.0 * none))
    born = designs.points(search.ask())["n"]
    assert born.value_counts(sort=False).sort("n")["count"].to_list() == [4, 4, 4, 4]


@pytest.mark.slow
def test_optuna_study_is_read_and_continued(tmp_path: Path) -> None:
    """Trials of others are learned from; ours are written once, in values of axes."""
    optuna = pytest.importorskip("optuna", reason="needs the extra search")
    url = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=url, study_name="mine", directions=["minimize", "minimize"])
    kind = optuna.distributions.FloatDistribution(0.0, 40.0)
    study.add_trial(
        optuna.trial.create_trial(params={"x": 3.2}, distributions={"x": kind}, values=[0.0, -12.0])
    )
    for points in (12, 20, 20):
        Sweep.of(
            plane(),
            outputs=str(tmp_path / "out"),
            sampler="bayes",
            points=points,
            first=8,
            study=url,
            study_name="mine",
        ).run()
    trials = optuna.load_study(storage=url, study_name="mine").trials
    assert len(trials) == 21
    assert all(
        t.values[0]
        == 2 ** (t.params["n"] - 1) * ((t.params["x"] - 3) ** 2 + (t.params["y"] - 4) ** 2)
        for t in trials[1:]
    )


@pytest.mark.slow
def test_optuna_study_continues_in_a_changed_space(tmp_path: Path) -> None:
    """Numbers are learned from and widen what the study knows; new words want another study."""
    optuna = pytest.importorskip("optuna", reason="needs the extra search")
    url = f"sqlite:///{tmp_path}/study.db"

    def search(axes: dict[str, Any]) -> Search:
        sampler = load_sampler("bayes", points=4, first=4, study=url)
        found: Search = sampler.search(
            space(QUADRATIC, {"x": 1, **axes}), Goal({"cost_usd": "min"})
        )  # type: ignore[union-attr]
        return found

    def tell(asked: Search, count: int) -> None:
        index, none = np.arange(count), np.zeros(count, np.int64)
        asked.tell(Observations(index, 1.0 + index[:, np.newaxis], none, none, 0.0 * none))

    for _ in range(2):
        tell(search({"n": [1, 2], "label": ["a", "b"]}), 4)
    wider = search({"n": [1, 2, 512], "label": ["a", "b"]})
    tell(wider, 6)
    assert len(wider._study.trials) == 6 + 4  # type: ignore[attr-defined]
    trials = optuna.load_study(storage=url, study_name="sweeper").trials
    assert [t.params["n"] for t in trials] == [1, 1, 2, 2, 1, 1, 2, 2, 512, 512]
    with pytest.raises(UserError, match="knows other values of 'label' than a, c"):
        search({"n": [1, 2], "label": ["a", "c"]})


def test_gaussian_process_interpolates_with_uncertainty_elsewhere() -> None:
    inputs = np.linspace(-1.0, 1.0, 9)[:, np.newaxis]
    asked = np.array([[0.25], [0.1], [9.0]])
    mean, deviation = predicted(inputs, np.sin(2.0 * inputs[:, 0]), asked)
    assert mean[:2] == pytest.approx([math.sin(0.5), math.sin(0.2)], abs=2e-2)
    assert deviation[2] > 5.0 * deviation[:2].max()


def test_scenario_numbers_are_stable_across_batches() -> None:
    asked = space(QUADRATIC, {"x": "1..3", "y": "1..2", "n": [1, 2]})
    every = np.arange(len(asked))
    whole = scenario_numbers(asked, ["n", "x"], every)
    alone = [int(scenario_numbers(asked, ["n", "x"], every[i : i + 1])[0]) for i in every]
    assert whole.tolist() == alone
    assert len(set(whole.tolist())) == 6


@pytest.mark.slow
def test_low_fidelity_of_serving_is_analytic() -> None:
    asked = space("serving", {"model": "llama3_1_8b", "gpu": "l4", "qps": [0.5, 1]})
    answers = cheap_metrics(asked, np.arange(2))
    assert answers is not None
    assert answers["ttft_p99_s"].null_count == 2
    assert cheap_metrics(plane(), np.arange(2)) is None
