"""Requests come one by one; between two of them lies a gap drawn at random, or read from a trace.

The same seed draws the same unit gaps and lengths for every design and every rate, which only
scales the gaps: designs are compared on common random numbers.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from simulators.core.errors import UserError, suggestion
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.rate_modulation import MODULATED, Pattern, modulated
from simulators.serving.demand.traces import is_trace, load_trace
from simulators.serving.demand.workloads import load_workload

CLOSED = "closed"
PROCESSES = ("poisson", "gamma", "even", CLOSED)
KNOWN = (*PROCESSES, *MODULATED)
STEADY = Pattern()


@dataclass(frozen=True)
class Requests:
    """What clients ask for, in order of arrival."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    draws: Floats  # two uniform numbers per request, for routers that toss coins
    clients: int = 0  # of a closed system, where `arrival_s` is the time a client thinks; 0: open
    patience_s: Floats | float = inf  # how long after its arrival a request's client gives up
    session: Ints | None = None  # rising; a later turn's `arrival_s` is the time its user thinks

    def take(self, which: Ints) -> Requests:
        """Return some of the requests."""
        patience_s = self.patience_s
        return replace(
            self,
            patience_s=patience_s if isinstance(patience_s, float) else patience_s[which],
            arrival_s=self.arrival_s[which],
            prompt_tokens=self.prompt_tokens[which],
            output_tokens=self.output_tokens[which],
            draws=self.draws[which],
            session=None if self.session is None else self.session[which],
        )


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the random numbers of one purpose; another purpose does not shift them.

    Raises:
        UserError: the seed is negative.

    >>> stream(1, "gaps").random() == stream(1, "gaps").random()
    True
    """
    if seed < 0:
        raise UserError(f"seed is {seed}; it must not be negative")
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))


def requests_of(
    *,
    workload: str,
    qps: float | None,
    requests: int,
    seed: int,
    process: str = "poisson",
    burstiness: float = 1.0,
    clients: int = 0,
    think_s: float = 0.0,
    pattern: Pattern = STEADY,
) -> Requests:
    """Return the requests of a named workload or of a trace.

    Args:
        workload: a name, the path of a workload's TOML, or the path of a trace.
        qps: requests per second; of a trace's arrivals, None keeps them.
        requests: how many; of a trace the first, 0 for all.
        seed: of gaps and lengths.
        process: of the gaps, where the workload does not bring its own.
        burstiness: coefficient of variation of gamma gaps; 1 is Poisson.
        clients: of a closed system; each asks for the next request when it is answered.
        think_s: how long it waits before.
        pattern: how a modulated rate changes with time.

    Raises:
        UserError: a rate is needed and missing, or a choice means nothing.
    """
    if qps is not None and not 0.0 < qps < np.inf:
        raise UserError(f"qps is {qps:g}; it must be positive")
    if requests < 0 or (requests == 0 and not is_trace(workload)):
        raise UserError(f"requests is {requests}; a workload that is drawn needs at least 1")
    if process == CLOSED:
        return _closed(workload, requests, seed, clients, think_s)
    if not is_trace(workload):
        prompt, output = _lengths(workload, seed, requests, _version(workload))
        arrival = _drawn_arrivals(workload, qps, requests, seed, process, burstiness, pattern)
        return Requests(arrival, prompt, output, _draws(seed, requests))
    trace = load_trace(workload)
    count = min(requests, trace.prompt_tokens.size) or trace.prompt_tokens.size
    if trace.arrival_s is None:
        arrival = _drawn_arrivals(workload, qps, count, seed, process, burstiness, pattern)
    else:
        arrival = trace.arrival_s[:count]
        if qps is not None and arrival[-1] > 0.0:
            arrival = arrival * ((count - 1) / arrival[-1] / qps)
    return Requests(
        arrival, trace.prompt_tokens[:count], trace.output_tokens[:count], _draws(seed, count)
    )


def _closed(workload: str, requests: int, seed: int, clients: int, think_s: float) -> Requests:
    """Return requests that are released one by one, as earlier ones end."""
    if clients < 1:
        raise UserError(f"clients is {clients}; closed arrivals need at least 1")
    if not 0.0 <= think_s < np.inf:
        raise UserError(f"think_s is {think_s:g}; it must not be negative")
    asked = requests_of(workload=workload, qps=1.0, requests=requests, seed=seed)
    waits = np.where(np.arange(asked.arrival_s.size) < clients, 0.0, think_s)
    return Requests(waits, asked.prompt_tokens, asked.output_tokens, asked.draws, clients)


def _drawn_arrivals(
    workload: str,
    qps: float | None,
    count: int,
    seed: int,
    process: str,
    burstiness: float,
    pattern: Pattern,
) -> Floats:
    """Return arrival times at a mean rate."""
    if qps is None:
        raise UserError(
            f"workload '{workload}' says nothing about arrivals, so qps is needed. Only a trace "
            "with arrival times may leave it open"
        )
    if process in MODULATED:
        return _modulated_arrivals(seed, count, process, pattern, qps)
    return _unit_arrivals(seed, count, process, float(burstiness)) / qps


@functools.lru_cache(maxsize=64)
def _modulated_arrivals(
    seed: int, count: int, process: str, pattern: Pattern, qps: float
) -> Floats:
    """Return arrival times at a rate that changes."""
    unit = _unit_arrivals(seed, count, "poisson", 1.0)
    arrivals = modulated(process, pattern, unit, qps, stream(seed, "states"))
    arrivals.flags.writeable = False
    return arrivals


@functools.lru_cache(maxsize=64)
def _unit_arrivals(seed: int, count: int, process: str, burstiness: float) -> Floats:
    """Return arrival times at one request per second."""
    if process not in PROCESSES:
        raise UserError(
            f"arrivals are '{process}'{suggestion(process, KNOWN)}\nKnown: {', '.join(KNOWN)}"
        )
    if not 0.0 < burstiness < np.inf:
        raise UserError(f"burstiness is {burstiness:g}; it must be positive")
    draw = stream(seed, "gaps")
    if process == "even":
        gaps = np.ones(count)
    elif process == "gamma":
        shape = burstiness**-2.0
        gaps = draw.standard_gamma(shape, count) / shape
    else:
        gaps = draw.standard_exponential(count)
    arrivals: Floats = np.cumsum(gaps)
    arrivals.flags.writeable = False
    return arrivals


def _version(workload: str) -> object:
    """Return what changes when a workload's file does."""
    return load_workload(workload)


@functools.lru_cache(maxsize=64)
def _lengths(workload: str, seed: int, count: int, _version: object) -> tuple[Ints, Ints]:
    """Return prompt and output tokens of a named workload."""
    prompt, output = load_workload(workload).draw(stream(seed, "lengths").random((count, 2)))
    prompt.flags.writeable = output.flags.writeable = False
    return prompt, output


@functools.lru_cache(maxsize=64)
def _draws(seed: int, count: int) -> Floats:
    """Return two uniform numbers per request."""
    draws = stream(seed, "routing").random((count, 2))
    draws.flags.writeable = False
    return draws
