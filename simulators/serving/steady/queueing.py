"""Queueing model of one replica: mean number of requests and waiting times in the steady state.

A replica with `n` running requests completes `X(n)` per second, all of them at the same pace. That
is processor sharing with state-dependent rates, in which for Poisson arrivals of rate `r` the
number of requests is distributed as

    p(n) ~ product over k = 1 .. n of r / X(min(k, seats))

for any distribution of lengths (Cohen, "The multiple phase service network with generalized
processor sharing", 1979; with limited seats Zhang and Zwart, 2008). Little's law converts numbers
to times. The wait for a seat is scaled by the variation of gaps and lengths, as in a GI/G/m queue
(Allen and Cunneen). Prompts wait as in an M/G/1 queue whose server takes a vacation of one decode
iteration whenever no prompt is left (Doshi, "Queueing systems with vacations", 1986).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats, Ints
from simulators.serving.prices.iteration_table import octaves
from simulators.serving.steady.batch_cycle import Cycle
from simulators.serving.steady.columns import Lengths, Station
from simulators.serving.steady.iteration_times import Prices

SEAT_STEPS = 4
"""Numbers of seats priced per octave; throughput is interpolated between them."""


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """Mean numbers of running and waiting requests of one replica, per row."""

    busy: Floats  # share of the time with requests; closed loop: of the batches in flight
    running: Floats  # mean number in seats
    waiting: Floats  # mean number of waiting requests; infinite above capacity

    def put(self, rows: Ints, part: QueueState) -> None:
        """Write rows of this state."""
        for name, column in vars(self).items():
            column[rows] = getattr(part, name)


def has_fixed_population(station: Station) -> NDArray[np.bool_]:
    """Return the rows whose number of requests does not depend on the replica's speed."""
    known: NDArray[np.bool_] = np.isnan(station.rate) & (station.think_s == 0.0)
    return known


def closed_population(station: Station) -> QueueState:
    """Return the state with all clients at the replica; a placeholder for other rows."""
    seats = station.stages * station.seats
    clients = np.where(np.isinf(station.clients), seats, station.clients)
    running = np.minimum(clients, seats)
    return QueueState(
        busy=np.minimum(1.0, running / station.stages), running=running, waiting=clients - running
    )


def priced_batch_sizes(most: float) -> Floats:
    """Return the numbers of seats between which throughput is interpolated, 0 first.

    >>> priced_batch_sizes(10.0)
    array([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8., 10.])
    """
    grid = octaves(SEAT_STEPS, max(1, int(np.ceil(most))))
    return grid[: int(np.searchsorted(grid, most)) + 1]


def queue_state_of(station: Station, seats: Floats, per_s: Floats) -> QueueState:
    """Return the mean numbers of requests of rows with equally many stages.

    `seats` are, per row, the numbers of seats priced, rising from 0, the last all of them; `per_s`
    the requests per second with each of them taken, in every stage's batch.
    """
    numbers = seats * station.stages[:, None]
    closed = np.isnan(station.rate)
    answered = _returning(station, numbers, per_s)
    arriving = _arriving(np.where(closed, per_s[:, 1], station.rate), numbers, per_s)
    return QueueState(
        **{
            name: np.where(closed, getattr(answered, name), getattr(arriving, name))
            for name in QueueState.__dataclass_fields__
        }
    )


def _returning(station: Station, numbers: Floats, per_s: Floats) -> QueueState:
    """Return the state of a closed loop with think times, interpolated over running requests."""
    clients = np.where(np.isinf(station.clients), numbers[:, -1], station.clients)
    circulating = numbers + station.think_s[:, None] * per_s  # running and thinking clients
    rows = np.arange(clients.size)
    above = np.minimum((circulating < clients[:, None]).sum(axis=1), numbers.shape[1] - 1)
    low, high = circulating[rows, above - 1], circulating[rows, above]
    fraction = np.clip((clients - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    low_n, high_n = numbers[rows, above - 1], numbers[rows, above]
    running = low_n + fraction * (high_n - low_n)
    return QueueState(
        busy=np.minimum(1.0, running / station.stages),
        running=running,
        waiting=np.maximum(0.0, clients - circulating[:, -1]),
    )


def _arriving(rate: Floats, numbers: Floats, per_s: Floats) -> QueueState:
    """Return the state of an open loop: the distribution `p(n)` of the module's docstring."""
    most = numbers[:, -1]
    number = np.arange(1.0, most.max() + 1.0)
    high = np.searchsorted(numbers.max(axis=0), number)
    low_n, high_n = numbers[:, high - 1], numbers[:, high]
    is_possible = number <= most[:, None]
    fraction = np.where(
        is_possible, (number - low_n) / np.where(is_possible, high_n - low_n, 1.0), 1.0
    )
    completions_per_s = per_s[:, high - 1] + fraction * (per_s[:, high] - per_s[:, high - 1])
    log_p = np.cumsum(np.log(rate[:, None] / completions_per_s), axis=1)
    log_scale = np.maximum(0.0, np.where(is_possible, log_p, -np.inf).max(axis=1))
    weight = np.where(is_possible, np.exp(np.minimum(0.0, log_p - log_scale[:, None])), 0.0)
    rows, last = np.arange(rate.size), most.astype(np.int64) - 1
    p_empty, p_full = np.exp(-log_scale), weight[rows, last]
    utilization = rate / per_s[:, -1]
    stable = utilization < 1.0
    tail = p_full * utilization / np.where(stable, 1.0 - utilization, 1.0)
    # Sums run along the numbers of requests, one after another: the same in every batch.
    total = p_empty + np.cumsum(weight, axis=1)[rows, last] + tail
    running = np.cumsum(weight * number, axis=1)[rows, last] + tail * most
    waiting = tail / np.where(stable, 1.0 - utilization, 1.0)
    return QueueState(
        busy=np.where(stable, 1.0 - p_empty / total, 1.0),
        running=np.where(stable, running / total, most),
        waiting=np.where(stable, waiting / total, np.inf),
    )


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """The steady state of each row; NaN where latencies have none."""

    requests_per_s: Floats  # of one replica
    running: Floats  # requests in seats
    busy: Floats  # share of the time with any
    ttft_s: Floats
    tpot_s: Floats
    queue_s: Floats
    saturated: NDArray[np.bool_]


def state_of(
    station: Station,
    lengths: Lengths,
    cycle: Cycle,
    prices: Prices,
    seats: Floats,
    queue: QueueState,
) -> SteadyState:
    """Return the steady state, with `seats` running requests per batch while there is work."""
    cycle_s = station.stages * cycle.pace_s(prices)
    closed = np.isnan(station.rate)
    saturated = np.isinf(queue.waiting)
    p_full = closed | saturated
    busy = np.where(saturated, 1.0, queue.busy)
    actual = np.where(p_full, busy * station.stages * seats / cycle_s, station.rate)
    first_s = cycle.chunks * prices.prompt_pass_s
    backlog_s = cycle.backlog * station.stages * prices.prompt_pace_s
    decode_s = station.stages * prices.decode_pace_s
    open_s = _prompt_wait_s(station, lengths, cycle, prices, queue.busy, actual)
    seated_s = np.where(p_full, cycle_s, queue.running / actual)
    # Time in a seat beyond the request's own prefill and its shortest decodes.
    spare_s = np.maximum(0.0, seated_s - first_s - station.decodes * decode_s)
    at_once = saturated | (closed & (station.think_s == 0.0))
    prompt_wait_s = np.where(at_once, backlog_s, np.minimum(open_s, spare_s))
    varied = (station.arrival_scv + lengths.output_scv) / 2.0
    seat_wait_s = np.where(closed, 1.0, varied) * np.where(saturated, 0.0, queue.waiting) / actual
    later_s = (seated_s - first_s - prompt_wait_s) / np.maximum(cycle.later, 1.0)
    # With chunked prefill, every iteration decodes, so TPOT follows from the mean iteration.
    round_s = cycle_s / cycle.rounds * cycle.per_token
    later_s = np.where(station.chunked & ~at_once, round_s, later_s)
    queue_s = np.where(saturated, np.nan, seat_wait_s + prompt_wait_s)
    return SteadyState(
        requests_per_s=actual,
        running=queue.running,
        busy=busy,
        ttft_s=queue_s + first_s,
        tpot_s=np.where(cycle.later > 0.0, later_s, np.nan),
        queue_s=queue_s,
        saturated=saturated,
    )


def _prompt_wait_s(
    station: Station, lengths: Lengths, cycle: Cycle, prices: Prices, busy: Floats, rate: Floats
) -> Floats:
    """Return the wait of a prompt for earlier prompts and for the current iteration."""
    varied = (station.arrival_scv + lengths.prompt_scv) / 2.0
    filled = cycle.prompt_tokens / cycle.iterations.prompt_tokens  # those shared by their share
    one_s = filled * prices.prompt_pace_s
    share = np.minimum(busy, rate * one_s)
    left = np.maximum(1.0 - share, 1.0 / (1.0 + station.stages * station.seats))
    behind_s = varied * share * one_s / left
    # The current iteration: decodes alone, or with chunked prefill also one with a chunk.
    under_way_s = np.where(
        station.chunked, cycle.pace_s(prices) / cycle.rounds, prices.decode_pace_s
    )
    rest = np.where(station.chunked, busy, (busy - share) / left)
    return behind_s + np.minimum(1.0, rest) * under_way_s / 2.0
