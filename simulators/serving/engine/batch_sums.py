"""Sums over a batch that its price depends on: tokens, query-key pairs, keys read."""

from __future__ import annotations

from math import inf

from simulators.core.jit import Floats, Ints, arrays, f8, i8, matrix
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import kernel
from simulators.serving.engine.state import STATE, ReplicaState


@kernel(f8(matrix(i8), *arrays(i8, 2), i8, i8, *arrays(f8, 1)))
def sum_batch(
    request: Ints, batch: Ints, tokens: Ints, size: int, checked: int, step: Floats
) -> float:
    """Write the sums of a batch and return its tokens; each decode verifies `checked` tokens."""
    step[:] = 0.0
    decodes, keys = 0, 0
    for i in range(size):
        req, num_scheduled = batch[i], tokens[i]
        num_computed, prompt = request[req, at.NUM_COMPUTED], request[req, at.PROMPT]
        if num_computed > prompt:
            decodes += 1
            keys += num_computed
            continue
        step[at.PREFILLS] += 1.0
        step[at.PREFILL_TOKENS] += num_scheduled
        step[at.PREFILL_PAIRS] += (
            num_scheduled * num_computed + num_scheduled * (num_scheduled + 1) // 2
        )
        step[at.PREFILL_KV] += num_computed + num_scheduled
        step[at.PREFILL_SQUARES] += num_scheduled * num_scheduled
        step[at.PREFILL_PAST] += (num_computed + at.PAST_STEP - 1) // at.PAST_STEP * at.PAST_STEP
        if num_computed + num_scheduled == prompt:
            step[at.LOGITS_ROWS] += 1.0
    step[at.DECODES], step[at.DECODE_KV] = decodes, keys
    step[at.LOGITS_ROWS] += checked * decodes
    step[at.TOKENS] = step[at.PREFILL_TOKENS] + checked * step[at.DECODES]
    step[at.ALL_RANK_TOKENS] = step[at.TOKENS]
    return step[at.TOKENS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def combine_ranks(state: ReplicaState, first: int) -> int:
    """Write the sums that price the synchronous batches of all ranks; return their key growth.

    Attention takes as long as on the busiest rank, the one with the most tokens, then the most
    keys. Experts process the tokens of all ranks. Collectives wait for the tokens of all other
    ranks: longest on the rank with the fewest tokens, `(ranks - 1) / ranks` of all if balanced.
    """
    ranks, busiest, together, least = state.limits[at.RANKS], first, 0.0, inf
    for rank in range(first, first + ranks):
        least = min(least, state.step[rank, at.TOKENS] if state.sizes[rank] > 0 else 0.0)
        if state.sizes[rank] > 0:
            step, most = state.step[rank], state.step[busiest]
            together += step[at.TOKENS]
            if state.sizes[busiest] == 0 or (step[at.TOKENS], step[at.DECODE_KV]) > (
                most[at.TOKENS],
                most[at.DECODE_KV],
            ):
                busiest = rank
    for rank in range(first, first + ranks):
        if state.sizes[rank] > 0:
            for column in range(at.STEP_COLUMNS):
                state.priced[rank, column] = state.step[busiest, column] * ranks
            state.priced[rank, at.ALL_RANK_TOKENS] = together
            longest = (together - least) * ranks / (together * max(1, ranks - 1))
            state.priced[rank, at.RANK_IMBALANCE] = longest - 1.0
    return int(state.priced[busiest, at.DECODES])
