"""The cycle of iterations in which every seat of a replica serves one request, and its time.

Of `pp` batches in flight each has `seats` running requests of `P` prompt and `D` output tokens. A
request needs its prompt processed, which brings the first token, and `D - 1` decodes. In one cycle
each seat serves one request, and the slowest stage works

    cycle = decodes_n * decode_s + prompts_n * prompt_s         requests/s = seats / cycle

In a pipeline all batches in flight pass all stages in one round, and a round lasts as if all were
like its longest: behind a batch with prompts the others wait at one stage and leave bubbles at the
rest. A round without prompts has the share `(decodes_n / (decodes_n + prompts_n)) ** pp`.

Whole prompts first (Kwon et al., 2023): a cycle has `D - 1` decode iterations of all seats, and
between two of them the prompts of the `seats / (D - 1)` requests that took a free seat, as many
together as the batch's tokens allow. Prompts in chunks (Agrawal et al., 2024): an iteration holds
at most `C` tokens, decodes first. A cycle has `N` iterations,

    N = max(D - 1 + ceil(P / (C - decodes)), seats (P + D - 1) / C)

either as many as one request needs, or as many as it takes to pass all tokens through full ones;
`seats (D - 1) / N` seats decode at a time (Little), and so many iterations hold a chunk as the
prompts of a cycle fill. Where tokens are drafted a request needs fewer decodes than `D - 1`, each
of `checked` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.columns import Shares
from simulators.core.jit import Floats, Ints
from simulators.serving.steady.columns import Lengths, Station
from simulators.serving.steady.iteration_times import Iterations, Prices

EXPECTED_SHARE_BEFORE = 0.5
"""Expected share of competing prompts that are processed before a given one."""


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Numbers of iterations per cycle, in which every seat of a batch serves one request."""

    decodes_n: Floats
    prompts_n: Floats
    rounds: Floats  # of either kind
    calm: Floats  # share of the rounds in which no batch in flight has a prompt
    later: Floats  # tokens of a request after the first
    per_token: Floats  # decodes for each of them
    chunks: Floats  # iterations one prompt needs
    prompt_tokens: Floats
    backlog: Floats  # iterations that a seated prompt waits for its prefill
    iterations: Iterations

    def pace_s(self, prices: Prices) -> Floats:
        """Return the seconds of a cycle in the pipeline, over the batches in flight."""
        slow = np.maximum(prices.decode_pace_s, prices.prompt_pace_s)
        calm = self.rounds * self.calm
        return calm * prices.decode_pace_s + (self.rounds - calm) * slow

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


def cycle_of(station: Station, lengths: Lengths, kind: Ints, seats: Floats) -> Cycle:
    """Return the cycle of rows with a number of seats taken."""
    later = lengths.output - 1.0
    whole = _whole(station, lengths, seats)
    if station.chunked.any():
        cut = _chunked(station, lengths, seats)
        whole = [np.where(station.chunked, c, w) for c, w in zip(cut, whole, strict=True)]
    decodes, beside, prompts, tokens, decodes_n, prompts_n, chunks, backlog = whole
    share = tokens / (prompts * lengths.prompt)  # of its prompts that an iteration processes
    return Cycle(
        decodes_n=decodes_n,
        prompts_n=prompts_n,
        rounds=decodes_n + prompts_n,
        calm=power(decodes_n / (decodes_n + prompts_n), station.stages),
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
    """Return whole powers by multiplication, which has the same bits everywhere."""
    result = base.copy()
    for step in range(1, int(exponent.max(initial=1.0))):
        result = np.where(step < exponent, result * base, result)
    return result


def _whole(station: Station, lengths: Lengths, seats: Floats) -> list[Floats]:
    """Return the columns of a cycle that prefills whole prompts before decodes."""
    needed = station.decodes
    most = np.maximum(1.0, np.floor(station.tokens / lengths.prompt))
    freed = np.where(needed > 0.0, seats / np.maximum(needed, 1.0), seats)  # during one decode
    prompts = np.clip(np.rint(freed), 1.0, np.minimum(most, np.maximum(1.0, np.floor(seats))))
    # A request in a freed seat competes with as many requests as seats are freed on average. Of
    # requests that do not fit into its iteration, half are processed before it.
    arriving_together = 1.0 + freed * (1.0 - 1.0 / np.maximum(seats, 1.0))
    before = np.where(arriving_together > most, EXPECTED_SHARE_BEFORE, 1.0)
    groups = np.where(
        needed > 0.0, before * (arriving_together / prompts - 1.0), seats / prompts - 1.0
    )
    return [
        seats,
        np.zeros(seats.size),
        prompts,
        prompts * lengths.prompt,
        needed,
        seats / prompts,
        np.ones(seats.size),
        np.maximum(0.0, groups),
    ]


def _chunked(station: Station, lengths: Lengths, seats: Floats) -> list[Floats]:
    """Return the columns of a cycle with chunked prefill beside decodes."""
    needed, checked = station.decodes, station.checked
    need = lengths.prompt + checked * needed
    most = (station.tokens - 1.0) / checked
    decoding = np.minimum(np.minimum(seats, station.tokens * needed / need), most)
    chunks = np.ceil(lengths.prompt / (station.tokens - checked * decoding))
    iterations = np.maximum(needed + chunks, seats * need / station.tokens)
    decodes = seats * needed / iterations
    under_way = np.maximum(1.0, chunks * seats / iterations)  # prompts in an iteration with any
    left = station.tokens - checked * decodes
    tokens = np.minimum(left, under_way * lengths.prompt / chunks)
    prompts_n = np.minimum(iterations, seats * lengths.prompt / tokens)
    return [
        np.maximum(decodes, 1.0),
        decodes * np.maximum(seats - 1.0, 0.0) / seats,
        np.maximum(1.0, tokens * chunks / lengths.prompt),
        tokens,
        iterations - prompts_n,
        prompts_n,
        chunks,
        iterations - needed - chunks,
    ]
