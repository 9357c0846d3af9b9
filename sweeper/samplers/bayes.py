"""The bayes sampler: Optuna's multi-objective tree-structured Parzen estimator.

Bergstra et al., "Algorithms for hyper-parameter optimization" (2011); Ozaki et al.,
"Multiobjective tree-structured Parzen estimator" (2022): designs are sampled where the density of
good designs is high relative to that of bad ones. Needs the extra `search`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulators.core.errors import UserError
from sweeper.extras import load_extra
from sweeper.samplers import IMPOSSIBLE, MEETS, Goal, Observations, Search
from sweeper.samplers._search_driver import (
    SearchOptions,
    codes_of,
    initial_designs,
    ordered_of,
)
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, number_of
from sweeper.store.keys import define

_NUMBER, _TIER, _DEFINITION = "sweeper_number", "sweeper_tier", "sweeper_definition"
"""Attributes of our trials: number and tier of the design, and definition of its space."""


@dataclass(frozen=True)
class Bayes(SearchOptions):
    """A search by the densities of good and bad designs.

    Args:
        points: number of points.
        seed: seed of random numbers.
        batch: designs asked for at a time.
        first: designs drawn at random to begin with.
        study: URL of an Optuna storage, such as sqlite:///study.db; the search learns from trials
            in it, also of other spaces, and writes its own.
        study_name: name of the study in it.
    """

    points: int = 200
    batch: int = 8
    first: int = 24
    study: str = ""
    study_name: str = "sweeper"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1 or self.first < 1:
            raise UserError("sampler.batch and sampler.first are at least one design")

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a search that starts from the trials of its study.

        Raises:
            UserError: Optuna is not installed, or the study cannot be read or has other objectives
                or values.
        """
        return _Parzen(self, space, len(goal.objectives))


class _Parzen:
    """A study in memory over codes of factors; results go to the stored study as axis values."""

    def __init__(self, options: Bayes, space: DesignSpace, objectives: int) -> None:
        self._optuna = load_extra("optuna", "sampler=bayes", instead="use sampler=nsga2")
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        self._options, self._space = options, space
        kinds, is_range = self._optuna.distributions, ordered_of(space)
        self._kinds = {
            str(place): kinds.IntDistribution(0, size - 1)
            if is_range[place]
            else kinds.CategoricalDistribution(list(range(size)))
            for place, size in enumerate(space.sizes.tolist())
            if size > 1
        }
        self._study: Any = None
        self._stored = _Stored(self._optuna, options, space, objectives) if options.study else None

    def ask(self) -> Index:
        """Return designs that are likely good."""
        if self._study is None:
            first, random = self._options.first, np.random.default_rng(self._options.seed)
            return initial_designs(self._space, self._options, first, random)
        codes = np.zeros((self._options.batch, len(self._space.factors)), np.int64)
        trials = [self._study.ask(self._kinds) for _ in codes]
        for row, trial in zip(codes, trials, strict=True):
            row[[int(place) for place in trial.params]] = list(trial.params.values())
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return number_of(codes.T, self._space.sizes)

    def tell(self, observed: Observations) -> None:
        """Add a trial for each simulated design, also to the stored study."""
        if self._study is None:
            self._begin(observed.losses.shape[1])
        simulated = observed.take(observed.tier != IMPOSSIBLE)
        if not len(simulated.index):
            return
        codes = codes_of(self._space, simulated.index).tolist()
        for row, losses, tier, number in zip(
            codes,
            simulated.losses.tolist(),
            simulated.tier.tolist(),
            simulated.index.tolist(),
            strict=True,
        ):
            self._add(row, losses, tier)
            if self._stored is not None:
                self._stored.add(number, losses, tier)

    def _add(self, codes: list[int], losses: list[float], tier: int) -> None:
        trial = self._optuna.trial.create_trial(
            params={place: codes[int(place)] for place in self._kinds},
            distributions=self._kinds,
            values=losses,
            system_attrs={"constraints": (float(tier),)},
        )
        self._study.add_trial(trial)

    def _begin(self, objectives: int) -> None:
        """Create the study in memory, with the trials of other spaces from the stored study."""
        with warnings.catch_warnings():  # of experimental and renamed options
            warnings.simplefilter("ignore")
            sampler = self._optuna.samplers.TPESampler(
                seed=self._options.seed,
                n_startup_trials=0,
                multivariate=True,
                constant_liar=True,
                constraints_func=lambda _: (0.0,),  # unused: trials are added with constraints
            )
        wanted = ["minimize"] * objectives
        self._study = self._optuna.create_study(directions=wanted, sampler=sampler)
        for params, losses, tier in self._stored.of_others() if self._stored else ():
            codes = _nearest(self._space, params)
            if codes is not None:
                self._add(codes, losses, tier)


class _Stored:
    """A study in a storage; parameters are values of axes."""

    def __init__(self, optuna: Any, options: Bayes, space: DesignSpace, objectives: int) -> None:
        self._optuna, self._options, self._space = optuna, options, space
        self._definition = define(space).id
        what = f"sampler.study={options.study}"
        try:
            self._study = optuna.create_study(
                storage=options.study,
                study_name=options.study_name,
                directions=["minimize"] * objectives,
                load_if_exists=True,
            )
            self._trials = self._study.get_trials(deepcopy=False)
        except Exception as error:
            raise UserError(f"{what} cannot be read: {type(error).__name__}: {error}") from error
        if (there := len(self._study.directions)) != objectives:
            raise UserError(
                f"{what}: '{options.study_name}' has {there} objectives, the space {objectives}"
            )
        theirs = {n: kind for trial in self._trials for n, kind in trial.distributions.items()}
        self._kinds = {name: self._kind(name, theirs.get(name)) for name in space.varied}
        self._kept = {t.user_attrs[_NUMBER] for t in self._trials if self._is_ours(t)}

    def _is_ours(self, trial: Any) -> bool:
        """Return whether a trial belongs to this space, so that its number names a design."""
        return bool(trial.user_attrs.get(_DEFINITION) == self._definition)

    def _kind(self, name: str, theirs: Any) -> Any:
        """Return the Optuna distribution of an axis; the range of the study may be widened.

        Raises:
            UserError: the study has other categories, which Optuna cannot extend.
        """
        kinds, values = self._optuna.distributions, list(dict.fromkeys(self._space.axes[name]))
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if isinstance(theirs, kinds.CategoricalDistribution) or len(numbers) < len(values):
            words = theirs or kinds.CategoricalDistribution(values)
            if all(value in getattr(words, "choices", ()) for value in values):
                return words
        else:
            whole = all(isinstance(number, int) for number in numbers)
            usual = kinds.IntDistribution if whole else kinds.FloatDistribution
            kind, ends = (type(theirs), (theirs.low, theirs.high)) if theirs else (usual, ())
            log = bool(theirs and theirs.log)
            if kind in (usual, kinds.FloatDistribution) and not (log and min(numbers) <= 0):
                return kind(min(*ends, *numbers), max(*ends, *numbers), log=log)
        raise UserError(
            f"sampler.study={self._options.study}: '{self._options.study_name}' knows other values "
            f"of '{name}' than {', '.join(map(str, values))}; take another sampler.study_name"
        )

    @property
    def _signs(self) -> list[float]:
        most = self._optuna.study.StudyDirection.MAXIMIZE
        return [-1.0 if d == most else 1.0 for d in self._study.directions]

    def of_others(self) -> Iterator[tuple[dict[str, Any], list[float], int]]:
        """Yield parameters, losses and tier of the trials of other spaces and programs."""
        for trial in self._trials:
            known = trial.values is not None and all(map(math.isfinite, trial.values))
            if known and not self._is_ours(trial):
                losses = [v * sign for v, sign in zip(trial.values, self._signs, strict=True)]
                yield trial.params, losses, trial.user_attrs.get(_TIER, MEETS)

    def add(self, number: int, losses: list[float], tier: int) -> None:
        """Write a trial, unless it exists."""
        if number in self._kept:
            return
        [point] = self._space.points(np.array([number])).to_dicts()
        trial = self._optuna.trial.create_trial(
            params={name: point[name] for name in self._kinds},
            distributions=self._kinds,
            values=[v * sign for v, sign in zip(losses, self._signs, strict=True)],
            user_attrs={_NUMBER: number, _TIER: tier, _DEFINITION: self._definition},
        )
        self._study.add_trial(trial)
        self._kept.add(number)


def _nearest(space: DesignSpace, row: Mapping[str, object]) -> list[int] | None:
    """Return the codes of the design nearest to a row; None if the row has an unknown word."""
    codes = []
    for factor in space.factors:
        distance = np.zeros(len(factor))
        for name, values in factor.columns.items():
            if row.get(name) is not None:
                distance += [_distance(value, row[name]) for value in values]
        if np.isinf(distance.min()):
            return None
        codes.append(int(np.argmin(distance)))
    return codes


def _distance(value: object, other: object) -> float:
    if value == other:
        return 0.0
    if not (isinstance(value, int | float) and isinstance(other, int | float)):
        return math.inf
    distance = abs(math.log(value / other)) if min(value, other) > 0 else abs(value - other)
    return math.inf if math.isnan(distance) else distance


SAMPLER = Bayes
