"""Cycles of named dataflows and of systolic arrays equal those of MAESTRO and SCALE-Sim.

Rows of MAESTRO give no layer sizes. They follow from the counts: weights, inputs and outputs in the
shared buffer, multiplies, and the window of each processing element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from lab.tables.rows import read_records
from tests.parity.maestro import CLUSTER, Window, named_cycles
from tests.parity.scale_sim import systolic_cycles

ELEMENTS = 256
KINDS = {"kcp": "kc_p", "ckp": "ck_p", "yxp": "yx_p"}
WORDS_PER_WINDOW = 6
"""A buffered element keeps two of each of three operands per tap of its window."""


def test_cycles_of_named_dataflows_match_maestro(reference: Path) -> None:
    ours, theirs = [], []
    for row in read_records(reference / "dataflow/maestro_256pe.csv"):
        kind = KINDS[row["mapping_file"].split("_")[-2]]
        ours.append(named_cycles(kind, _window_of(row, kind), elements=ELEMENTS))
        theirs.append(float(row["Runtime (Cycles)"]))
    errors = np.abs(np.array(ours) / np.array(theirs) - 1.0)
    assert np.median(errors) <= 0.15
    assert spearmanr(ours, theirs).statistic >= 0.9


def test_cycles_of_systolic_arrays_equal_scale_sim(reference: Path) -> None:
    for row in read_records(reference / "dataflow/scalesim_32x32.csv"):
        high, wide = (int(side) for side in row["array"].split("x"))
        m, n, k = (int(row[name]) for name in "MNK")
        cycles = systolic_cycles(m, n, k, rows=high, columns=wide, dataflow=row["dataflow"])
        assert cycles == int(row["total_cycles"]), row


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

    def mismatch(c: int) -> float:
        """Sums leave once per block of channels; a depthwise layer has one filter each."""
        passes = 1.0 if c == pairs else math.ceil(c / spread)
        expected = pairs if c == pairs and outputs > pairs / 2 else pairs // c * passes
        return abs(expected / outputs - 1.0)

    c = min(fitting, key=mismatch, default=pairs)
    depthwise = c == pairs and outputs > pairs / 2
    return Window(k=0 if depthwise else pairs // c, c=c, r=side, s=side, p=p, q=p)


def _square(number: float) -> bool:
    return number == int(number) and math.isqrt(int(number)) ** 2 == int(number)
