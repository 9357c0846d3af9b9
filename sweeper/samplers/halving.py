"""The halving sampler: a cheap fidelity of all points, the expensive one near the front.

A surrogate model predicts the expensive objectives from a point's axes and cheap metrics. Simulated
next are the points that could improve the front most at the good end of their error band (Zuluaga,
Sergent, Krause and Püschel, "Active learning for multi-objective optimization", 2013), until none
could improve it by `worth`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa

from simulators.core.contract import Approximates, load_simulator
from simulators.core.errors import UserError
from sweeper.extras import load_extra
from sweeper.query.fronts import Matrix, distinct_front
from sweeper.samplers import IMPOSSIBLE, MEETS, Goal, Observations, Search
from sweeper.samplers._search_driver import (
    SearchOptions,
    initial_designs,
    ordered_of,
    scenario_numbers,
    with_value,
)
from sweeper.samplers.random import allowed
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, Span

MOST = 200_000  # largest size of a space: the surrogate model predicts all points
_FITTED = 250  # designs on which the length scale and noise of the surrogate are fitted
_AT_ONCE = 10_000  # designs predicted at a time
_VARIANCE = 0.995  # share of the variance of the cheap metrics that the features keep
_LIKELY = 0.3  # probability of meeting the condition, at the good end of its band, that is needed
_UNLIKELY = 0.05  # smallest probability by which the gain of a design is weighted
_ALIKE = 0.01  # designs predicted to differ by less are not simulated in the same round


@dataclass(frozen=True)
class Halving(SearchOptions):
    """A search by two fidelities.

    Args:
        points: largest number of simulated points.
        seed: seed of the designs that are simulated first.
        first: number of evenly spread designs that are simulated first.
        batch: number of designs simulated at a time.
        band: half-width of the error band, in standard deviations.
        worth: relative improvement of the front, at the good end of the band, that is worth a run.
    """

    first: int = 120
    batch: int = 40
    band: float = 1.0
    worth: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first < 4 or self.batch < 1 or self.band <= 0.0 or self.worth < 0.0:
            raise UserError(
                "sampler.first is at least 4 designs, sampler.batch 1, sampler.band above zero, "
                "sampler.worth not negative"
            )

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a search that has evaluated all points at the cheap fidelity.

        Raises:
            UserError: the space is too large.
        """
        return _SurrogateSearch(self, space, goal)


def cheap_metrics(space: DesignSpace, index: Index) -> pa.RecordBatch | None:
    """Return the metrics of points at the cheap fidelity; None if the simulator has none."""
    simulator, batch = load_simulator(space.simulator), space.batch(index)
    if not isinstance(simulator, Approximates):
        return None
    for name, value in simulator.cheaper:
        batch = with_value(space, batch, name, value)
    return simulator.evaluate(batch)


class _SurrogateSearch:
    """The features of all designs, and the observations so far."""

    def __init__(self, options: Halving, space: DesignSpace, goal: Goal) -> None:
        if len(space) > MOST:
            raise UserError(
                f"sampler=halving looks at each point, and {len(space):,} are more than {MOST:,}: "
                "use nsga2, or fewer values"
            )
        self._options, self._space = options, space
        self._all = allowed(space, Span(0, len(space)).index())
        cheap = cheap_metrics(space, self._all)
        metrics = np.zeros((len(self._all), 0)) if cheap is None else _columns(cheap)
        self._features = np.column_stack([_axes(space, self._all), metrics])
        self._observed: Observations | None = None
        self._groups = scenario_numbers(space, goal.given, self._all)

    def ask(self) -> Index:
        """Return the designs that could improve the front most."""
        if self._observed is None:
            random = np.random.default_rng(self._options.seed)
            return initial_designs(self._space, self._options, self._options.first, random)
        observed, rows = self._observed, np.searchsorted(self._all, self._observed.index)
        known = observed.tier != IMPOSSIBLE
        if known.sum() < 4:
            return np.empty(0, np.int64)
        met = (observed.tier == MEETS).astype(np.float64)
        probability, error = predicted(self._features[rows], met, self._features)
        logs = (observed.losses[known] > 0.0).all(axis=0)
        losses = np.where(logs, np.log(np.where(logs, observed.losses, 1.0)), observed.losses)
        found = [predicted(self._features[rows[known]], y, self._features) for y in losses[known].T]
        mean, std = (np.stack(columns, axis=1) for columns in zip(*found, strict=True))
        left = probability + self._options.band * error > _LIKELY
        left[rows] = False
        gain = np.where(left, 1.0, 0.0)  # where no design meets the condition yet
        for group in np.unique(self._groups[rows[met > 0.0]]):
            mine = np.flatnonzero(left & (self._groups == group))
            front = losses[(met > 0.0) & (self._groups[rows] == group)]
            front = front[distinct_front(front)[0]]
            best = mean[mine] - self._options.band * std[mine]
            scale = np.where(logs, 1.0, np.maximum(np.ptp(front, axis=0), 1e-12))
            improvement = (front[np.newaxis] - best[:, np.newaxis]) / scale
            gain[mine] = improvement.max(axis=2).min(axis=1)
        candidates = np.flatnonzero(gain > self._options.worth)
        score = gain[candidates] * np.clip(probability[candidates], _UNLIKELY, 1.0)
        return self._all[self._distinct(candidates[np.argsort(-score, kind="stable")], mean)]

    def _distinct(self, order: Index, mean: Matrix) -> Index:
        """Return the first designs of an order, without designs predicted to be nearly equal."""
        picked: list[int] = []
        for row in order.tolist():
            here = [p for p in picked if self._groups[p] == self._groups[row]]
            if not here or np.abs(mean[here] - mean[row]).max(axis=1).min() >= _ALIKE:
                picked.append(row)
            if len(picked) == self._options.batch:
                break
        return np.array(picked, np.int64)

    def tell(self, observed: Observations) -> None:
        """Add observations, sorted by design."""
        joined = observed if self._observed is None else self._observed.with_new(observed)
        self._observed = joined.take(np.argsort(joined.index))


def _axes(space: DesignSpace, index: Index) -> Matrix:
    """Return features of the varied axes: ordered axes as numbers, other axes one-hot."""
    pairs = zip(space.factors, ordered_of(space), strict=True)
    words = [name for factor, ordered in pairs if not ordered for name in factor.columns]
    axes = space.points(index, space.varied)
    axes = axes.to_dummies([name for name in space.varied if name in words])
    return standardised(axes.cast(pl.Float64).to_numpy())


def _columns(metrics: pa.RecordBatch) -> Matrix:
    """Return the principal components of the cheap metrics, scaled to deviation 1."""
    kept = pl.DataFrame(pl.from_arrow(metrics)).select(cs.numeric() | cs.boolean())
    columns = standardised(kept.cast(pl.Float64).fill_null(float("nan")).to_numpy())
    if min(columns.shape) < 2:
        return columns
    decomposition = load_extra("sklearn.decomposition", "sampler=halving")
    components: Matrix = decomposition.PCA(_VARIANCE, whiten=True).fit_transform(columns)
    return components


def standardised(columns: Matrix) -> Matrix:
    """Return the varying columns with mean 0 and deviation 1; of positive columns the logarithm.

    Unknown values are placed above all others.
    """
    kept = []
    for raw in columns.T:
        known = np.isfinite(raw)
        if not known.any():
            continue
        column = np.where(known, raw, raw[known].max())
        if (column > 0.0).all():
            column = np.log(column)
        column = np.where(known, column, column.max() + 1.0)
        if (spread := float(column.std())) > 1e-9:
            kept.append((column - column.mean()) / spread)
    return np.stack(kept, axis=1) if kept else np.zeros((len(columns), 0))


def predicted(known: Matrix, values: Matrix, features: Matrix) -> tuple[Matrix, Matrix]:
    """Return the predicted values of designs, and their standard deviations.

    The surrogate model is a Gaussian process around a linear trend (Rasmussen and Williams,
    "Gaussian processes for machine learning", 2006).
    """
    gp = load_extra("sklearn.gaussian_process", "sampler=halving")
    linear_model = load_extra("sklearn.linear_model", "sampler=halving")
    trend = linear_model.Ridge(1e-2).fit(known, values)
    residuals = values - trend.predict(known)
    scale = float(np.sqrt(known.shape[1]))
    kernel = gp.kernels.ConstantKernel(1.0) * gp.kernels.RBF(
        scale, (0.1 * scale, 10.0 * scale)
    ) + gp.kernels.WhiteKernel(1e-3, (1e-6, 0.1))
    subset = np.linspace(0, len(residuals) - 1, min(_FITTED, len(residuals))).astype(np.int64)
    with warnings.catch_warnings():  # of parameters at the end of their range
        warnings.simplefilter("ignore")
        fitted = gp.GaussianProcessRegressor(kernel, normalize_y=True).fit(
            known[subset], residuals[subset]
        )
    model = gp.GaussianProcessRegressor(fitted.kernel_, optimizer=None, normalize_y=True)
    model.fit(known, residuals)
    found = [
        model.predict(some, return_std=True)
        for some in np.array_split(features, -(-len(features) // _AT_ONCE))
    ]
    mean, deviation = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return trend.predict(features) + mean, deviation


SAMPLER = Halving
