"""Lengths of prompts and answers of printed results, which state only their means.

SGLang's random lengths are drawn uniformly up to twice the mean, exactly as by the generator of its
client where that gives the printed totals. Those of conversations vary as those that both clients
request by default, and others are fixed. vLLM's client lets a model end its answer early, which
shortens the longest answers most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lab.tables.published_runs import EVENLY
from simulators.serving.demand.requests import bench_serving_lengths, stretched, token_counts
from simulators.serving.point import AS_WORKLOAD, BENCH_SERVING

RANDOM, CONVERSATIONS = "random", "sharegpt_v3"
"""A dataset as clients call it, and the workload whose lengths vary like those of the others."""

ANSWERED = 199_904.0 / 214_465.0
"""Requested tokens of answers over tokens of prompts, of the 1,000 conversations that vLLM's client
sends first: eight results of one model under two engines print these numbers."""

STEPS, NEAR = (128, 1000), 0.005
"""Fixed lengths are multiples of either, except for tokens that a tokenizer adds."""

SGLANG_CLIENT = "sglang.bench_serving"
SEED, FROM_ONE = 1, 0.99999
"""Defaults of that client: its seed, and a range that begins at one token."""


def printed_lengths(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a point for lengths of prompts and answers."""
    prompt, output = row["mean_input_tokens"], row["mean_output_tokens"]
    is_random = row["dataset"] == RANDOM or _is_asked_for(prompt)
    evenly = is_random and SGLANG_CLIENT in (row["bench_command"] or "")
    longest = 2.0 if evenly else 1.0
    found: dict[str, Any] = {
        "prompt_tokens": max(1, round(longest * prompt)),
        "output_tokens": max(1, round(longest * output)),
    }
    if evenly and (asked := _drawn_for(row)):
        return asked
    if is_random:
        return found | {"lengths.spread": EVENLY if evenly else 0.0}
    found |= {"workload": CONVERSATIONS, "lengths.shape": AS_WORKLOAD}
    ends = SGLANG_CLIENT not in (row["bench_command"] or "")  # which asks to ignore a model's ends
    return found | (_ended(prompt, output, int(row["successful_requests"])) if ends else {})


def _drawn_for(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lengths that SGLang's client drew, by its arguments; empty if the means disagree.

    Some of its releases print a token less of every answer.
    """
    most = int(row["isl_arg"] or 0), int(row["osl_arg"] or 0)
    requests = int(row["successful_requests"])
    if not all(most) or row["random_range_ratio"]:
        return {}
    drawn = bench_serving_lengths(SEED, requests, most, FROM_ONE)
    prompt, output = (float(lengths.mean()) for lengths in drawn)
    unprinted = output - row["mean_output_tokens"]
    if abs(prompt - row["mean_input_tokens"]) * requests > 0.5 or not -0.01 < unprinted < 1.01:
        return {}
    return {
        "prompt_tokens": most[0],
        "output_tokens": most[1],
        "seed": SEED,
        "lengths.shape": BENCH_SERVING,
        "lengths.spread": FROM_ONE,
    }


def _ended(prompt: float, output: float, requests: int) -> dict[str, Any]:
    """Return the requested mean of conversations, and the length at which longer answers ended.

    The cut-off length makes the mean that of the answers; empty where that is as requested.
    """
    asked = ANSWERED * prompt
    if output > asked * (1.0 - NEAR):
        return {}
    lengths = stretched(token_counts(CONVERSATIONS, 0, requests)[1], asked)
    ends = np.arange(lengths.max() + 1)
    means = np.minimum(lengths, ends[:, None]).mean(axis=1)
    return {
        "output_tokens": round(asked),
        "lengths.max_output_tokens": int(np.searchsorted(means, output)),
    }


def _is_asked_for(tokens: float) -> bool:
    """Return whether a mean length is a round number."""
    return any(
        tokens >= step * (1.0 - NEAR)
        and abs(tokens / step - round(tokens / step)) * step <= NEAR * tokens
        for step in STEPS
    )
