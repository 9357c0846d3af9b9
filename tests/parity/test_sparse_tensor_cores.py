"""Cycles of sparse tensor cores, relative to dense ones, against figure 15 of Sparseloop."""

from __future__ import annotations

from pathlib import Path

from lab.tables.rows import read_records
from tests.parity.sparse_tensor_cores import SparseProduct, tensor_core_cycles

FIGURE = "fig15"


LIMITS = {
    "tc": 0.0,
    "stc, half density or less": 0.0,
    "stc, dense": 0.0,
    "stc_flexible": 0.10,
    "stc_flexible_dual": 0.10,
    "dstc": 0.11,
}
"""Largest relative error by design; designs that follow fixed rules are exact."""


def test_ratios_to_the_dense_core_match_sparseloop(reference: Path) -> None:
    seen = set()
    for row in read_records(reference / "sparse/sparseloop_ref_outputs.parquet"):
        if not row["figure"].startswith(FIGURE):
            continue
        design = _design_of(row["design"])
        product = SparseProduct(
            row["M"], row["N"], row["K"], row["weight_density"], row["input_density"]
        )
        cycles = tensor_core_cycles(design, product, run_length="RLE" in row["design"])
        if design == "stc":
            design = "stc, half density or less" if product.weights <= 0.5 else "stc, dense"
        seen.add(design)
        assert abs(cycles / row["cycles"] - 1.0) <= LIMITS[design], row
    assert seen == set(LIMITS)


def _design_of(name: str) -> str:
    if name.startswith("STC_flexible"):
        return "stc_flexible_dual" if "dual" in name else "stc_flexible"
    return {"TC": "tc", "STC": "stc", "DSTC": "dstc"}[name.split("-")[0]]
