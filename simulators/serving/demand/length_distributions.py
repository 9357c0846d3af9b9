"""Distributions of token counts, each by its quantiles: equal draws give lengths that compare."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from simulators.core.errors import UserError, suggestion
from simulators.core.jit import Floats, Ints


class Distribution(Protocol):
    """Token counts by probability."""

    def at(self, probability: Floats) -> Ints:
        """Return whole tokens, at least one, below which that share of the draws lies."""
        ...


@dataclass(frozen=True)
class Quantiles:
    """A distribution of token counts, by its values at rising probabilities from 0 to 1."""

    probability: tuple[float, ...]
    tokens: tuple[float, ...]

    def at(self, probability: Floats) -> Ints:
        """Return whole tokens at a column of probabilities, interpolated, never less than one.

        >>> Quantiles((0.0, 0.5, 1.0), (10.0, 20.0, 100.0)).at(np.array([0.0, 0.25, 1.0]))
        array([ 10,  15, 100])
        """
        tokens = np.interp(probability, self.probability, self.tokens)
        return np.maximum(np.rint(tokens), 1.0).astype(np.int64)


@dataclass(frozen=True)
class Uniform:
    """All counts from the least to the most are equally likely."""

    least: int
    most: int

    def at(self, probability: Floats) -> Ints:
        """Return whole tokens at a column of probabilities.

        >>> Uniform(1, 6).at(np.array([0.0, 0.5, 0.99, 1.0]))
        array([1, 4, 6, 6])
        """
        steps = np.floor(probability * (self.most - self.least + 1)).astype(np.int64)
        return np.minimum(self.least + steps, self.most)


@dataclass(frozen=True)
class Lognormal:
    """The logarithm is normal; what lies beyond the least and the most is moved there."""

    mean: float  # before anything is moved
    sigma: float
    least: int
    most: int

    def at(self, probability: Floats) -> Ints:
        """Return whole tokens at a column of probabilities.

        >>> Lognormal(100.0, 1.0, 16, 4096).at(np.array([0.0, 0.5, 1.0]))
        array([  16,   61, 4096])
        """
        z = np.interp(probability, *_normal())
        tokens = self.mean * np.exp(self.sigma * z - self.sigma**2 / 2.0)
        return np.rint(np.clip(tokens, self.least, self.most)).astype(np.int64)


@dataclass(frozen=True)
class Zipf:
    """Each count is as likely as a power of itself, falling with the exponent."""

    exponent: float
    least: int
    most: int

    def at(self, probability: Floats) -> Ints:
        """Return whole tokens at a column of probabilities.

        >>> Zipf(1.0, 1, 4).at(np.array([0.0, 0.47, 0.49, 1.0]))
        array([1, 1, 2, 4])
        """
        below = _zipf(self.exponent, self.least, self.most)
        return np.minimum(self.least + np.searchsorted(below, probability, "right"), self.most)


def read_distribution(table: Mapping[str, Any]) -> Distribution:
    """Return the distribution that a table of a workload's file describes.

    Raises:
        UserError: it is none; says why.
    """
    kind = table.get("distribution", "quantiles")
    if kind not in _READERS:
        raise UserError(
            f"distribution '{kind}'{suggestion(str(kind), tuple(_READERS))}\n"
            f"Known: {', '.join(_READERS)}"
        )
    return _READERS[kind](table)


def _quantiles(table: Mapping[str, Any]) -> Quantiles:
    tokens = table.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise UserError("needs tokens = [quantiles]")
    if not all(_is_number(t) for t in tokens):
        raise UserError("tokens must be numbers")
    if min(tokens) < 1 or sorted(tokens) != tokens:
        raise UserError("tokens must be at least 1 and must not fall")
    even = np.linspace(0.0, 1.0, len(tokens)).tolist() if len(tokens) > 1 else [0.0]
    probability = table.get("probability", even)
    if not isinstance(probability, list) or len(probability) != len(tokens):
        raise UserError("needs one probability per quantile")
    rising = all(a < b for a, b in itertools.pairwise(probability))
    if not rising or probability[0] != 0 or (len(tokens) > 1 and probability[-1] != 1):
        raise UserError("probability must rise from 0 to 1")
    return Quantiles(tuple(float(p) for p in probability), tuple(float(t) for t in tokens))


def _uniform(table: Mapping[str, Any]) -> Uniform:
    return Uniform(*_ends(table))


def _lognormal(table: Mapping[str, Any]) -> Lognormal:
    mean, sigma = _positive(table, "mean"), _positive(table, "sigma")
    return Lognormal(mean, sigma, *_ends(table))


def _read_zipf(table: Mapping[str, Any]) -> Zipf:
    return Zipf(_positive(table, "exponent"), *_ends(table))


_READERS: dict[str, Callable[[Mapping[str, Any]], Distribution]] = {
    "quantiles": _quantiles,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "zipf": _read_zipf,
}


def _ends(table: Mapping[str, Any]) -> tuple[int, int]:
    """Return the least and the most tokens."""
    least, most = (table.get(name) for name in ("least", "most"))
    whole = [isinstance(x, int) and not isinstance(x, bool) for x in (least, most)]
    if not all(whole) or least is None or most is None or not 1 <= least <= most:
        raise UserError(f"needs whole numbers 1 <= least <= most, has least {least}, most {most}")
    return least, most


def _positive(table: Mapping[str, Any], name: str) -> float:
    value = table.get(name)
    if not _is_number(value) or value is None or not 0.0 < value < math.inf:
        raise UserError(f"needs a positive {name}, has {value}")
    return float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@functools.cache
def _normal() -> tuple[Floats, Floats]:
    """Return probabilities of a normal distribution and the deviations below which they lie."""
    z = np.linspace(-8.0, 8.0, 8001)
    return np.array([0.5 * math.erfc(-x / math.sqrt(2.0)) for x in z.tolist()]), z


@functools.lru_cache(maxsize=16)
def _zipf(exponent: float, least: int, most: int) -> Floats:
    """Return the probability of at most each count."""
    weight = np.arange(least, most + 1, dtype=np.float64) ** -exponent
    below: Floats = np.cumsum(weight) / weight.sum()
    return below
