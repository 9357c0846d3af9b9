"""VIDUR's own definitions, where ours differ: to compare runs with that simulator event by event.

Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference" (2024); read from
microsoft/vidur at 7d47513363ec. Embedding, LM head, sampling and host time are not counted, and a
mixed batch adds its prefill and decode parts. VIDUR's vLLM scheduler and its LOR router are the
plug-ins `load_scheduler("lab.parity.vidur")` and `load_router("lab.parity.vidur")`.
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats, Ints
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import admit, blocks_for, can_admit, has_free_blocks
from simulators.serving.engine.replica import View, kernel
from simulators.serving.prices import user_operator_times
from simulators.serving.schedulers.vllm import decode_all

LAUNCH_MS = 0.02
"""Host time of one collective, added to each of the two all-reduces of a layer."""

GQA_FACTOR = 1.1
"""Attention over more than one request costs this much more where heads share keys and values."""

SAVED, GROUPED = user_operator_times.CHUNKS + 1, user_operator_times.CHUNKS + 2
"""Further entries of a table's `shape`: sizes at which keys and values are saved, whether heads
share them. Their times follow the other tables."""


def vidur_table(
    times: user_operator_times.Times, *, layers: int, grouped: bool, tp: int
) -> user_operator_times.OpTable:
    """Return the price table of a stage. Raises UserError if an operator is missing."""
    known = user_operator_times.stage_table(
        times, user_operator_times.layer_ms(times, tp=tp, launch_ms=LAUNCH_MS), layers=layers
    )
    saves = user_operator_times.by_tokens(times, user_operator_times.KV_SAVE) * layers
    return user_operator_times.OpTable(
        np.array([*known.shape, saves.size, grouped], np.int64),
        np.concatenate([known.table, saves / 1e3]),
    )


@kernel(at.PRICE)
def vidur_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the last stage: exact look-ups, as VIDUR rounds their keys.

    The time to save keys and values is known at multiples of eight tokens, and taken as none
    elsewhere. What else the table lacks is not a number, and ends the run.
    """
    price[:] = 0.0
    spent, tokens = 0.0, int(step[at.TOKENS])
    if (
        tokens % user_operator_times.TOKEN_STEP == 0
        and tokens // user_operator_times.TOKEN_STEP < shape[SAVED]
    ):
        spent += table[shape[user_operator_times.END] + tokens // user_operator_times.TOKEN_STEP]
    grouped = shape[GROUPED] == 1
    part = user_operator_times.decode_s(step, shape, table, price)
    spent += part * GQA_FACTOR if grouped and step[at.DECODES] > 1.0 else part
    part = user_operator_times.prefill_s(step, shape, table, price)
    spent += part * GQA_FACTOR if grouped and step[at.PREFILLS] > 1.0 else part
    return user_operator_times.with_layers_s(spent, step, shape, table, price)


PREFILL_FIRST = True


@kernel(at.SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Admit prompts while they fit, padded to the longest; decode all requests without any."""
    limits, pool = view.limits, view.pool
    longest = 0
    while can_admit(limits, pool):
        prompt = view.request[view.waiting[pool[at.WAITING_HEAD]], at.PROMPT]
        longest = max(longest, prompt)
        if (
            pool[at.BATCH_SIZE] > 0
            and (pool[at.BATCH_SIZE] + 1) * longest > limits[at.MAX_PREFILL_TOKENS]
        ):
            break
        blocks = blocks_for(prompt, limits[at.BLOCK])
        if not has_free_blocks(limits, pool, blocks):
            break
        admit(view, blocks, prompt, 0)
    return 1 if pool[at.BATCH_SIZE] > 0 else decode_all(view)


@kernel(at.ROUTE)
def route(_arrivals: int, waiting: Ints, _running: Ints, _found: Ints, _draws: Floats) -> int:
    """Return the replica with the fewest waiting requests, running ones not counted."""
    best = 0
    for replica in range(1, waiting.size):
        if waiting[replica] < waiting[best]:
            best = replica
    return best
