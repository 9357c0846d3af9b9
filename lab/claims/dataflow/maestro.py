"""Cycles of named dataflows against MAESTRO's.

Its rows give no sizes of a layer, but counts that follow from them: weights, inputs and outputs in
the shared buffer, multiplies, and the window each element keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lab.claims.lines import absent, at_least, at_most, rank_correlation
from lab.parity.maestro import CLUSTER, Window, named_cycles
from lab.tables.rows import read_records
from simulators.core.contract import PARITY, Check

NEEDS = (TABLE,) = ("dataflow/maestro_256pe.csv",)
KIND = PARITY
ELEMENTS = 256
KINDS = {"kcp": "kc_p", "ckp": "ck_p", "yxp": "yx_p"}
WORDS_PER_WINDOW = 6
"""A buffered element keeps two of each of three operands per tap of its window."""

MEDIAN_LIMIT, RANK_LIMIT = 15.0, 0.9
FEWEST = 2
"""Rows that can be ranked."""


def checks(reference: Path, _rows: str) -> list[Check]:
    """Return median error and rank correlation of cycles over its layers; nothing was fitted."""
    pairs = []
    for row in read_records(reference / TABLE):
        kind = KINDS[row["mapping_file"].split("_")[-2]]
        window = _window_of(row, kind)
        pairs.append((named_cycles(kind, window, elements=ELEMENTS), row["Runtime (Cycles)"]))
    if len(pairs) < FEWEST:
        return [absent("dataflow/MAESTRO cycles", f"{len(pairs)} rows have no ranks")]
    ours, theirs = np.array(pairs, np.float64).T
    off = np.abs(ours / theirs - 1.0)
    rank = rank_correlation(ours, theirs)
    median = 100.0 * float(np.median(off))
    note = f"at most; {100.0 * float(np.mean(off <= 0.01)):.1f} % of rows within 1 %"
    title = "dataflow/MAESTRO cycles"
    return [
        at_most(f"{title}, median error", median, MEDIAN_LIMIT, off.size, note),
        at_least(f"{title}, rank correlation", rank, RANK_LIMIT, off.size, "at least", ""),
    ]


def _window_of(row: Mapping[str, Any], kind: str) -> Window:
    """Return the layer whose counts these are."""
    weights, macs = float(row["filter l2 write"]), float(row["Num MACs"])
    taps = int(float(row["L1 SRAM Size Req (Bytes)"])) // WORDS_PER_WINDOW
    side = math.isqrt(taps)
    pixels = macs / weights
    p = max(1, math.isqrt(round(pixels)))
    pairs = round(weights / taps)
    inputs, outputs = float(row["input l2 write"]), float(row["output l2 write"]) / pixels
    if kind == "yx_p":
        return Window(k=1, c=pairs, r=side, s=side, p=p, q=round(pixels / p))
    spread = CLUSTER[kind] if kind == "kc_p" else ELEMENTS // CLUSTER[kind]
    fitting = [c for c in range(pairs, 0, -1) if pairs % c == 0 and _square(inputs / c)]

    def strangeness(c: int) -> float:
        """Sums leave once per block of channels; a depthwise layer has one filter each."""
        passes = 1.0 if c == pairs else math.ceil(c / spread)
        expected = pairs if c == pairs and outputs > pairs / 2 else pairs // c * passes
        return abs(expected / outputs - 1.0)

    c = min(fitting, key=strangeness, default=pairs)
    depthwise = c == pairs and outputs > pairs / 2
    return Window(k=0 if depthwise else pairs // c, c=c, r=side, s=side, p=p, q=p)


def _square(number: float) -> bool:
    return number == int(number) and math.isqrt(int(number)) ** 2 == int(number)
