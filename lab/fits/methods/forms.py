"""Forms of kernels' times: names, starting values and bounds of their numbers (`forms.toml`)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planning.calibrate.kernels import fit_named
from simulators.core.jit import Floats

Numbers = Mapping[str, float]

REACH = 4.0
"""Without bounds of its own, a number stays within a factor of 55 of its start."""


@dataclass(frozen=True)
class CalibrationForm:
    """Starting values of the numbers of a formula, and their bounds as logarithms."""

    start: dict[str, float]
    low: Floats
    high: Floats

    def fit(
        self,
        seconds_of: Callable[[dict[str, float]], Floats],
        measured_s: Floats,
        *,
        ridge: float,
        near: Numbers | None = None,
    ) -> dict[str, float]:
        """Return the fitted numbers.

        Args:
            seconds_of: predicts seconds from the numbers.
            measured_s: measured seconds.
            ridge: weight of the start, in rows.
            near: numbers to start from and be held near, in place of the form's own.
        """
        near = near or self.start
        start = np.clip(np.log([near[name] for name in self.start]), self.low, self.high)
        return fit_named(
            seconds_of,
            list(self.start),
            start,
            measured_s,
            low=self.low,
            high=self.high,
            ridge=ridge,
        )


@functools.cache
def form(name: str) -> CalibrationForm:
    """Return a form of `forms.toml`."""
    numbers = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[name]
    rows = {key: one if isinstance(one, dict) else {"start": one} for key, one in numbers.items()}
    start = {key: row["start"] for key, row in rows.items()}
    reach = float(np.exp(REACH))
    low = [row.get("least", row["start"] / reach) for row in rows.values()]
    high = [row.get("most", row["start"] * reach) for row in rows.values()]
    return CalibrationForm(start, np.log(low), np.log(high))
