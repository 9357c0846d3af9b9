"""Workloads: how long prompts are, and how long the answers to prompts of such lengths.

How long a prompt is says much about how long the answer will be, so the two are drawn together, by
their quantiles: equal draws give lengths that compare. A workload is a distribution of the prompt
and, for ranges of prompt length, of the output. `chat` and `code` were fitted to production traces;
one's own is a file of the same form in `catalog/workloads/`:

    [prompt]
    probability = [0, 0.9, 1]       # omitted: even steps
    tokens = [16, 200, 4000]        # quantiles there; a single one: all alike
    [[output]]
    prompt_up_to = 1000             # omitted in the last table
    tokens = [100, 300]
    [[output]]
    distribution = "lognormal"      # or uniform, zipf (with an exponent); omitted: quantiles
    mean = 200
    sigma = 0.8
    least = 1
    most = 2048
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from simulators.core.calibration import read_choice
from simulators.core.errors import UserError, suggestion
from simulators.core.folder import WORKLOADS
from simulators.core.jit import Floats, Ints


class Distribution(Protocol):
    """Token counts by probability."""

    def at(self, probability: Floats) -> Ints:
        """Return whole tokens, at least one, below which that share of the draws lies."""


@dataclass(frozen=True)
class Workload:
    """Prompt lengths, and output lengths given the prompt."""

    name: str
    prompt: Distribution
    prompt_up_to: tuple[float, ...]  # upper ends of the ranges, the last without end
    output: tuple[Distribution, ...]

    def draw(self, uniforms: Floats) -> tuple[Ints, Ints]:
        """Return prompt and output tokens for rows of two uniform numbers."""
        prompt = self.prompt.at(uniforms[:, 0])
        which = np.searchsorted(np.array(self.prompt_up_to[:-1]), prompt, side="left")
        output = np.empty(prompt.size, np.int64)
        for table in range(len(self.output)):
            rows = which == table
            output[rows] = self.output[table].at(uniforms[rows, 1])
        return prompt, output


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
    """A log-normal distribution, clipped to the minimum and maximum."""

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


QUANTILES = "quantiles"
FORMULAS = {"uniform": Uniform, "lognormal": Lognormal, "zipf": Zipf}


def load_workload(name: str) -> Workload:
    """Return the workload of that name or TOML path.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: a table is missing or means nothing.

    >>> bool(load_workload("chat").draw(np.array([[0.5, 0.5]]))[0][0] > 500)
    True
    """
    return WORKLOADS.load(name, _workload)


def _workload(path: Path) -> Workload:
    sheet = read_choice(path)
    outputs = sheet.get("output")
    if not isinstance(outputs, list) or not outputs:
        raise UserError(f"{path}: a workload needs at least one [[output]] table")
    ends = [float(table.get("prompt_up_to", np.inf)) for table in outputs]
    if ends[-1] != np.inf or sorted(set(ends)) != ends:
        raise UserError(
            f"{path}: prompt_up_to must rise from table to table and be omitted in the last"
        )
    return Workload(
        name=path.stem,
        prompt=_distribution(path, "[prompt]", sheet.get("prompt")),
        prompt_up_to=tuple(ends),
        output=tuple(_distribution(path, f"[[output]] {i + 1}", t) for i, t in enumerate(outputs)),
    )


def _distribution(path: Path, where: str, table: Any) -> Distribution:
    """Return the distribution of one table of a workload file, or raise a UserError."""
    table = table if isinstance(table, dict) else {}
    kind = str(table.get("distribution", QUANTILES))
    try:
        if kind == QUANTILES:
            return _quantiles(table)
        if kind not in FORMULAS:
            known = (QUANTILES, *FORMULAS)
            raise UserError(
                f"distribution '{kind}'{suggestion(kind, known)}\nKnown: {', '.join(known)}"
            )
        shape = FORMULAS[kind]
        given = {f.name: _positive(table, f.name) for f in fields(shape) if f.type == "float"}
        found: Distribution = shape(**given, **_ends(table))
        return found
    except UserError as error:
        raise UserError(f"{path}: {where} {error}") from error


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


def _ends(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the least and the most tokens."""
    least, most = (table.get(name) for name in ("least", "most"))
    if type(least) is int and type(most) is int and 1 <= least <= most:
        return {"least": least, "most": most}
    raise UserError(f"needs whole numbers 1 <= least <= most, has least {least}, most {most}")


def _positive(table: Mapping[str, Any], name: str) -> float:
    value = table.get(name)
    if value is None or not _is_number(value) or not 0.0 < value < math.inf:
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
