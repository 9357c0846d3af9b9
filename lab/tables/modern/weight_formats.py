"""Speed-ups of 4-bit weights: single products on an A10, and whole decodes of ExLlamaV2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from lab.tables.catalog_names import model_of, replica_of
from lab.tables.forward_passes import PassCase, Term
from lab.tables.records import file_of, records
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.composition.replica import load_runtime
from simulators.workload.llm.step import decode_step

PRODUCTS = file_of("w4a16_products")

MATRIX = (73_728, 18_432)
"""Inner length and columns of the product, 1,024 and 256 for each of 72 SMs (IST-DASLab/marlin,
`bench.py`, "ideal")."""

BASE_HZ = 885e6
"""NVIDIA A10 product brief, base clock."""

CONTEXT = 128.0
"""Assumed tokens of context: the published decodes are of short texts."""


def gpu_at(clock: str) -> Gpu:
    """Return an A10 at its boost clock, or with its clock locked at the base."""
    gpu = load_gpu("a10")
    if clock != "base_locked":
        return gpu
    slower = BASE_HZ / gpu.clock_hz
    peaks = {dtype: slower * peak for dtype, peak in gpu.peak_flops.items()}
    return replace(gpu, clock_hz=BASE_HZ, peak_flops=peaks)


def speed_ups(reference: Path, clock: str) -> Mapping[str, Mapping[int, float]]:
    """Return the speed-up over fp16, by kernel and rows of the product."""
    found: dict[str, dict[int, float]] = {}
    for row in records(reference, "w4a16_products", clock=clock):
        found.setdefault(row.kernel, {})[row.batch] = row.speedup_vs_fp16
    return {kernel: dict(sorted(rows.items())) for kernel, rows in found.items()}


def exllama_decodes(reference: Path) -> Iterator[PassCase]:
    """Yield decodes of one sequence with 4-bit weights on the GPU that the catalog has.

    Compiled code launches the layers, so the runtime `graphs` is nearest: with `eager`, the runtime
    of TinyChat's Python, the mean error is 34 % rather than 15 %.
    """
    runtime = load_runtime("graphs")
    for row in records(reference, "exllama", gpu="RTX4090", bits_per_weight=4.0):
        model = model_of(f"{row.family} {row.size}")
        replica = replica_of(model, "rtx_4090", dtype="w4a16", kv_dtype="fp16", runtime=runtime)
        terms = (Term(decode_step(1.0, CONTEXT)),)
        yield PassCase(model.name, replica, terms, 1.0 / row.tokens_per_s_bs1)
