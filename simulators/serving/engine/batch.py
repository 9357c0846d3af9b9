"""The sums of a batch that its price depends on, and what a price says: columns of two arrays.

The sums are those that attention and the linear layers depend on; the last two are only for tables
of operator times keyed as VIDUR's are, by rounded quantities.
"""

from __future__ import annotations

from simulators.core.jit import arrays, f8, i8

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
