"""Seconds to take tokens to the GPUs of their experts, and to bring sums back, as DeepEP does.

Two kinds of kernels, both of which send over links inside nodes and over cards between them at
once. High throughput: a token crosses once to each node with one of its experts, and from there to
each GPU with one. Low latency: a copy for each expert goes there straight. DeepSeek,
github.com/deepseek-ai/DeepEP, README; node-limited routing by groups of experts: DeepSeek-V3
technical report (2024), section 2.1.2. What a message costs to start, and which shares of data
sheets links sustain, is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from simulators.core.calibration import read_calibration
from simulators.core.folder import PACKAGE, once
from simulators.core.jit import Floats

CALIBRATION = PACKAGE / "collectives" / "calibration" / "expert_exchange.toml"

HIGH_THROUGHPUT, LOW_LATENCY = "high_throughput", "low_latency"


@dataclass(frozen=True)
class Routed:
    """How a token chooses its experts, which are dealt evenly to ranks."""

    experts: int
    top_k: int
    groups: int = 1  # of neighbouring experts
    chosen: int = 1  # of these groups, which a token keeps to

    def reached(self, parts: int) -> float:
        """Return how many of equal parts of the experts a token reaches, on average.

        >>> Routed(256, 8).reached(1), round(Routed(256, 8).reached(8), 2)
        (1.0, 5.29)
        >>> round(Routed(256, 8, groups=8, chosen=4).reached(8), 2)
        3.63
        """
        near = self.experts * self.chosen // self.groups
        if parts >= self.groups:
            hit = _hit(near, self.experts // parts, self.top_k)
            return parts * self.chosen / self.groups * hit
        each, size = self.groups // parts, self.experts // self.groups
        ways, total = comb(self.groups, self.chosen), 0.0
        for within in range(1, min(each, self.chosen) + 1):
            if self.chosen - within > self.groups - each:
                continue
            chance = comb(each, within) * comb(self.groups - each, self.chosen - within) / ways
            total += chance * _hit(near, within * size, self.top_k)
        return parts * total


@dataclass(frozen=True)
class Rates:
    """Start time of an exchange, and sustained shares of data-sheet bandwidths."""

    start_s: float
    inside: float  # of a GPU's ports to others of its node
    between: float  # of its card to other nodes
    band: float = 2.0  # nine of ten exchanges are within this factor


def exchange_s(
    mode: str,
    rank_bytes: Floats,
    routed: Routed,
    *,
    ranks: int,
    inside: int,
    link_bytes_per_s: tuple[float, float],
    rates: Rates,
) -> Floats:
    """Return the seconds of one dispatch, or of one combine, of evenly liked experts.

    `rank_bytes` are of one copy of all tokens of a rank. Of the ranks that the experts are dealt
    to, `inside` are on one node; links are a GPU's, to others of its node and to other nodes.
    """
    nodes = ranks // inside
    if mode == LOW_LATENCY:
        crossing = routed.top_k * (nodes - 1) / nodes
        near = routed.top_k * (inside - 1) / ranks
    else:
        crossing = routed.reached(nodes) * (nodes - 1) / nodes
        near = routed.reached(ranks) * (inside - 1) / inside
    port, card = link_bytes_per_s
    slower = max(near / (rates.inside * port), crossing / (rates.between * card))
    return np.asarray(rates.start_s + slower * rank_bytes, np.float64)


def exchange_rates() -> Rates:
    """Return what DeepEP was measured to sustain."""
    return Rates(**once(read_calibration, CALIBRATION)["exchange"])


def _hit(near: int, mine: int, top_k: int) -> float:
    """Return the probability that a token activates at least one of `mine` of `near` experts."""
    return 1.0 - comb(near - mine, top_k) / comb(near, top_k) if mine < near else 1.0
