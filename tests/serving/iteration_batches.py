"""Prices of random batches, interpolated and composed."""

from __future__ import annotations

import numpy as np

from simulators.composition.price import stage_iteration
from simulators.composition.replica import Replica
from simulators.core.jit import Floats
from simulators.serving.engine import replica as at
from simulators.serving.prices.hardware import Hardware
from simulators.serving.prices.iteration_table import iteration_table, table_price
from simulators.workload.llm.step import Step


def random_batches(seed: int, count: int) -> Floats:
    """Return the sums of batches with up to 256 decodes and 5 prefills, chunked or whole."""
    draw = np.random.default_rng(seed)
    steps = np.zeros((count, at.STEP_COLUMNS))
    for step in steps:
        decodes = int(draw.integers(0, 257))
        step[at.DECODES] = step[at.LOGITS_ROWS] = decodes
        step[at.DECODE_KV] = int(decodes * 2 ** draw.uniform(4, 14))
        for _ in range(int(draw.integers(0 if decodes else 1, 6))):
            chunk = int(2 ** draw.uniform(4, 12))
            past = int(2 ** draw.uniform(0, 13)) if draw.random() < 0.5 else 0
            step[at.PREFILLS] += 1
            step[at.PREFILL_TOKENS] += chunk
            step[at.PREFILL_PAIRS] += chunk * past + chunk * (chunk + 1) / 2
            step[at.PREFILL_KV] += past + chunk
            step[at.LOGITS_ROWS] += draw.integers(0, 2)
        step[at.TOKENS] = step[at.ALL_RANK_TOKENS] = step[at.DECODES] + step[at.PREFILL_TOKENS]
    return steps


def composed(replica: Replica, steps: Floats, stage: int) -> tuple[Floats, Floats]:
    """Return seconds and joules of a stage for rows of sums, from composition."""
    step = Step(
        prefills=steps[:, at.PREFILLS],
        prefill_tokens=steps[:, at.PREFILL_TOKENS],
        prefill_pairs=steps[:, at.PREFILL_PAIRS],
        prefill_kv_tokens=steps[:, at.PREFILL_KV],
        decodes=steps[:, at.DECODES],
        decode_kv_tokens=steps[:, at.DECODE_KV],
        logits_rows=steps[:, at.LOGITS_ROWS],
    )
    iteration = stage_iteration(replica, step, stage)
    return np.asarray(iteration.latency_s), np.asarray(iteration.energy_j)


def looked_up(replica: Replica, steps: Floats) -> Floats:
    """Return the prices of rows of sums, from the tables of a replica."""
    table = iteration_table(Hardware(repr(replica), replica))
    prices = np.zeros((len(steps), at.PRICE_COLUMNS))
    for step, price in zip(steps, prices, strict=True):
        table_price(step, table.shape, table.table, price)
    return prices
