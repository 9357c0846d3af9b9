"""The sums of a batch that its price depends on: tokens, pairs of queries and keys, keys read."""

from __future__ import annotations

from math import inf

from simulators.core.jit import Floats, Ints, arrays, f8, i8, matrix
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import kernel
from simulators.serving.engine.state import STATE, ReplicaState


@kernel(f8(matrix(i8), *arrays(i8, 2), i8, i8, *arrays(f8, 1)))
def measure(
    request: Ints, batch: Ints, tokens: Ints, size: int, checked: int, step: Floats
) -> float:
    """Write the sums of a batch and return its tokens; of a decode so many are checked."""
    step[:] = 0.0
    decodes, keys = 0, 0
    for i in range(size):
        who, granted = batch[i], tokens[i]
        done, prompt = request[who, at.DONE], request[who, at.PROMPT]
        if done > prompt:
            decodes += 1
            keys += done
            continue
        step[at.PREFILLS] += 1.0
        step[at.PREFILL_TOKENS] += granted
        step[at.PREFILL_PAIRS] += granted * done + granted * (granted + 1) // 2
        step[at.PREFILL_KV] += done + granted
        step[at.PREFILL_SQUARES] += granted * granted
        step[at.PREFILL_PAST] += (done + at.PAST_STEP - 1) // at.PAST_STEP * at.PAST_STEP
        if done + granted == prompt:
            step[at.LOGITS_ROWS] += 1.0
    step[at.DECODES], step[at.DECODE_KV] = decodes, keys
    step[at.LOGITS_ROWS] += checked * decodes
    step[at.TOKENS] = step[at.PREFILL_TOKENS] + checked * step[at.DECODES]
    step[at.EVERYWHERE] = step[at.TOKENS]
    return step[at.TOKENS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def join(state: ReplicaState, first: int) -> int:
    """Write the sums that batches of ranks which step together are priced by; return their growth.

    Attention of all ranks takes as long as if each had what the busiest has, which is the one with
    the most tokens, of equal ones with the most keys. What is returned are the keys by which the
    decodes' grow in one iteration.

    Experts see the tokens of all. No rank goes on before it has those of all others: the one with
    the fewest of its own waits longest, whereas of even ones each waits for `(ranks - 1) / ranks`.
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
            state.priced[rank, at.EVERYWHERE] = together
            longest = (together - least) * ranks / (together * max(1, ranks - 1))
            state.priced[rank, at.UNEVEN] = longest - 1.0
    return int(state.priced[busiest, at.DECODES])
