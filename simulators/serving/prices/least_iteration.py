"""What an iteration takes at least, whatever else is in it: its tokens, rows of logits and launch.

Linear layers and messages may take less with more tokens, where a library changes its algorithm: of
all numbers from those asked for on the least counts. Attention takes something, of which nothing is
said here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.jit import Floats, Ints, Kernel
from simulators.serving.prices import lookup
from simulators.serving.prices.iteration_table import IterationTable

STAGES = 2  # one that sends on, and the last


@dataclass(frozen=True)
class LeastIteration:
    """The least seconds of a pass through all stages."""

    first: Floats  # seconds of tokens at the first number of each step of the table, by stage
    last: Floats  # the same at the last number
    above: Floats  # the least of all steps after it
    steps: int  # of the table to an octave
    floor_s: Floats  # that launches take, of each stage
    added_s: Floats  # to each pass of a stage
    rows_s: Floats  # of one row of logits
    stages: int  # of the pipeline

    def of(self, tokens: Ints, rows: float = 0.0) -> Floats:
        """Return the least seconds of iterations with so many tokens, or more, of prompts."""
        place = np.where(tokens > self.steps, self._place(tokens), tokens)
        step = np.minimum(np.ceil(place).astype(np.int64) - 1, self.first.shape[1] - 1)
        width = np.ldexp(1.0, np.maximum(step // self.steps - 1, 0))
        wide = np.maximum(width - 1.0, 1.0)
        along = np.where(width > 1.0, ((place - step) * width - 1.0) / wide, 0.0)
        first, last = self.first[:, step], self.last[:, step]
        here = first + along * (last - first)
        busy_s = np.minimum(np.minimum(here, last), self.above[:, step])
        busy_s = busy_s + rows * self.rows_s[:, np.newaxis]
        each_s = np.maximum(busy_s, self.floor_s[:, np.newaxis]) + self.added_s[:, np.newaxis]
        passed_s: Floats = (self.stages - 1) * each_s[0] + each_s[1]
        return passed_s

    def _place(self, tokens: Ints) -> Floats:
        fraction, exponent = np.frexp(tokens / self.steps)
        return np.asarray(self.steps * (exponent + 2.0 * fraction - 1.0), np.float64)

    @property
    def decode_s(self) -> float:
        """The least seconds of an iteration in which somebody decodes."""
        return float(self.of(np.ones(1, np.int64), rows=1.0)[0])


def least_iteration(
    found: IterationTable, stages: int, price: Kernel[..., float]
) -> LeastIteration:
    """Return what iterations take at least by a table; by another than composition's, nothing."""
    shape, table = found.shape, found.table
    if price is not lookup.table_price or shape[lookup.EXPERT_TABLE] > 0:
        none, step = np.zeros(STAGES), np.zeros((STAGES, 1))
        return LeastIteration(step, step, step, 1, none, none, none, stages)
    start, count = shape[lookup.TOKEN_TABLE], shape[lookup.TOKEN_NODES] - 1
    tokens = table[start : start + 2 * lookup.COLUMNS * count].reshape(count, 2, lookup.COLUMNS)
    first, last = tokens[:, 0, :STAGES].T, tokens[:, 1, :STAGES].T
    lower = np.minimum(first, last)
    after = np.minimum.accumulate(lower[:, ::-1], axis=1)[:, ::-1]
    above = np.concatenate((after[:, 1:], np.full((STAGES, 1), np.inf)), axis=1)
    start, count = shape[lookup.ROW_TABLE], shape[lookup.ROW_NODES]
    rows = table[start : start + lookup.COLUMNS * count].reshape(count, lookup.COLUMNS)
    gaps_s = table[lookup.GAPS_S : lookup.GAPS_S + STAGES]
    return LeastIteration(
        first=first,
        last=last,
        above=above,
        steps=int(shape[lookup.TOKEN_STEPS]),
        floor_s=table[lookup.LAUNCHING_S : lookup.LAUNCHING_S + STAGES],
        added_s=gaps_s + table[lookup.SEQUENCE_S],
        rows_s=rows[1:, :STAGES].min(axis=0),
        stages=stages,
    )
