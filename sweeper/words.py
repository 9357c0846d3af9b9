"""Parses numbers as people type them: `800ms`, `1.5s`, `10k`, `4M`, `80GB`.

A suffix is a unit of time or bytes, or a power of a thousand; the unit of the field decides which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
BYTES |= {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}
RATES = {**COUNTS, "/s": 1.0, "k/s": 1e3, "qps": 1.0}
MONEY: Mapping[str, float] = {"k": 1e3, "m": 1e6}
SUFFIXES: Mapping[str, Mapping[str, float]] = {
    "s": TIMES,
    "B": BYTES,
    "1/s": RATES,
    "$": MONEY,
    "": COUNTS,
}
"""Suffixes and their factors by unit of the field, case-insensitive."""

_NUMBER = re.compile(
    r"^\s*\$?([-+]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-zµ/]*)\s*$", re.I
)


def number_in(text: str, unit: str = "") -> float | None:
    """Return the number that a text represents, in base units; None if it is none.

    >>> number_in("800ms", "s"), number_in("10k"), number_in("1.5 s", "s"), number_in("2 GPUs")
    (0.8, 10000.0, 1.5, None)
    """
    match = _NUMBER.match(text)
    if match is None:
        return None
    suffix = match[2].casefold()
    scale = SUFFIXES.get(unit, COUNTS).get(suffix) if suffix else 1.0
    return None if scale is None else float(match[1].replace(",", "").replace("_", "")) * scale
