"""How long a point of a space takes, from a few of them: what `plan` prints and `auto` goes by."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulators.core.contract import Hints, load_simulator
from sweeper.engines.task import evaluate
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Index

PROBES, PROBE_S = 64, 1.0
"""Points evaluated to estimate a sweep, and the time after which fewer will do."""


@dataclass(frozen=True)
class Estimate:
    """How long one point takes, from a few of them; no probes where the simulator guessed."""

    probes: int
    point_s: float
    stopped: str = ""  # why fewer were tried than should have been


def hinted(space: DesignSpace, *, samples: int = PROBES) -> Estimate | None:
    """Return what the simulator itself guesses of points spread over the space, if it guesses."""
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, Hints):
        return None
    where = _spread(space, samples)
    batch = space.batch(where, space.kept(where))
    guesses = simulator.cost_hint_s(batch).sum() if batch.num_rows else 0.0
    return Estimate(0, float(guesses) / len(where))


def steps(
    space: DesignSpace, *, probes: int = PROBES, patience_s: float = PROBE_S
) -> Iterator[Estimate]:
    """Evaluate points spread evenly over the space, keeping nothing, until patience ends.

    Yield what is known after each step; nothing is known after the first, which finds the
    simulator loaded and fills what later points find ready.
    """
    simulator = load_simulator(space.simulator)
    order = np.random.default_rng(0).permutation(_spread(space, probes))
    allowed = space.kept(order)
    first = order[:1] if allowed is None else order[allowed][:1]
    spent, done, rows = 0.0, 0, 1
    evaluate(simulator, space.batch(first))
    yield Estimate(0, 0.0)
    while done < len(order) and spent < patience_s:
        where = np.sort(order[done : done + rows])
        started = time.perf_counter()
        evaluate(simulator, space.batch(where, space.kept(where)))
        spent += time.perf_counter() - started
        done += len(where)
        rows *= 2
        yield Estimate(done, spent / done)


def probe(space: DesignSpace, *, probes: int = PROBES, patience_s: float = PROBE_S) -> Estimate:
    """Return the estimate of `steps`, evaluated in this process."""
    *_, last = steps(space, probes=probes, patience_s=patience_s)
    return last


def _spread(space: DesignSpace, count: int) -> Index:
    """Return point numbers, one somewhere in each of `count` equal stretches of the space.

    Always in the middle, they could all share one value of the fastest axis.
    """
    count = min(count, len(space))
    places = np.arange(count) + np.random.default_rng(0).random(count)
    return np.unique((places / count * len(space)).astype(np.int64))
