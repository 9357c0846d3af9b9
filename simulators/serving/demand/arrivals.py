"""When requests arrive: after Poisson or even gaps, or at a rate that changes with time.

The same seed draws the same gaps of mean one for every design and every rate, which only scales
them: designs are compared on common random numbers.

A rate that changes is a steady one on a clock that runs unevenly: the integral of the rate turns a
Poisson process of unit rate into one of any rate (the time-change theorem; Çınlar, "Introduction to
Stochastic Processes", 1975). The mean rate is the one asked for. `mmpp` has two states, calm and
burst, each held for an exponential time (Fischer and Meier-Hellstern, "The Markov-modulated Poisson
process cookbook", 1993); it starts in either with the share of time it has. A `diurnal` rate is a
sine that starts at its mean and rises.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Floats
from simulators.serving.point import DIURNAL, EVEN, MMPP, POISSON, ServingPoint

_BLOCK = 64
"""Pairs of states drawn at a time; the draws of a shorter run are a prefix of a longer run's."""

_HALVINGS = 60
"""Of a span, until nothing is left of it in double precision."""


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the random numbers of one purpose; another purpose does not shift them.

    >>> stream(1, "gaps").random() == stream(1, "gaps").random()
    True
    """
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))


def arrival_times(point: ServingPoint, count: int) -> Floats:
    """Return `count` arrival times at a point's mean rate; a session counts as one arrival."""
    if point.qps is None:
        raise UserError(
            f"workload '{point.workload}' says nothing about arrivals, so qps is needed. Only a "
            "trace with arrival times may leave it open"
        )
    rate = point.qps / point.sessions.turns
    if point.arrivals.process == MMPP:
        return _two_states(
            point.seed,
            count,
            rate,
            point.arrivals.burst_ratio,
            point.arrivals.burst_s,
            point.arrivals.calm_s,
        )
    if point.arrivals.process == DIURNAL:
        return _sine(point.seed, count, rate, point.arrivals.swing, point.arrivals.period_s)
    return _unit_arrivals(point.seed, count, point.arrivals.process) / rate


@functools.lru_cache(maxsize=64)
def _unit_arrivals(seed: int, count: int, process: str) -> Floats:
    """Return arrival times at one request per second."""
    draw = stream(seed, "gaps")
    gaps = np.ones(count) if process == EVEN else draw.standard_exponential(count)
    return _kept(np.cumsum(gaps))


@functools.lru_cache(maxsize=64)
def _two_states(
    seed: int, count: int, rate: float, burst_ratio: float, burst_s: float, calm_s: float
) -> Floats:
    """Return when the integral of a two-state rate of mean one meets arrivals at an even rate."""
    even_s = _unit_arrivals(seed, count, POISSON) / rate
    draw = stream(seed, "states")
    share = burst_s / (burst_s + calm_s)
    calm = 1.0 / (1.0 + share * (burst_ratio - 1.0))
    rates, means_s = np.array([calm, calm * burst_ratio]), np.array([calm_s, burst_s])
    if draw.random() < share:
        rates, means_s = rates[::-1], means_s[::-1]
    held, reached = [np.zeros(1)], 0.0
    while reached <= even_s[-1]:
        block = draw.standard_exponential((_BLOCK, 2)) * means_s
        reached += float((block * rates).sum())
        held.append(block.ravel())
    spans = np.concatenate(held)
    rate_then = np.concatenate([np.zeros(1), np.resize(rates, spans.size - 1)])
    return _kept(np.interp(even_s, np.cumsum(spans * rate_then), np.cumsum(spans)))


@functools.lru_cache(maxsize=64)
def _sine(seed: int, count: int, rate: float, swing: float, period_s: float) -> Floats:
    """Return when `t + a (1 - cos(w t)) / w` meets arrivals at an even rate, by halving."""
    even_s = _unit_arrivals(seed, count, POISSON) / rate
    w = 2.0 * np.pi / period_s
    low, high = even_s - 2.0 * swing / w, even_s
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        early = middle + swing * (1.0 - np.cos(w * middle)) / w < even_s
        low, high = np.where(early, middle, low), np.where(early, high, middle)
    return _kept(np.maximum.accumulate(high))


def _kept(arrivals: Floats) -> Floats:
    """Return arrivals that several points may share."""
    arrivals.flags.writeable = False
    return arrivals
