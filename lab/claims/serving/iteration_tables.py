"""How far looked-up iteration times lie from those of composition that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import at_most
from simulators.composition.price import stage_iteration
from simulators.composition.replica import Replica
from simulators.core.contract import PARITY, Check
from simulators.core.jit import Floats
from simulators.serving.deployment import Hardware, deployment_of
from simulators.serving.engine import replica as at
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import iteration_table
from simulators.serving.prices.lookup import table_price
from simulators.workload.llm.step import Step

KIND = PARITY
BATCHES, USUAL = 1000, 0.005
"""Batches that are looked at, and what their error may be on average."""

DEPLOYMENTS = (
    {"model": "llama2_7b", "gpu": "a100_sxm"},
    {"model": "llama2_70b", "gpu": "h100_sxm", "tp": 8},
    {"model": "deepseek_v3", "gpu": "h200_sxm", "tp": 8, "dtype": "fp8"},
)


def checks(_reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the error of interpolation on random batches of a few deployments."""
    steps = random_batches(seed=0, count=BATCHES)
    for settings in DEPLOYMENTS:
        point = ServingPoint(**settings)
        replica = deployment_of(point).hardware.replica
        seconds, _ = composed(replica, steps, stage=0)
        error = np.abs(looked_up(replica, steps)[:, at.LAST_STAGE_S] / seconds - 1.0)
        name = f"iteration table {point.model} {point.gpu} tp {point.tp}"
        note = (
            f"mean of unequal batches; 99 % below {np.quantile(error, 0.99):.2%}, "
            f"worst {error.max():.1%}"
        )
        yield at_most(name, float(error.mean()), USUAL, BATCHES, note, unit="")


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
        step[at.TOKENS] = step[at.EVERYWHERE] = step[at.DECODES] + step[at.PREFILL_TOKENS]
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
