"""How many of the drafted tokens the model agrees with, in one iteration of one sequence.

A drafted token counts if all before it do. The i-th is accepted, given that it is reached, with
probability `a_i` (Leviathan et al., Fast inference from transformers via speculative decoding,
2023), so an iteration brings `1 + sum of a_1 ... a_i` tokens: the model's own comes on top. Rates
of methods fall with the position, and are those of measured traces (`calibration/acceptance.toml`);
beyond the last position measured its rate holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

from simulators.core.calibration import read_calibration
from simulators.core.errors import UserError
from simulators.core.folder import once

CALIBRATION = Path(__file__).parent.parent / "calibration" / "acceptance.toml"


def survival(method: str, written: str, drafted: int) -> tuple[float, ...]:
    """Return the shares of iterations in which at least 1, 2 ... of the drafted are accepted.

    Rates of the method as measured stand in where none are written: one for all positions, or one
    for each of the first ones.

    Raises:
        UserError: what is written are no rates, or nobody has measured the method's.

    >>> survival("", "0.5", 3)
    (0.5, 0.25, 0.125)
    """
    return tuple(accumulate(rates_of(method, written, drafted), mul))


def rates_of(method: str, written: str, drafted: int) -> list[float]:
    """Return the conditional acceptance rate of each position; the last rate is repeated."""
    rates = _rates(written) if written.strip() else measured_rates(method)
    return [*rates, *[rates[-1]] * max(0, drafted - len(rates))][:drafted]


def mean_acceptance_length(survival: tuple[float, ...]) -> float:
    """Return the mean tokens of a sequence that one iteration brings.

    >>> mean_acceptance_length((0.5, 0.25))
    1.75
    """
    return 1.0 + sum(survival)


def last_step_excess(survival: tuple[float, ...]) -> float:
    """Return the mean tokens by which an answer's last iteration would exceed a long answer.

    Iterations that bring X tokens pass a far length by `(E[X^2] / E[X] - 1) / 2` on average
    (renewal theory; Feller, 1971), and `E[X (X - 1)] / 2` is the sum of `i S_i`.

    >>> last_step_excess(())
    0.0
    >>> last_step_excess((1.0,))
    0.5
    """
    return sum(i * share for i, share in enumerate(survival, 1)) / mean_acceptance_length(survival)


def measured_rates(method: str) -> tuple[float, ...]:
    """Return a method's rates by position, as measured.

    Raises:
        UserError: nobody has.
    """
    known = {name: tuple(rates) for name, rates in _fitted()["rates"].items()}
    if method not in known:
        raise UserError(
            f"how often drafts of '{method}' are accepted is not known; say it as acceptance=0.7, "
            f"or by position as acceptance='0.7 0.65 0.6'. Measured: {', '.join(known)}"
        )
    return known[method]


def odds_growth() -> float:
    """Return by which power of their number guesses at one place gain odds of being right."""
    return float(_fitted()["ranks"]["growth"])


def times_interval() -> tuple[float, float]:
    """Return the 90 % interval of TPOT for models without a measured acceptance rate."""
    low, high = _fitted()["times"]["ends"]
    return float(low), float(high)


def _fitted() -> Mapping[str, Any]:
    return once(read_calibration, CALIBRATION)


def _rates(written: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(word) for word in re.split(r"[,\s]+", written.strip()))
    except ValueError:
        rates = (-1.0,)
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise UserError(
            f"acceptance '{written}': write one rate between 0 and 1, or one for each position"
        )
    return rates
