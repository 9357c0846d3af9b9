"""How many tokens to draft at a load: as many as bring most tokens a second.

Drafts cost more the more sequences run, since one pass then checks more rows than it has bytes to
wait for. The rule takes, at each number of decodes `B`, the `k` with the largest `t(k) / T(k, B)`:
tokens of an iteration over its time at the mean context. It is this project's own; engines switch
drafts off above a number of requests that they are told (`draft_until`). Prompts are not in it: it
drafts too many where they take much of the time (200 tokens in, 100 out, 200 clients: 11 % slower).
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats, Kernel
from simulators.serving.engine import replica as at
from simulators.serving.prices.iteration_table import IterationTable, octaves
from simulators.serving.speculation.acceptance import tokens_per_step

BATCHES_PER_OCTAVE = 4


def worth_drafting(
    survival: tuple[float, ...],
    table: IterationTable,
    price: Kernel[..., float],
    context: float,
    seats: int,
) -> tuple[int, ...]:
    """Return up to how many decodes it pays to draft at least 1, 2 ... tokens.

    Args:
        survival: shares of iterations that accept at least 1, 2 ... of them.
        table: of the replica and of what drafts for it.
        price: what reads it.
        context: mean keys of a decode.
        seats: the most that decode at a time.
    """
    batches = octaves(BATCHES_PER_OCTAVE, max(1, seats))[1:]
    best = []
    for batch in batches.tolist():
        ks = range(len(survival) + 1)
        seconds = [drafted_s(table, price, batch, k, context) for k in ks]
        rates = [tokens_per_step(survival[:k]) / seconds[k] for k in ks]
        best.append(int(np.argmax(rates)))
    least = np.minimum.accumulate(best)  # what pays at a larger batch alone is noise of kernels
    ends = np.append(batches[1:] - 1.0, np.inf)
    found = (np.max(ends[least >= k], initial=0.0) for k in range(1, len(survival) + 1))
    return tuple(int(min(end, at.ALL_DECODES)) for end in found)


def drafted_s(
    table: IterationTable, price: Kernel[..., float], decodes: float, drafts: int, context: float
) -> float:
    """Return the seconds of an iteration of decodes alone, each with so many tokens drafted."""
    step: Floats = np.zeros(at.STEP_COLUMNS)
    step[at.TOKENS] = step[at.EVERYWHERE] = step[at.LOGITS_ROWS] = decodes * (1 + drafts)
    step[at.DECODES], step[at.DECODE_KV] = decodes, decodes * context
    return float(price(step, table.shape, table.table, np.zeros(2 * at.PRICE_COLUMNS)))
