"""The time that an engine's API server adds between a client and the engine.

What clients measure begins and ends at a server that parses, tokenises, polls and streams. A
request reaches the engine some time after it was asked, longer for longer prompts; and its first
token is seen some iterations late, since engines look for new requests every few iterations,
prepare one iteration during another, and send tokens in groups. What that amounts to was fitted by
framework to times to the first token; a client that asks the engine itself has none of it, but for
what its own process takes to hand a request over, and the token back, where that was measured.

With overlapped scheduling (SGLang, `scheduler.py`, `event_loop_overlap`) the host launches a batch
before it looks at what the last one made. Decodes replay a graph, which is launched at once; a
batch of prompts has none, and first tokens that one follows were measured to come at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from simulators.composition.replica import load_runtime
from simulators.core.calibration import read_calibration
from simulators.core.folder import once
from simulators.core.jit import Ints, f8, i8
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import kernel
from simulators.serving.engine.state import STATE, ReplicaState
from simulators.serving.point import NONE, ServingPoint

CALIBRATION = Path(__file__).parents[1] / "calibration" / "frontends.toml"
IN_PROCESS = CALIBRATION.with_name("in_process.toml")


@dataclass(frozen=True)
class Frontend:
    """The time a framework's server adds to the first token."""

    request_s: float = 0.0  # of every request
    token_s: float = 0.0  # of every prompt token, one request after another
    iterations: float = 0.0


NO_SERVER = Frontend()
NUMBERS = tuple(f.name for f in fields(Frontend))


def frontend_of(
    point: ServingPoint, server: Callable[[str], Frontend], process: Callable[[str], Frontend]
) -> Frontend:
    """Return the API server in front of a point's engine, if its runtime's framework has one.

    Without a server it is the process that the engine of its runtime is in.
    """
    found = (process if point.client.frontend == NONE else server)(point.runtime)
    return replace(found, request_s=found.request_s + point.client.frontend_s)


def load_frontend(runtime: str) -> Frontend:
    """Return the server of a runtime's framework; none if the runtime names no framework."""
    known = once(read_calibration, CALIBRATION)["frontend"]
    numbers = known.get(load_runtime(runtime).framework, {})
    return Frontend(**{name: numbers[name] for name in NUMBERS if name in numbers})


def load_process(runtime: str) -> Frontend:
    """Return the request overhead of an engine that runs in its client's process (no server)."""
    return Frontend(**once(read_calibration, IN_PROCESS)["in_process"].get(runtime, {}))


def after_frontend(asked: Requests, frontend: Frontend, replicas: int) -> Requests:
    """Return the requests with the service time and delay of one API server per replica."""
    service_s = np.asarray(frontend.token_s / replicas * asked.prompt_tokens, np.float64)
    return replace(asked, service_s=service_s, delay_s=frontend.request_s)


def seen_by_clients(state: ReplicaState, frontend: Frontend, output_tokens: Ints) -> ReplicaState:
    """Return the state with arrival times of the client: earlier by the server's delay."""
    times = state.times.copy()
    later = np.maximum(output_tokens - 1, 1)
    tpot_s = (times[:, at.COMPLETED] - times[:, at.FIRST_TOKEN]) / later
    times[:, at.ARRIVAL] = times[:, at.SENT] - frontend.iterations * tpot_s
    return state._replace(times=times)


@kernel(i8(STATE, i8, f8, f8))
def delay_first_tokens(state: ReplicaState, replica: int, now: float, end: float) -> int:
    """Delay the first tokens of the batch that ended now to the end of the next prefill batch.

    Return the number of running requests.
    """
    times, running = state.times, state.running[replica]
    waiting = state.pool[replica, at.RUNNING]
    for i in range(waiting):
        row = times[running[i]]
        if row[at.LAST_END] == now and row[at.FIRST_TOKEN] == now:
            row[at.FIRST_TOKEN] = row[at.LAST_TOKEN] = end
    return waiting  # type: ignore[no-any-return]
