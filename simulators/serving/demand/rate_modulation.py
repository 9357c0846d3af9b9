"""A rate that changes with time is a steady one on a clock that runs unevenly.

The integral of the rate turns a Poisson process of unit rate into one of any rate (the time-change
theorem; Çınlar, "Introduction to Stochastic Processes", 1975). So all patterns and rates of a seed
share their unit gaps. The mean rate is the one asked for.

A Markov-modulated process has two states, calm and burst, each held for an exponential time
(Fischer and Meier-Hellstern, "The Markov-modulated Poisson process cookbook", 1993); it starts in
either with the share of time it has. A diurnal rate is a sine that starts at its mean and rises.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Floats

MMPP, DIURNAL = "mmpp", "diurnal"
MODULATED = (MMPP, DIURNAL)

_BLOCK = 64
"""Pairs of states drawn at a time; longer runs go on where shorter ones stop."""

_HALVINGS = 60
"""Of a span, until nothing is left of it in double precision."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """How the rate changes with time."""

    burst_ratio: float = 4.0
    burst_s: float = 10.0
    calm_s: float = 50.0
    swing: float = 0.5
    period_s: float = 86_400.0

    def check(self) -> None:
        """Raise `UserError` for a pattern that is none."""
        for name in ("burst_ratio", "burst_s", "calm_s", "period_s"):
            if not 0.0 < getattr(self, name) < np.inf:
                raise UserError(f"{name} is {getattr(self, name):g}; it must be positive")
        if not 0.0 <= self.swing <= 1.0:
            raise UserError(f"swing is {self.swing:g}; it must be within 0..1")


def modulated(
    process: str, pattern: Pattern, unit_arrivals: Floats, qps: float, draw: np.random.Generator
) -> Floats:
    """Return arrival times at a mean rate of `qps`.

    Args:
        process: one of `MODULATED`.
        pattern: how the rate changes.
        unit_arrivals: arrivals of the process at one request per second, rising.
        qps: the mean rate.
        draw: of the states.
    """
    pattern.check()
    even_s = unit_arrivals / qps
    if process == DIURNAL:
        return _diurnal(even_s, pattern)
    return _two_states(even_s, pattern, draw)


def _two_states(even_s: Floats, pattern: Pattern, draw: np.random.Generator) -> Floats:
    """Return the times at which the integral of a two-state rate of mean one reaches `even_s`."""
    share = pattern.burst_s / (pattern.burst_s + pattern.calm_s)
    calm = 1.0 / (1.0 + share * (pattern.burst_ratio - 1.0))
    rates, means_s = (
        np.array([calm, calm * pattern.burst_ratio]),
        np.array([pattern.calm_s, pattern.burst_s]),
    )
    if draw.random() < share:
        rates, means_s = rates[::-1], means_s[::-1]
    held = [np.zeros(1)]
    reached = 0.0
    while reached <= even_s[-1]:
        block = draw.standard_exponential((_BLOCK, 2)) * means_s
        reached += float((block * rates).sum())
        held.append(block.ravel())
    spans = np.concatenate(held)
    rate = np.concatenate([np.zeros(1), np.resize(rates, spans.size - 1)])
    arrivals: Floats = np.interp(even_s, np.cumsum(spans * rate), np.cumsum(spans))
    return arrivals


def _diurnal(even_s: Floats, pattern: Pattern) -> Floats:
    """Return the times at which `t + a (1 - cos(w t)) / w` reaches `even_s`, by halving."""
    w = 2.0 * np.pi / pattern.period_s
    low, high = even_s - 2.0 * pattern.swing / w, even_s
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        early = middle + pattern.swing * (1.0 - np.cos(w * middle)) / w < even_s
        low, high = np.where(early, middle, low), np.where(early, high, middle)
    arrivals: Floats = np.maximum.accumulate(high)
    return arrivals
