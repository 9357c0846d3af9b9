"""Named dataflows against MAESTRO's cycles, sparse tensor cores against Sparseloop's.

MAESTRO's rows give no sizes of a layer, but counts that follow from them: weights, inputs and
outputs in the shared buffer, multiplies, and the window each element keeps.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from lab.parity.maestro import CLUSTER, Window, named_cycles
from lab.parity.sparse_tensor_cores import SparseProduct, tensor_core_cycles
from simulators.core.contract import Check

MAESTRO = "maestro_256pe.csv"
ELEMENTS = 256
SPARSE = "sparse/sparseloop_ref_outputs.parquet"
KINDS = {"kcp": "kc_p", "ckp": "ck_p", "yxp": "yx_p"}
WORDS_PER_WINDOW = 6
"""A buffered element keeps two of each of three operands per tap of its window."""

MEDIAN_BAR = 15.0
RANK_BAR = 0.9
RATIO_BAR = 0.10


def named_dataflows(folder: Path) -> list[Check]:
    """Return median error and rank correlation of cycles over MAESTRO's layers."""
    with (folder / MAESTRO).open(newline="") as file:
        rows = list(csv.DictReader(file))
    pairs = []
    for row in rows:
        kind = KINDS[row["mapping_file"].split("_")[-2]]
        window = _window_of(row, kind)
        pairs.append((named_cycles(kind, window, elements=ELEMENTS), row["Runtime (Cycles)"]))
    ours, theirs = np.array(pairs, np.float64).T
    off = np.abs(ours / theirs - 1.0)
    median = 100.0 * float(np.median(off))
    rank = _rank_correlation(ours, theirs)
    note = f"at most; {100.0 * float(np.mean(off <= 0.01)):.1f} % of rows within 1 %"
    return [
        Check("dataflow/MAESTRO cycles, median error", median, "%", MEDIAN_BAR,
              median <= MEDIAN_BAR, len(rows), note),
        Check("dataflow/MAESTRO cycles, rank correlation", rank, "", RANK_BAR,
              rank > RANK_BAR, len(rows), "at least"),
    ]  # fmt: skip


def tensor_cores(reference: Path) -> list[Check]:
    """Return how the cycles of sparse tensor cores compare with the dense one's."""
    if not (reference / SPARSE).is_file():
        return [Check("dataflow/sparse tensor cores", None, note=f"absent: {SPARSE}")]
    rows = [
        row
        for row in pq.read_table(reference / SPARSE).to_pylist()
        if row["figure"].startswith("fig15")
    ]
    off: dict[str, list[float]] = {}
    for row in rows:
        design = _design_of(row["design"])
        product = SparseProduct(
            row["M"], row["N"], row["K"], row["weight_density"], row["input_density"]
        )
        dense = tensor_core_cycles("tc", product)
        ours = tensor_core_cycles(design, product, run_length="RLE" in row["design"]) / dense
        if design == "stc":
            design = "stc, half density or less" if product.weights <= 0.5 else "stc, dense"
        off.setdefault(design, []).append(ours / (row["cycles"] / dense) - 1.0)
    found = []
    for design, errors in sorted(off.items()):
        bar = 0.0 if design.startswith(("stc,", "tc")) else RATIO_BAR
        worst = max(map(abs, errors))
        met = sum(abs(error) <= bar for error in errors)
        note = f"worst ratio to dense, at most; {met} of {len(errors)} rows within"
        name = f"dataflow/sparse {design}"
        found.append(
            Check(name, 100.0 * worst, "%", 100.0 * bar, met == len(errors), len(errors), note)
        )
    return found


def _window_of(row: Mapping[str, str], kind: str) -> Window:
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


def _design_of(name: str) -> str:
    if name.startswith("STC_flexible"):
        return "stc_flexible_dual" if "dual" in name else "stc_flexible"
    return {"TC": "tc", "STC": "stc", "DSTC": "dstc"}[name.split("-")[0]]


def _rank_correlation(a: Any, b: Any) -> float:
    """Spearman's, equal values sharing their mean rank."""

    def ranks(values: Any) -> Any:
        _, member, counts = np.unique(values, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        return (ends - (counts - 1) / 2.0)[member]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])
