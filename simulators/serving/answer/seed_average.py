"""Averages the metrics of several seeds, with confidence intervals of percentiles.

Runs with different seeds are independent, so the mean over them has the confidence interval of
Student, "The probable error of a mean" (1908).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import sqrt
from typing import Any

from simulators.serving.answer.metrics import ServingMetrics

WITH_INTERVAL = ("ttft_p99_s", "tpot_p99_s", "e2e_p99_s")
"""Metrics whose 95 % half-width is the column `<metric>_ci`."""

COUNTED = (
    "restarts",
    "swaps",
    "stalled_requests",
    "completed_requests",
    "rejected_requests",
    "cancelled_requests",
    "cached_tokens",
    "fetched_tokens",
    "iterations",
    "judged_requests",
)
"""Metrics that count events: of all runs together."""

_NORMAL = 1.959963984540054  # 97.5 % of a normal distribution lie below
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The same for Student's, with 1 to 10 degrees of freedom, from the usual tables."""


def averaged(runs: Sequence[ServingMetrics]) -> ServingMetrics:
    """Return the metrics of several runs of one design, at least two.

    Measured quantities are means over runs, counts are sums. A design is saturated if any run is.
    """
    merged: dict[str, Any] = {f.name: _merged(f.name, runs) for f in fields(ServingMetrics)}
    for name in WITH_INTERVAL:
        merged[f"{name}_ci"] = half_width([getattr(run, name) for run in runs])
    first = runs[0]
    if first.cost_usd_per_mtok is not None:  # of the mean rate, from which it follows
        merged["cost_usd_per_mtok"] = (
            first.cost_usd_per_mtok * first.tokens_per_s / merged["tokens_per_s"]
        )
    return ServingMetrics(**merged)


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of a mean.

    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    count = len(values)
    mean = sum(values) / count
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return student(count - 1) * deviation / sqrt(count)


def student(freedom: int) -> float:
    """Return below what 97.5 % of Student's distribution lie.

    Beyond the table from the first terms of its expansion about the normal distribution (Abramowitz
    and Stegun, "Handbook of Mathematical Functions", 26.7.5).

    >>> [round(student(n), 3) for n in (2, 20, 60)]
    [4.303, 2.086, 2.0]
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z, n = _NORMAL, float(freedom)
    first = (z**3 + z) / 4.0
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    third = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0
    return z + first / n + second / n**2 + third / n**3


def _merged(name: str, runs: Sequence[ServingMetrics]) -> Any:
    """Return one metric of several runs."""
    values = [getattr(run, name) for run in runs]
    if any(value is None for value in values):
        return None
    if isinstance(values[0], bool):
        return any(values)
    if name in COUNTED:
        return sum(values)
    if isinstance(values[0], int):
        return min(values)  # GPUs and blocks; a longer prompt may leave less memory for these
    return sum(values) / len(values)
