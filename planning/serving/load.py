"""The load of a question about serving: request rates, clients or lanes, and requests."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2, nan
from typing import Any

from planning.flags.serving import ServingFlags
from simulators.core.errors import UserError
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.demand.workloads import is_trace, load_trace
from sweeper.text import number_in

TAIL_REQUESTS = 50
"""Requests beyond a percentile that make the percentile stable, for random loads."""

MIN_DURATION_S = 120.0
"""Least duration of such a load: a queue needs time to grow."""

LANES = 16
"""Sessions of agents at once, without --lanes."""

ROUNDS = 10
"""Requests per client of a closed loop."""


def factors(words: str) -> list[float]:
    """Return multiples of a load.

    >>> factors("1x,2.5x")
    [1.0, 2.5]
    """
    found = []
    for word in words.split(","):
        factor = number_in(word.strip().casefold().removesuffix("x"))
        if factor is None or not 0.0 < factor < inf:
            raise UserError(f"--traffic {word}: write a number above zero, as in 2x")
        found.append(factor)
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class OfferedLoad:
    """The load: request rates, and the number of replayed requests."""

    rates: tuple[float | None, ...]  # None: the trace's own
    requests: int  # 0: the whole trace
    available: int  # requests of the trace; 0 for a random load
    own_rate: float = 0.0  # requests per second of a trace; NaN for a closed loop
    clients: tuple[int, ...] = ()  # of a closed loop


def offered_load(flags: ServingFlags) -> OfferedLoad:
    """Return the load: a whole trace, or enough requests for a stable percentile."""
    qps, traffic = flags.qps, factors(flags.traffic)
    if has_sessions(flags.workload) and (flags.lanes or qps is None):
        if qps is not None:
            raise UserError("--lanes and --qps are two loads; write one of them")
        lanes = tuple(max(1, round((flags.lanes or LANES) * factor)) for factor in traffic)
        return OfferedLoad((None,), flags.requests, 0, nan, lanes)
    tail = TAIL_REQUESTS / (1.0 - flags.percentile / 100.0)
    if flags.concurrency:
        if qps is not None:
            raise UserError("--concurrency and --qps are two loads; write one of them")
        clients = tuple(max(1, round(flags.concurrency * factor)) for factor in traffic)
        traced = load_trace(flags.workload).prompt_tokens.size if is_trace(flags.workload) else 0
        count = traced or _two_digits(max(tail, ROUNDS * max(clients)))
        return OfferedLoad((None,), flags.requests or count, traced, nan, clients)
    if is_trace(flags.workload):
        trace = load_trace(flags.workload, flags.requests)
        own = _rate(trace.arrival_s) if trace.arrival_s is not None else None
        base = qps or own
        if base is None:
            raise UserError(f"trace '{flags.workload}' has no arrival times; say --qps")
        rates = tuple(None if qps is None and f == 1.0 else base * f for f in traffic)
        count = trace.prompt_tokens.size
        return OfferedLoad(rates, min(flags.requests, count), count, own or 0.0)
    drawn = tuple((qps or 1.0) * factor for factor in traffic)
    enough = max(tail, *(rate * MIN_DURATION_S for rate in drawn))
    return OfferedLoad(drawn, flags.requests or _two_digits(enough), 0)


def _two_digits(count: float) -> int:
    """Return a count, rounded up to two digits.

    >>> _two_digits(4_999.5), _two_digits(5_120)
    (5000, 5200)
    """
    unit = 10.0 ** max(0, int(log2(count) / log2(10.0)) - 1)
    return int(-(-count // unit) * unit)


def _rate(arrival_s: Any) -> float | None:
    span_s = float(arrival_s[-1])
    return (arrival_s.size - 1) / span_s if span_s > 0.0 else None
