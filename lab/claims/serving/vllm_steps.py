"""Single steps of real runs of vLLM: a prompt that no other one meets, beside so many decodes.

A run as a whole adds up the errors of steps in queues. Steps can be told apart where a prompt was
scheduled and answered while no other was: vLLM schedules a step while the one before it runs, so
that from there to the first token a step of decodes passes, and then the prompt's own. Decodes
have made their tokens evenly, and ranks have equally many.

Some prompts took half the time of others as long. The generator of these requests asks for later
turns of a conversation with all before, which vLLM's prefix cache finds; the tables do not hold
what prompts have in common, so errors are told by their median.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.claims.lines import at_most
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.serving.deployment import deployment_of
from simulators.serving.engine import replica as at
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import IterationTable, iteration_table
from simulators.serving.prices.lookup import table_price

APART_S = 0.15
"""No other prompt was scheduled for so long before: as long as the longest steps take."""

BUSY = 0.75
"""A run is busy where at least this share of its most decodes run."""

FOUND = 1.15
"""A step that we say takes so many times as long had found much of its prompt."""


@dataclass(frozen=True)
class Step:
    """One prompt whole beside decodes, and a step of those alone before."""

    prompt: float
    decodes: float
    context: float
    seconds: float  # of both


def step_line(run: str, point: ServingPoint, column: Mapping[str, NDArray[Any]]) -> Check:
    """Return the median error of the steps of one run that can be told apart."""
    tables, ranks = iteration_table(deployment_of(point).hardware), point.attention_dp
    seen = list(lone_prompts(column, point.chunk_size))
    ours = np.array(
        [
            _seconds(tables, ranks, 0.0, one) + _seconds(tables, ranks, one.prompt, one)
            for one in seen
        ]
    )
    ratio = ours / np.array([one.seconds for one in seen])
    found = ratio > FOUND
    said = (
        f"bias {100.0 * (np.median(ratio) - 1.0):+.1f} %; {found.sum()} took less than "
        f"{1.0 / FOUND:.0%} of ours, the mean error of others is "
        f"{100.0 * np.abs(ratio[~found] - 1.0).mean():.1f} %"
    )
    error = 100.0 * float(np.median(np.abs(ratio - 1.0)))
    return at_most(f"steps with one prompt, vllm {run}", error, None, ratio.size, said)


def lone_prompts(column: Mapping[str, NDArray[Any]], tokens: int) -> Iterator[Step]:
    """Yield the steps of at most so many tokens with one whole prompt, where a run is busy."""
    scheduled, first, last = (column[f"{n}_s"] for n in ("scheduled", "first_token", "last_token"))
    prompts, answers = column["input_toks"], column["output_toks"]
    most = max(np.sum((first < now) & (last > now)) for now in scheduled)
    for i in range(first.size):
        begun, ended = scheduled[i], first[i]
        others = np.arange(first.size) != i
        is_met = (first > begun - 1e-3) & (first < ended + 1e-3)
        is_met |= (scheduled > begun - APART_S) & (scheduled < ended - 1e-3)
        runs = others & (first < begun) & (last > ended)
        if np.any(is_met & others) or not BUSY * most <= runs.sum() <= tokens - prompts[i]:
            continue
        made = (begun - first[runs]) / (last[runs] - first[runs]) * (answers[runs] - 1)
        context = float(np.mean(prompts[runs] + 1 + made))
        yield Step(float(prompts[i]), float(runs.sum()), context, float(ended - begun))


def _seconds(tables: IterationTable, ranks: int, prompt: float, seen: Step) -> float:
    """Return what a step takes by our account: all ranks wait for the one that has the prompt."""
    step, decodes = np.zeros(at.STEP_COLUMNS), seen.decodes / ranks
    step[at.PREFILLS] = float(prompt > 0.0)
    step[at.PREFILL_TOKENS] = step[at.PREFILL_KV] = prompt
    step[at.PREFILL_PAIRS] = prompt * (prompt + 1.0) / 2.0
    step[at.PREFILL_SQUARES] = prompt * prompt
    step[at.DECODES], step[at.DECODE_KV] = decodes, decodes * seen.context
    step[at.TOKENS] = prompt + decodes
    step[at.LOGITS_ROWS] = step[at.PREFILLS] + decodes
    together = prompt + seen.decodes
    step *= ranks
    step[at.EVERYWHERE] = together
    if ranks > 1:
        step[at.UNEVEN] = (together - decodes) * ranks / (together * (ranks - 1.0)) - 1.0
    price: Floats = np.zeros(at.PRICE_COLUMNS)
    return float(table_price(step, tables.shape, tables.table, price))
