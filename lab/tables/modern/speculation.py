"""Measured acceptance of drafted tokens: as tokens of an iteration by drafts, and by position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.tables.rows import read_records

BY_POSITION = "serving_modern/specdec_accept_by_position_llama31_8b_h100.parquet"
PER_STEP = "serving_modern/specdec_tokens_per_step_llama31_8b_h100.parquet"
ACCEPTED_LENGTHS = "recipes/speedbench_acceptance_length.parquet"
BY_GUESS = "serving_modern/medusa_head_topk_accuracy.parquet"

METHODS = ("eagle", "eagle3", "mtp", "ngram")
"""Those whose tokens of an iteration were measured; of Medusa, how often heads are right was."""


@dataclass(frozen=True)
class Drafts:
    """What one method did for one model, or one set of prompts."""

    method: str
    group: str  # what is left out together
    tokens: Mapping[int, float]  # of an iteration, by drafted tokens

    @property
    def rates(self) -> tuple[float, ...]:
        """Rates of acceptance by position that bring these tokens; between counts, evenly.

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
    """Yield tokens of an iteration by drafts: by set of prompts of one model, and by model."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in read_records(reference / PER_STEP):
        mine = found.setdefault((row["proposer"], row["dataset"], ""), {})
        mine[row["k"]] = row["tokens_per_step"]
    for row in read_records(reference / ACCEPTED_LENGTHS):
        mine = found.setdefault((row["method"], row["model"], row["path"] + row["mode"]), {})
        mine[row["num_speculative_tokens"]] = row["acceptance_length"]
    for (method, group, _), tokens in found.items():
        if method in METHODS:
            yield Drafts(method, group, tokens)


def rates_by_position(reference: Path) -> Mapping[tuple[str, str], Sequence[float]]:
    """Return by method and prompts what is accepted at each position, drafts begun everywhere."""
    rates: dict[tuple[str, str], dict[int, float]] = {}
    for row in read_records(reference / BY_POSITION):
        mine = rates.setdefault((row["proposer"], row["dataset"]), {})
        mine[row["position"]] = row["p_accept_given_reached"]
    return {key: [mine[position] for position in sorted(mine)] for key, mine in rates.items()}


def rates_by_guess(reference: Path) -> Mapping[tuple[str, int], Mapping[int, float]]:
    """Return by model and head of Medusa how often one of the first 1, 2 ... guesses is right."""
    rates: dict[tuple[str, int], dict[int, float]] = {}
    for row in read_records(reference / BY_GUESS):
        mine = rates.setdefault((row["vicuna_size"], row["head"]), {})
        mine[row["top"]] = row["topk_accuracy"]
    return rates
