"""What narrow weights speed up: single products on an A10, and whole decodes of ExLlamaV2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from lab.tables.catalog_names import replica_of
from lab.tables.forward_passes import Case, Term
from lab.tables.modern.uncatalogued import model_of
from lab.tables.rows import read_records
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.composition.replica import load_runtime
from simulators.workload.llm.step import decode_step

PRODUCTS = "quantization/w4a16_gemm_speedup_vs_batch.parquet"
EXLLAMA = "quantization/exllamav2_decode_bs1.parquet"

MATRIX = (73_728, 18_432)
"""Inner length and columns of the product, 1,024 and 256 for each of 72 SMs (IST-DASLab/marlin,
`bench.py`, "ideal")."""

BASE_HZ = 885e6
"""NVIDIA A10 product brief, base clock."""

CONTEXT = 128.0
"""The published decodes are of short texts; which ones is not said."""


def board_at(clock: str) -> Gpu:
    """Return an A10 as it boosts, or with its clock locked at the base."""
    board = load_gpu("a10")
    if clock != "base_locked":
        return board
    slower = BASE_HZ / board.clock_hz
    peaks = {dtype: slower * peak for dtype, peak in board.peak_flops.items()}
    return replace(board, clock_hz=BASE_HZ, peak_flops=peaks)


def speed_ups(reference: Path, clock: str) -> Mapping[str, Mapping[int, float]]:
    """Return how much faster than fp16 a kernel is, by kernel and rows of the product."""
    found: dict[str, dict[int, float]] = {}
    for row in read_records(reference / PRODUCTS, clock=clock):
        found.setdefault(row["kernel"], {})[row["batch"]] = row["speedup_vs_fp16"]
    return {kernel: dict(sorted(rows.items())) for kernel, rows in found.items()}


def exllama_decodes(reference: Path) -> Iterator[Case]:
    """Yield decodes of one sequence with 4-bit weights, on the board that the catalog has.

    Its layers are launched by compiled code without Python between them, so `graphs` is nearest;
    under `eager`, the runtime of TinyChat's Python, the mean error is 34 % rather than 15 %.
    """
    for row in read_records(reference / EXLLAMA, gpu="RTX4090", bits_per_weight=4.0):
        model = model_of(f"{row['family']} {row['size']}")
        replica = replica_of(
            model, "rtx_4090", dtype="w4a16", kv_dtype="fp16", runtime=load_runtime("graphs")
        )
        yield Case(
            model.name,
            replica,
            (Term(decode_step(1.0, CONTEXT)),),
            1.0 / row["tokens_per_s_bs1"],
        )
