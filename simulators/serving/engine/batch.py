"""A batch is priced by a few sums over its requests, whatever its length.

The sums are those that attention and the linear layers depend on; the last two are only for VIDUR's
tables, which are keyed by rounded quantities.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints, arrays, f8, i8, matrix
from simulators.serving.engine.kernel import kernel
from simulators.serving.engine.replica import DONE, PROMPT

# One `step`: the sums of a batch.
(
    TOKENS,  # new tokens
    LOGITS_ROWS,  # requests that get an output token
    PREFILLS,  # requests with prompt tokens
    PREFILL_TOKENS,  # their new tokens c
    PREFILL_PAIRS,  # their query-key pairs, c * past + c * (c + 1) / 2
    PREFILL_KV,  # their keys read, past + c
    DECODES,  # requests with one token
    DECODE_KV,  # their keys read
    PREFILL_SQUARES,  # sum of c * c
    PREFILL_PAST,  # sum of past, each rounded up to PAST_STEP
) = range(10)
STEP_COLUMNS = 10

PAST_STEP = 64
"""The granularity of VIDUR's attention tables, in tokens of KV cache."""

# What a price writes.
(
    STAGE_S,  # seconds on a stage that sends on
    LAST_STAGE_S,  # seconds on the last stage
    ENERGY_J,  # joules of the replica
    STAGE_SLOPE_S,
    SLOPE_S,
    SLOPE_J,
    STAGE_BASE_S,
    BASE_S,
    BASE_J,
    STAGE_FLOOR_S,
    FLOOR_S,
    STAGE_ADDED_S,
    ADDED_S,
    WAITING_W,
    UNTIL_KV,
) = range(15)
PRICE_COLUMNS = 15
"""While the decodes' keys grow and stay below UNTIL_KV, the last stage works for
`busy = BASE_S + SLOPE_S * keys` and takes `max(FLOOR_S, busy) + ADDED_S`; so do the others with
numbers of their own. All draw `BASE_J + SLOPE_J * keys`, and WAITING_W each while not busy."""

PRICE = f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 2))
"""step, shape, table, price -> seconds of the last stage; all of `price` is written."""


@kernel(f8(matrix(i8), *arrays(i8, 2), i8, *arrays(f8, 1)))
def measure(request: Ints, batch: Ints, tokens: Ints, size: int, step: Floats) -> float:
    """Write the sums of a batch and return its tokens."""
    step[:] = 0.0
    for i in range(size):
        who, granted = batch[i], tokens[i]
        done, prompt = request[who, DONE], request[who, PROMPT]
        if done > prompt:
            step[DECODES] += 1.0
            step[DECODE_KV] += done
            step[LOGITS_ROWS] += 1.0
            continue
        step[PREFILLS] += 1.0
        step[PREFILL_TOKENS] += granted
        step[PREFILL_PAIRS] += granted * done + granted * (granted + 1) // 2
        step[PREFILL_KV] += done + granted
        step[PREFILL_SQUARES] += granted * granted
        step[PREFILL_PAST] += (done + PAST_STEP - 1) // PAST_STEP * PAST_STEP
        if done + granted == prompt:
            step[LOGITS_ROWS] += 1.0
    step[TOKENS] = step[PREFILL_TOKENS] + step[DECODES]
    return step[TOKENS]  # type: ignore[no-any-return]
