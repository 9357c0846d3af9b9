"""Steady state of one replica: cycle of iterations, and mean queue.

Cycle. Each of `pp` batches in flight has `b` running requests of `P` prompt and `D` output
tokens. A request needs its prompt processed, which brings the first token, and `D - 1` decodes. In
one cycle every slot of a batch serves one request, and the slowest stage works

    cycle = decodes_n * decode_s + prompts_n * prompt_s         requests/s = b / cycle

In a pipeline all batches in flight pass all stages in one round, and a round lasts as if all were
like its longest batch: behind a batch with prompts the others wait at one stage and leave bubbles
at the rest. A round without prompts has the share `(decodes_n / (decodes_n + prompts_n)) ** pp`,
and likewise one with prompts in all batches.

Whole prompts first (Kwon et al., 2023): a cycle has `D - 1` decode iterations of all running
requests, and between two of them the prompts of the `b / (D - 1)` requests that took a free
slot, as many together as the batch's tokens allow. Chunked prefill (Agrawal et al., 2024): an
iteration holds at most `C` tokens, decodes first. A cycle has `N` iterations,

    N = max(D - 1 + ceil(P / (C - decodes)), b (P + D - 1) / C)

either as many as one request needs, or as many as it takes to pass all tokens through full
iterations; `b (D - 1) / N` requests decode at a time (Little), and as many iterations hold a
chunk as the prompts of a cycle fill. With speculative decoding a request needs fewer decodes than
`D - 1`, each of `checked` tokens.

Queue. A replica with `n` running requests completes `X(n)` per second, all of them at the same
pace. That is processor sharing with state-dependent rates, in which for Poisson arrivals of rate
`r` the number of requests is distributed as

    p(n) ~ product over k = 1 .. n of r / X(min(k, m))

with at most `m` running requests, for any distribution of lengths (Cohen, "The multiple phase
service network with generalized processor sharing", 1979; with limited concurrency Zhang and Zwart,
2008). Little's law converts numbers to times. The wait for a slot is scaled by the variation of
gaps and lengths, as in a GI/G/m queue (Allen and Cunneen). Prompts wait as in an M/G/1 queue whose
server takes a vacation of one decode iteration whenever no prompt is left (Doshi, "Queueing systems
with vacations", 1986).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.core.columns import Shares
from simulators.core.jit import Floats, Ints
from simulators.serving.prices.iteration_table import octaves
from simulators.serving.steady.design import Lengths, Station
from simulators.serving.steady.iteration_times import Iterations, Prices

EXPECTED_SHARE_BEFORE = 0.5
"""Expected share of competing prompts that are processed before a given one."""


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Numbers of iterations per cycle, in which every slot of a batch serves one request."""

    decodes_n: Floats
    prompts_n: Floats
    rounds: Floats  # iterations of both kinds
    calm: Floats  # share of the rounds without a prompt in any batch in flight
    full: Floats  # share of the rounds with prompts in all of them
    later: Floats  # output tokens of a request after the first
    per_token: Floats  # decodes per later token
    chunks: Floats  # iterations of one prompt
    prompt_tokens: Floats
    backlog: Floats  # iterations that an admitted prompt waits for its prefill
    iterations: Iterations

    def pace_s(self, prices: Prices) -> Floats:
        """Return the seconds of a cycle of the pipeline divided by the batches in flight."""
        slow = np.maximum(prices.decode_pace_s, prices.prompt_pace_s)
        mixed = 1.0 - self.calm - self.full
        alike = self.calm * prices.decode_pace_s + self.full * prices.prompt_pace_s
        return self.rounds * (alike + mixed * slow)

    def busy_s(self, prices: Prices) -> Floats:
        """Return the seconds of a cycle's work, summed over stages."""
        return self.decodes_n * prices.decode_pass_s + self.prompts_n * prices.prompt_pass_s

    def shares(self, prices: Prices) -> Shares:
        """Return the shares of a cycle's time by evidence."""
        seconds = self.decodes_n * prices.decode_levels_s + self.prompts_n * prices.prompt_levels_s
        return np.asarray(seconds / seconds.sum(axis=0), np.float64)

    def joules(self, prices: Prices) -> Floats:
        """Return the joules of a cycle's work."""
        return self.decodes_n * prices.decode_j + self.prompts_n * prices.prompt_j


def cycle_of(station: Station, lengths: Lengths, kind: Ints, batch_size: Floats) -> Cycle:
    """Return the cycle of each row with `batch_size` running requests per batch."""
    later = lengths.output - 1.0
    whole = _whole(station, lengths, batch_size)
    if station.chunked.any():
        layout = _chunked(station, lengths, batch_size)
        whole = [np.where(station.chunked, c, w) for c, w in zip(layout, whole, strict=True)]
    decodes, beside, prompts, tokens, decodes_n, prompts_n, chunks, backlog = whole
    share = tokens / (prompts * lengths.prompt)  # of its prompts that an iteration processes
    return Cycle(
        decodes_n=decodes_n,
        prompts_n=prompts_n,
        rounds=decodes_n + prompts_n,
        calm=power(decodes_n / (decodes_n + prompts_n), station.stages),
        full=power(prompts_n / (decodes_n + prompts_n), station.stages),
        later=later,
        per_token=np.where(later > 0.0, station.decodes / np.where(later > 0.0, later, 1.0), 1.0),
        chunks=chunks,
        prompt_tokens=lengths.prompt,
        backlog=backlog,
        iterations=Iterations(
            decodes=decodes,
            keys=lengths.keys,
            prompt_decodes=beside,
            prompts=prompts,
            prompt_tokens=tokens,
            prompt_pairs=share * prompts * lengths.pairs,
            prompt_keys=prompts * (lengths.found + lengths.prompt * (1.0 + share) / 2.0),
            kind=kind,
        ),
    )


def power(base: Floats, exponent: Floats) -> Floats:
    """Return integer powers by multiplication, which is bit-identical on every platform."""
    result = base.copy()
    for step in range(1, int(exponent.max(initial=1.0))):
        result = np.where(step < exponent, result * base, result)
    return result


def _whole(station: Station, lengths: Lengths, batch_size: Floats) -> list[Floats]:
    """Return the columns of a cycle in which whole prompts are prefilled before decodes."""
    needed = station.decodes
    most = np.maximum(1.0, np.floor(station.tokens / lengths.prompt))
    # Slots that become free during one decode.
    freed = np.where(needed > 0.0, batch_size / np.maximum(needed, 1.0), batch_size)
    prompts = np.clip(np.rint(freed), 1.0, np.minimum(most, np.maximum(1.0, np.floor(batch_size))))
    # A request in a freed slot competes with the requests in the other slots freed at that time. Of
    # the requests that do not fit into its iteration, half are processed before it.
    arriving_together = 1.0 + freed * (1.0 - 1.0 / np.maximum(batch_size, 1.0))
    before = np.where(arriving_together > most, EXPECTED_SHARE_BEFORE, 1.0)
    groups = np.where(
        needed > 0.0, before * (arriving_together / prompts - 1.0), batch_size / prompts - 1.0
    )
    return [
        batch_size,
        np.zeros(batch_size.size),
        prompts,
        prompts * lengths.prompt,
        needed,
        batch_size / prompts,
        np.ones(batch_size.size),
        np.maximum(0.0, groups),
    ]


def _chunked(station: Station, lengths: Lengths, batch_size: Floats) -> list[Floats]:
    """Return the columns of a cycle with chunked prefill beside decodes."""
    needed, checked = station.decodes, station.checked
    need = lengths.prompt + checked * needed
    most = (station.tokens - 1.0) / checked
    decoding = np.minimum(np.minimum(batch_size, station.tokens * needed / need), most)
    chunks = np.ceil(lengths.prompt / (station.tokens - checked * decoding))
    iterations = np.maximum(needed + chunks, batch_size * need / station.tokens)
    decodes = batch_size * needed / iterations
    # Prompts in an iteration with any.
    under_way = np.maximum(1.0, chunks * batch_size / iterations)
    left = station.tokens - checked * decodes
    tokens = np.minimum(left, under_way * lengths.prompt / chunks)
    prompts_n = np.minimum(iterations, batch_size * lengths.prompt / tokens)
    return [
        np.maximum(decodes, 1.0),
        decodes * np.maximum(batch_size - 1.0, 0.0) / batch_size,
        np.maximum(1.0, tokens * chunks / lengths.prompt),
        tokens,
        iterations - prompts_n,
        prompts_n,
        chunks,
        np.maximum(0.0, iterations - needed - chunks),
    ]


BATCH_SIZE_STEPS = 4
"""Batch sizes priced per octave; throughput is interpolated between them."""


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """Mean numbers of running and waiting requests of one replica, per row."""

    busy: Floats  # share of the time with requests; closed loop: of the batches in flight
    running: Floats  # mean number of running requests
    waiting: Floats  # mean number of waiting requests; infinite above capacity

    def put(self, rows: Ints, part: QueueState) -> None:
        """Write rows of this state."""
        for name, column in vars(self).items():
            column[rows] = getattr(part, name)


def has_fixed_population(station: Station) -> NDArray[np.bool_]:
    """Return the rows whose number of requests does not depend on the replica's speed."""
    away = (station.think_s > 0.0) | (station.server_s > 0.0) | (station.stream_s > 0.0)
    away |= station.formed_ahead > 0.0
    known: NDArray[np.bool_] = np.isnan(station.rate) & (np.isinf(station.clients) | ~away)
    return known


def closed_population(station: Station) -> QueueState:
    """Return the state with all clients at the replica; a placeholder for other rows."""
    capacity = station.stages * station.max_batch_size
    clients = np.where(np.isinf(station.clients), capacity, station.clients)
    running = np.minimum(clients, capacity)
    busy = np.minimum(1.0, running / station.stages)
    return QueueState(busy=busy, running=running, waiting=clients - running)


def priced_batch_sizes(most: float) -> Floats:
    """Return the batch sizes between which throughput is interpolated, starting with 0.

    >>> priced_batch_sizes(10.0)
    array([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8., 10.])
    """
    grid = octaves(BATCH_SIZE_STEPS, max(1, int(np.ceil(most))))
    return grid[: int(np.searchsorted(grid, most)) + 1]


def queue_state_of(
    station: Station, batch_size: Floats, per_s: Floats, away_s: Floats
) -> QueueState:
    """Return the mean numbers of requests of rows with equally many stages.

    `batch_size` holds the priced batch sizes of each row, ascending from 0 to the maximum, `per_s`
    the requests per second at each, and `away_s` the time that a closed loop's client thinks or
    waits for the API server. All have the shape (rows, batch sizes).
    """
    numbers = batch_size * station.stages[:, None]
    closed = np.isnan(station.rate)
    answered = _closed_loop_state(station, numbers, per_s, away_s)
    arriving = _open_loop_state(np.where(closed, per_s[:, 1], station.rate), numbers, per_s)
    return QueueState(
        **{
            name: np.where(closed, getattr(answered, name), getattr(arriving, name))
            for name in QueueState.__dataclass_fields__
        }
    )


def _closed_loop_state(
    station: Station, numbers: Floats, per_s: Floats, away_s: Floats
) -> QueueState:
    """Return the state of a closed loop, interpolated over running requests."""
    clients = np.where(np.isinf(station.clients), numbers[:, -1], station.clients)
    circulating = numbers + away_s * per_s  # clients at the replica and away from it
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


def _open_loop_state(rate: Floats, numbers: Floats, per_s: Floats) -> QueueState:
    """Return the state of an open loop: the distribution `p(n)` of the module's docstring."""
    most = numbers[:, -1]
    number = np.arange(1.0, most.max() + 1.0)
    high = np.searchsorted(numbers.max(axis=0), number)
    low_n, high_n = numbers[:, high - 1], numbers[:, high]
    is_possible = number <= most[:, None]
    gap_n = np.where(is_possible, high_n - low_n, 1.0)
    fraction = np.where(is_possible, (number - low_n) / gap_n, 1.0)
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
    running: Floats  # mean number of running requests
    busy: Floats  # share of the time with requests
    ttft_s: Floats
    tpot_s: Floats
    queue_s: Floats
    formed_s: Floats  # part of `queue_s`: the wait for a batch that was formed ahead
    saturated: NDArray[np.bool_]


def frontend_s(station: Station, running: Floats) -> Floats:
    """Return the mean time that the API server adds to the first token and to the last."""
    added_s: Floats = station.server_s + station.stream_s * running
    return added_s


def state_of(
    station: Station,
    lengths: Lengths,
    cycle: Cycle,
    prices: Prices,
    batch_size: Floats,
    queue: QueueState,
) -> SteadyState:
    """Return the steady state, with `batch_size` running requests per batch while there is work."""
    cycle_s = station.stages * cycle.pace_s(prices)
    closed = np.isnan(station.rate)
    saturated = np.isinf(queue.waiting)
    p_full = closed | saturated
    busy = np.where(saturated, 1.0, queue.busy)
    actual = np.where(p_full, busy * station.stages * batch_size / cycle_s, station.rate)
    first_s = cycle.chunks * prices.prompt_pass_s
    backlog_s = cycle.backlog * station.stages * prices.prompt_pace_s
    decode_s = station.stages * prices.decode_pace_s
    open_s = _prompt_wait_s(station, lengths, cycle, prices, queue.busy, actual)
    running_s = np.where(p_full, cycle_s, queue.running / actual)
    # Running time beyond the request's own prefill and its shortest decodes.
    spare_s = np.maximum(0.0, running_s - first_s - station.decodes * decode_s)
    at_once = saturated | (closed & (station.think_s == 0.0))
    open_s = np.where(station.chunked, open_s, np.minimum(open_s, spare_s))
    prompt_wait_s = np.where(at_once, backlog_s, open_s)
    varied = (station.arrival_scv + lengths.output_scv) / 2.0
    slot_wait_s = np.where(closed, 1.0, varied) * np.where(saturated, 0.0, queue.waiting) / actual
    later_s = (running_s - first_s - prompt_wait_s) / np.maximum(cycle.later, 1.0)
    # With chunked prefill, every iteration decodes, so TPOT follows from the mean iteration.
    round_s = cycle_s / cycle.rounds * cycle.per_token
    later_s = np.where(station.chunked & ~at_once, round_s, later_s)
    # Only requests of other clients keep a replica busy when a client's request arrives.
    others = np.where(closed, np.maximum(0.0, 1.0 - 1.0 / station.clients), 1.0)
    formed_s = station.formed_ahead * others * busy * cycle_s / cycle.rounds
    queue_s = np.where(saturated, np.nan, slot_wait_s + prompt_wait_s + formed_s)
    # Batch sizes between priced ones are interpolated: the clients limit the rate (Little's law).
    e2e_s = queue_s + first_s + frontend_s(station, queue.running) + cycle.later * later_s
    most_per_s = np.where(closed, station.clients / (e2e_s + station.think_s), np.inf)
    served = np.fmin(actual, most_per_s)
    return SteadyState(
        requests_per_s=served,
        running=queue.running,
        busy=busy * served / actual,
        ttft_s=queue_s + first_s,
        tpot_s=np.where(cycle.later > 0.0, later_s, np.nan),
        queue_s=queue_s,
        formed_s=formed_s,
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
    left = np.maximum(1.0 - share, 1.0 / (1.0 + station.stages * station.max_batch_size))
    behind_s = varied * share * one_s / left
    # The current iteration: decodes alone, or with chunked prefill also one with a chunk.
    round_s = cycle.pace_s(prices) / cycle.rounds
    under_way_s = np.where(station.chunked, round_s, prices.decode_pace_s)
    rest = np.where(station.chunked, busy, (busy - share) / left)
    return behind_s + np.minimum(1.0, rest) * under_way_s / 2.0
