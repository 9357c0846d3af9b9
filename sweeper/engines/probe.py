"""Estimates the time of a point from a few points, for `plan` and for the engine `auto`."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from simulators.core.contract import Hints, Simulator, load_simulator
from sweeper.engines.task import evaluate
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index

PROBES, PROBE_S = 64, 1.0
"""Points evaluated to estimate a sweep, and the time after which fewer suffice."""

_STRETCHES, _NEIGHBOURS = 16, 1024
"""Number and length of the stretches for which a simulator guesses its cost."""

_GROWTH, _LONGEST = 8, 1 << 16
"""Growth of the stretches of neighbours that are probed, and the length of the longest."""


@dataclass(frozen=True)
class Estimate:
    """The time of one point; `probes` is 0 where the simulator guessed it."""

    probes: int
    point_s: float
    stopped: str = ""  # why the probe ended early


def hinted(space: DesignSpace, asked: int | None = None) -> Estimate | None:
    """Return the simulator's own guess for so many points of a space; None if it has none.

    Neighbours may share expensive preparation, so the guess for a whole space is of stretches.
    """
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, Hints):
        return None
    wanted = max(1, min(asked or len(space), len(space)))
    if 4 * wanted > len(space):
        starts = _spread(space, _STRETCHES)[:, None]
        where = np.unique((starts + np.arange(_NEIGHBOURS)) % len(space))
    else:
        where = _spread(space, min(wanted, _STRETCHES * _NEIGHBOURS))
    batch = space.batch(where, space.kept(where))
    guesses = simulator.cost_hint_s(batch).sum() if batch.num_rows else 0.0
    return Estimate(0, float(guesses) / len(where))


def measured(space: DesignSpace, asked: int, patience_s: float = PROBE_S) -> Estimate:
    """Return the time of a point of a sweep of `asked` points; nothing is kept.

    First points spread over the space are evaluated, then growing stretches of neighbours, as a
    chunk of work has: neighbours share preparation, and whole columns cost little more than a row.
    The longest stretch gives the estimate. A first point only loads the simulator.
    Points and stretches each take `patience_s` at most, and the last of them.
    """
    simulator = load_simulator(space.simulator)
    order = np.random.default_rng(0).permutation(_spread(space, PROBES))
    allowed = space.kept(order)
    first = order[:1] if allowed is None else order[allowed][:1]
    share = 1.0 if allowed is None else float(allowed.mean())
    evaluate(simulator, space.batch(first))
    spent, done, rows = 0.0, 0, 1
    while done < len(order) and spent < patience_s:
        where = np.sort(order[done : done + rows])
        spent += _timed(simulator, space, where)[0]
        done += len(where)
        rows *= 2
    wanted = min(asked, len(space))
    point_s, spent, rows = spent / max(done, 1), 0.0, 1
    while wanted > len(order) and spent < patience_s and rows < min(wanted, _LONGEST):
        rows = max(1, min(_GROWTH * rows, int((patience_s - spent) / max(point_s, 1e-9))))
        stride = max(1, len(space) // wanted)
        start = int(order[done % len(order)]) % max(1, len(space) - stride * rows)
        taken, answered = _timed(simulator, space, start + stride * np.arange(min(rows, wanted)))
        spent, done = spent + taken, done + rows
        if answered:
            point_s = min(point_s, share * taken / answered)
    return Estimate(done, point_s)


def _timed(simulator: Simulator, space: DesignSpace, where: Index) -> tuple[float, int]:
    """Return the seconds that points take, and how many of them constraints allow."""
    started = time.perf_counter()
    batch = space.batch(where, space.kept(where))
    evaluate(simulator, batch)
    return time.perf_counter() - started, batch.num_rows


def _spread(space: DesignSpace, count: int) -> Index:
    """Return point numbers, one at a random place of each of `count` equal stretches of the space.

    Evenly spaced numbers could all share one value of the fastest axis.
    """
    count = min(count, len(space))
    places = np.arange(count) + np.random.default_rng(0).random(count)
    return np.unique((places / count * len(space)).astype(np.int64))
