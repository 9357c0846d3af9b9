"""How many tokens to draft at a load: as many as bring most tokens a second.

Drafts cost more the more sequences run, since one pass then checks more rows than it has bytes to
wait for. The rule takes, at each number of requests that run or wait, the `k` with the largest
`B t(k) / T(k, B)`: tokens of an iteration over its time at the mean context. Each answer is
followed by a prompt, so an iteration prefills the prompt tokens that belong to `B t(k)` output
tokens. With chunked prefill, draft tokens use the same budget, and fewer requests run if it is
full. The rule is this project's own; engines disable drafts above a configured number of requests
(`speculation.disable_batch`). Prefix cache hits count as computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from simulators.core.jit import Floats, Kernel
from simulators.serving.engine import replica as at
from simulators.serving.prices.iteration_table import IterationTable, octaves
from simulators.serving.speculation.acceptance import mean_acceptance_length

BATCHES_PER_OCTAVE = 4


@dataclass(frozen=True, kw_only=True)
class MeanLoad:
    """Mean request lengths, and the requests that fit."""

    context: float  # keys of a decode
    prompt_tokens: float  # that the replica reads; 0: others do
    output_tokens: float
    seats: int  # the most that decode at a time
    budget: float = inf  # tokens of an iteration; infinite: prompts have iterations of their own


def worth_drafting(
    survival: tuple[float, ...], table: IterationTable, price: Kernel[..., float], load: MeanLoad
) -> tuple[int, ...]:
    """Return up to how many requests that run or wait it pays to draft at least 1, 2 ... tokens.

    `survival` are the shares of iterations that accept at least 1, 2 ... of them.
    """
    batches = octaves(BATCHES_PER_OCTAVE, max(1, load.seats))[1:]
    best = []
    for batch in batches.tolist():
        ks = range(len(survival) + 1)
        each = [mean_acceptance_length(survival[:k]) for k in ks]
        best.append(int(np.argmax([_rate(table, price, load, batch, k, each[k]) for k in ks])))
    least = np.minimum.accumulate(best)  # what pays at a larger batch alone is noise of kernels
    ends = np.append(batches[1:] - 1.0, np.inf)
    found = (np.max(ends[least >= k], initial=0.0) for k in range(1, len(survival) + 1))
    return tuple(int(min(end, at.ALL_DECODES)) for end in found)


def _rate(
    table: IterationTable,
    price: Kernel[..., float],
    load: MeanLoad,
    requests: float,
    drafts: int,
    tokens: float,
) -> float:
    """Return tokens per second of a number of requests with a mean acceptance length."""
    needed = load.output_tokens / tokens
    whole = load.prompt_tokens + (1 + drafts) * needed  # of the budget, in a request's life
    decodes = min(requests, load.budget * needed / whole)
    made = decodes * tokens
    decodes_s = drafted_s(table, price, decodes, drafts, load.context)
    read = made * load.prompt_tokens / load.output_tokens
    if read == 0.0:
        return made / decodes_s
    free_tokens = load.budget - (1 + drafts) * decodes
    chunk = min(free_tokens, max(load.prompt_tokens, read))
    share = read / chunk  # of the iterations that have prompts
    beside = decodes if load.budget < inf else 0.0
    prompts = (load.prompt_tokens, chunk)
    with_s = drafted_s(table, price, beside, drafts, load.context, prompts)
    return made / (with_s * share + decodes_s * (1.0 - share if beside else 1.0))


def drafted_s(
    table: IterationTable,
    price: Kernel[..., float],
    decodes: float,
    drafts: int,
    context: float,
    prompts: tuple[float, float] = (1.0, 0.0),
) -> float:
    """Return the seconds of an iteration of decodes with `drafts` draft tokens each.

    Beside them it reads tokens of prompts of some length: that, and how many.
    """
    length, read = prompts
    step: Floats = np.zeros(at.STEP_COLUMNS)
    step[at.DECODES], step[at.DECODE_KV] = decodes, decodes * context
    step[at.TOKENS] = step[at.ALL_RANK_TOKENS] = decodes * (1 + drafts) + read
    step[at.LOGITS_ROWS] = decodes * (1 + drafts)
    if read:
        step[at.PREFILLS] = count = max(1.0, read / length)
        step[at.LOGITS_ROWS] += count
        step[at.PREFILL_TOKENS], step[at.PREFILL_PAIRS] = read, read * (length + 1.0) / 2.0
        step[at.PREFILL_KV] = count * (length + read / count) / 2.0
    return float(price(step, table.shape, table.table, np.zeros(2 * at.PRICE_COLUMNS)))
