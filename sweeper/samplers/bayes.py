"""The bayes sampler: Optuna's tree-structured Parzen estimators, of several objectives.

Bergstra et al., "Algorithms for hyper-parameter optimization" (2011); Ozaki et al.,
"Multiobjective tree-structured Parzen estimator" (2022). Two densities, of what was good and of
what was not, say where a design is more likely good. It needs the extra `search`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulators.core.errors import UserError
from sweeper.samplers import IMPOSSIBLE, MEETS, Goal, Search, Told
from sweeper.samplers._search import (
    Options,
    beginning,
    codes_of,
    nearest,
    number_of,
    ordered_of,
    sizes_of,
)
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Index

_NUMBER, _TIER = "sweeper_number", "sweeper_tier"
"""Attributes of a trial: our number, which those of others lack, and what came of the design."""


@dataclass(frozen=True)
class Bayes(Options):
    """A search by densities of good and bad designs.

    Args:
        points: looked at in all.
        seed: of what is drawn.
        start: a Parquet or CSV file of designs to begin with, such as an earlier `front.parquet`.
        across: worst or mean: how designs count over all scenarios; empty: all scenarios make
            one front.
        batch: designs asked for at a time.
        first: designs drawn at random to begin with.
        study: URL of an Optuna storage, as sqlite:///study.db; trials of others in it are learned
            from, and ours are written into it.
        study_name: which study in it.
    """

    points: int = 200
    batch: int = 8
    first: int = 24
    study: str = ""
    study_name: str = "sweeper"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1 or self.first < 1:
            raise UserError("sampler.batch and sampler.first are one design at least")

    def search(self, space: DesignSpace, goal: Goal) -> Search:  # noqa: ARG002 - told of losses alone
        """Return a search that knows what its study holds.

        Raises:
            UserError: Optuna is not installed, or the study cannot be read.
        """
        return _Parzen(self, space)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise UserError(
            'sampler=bayes needs Optuna: pip install "sweeper[search]", or use sampler=nsga2'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class _Parzen:
    """A study in memory, of rows of factors; the stored one is told the same in values of axes."""

    def __init__(self, options: Bayes, space: DesignSpace) -> None:
        self._optuna, self._options, self._space = _optuna(), options, space
        self._sizes = sizes_of(space)
        self._kinds = self._distributions()
        self._memory: Any = None
        self._stored: Any = None
        self._asked: dict[int, Any] = {}

    def _distributions(self) -> dict[str, Any]:
        """Return what Optuna calls each factor that varies: a range, or words."""
        kinds, ranges = {}, self._optuna.distributions
        for place, factor in enumerate(self._space.factors):
            if len(factor) > 1:
                is_range = ordered_of(self._space)[place]
                words = ranges.CategoricalDistribution(list(range(len(factor))))
                kinds[str(place)] = (
                    ranges.IntDistribution(0, len(factor) - 1) if is_range else words
                )
        return kinds

    def ask(self) -> Index:
        """Return a few designs that are likely good."""
        if self._memory is None:
            first, random = self._options.first, np.random.default_rng(self._options.seed)
            return beginning(self._space, self._options, first, random)[:first]
        codes = np.zeros((self._options.batch, len(self._sizes)), np.int64)
        trials = [self._memory.ask(self._kinds) for _ in codes]
        for row, trial in zip(codes, trials, strict=True):
            row[[int(place) for place in trial.params]] = list(trial.params.values())
        numbers = number_of(codes, self._sizes)
        for number, trial in zip(numbers.tolist(), trials, strict=True):
            if number in self._asked:
                self._memory.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._asked[number] = trial
        return numbers

    def tell(self, told: Told) -> None:
        """Add what came of designs, ours to the stored study as well."""
        if self._memory is None:
            self._begin(told.losses.shape[1])
        for number, losses, tier in zip(
            told.index.tolist(), told.losses.tolist(), told.tier.tolist(), strict=True
        ):
            trial = self._asked.pop(number, None)
            if tier == IMPOSSIBLE:
                if trial is not None:
                    self._memory.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            elif trial is not None:
                trial.set_user_attr(_TIER, tier)
                self._memory.tell(trial, losses)
            else:
                [codes] = codes_of(self._space, np.array([number]))
                self._memory.add_trial(self._trial(codes.tolist(), losses, tier))
            if self._stored is not None and tier != IMPOSSIBLE:
                self._store(number, losses, tier)
        for trial in self._asked.values():  # forbidden by a constraint
            self._memory.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        self._asked.clear()

    def _trial(self, codes: list[int], losses: list[float], tier: int) -> Any:
        params = {place: codes[int(place)] for place in self._kinds}
        return self._optuna.trial.create_trial(
            params=params,
            distributions=self._kinds,
            values=losses,
            user_attrs={_TIER: tier},
            system_attrs={"constraints": (float(tier),)},
        )

    def _begin(self, objectives: int) -> None:
        """Open the study in memory, and learn what others wrote into the stored one."""
        with warnings.catch_warnings():  # what is experimental, and what later versions rename
            warnings.simplefilter("ignore")
            sampler = self._optuna.samplers.TPESampler(
                seed=self._options.seed,
                n_startup_trials=0,
                multivariate=True,
                constant_liar=True,
                constraints_func=lambda trial: (float(trial.user_attrs[_TIER]),),
            )
        wanted = ["minimize"] * objectives
        self._memory = self._optuna.create_study(directions=wanted, sampler=sampler)
        if not self._options.study:
            return
        try:
            self._stored = self._optuna.create_study(
                storage=self._options.study,
                study_name=self._options.study_name,
                directions=wanted,
                load_if_exists=True,
            )
            trials = self._stored.get_trials(deepcopy=False)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise UserError(
                f"sampler.study={self._options.study} cannot be read: {said}"
            ) from error
        if len(self._stored.directions) != objectives:
            raise UserError(
                f"sampler.study={self._options.study}: '{self._options.study_name}' has "
                f"{len(self._stored.directions)} objectives, the space {objectives}"
            )
        self._kept = {t.user_attrs[_NUMBER]: t for t in trials if _NUMBER in t.user_attrs}
        self._theirs = {n: k for t in trials for n, k in t.distributions.items()}
        for trial in trials:
            if _NUMBER not in trial.user_attrs and trial.values is not None:
                codes = nearest(self._space, trial.params)
                if codes is not None and all(map(math.isfinite, trial.values)):
                    losses = [v * sign for v, sign in zip(trial.values, self._signs, strict=True)]
                    self._memory.add_trial(self._trial(codes, losses, MEETS))

    @property
    def _signs(self) -> list[float]:
        """What makes losses of the stored study's values, and back."""
        most = self._optuna.study.StudyDirection.MAXIMIZE
        return [-1.0 if d == most else 1.0 for d in self._stored.directions]

    def _store(self, number: int, losses: list[float], tier: int) -> None:
        """Write a trial into the stored study, in values of axes, unless it is there."""
        if number in self._kept:
            return
        [point] = self._space.points(np.array([number])).to_dicts()
        params, kinds = {}, {}
        for name in self._space.varied:
            words = self._optuna.distributions.CategoricalDistribution(
                list(dict.fromkeys(self._space.axes[name]))
            )
            params[name], kinds[name] = point[name], self._theirs.get(name, words)
        trial = self._optuna.trial.create_trial(
            params=params,
            distributions=kinds,
            values=[v * sign for v, sign in zip(losses, self._signs, strict=True)],
            user_attrs={_NUMBER: number, _TIER: tier},
        )
        self._stored.add_trial(trial)
        self._kept[number] = trial


SAMPLER = Bayes
