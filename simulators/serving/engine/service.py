"""Serves requests: sets the state of all replicas up, runs the loop and says what stopped it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints, Kernel
from simulators.serving.demand.requests import Requests
from simulators.serving.engine.batch import DECODE_KV, DECODES, PREFILL_TOKENS, PREFILLS, TOKENS
from simulators.serving.engine.limits import Limits
from simulators.serving.engine.loop import run
from simulators.serving.engine.policies import Scheduler
from simulators.serving.engine.replica import NEXT, NOBODY
from simulators.serving.engine.state import World, new_world


@dataclass(frozen=True)
class Engine:
    """The compiled policies and prices a run goes by."""

    scheduler: Scheduler
    route: Kernel[..., int]
    price: Kernel[..., float]


def serve(
    engine: Engine,
    limits: Limits,
    requests: Requests,
    *,
    replicas: int,
    shape: Ints,
    table: Floats,
    log_rows: int = 0,
) -> World:
    """Return the state after the last request has left.

    Args:
        engine: policies and prices.
        limits: of each replica.
        requests: all of which a replica admits.
        replicas: how many there are.
        shape: of the price table.
        table: what the price kernel reads.
        log_rows: batches to log.

    Raises:
        UserError: a request never ends, for want of a batch or of a batch's price.
    """
    follower, unborn = _followers(requests)
    world = new_world(
        limits=limits.vector(),
        blocks=limits.blocks,
        replicas=replicas,
        arrival_s=requests.arrival_s,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        successor=follower,
        unborn=unborn,
        draws=requests.draws,
        shape=shape,
        table=table,
        patience_s=requests.patience_s,
        log_rows=log_rows,
    )
    schedule, route, price = engine.scheduler.schedule, engine.route, engine.price
    left = run(schedule.compiled, route.compiled, price.compiled, world)
    if left:
        count = requests.arrival_s.size
        raise UserError(f"{left} of {count} requests never end: {_why(world, engine)}")
    return world


def _followers(requests: Requests) -> tuple[Ints, NDArray[np.bool_]]:
    """Return whom each request's end releases, and who waits to be released."""
    count = requests.arrival_s.size
    if requests.session is not None:
        session = requests.session
        same = np.diff(session, prepend=-1) == 0
        return np.where(np.append(same[1:], False), np.arange(1, count + 1), NOBODY), same
    unborn = np.arange(count) >= (requests.clients or count)
    return np.full(count, NEXT if requests.clients else NOBODY), unborn


def _why(world: World, engine: Engine) -> str:
    """Say what stopped a run before its end."""
    unpriced = np.flatnonzero(np.isnan(world.ends).ravel())
    if unpriced.size == 0:
        return f"scheduler '{engine.scheduler.schedule.__module__}' forms no batch while they wait"
    step = world.step[unpriced[0]]
    mean = step[DECODE_KV] / max(step[DECODES], 1.0)
    return (
        f"no time is known for a batch of {step[TOKENS]:.0f} tokens with {step[DECODES]:.0f} "
        f"decodes of {mean:.0f} keys on average and {step[PREFILLS]:.0f} prefills of "
        f"{step[PREFILL_TOKENS]:.0f} tokens"
    )
