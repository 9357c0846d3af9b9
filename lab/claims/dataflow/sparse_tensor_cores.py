"""Cycles of sparse tensor cores over the dense one's, against Sparseloop's ratios."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab.parity.sparse_tensor_cores import SparseProduct, tensor_core_cycles
from lab.tables.rows import read_records
from simulators.core.contract import PARITY, Check

NEEDS = (TABLE,) = ("sparse/sparseloop_ref_outputs.parquet",)
KIND = PARITY
FIGURE = "fig15"
LIMIT = 0.10
"""Of the ratio's error; designs that follow fixed rules are to be equal."""
EXACT = ("stc,", "tc")


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the worst ratio of each design; nothing was fitted."""
    off: dict[str, list[float]] = {}
    for row in read_records(reference / TABLE):
        if not row["figure"].startswith(FIGURE):
            continue
        design = _design_of(row["design"])
        product = SparseProduct(
            row["M"], row["N"], row["K"], row["weight_density"], row["input_density"]
        )
        dense = tensor_core_cycles("tc", product)
        ours = tensor_core_cycles(design, product, run_length="RLE" in row["design"]) / dense
        if design == "stc":
            design = "stc, half density or less" if product.weights <= 0.5 else "stc, dense"
        off.setdefault(design, []).append(abs(ours / (row["cycles"] / dense) - 1.0))
    for design, errors in sorted(off.items()):
        limit = 0.0 if design.startswith(EXACT) else LIMIT
        met, rows = sum(error <= limit for error in errors), len(errors)
        note = f"worst ratio to dense, at most; {met} of {rows} rows within"
        yield Check(
            f"dataflow/sparse {design}",
            100.0 * max(errors),
            "%",
            100.0 * limit,
            met == rows,
            rows,
            note,
        )


def _design_of(name: str) -> str:
    if name.startswith("STC_flexible"):
        return "stc_flexible_dual" if "dual" in name else "stc_flexible"
    return {"TC": "tc", "STC": "stc", "DSTC": "dstc"}[name.split("-")[0]]
