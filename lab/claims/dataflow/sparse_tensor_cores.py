"""Cycles of sparse tensor cores over the dense one's, beside Sparseloop's ratios."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from lab.parity.sparse_tensor_cores import SparseProduct, tensor_core_cycles
from lab.tables.rows import read_records

FIGURE = "fig15"


def ratios(reference: Path) -> pl.DataFrame:
    """Return ratios to the dense core by design; designs that follow fixed rules are exact."""
    rows = []
    for row in read_records(reference / "sparse/sparseloop_ref_outputs.parquet"):
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
        measured = row["cycles"] / dense
        rows.append({"design": design, "predicted": ours, "measured": measured})
    return pl.DataFrame(rows).sort("design", maintain_order=True)


def _design_of(name: str) -> str:
    if name.startswith("STC_flexible"):
        return "stc_flexible_dual" if "dual" in name else "stc_flexible"
    return {"TC": "tc", "STC": "stc", "DSTC": "dstc"}[name.split("-")[0]]
