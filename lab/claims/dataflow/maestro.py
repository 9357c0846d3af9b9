"""Cycles of named dataflows beside MAESTRO's.

Its rows give no sizes of a layer, but counts that follow from them: weights, inputs and outputs in
the shared buffer, multiplies, and the window each element keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from lab.parity.maestro import CLUSTER, Window, named_cycles
from lab.parity.scale_sim import systolic_cycles
from lab.tables.rows import read_records

ELEMENTS = 256
KINDS = {"kcp": "kc_p", "ckp": "ck_p", "yxp": "yx_p"}
WORDS_PER_WINDOW = 6
"""A buffered element keeps two of each of three operands per tap of its window."""


def named_dataflows(reference: Path) -> pl.DataFrame:
    """Return cycles of each layer of MAESTRO's table."""
    rows = []
    for row in read_records(reference / "dataflow/maestro_256pe.csv"):
        kind = KINDS[row["mapping_file"].split("_")[-2]]
        cycles = named_cycles(kind, _window_of(row, kind), elements=ELEMENTS)
        rows.append({"predicted": float(cycles), "measured": float(row["Runtime (Cycles)"])})
    return pl.DataFrame(rows)


def systolic(reference: Path) -> pl.DataFrame:
    """Return cycles of products on systolic arrays, beside SCALE-Sim's."""
    rows = []
    for row in read_records(reference / "dataflow/scalesim_32x32.csv"):
        high, wide = (int(side) for side in row["array"].split("x"))
        m, n, k = (int(row[name]) for name in "MNK")
        ours = systolic_cycles(m, n, k, rows=high, columns=wide, dataflow=row["dataflow"])
        rows.append({"equal": ours == int(row["total_cycles"]), "predicted": float(ours)})
    return pl.DataFrame(rows)


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
