"""Measured acceptance of draft tokens: tokens per iteration, and rates by position and head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.tables.records import records

METHODS = ("eagle", "eagle3", "mtp", "ngram")
"""Methods whose tokens per iteration were measured; of Medusa, the accuracy of each head was."""


@dataclass(frozen=True)
class Drafts:
    """Acceptance of a drafting method for a model or a set of prompts."""

    method: str
    group: str  # model or set of prompts, held out together
    tokens: Mapping[int, float]  # per iteration, by number of draft tokens

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance rates by position that give these tokens, interpolated between counts.

        >>> [round(rate, 6) for rate in Drafts("", "", {1: 1.8, 2: 2.2}).rates]
        [0.8, 0.5]
        """
        counts = sorted(self.tokens)
        every = np.arange(1, counts[-1] + 1)
        tokens = np.interp(every, counts, [self.tokens[count] for count in counts])
        reached, rates = 1.0, []
        for more in np.diff(tokens, prepend=1.0).tolist():
            kept = min(max(more, 0.0), reached)
            rates.append(kept / reached if reached else 0.0)
            reached = kept
        return tuple(rates)


def measured_drafts(reference: Path) -> Iterator[Drafts]:
    """Yield tokens per iteration by number of drafts, for each set of prompts and each model."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in records(reference, "tokens_per_step"):
        found.setdefault((row.proposer, row.dataset, ""), {})[row.k] = row.tokens_per_step
    for row in records(reference, "acceptance_length"):
        mine = found.setdefault((row.method, row.model, row.path + row.mode), {})
        mine[row.num_speculative_tokens] = row.acceptance_length
    for (method, group, _), tokens in found.items():
        if method in METHODS:
            yield Drafts(method, group, tokens)


def rates_by_guess(reference: Path) -> Mapping[tuple[str, int], Mapping[int, float]]:
    """Return the top-k accuracy by model and Medusa head, and by k."""
    rates: dict[tuple[str, int], dict[int, float]] = {}
    for row in records(reference, "medusa_heads"):
        rates.setdefault((row.vicuna_size, row.head), {})[row.top] = row.topk_accuracy
    return rates
