"""How tokens get to their experts, and how many the busiest of expert ranks gets of them.

Where tokens prefer some experts, by Zipf's law or as they were counted, the rank that holds these
works longest. An expert
that many prefer may be held more than once, as by DeepSeek's load balancer
(github.com/deepseek-ai/EPLB): copies go to the expert with most tokens a copy, one by one, and to
ranks so that they get about as much.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path

from simulators.core.errors import UserError

GATHERED = "allgather_reducescatter"
HIGH_THROUGHPUT, LOW_LATENCY = "deepep_high_throughput", "deepep_low_latency"
AUTO = "deepep_auto"
BACKENDS = (GATHERED, HIGH_THROUGHPUT, LOW_LATENCY, AUTO)
"""How tokens get to experts on other GPUs: every rank gathers those of all; or each token goes to
its experts' GPUs alone, by DeepEP's kernels for many tokens, for few, or for as many as there are.
Names are those of vLLM's `--all2all-backend`, and of SGLang's `--deepep-mode auto`."""

FEW_TOKENS = 128.0
"""Of a rank, up to which `deepep_auto` sends in low latency: what engines leave buffers for
(SGLang, `SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK`)."""


@dataclass(frozen=True)
class Routing:
    """How tokens get to their experts, how unevenly, and how many experts are held twice."""

    backend: str = GATHERED
    skew: float = 0.0  # Zipf's exponent of how tokens prefer experts
    redundant: int = 0  # copies of experts besides the first of each, in a layer
    counted: tuple[float, ...] = ()  # tokens that each expert got, in place of a law; any unit


USUAL = Routing()

ROUNDING = 0.01
"""Of counts, by which an expert may have more tokens than there are."""


def counted_tokens(text: str) -> tuple[float, ...]:
    """Return the tokens that each expert got: numbers with commas between, or a file of them.

    Raises:
        UserError: there is no such file, or something else than numbers of at least 0 in it.

    >>> counted_tokens("3, 1, 0, 0")
    (3.0, 1.0, 0.0, 0.0)
    """
    if is_file(text):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"routing_histogram '{text}' cannot be read: {error}") from error
    try:
        found = tuple(float(word) for word in re.split(r"\s*,\s*|\s+", text.strip()))
    except ValueError as error:
        raise UserError(
            f"routing_histogram: a number for each expert, with commas between; {error}"
        ) from error
    if not all(math.isfinite(n) and n >= 0.0 for n in found) or not sum(found):
        raise UserError("routing_histogram: numbers of tokens are at least 0, and some above")
    return found


def is_file(text: str) -> bool:
    """Return whether a histogram is the name of a file."""
    return bool(re.search(r"[^-+\d.eE,\s]", text))


@functools.lru_cache(maxsize=256)
def skewed_share(
    experts: int,
    top_k: int,
    ranks: int,
    skew: float,
    capacity_factor: float = 0.0,
    redundant: int = 0,
    counted: tuple[float, ...] = (),
) -> float:
    """Return the tokens of the busiest rank over the mean tokens per rank, at least 1.

    A token prefers the experts by Zipf's law of exponent `skew` and takes `top_k` of them: an
    expert of popularity p is taken with 1 - exp(-rate * p), the rate such that these sum to
    `top_k`. Experts are dealt to the ranks one by one, the most popular first, or with copies so
    that ranks get alike. A capacity factor drops what an expert gets beyond that many times the
    mean (Fedus et al., Switch Transformers, 2022); 0: nothing is dropped. Counted experts lie on
    the ranks in their order, as engines place them.

    >>> skewed_share(8, 2, 8, 0.0), round(skewed_share(8, 2, 8, 1.0), 2)
    (1.0, 2.42)
    >>> skewed_share(8, 2, 8, 1.0, capacity_factor=1.25), skewed_share(8, 2, 1, 1.0)
    (1.25, 1.0)
    >>> round(skewed_share(8, 2, 8, 1.0, redundant=8), 2)
    1.03
    >>> skewed_share(4, 2, 2, 0.0, counted=(3.0, 3.0, 1.0, 1.0))
    1.5
    """
    if not (skew or counted) or ranks == 1:
        return 1.0
    mean = top_k / experts
    if counted:
        taken = [top_k * tokens / sum(counted) for tokens in counted]
    else:
        weights = [float(i) ** -skew for i in range(1, experts + 1)]
        taken = _taken([weight / sum(weights) for weight in weights], top_k)
    if capacity_factor:
        taken = [min(share, capacity_factor * mean) for share in taken]
    if redundant:
        return max(_balanced(taken, ranks, redundant)) / (top_k / ranks)
    dealt = [taken[rank::ranks] for rank in range(ranks)]
    if counted:
        each = experts // ranks
        dealt = [taken[rank * each : (rank + 1) * each] for rank in range(ranks)]
    return max(map(sum, dealt)) / (top_k / ranks)


def _balanced(taken: list[float], ranks: int, redundant: int) -> list[float]:
    """Return what ranks get with equally many copies each, the busiest copied and dealt first."""
    copies = [1] * len(taken)
    for _ in range(redundant):
        busiest = max(range(len(taken)), key=lambda i: taken[i] / copies[i])
        copies[busiest] += 1
    loads = sorted(
        (t / n for t, n in zip(taken, copies, strict=True) for _ in range(n)), reverse=True
    )
    got, free = [0.0] * ranks, [len(loads) // ranks] * ranks
    for load in loads:
        rank = min((r for r in range(ranks) if free[r]), key=lambda r: got[r])
        got[rank] += load
        free[rank] -= 1
    return got


def _taken(popular: list[float], top_k: int) -> list[float]:
    """Return with which chance a token takes each expert."""
    if top_k >= len(popular):
        return [1.0] * len(popular)
    low, high = 0.0, 1.0
    while _sum(popular, high) < top_k:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _sum(popular, middle) < top_k else (low, middle)
    return [-math.expm1(-high * p) for p in popular]


def _sum(popular: list[float], rate: float) -> float:
    return -sum(math.expm1(-rate * p) for p in popular)
