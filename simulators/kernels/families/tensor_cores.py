"""Tensor-core products run in the tiles of `tiling.py`, and wait for memory at every step of k.

    t = start + tiles in waves, with a latency per step of k and a price for splitting it

Matrix units are fast enough that latencies show: each step of k waits for its strips however small
the tile is, and a split k costs a second pass that adds up the shares. Eight numbers per GPU,
framework and kind of product (`compute`, `bandwidth`, `load_bytes_per_clock`, `tail`, `prologue`,
`start_s`, `step_s`, `split_s`) and a table of tiles are fitted. Monotone trees bend what is left,
as in `correction.py`; features and formula only ever rise with a size, so the laws hold.

A kind is a pair of formats: of the multiplication and of the stored weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.intervals import Band, band_from
from simulators.kernels.monotone_correction import Correction, bend_from, corrected_seconds
from simulators.kernels.tiling import Machine, Tile, tile_seconds
from simulators.workload.operators import BYTES

Floats = NDArray[np.float64]
Sizes = tuple[Floats, Floats, Floats, Floats]

PLAIN = "bf16"
"""The kind every measured board has; formats nobody measured borrow its numbers."""

PLAIN_BATCH = "bmm"
"""The kind of 16-bit products with a matrix each."""

K_STEP = 32.0
"""Steps of k are a matrix instruction's or a few; one length serves all formats."""

PROLOGUE_RATE = 4096.0
"""FLOPs per clock and SM at which a prologue is stated: a Hopper SM's, dense, at 16 bits."""

NUMBERS = (
    "compute", "bandwidth", "load_bytes_per_clock", "tail", "prologue", "start_s", "step_s",
    "split_s",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TensorRates:
    """How one framework's products of one kind run on one GPU, or on one like it."""

    kind: str
    measured_on: str
    tiles: tuple[Tile, ...]
    compute: float  # sustained part of the data sheet's peak, by the best tile
    bandwidth: float  # sustained part of the memory bandwidth
    load_bytes_per_clock: float  # what an SM draws from L2 in a clock
    tail: float  # share of the last, partly filled wave that is paid for
    prologue: float  # steps of k that fill and drain a pipeline, at `PROLOGUE_RATE`
    start_s: float  # of a launch, of quantising activations where the framework's call does
    step_s: float  # least time of a unit of k
    split_s: float  # of adding up the shares of a split k
    correction: Correction | None = None
    seen: tuple[tuple[float, float], ...] = ()  # least and largest m, n, k, batch of the fit
    band: Band | None = None
    calibrated: bool = False


def kind_of(dtype: str, weight_dtype: str = "") -> str:
    """Return the kind of a product.

    >>> kind_of("fp16"), kind_of("fp8"), kind_of("fp8", "fp8_block"), kind_of("fp16", "int4")
    ('bf16', 'fp8', 'fp8_block', 'w4a16')
    """
    if (dtype, weight_dtype) == MEASURED["fp8_block"]:
        return "fp8_block"
    if weight_dtype and BYTES[weight_dtype] < BYTES[dtype] <= BYTES["bf16"]:
        return "w4a16" if BYTES[weight_dtype] <= BYTES["int4"] else "w8a16"
    return dtype if dtype in ("fp8", "fp4", "int8") else PLAIN


def batched_kind_of(kind: str) -> str:
    """Return the kind of products with a matrix each, of those that share one matrix.

    >>> batched_kind_of("fp8"), batched_kind_of("w4a16")
    ('bmm_fp8', 'bmm')
    """
    return "bmm_fp8" if kind.startswith("fp8") else PLAIN_BATCH


def stand_ins(kind: str) -> tuple[str, ...]:
    """Return the kinds whose numbers serve for one, its own first."""
    shared = {PLAIN_BATCH: PLAIN, "bmm_fp8": "fp8"}.get(kind, PLAIN)
    return tuple(dict.fromkeys((kind, shared, PLAIN)))


def band_name(kind: str) -> str:
    """Return the class under which a profile has the band of a kind."""
    return f"tensor_{kind}"


MEASURED = {
    "bf16": ("bf16", "bf16"), "fp8": ("fp8", "fp8"), "fp8_block": ("fp8", "fp8_block"),
    "fp4": ("fp4", "fp4"), "int8": ("int8", "int8"), "w8a16": ("fp16", "int8"),
    "w4a16": ("fp16", "int4"), "bmm": ("bf16", "bf16"), "bmm_fp8": ("fp8", "fp8"),
}  # fmt: skip
"""Formats of the multiplication and of the weights in the tables of each kind."""


def is_measured_format(rates: TensorRates, dtype: str, weight_dtype: str) -> bool:
    """Say whether these formats are those the rates were measured in."""
    return MEASURED[rates.kind] == (dtype, weight_dtype or dtype)


def tensor_seconds(
    rates: TensorRates, sizes: Sizes, gpu: Gpu, dtype: str, weight_dtype: str = ""
) -> Floats:
    """Return the seconds of products of m, n, k and batch, launch included."""
    seconds = formula_seconds(rates, sizes, gpu, dtype, weight_dtype)
    if rates.correction is None:
        return seconds
    return corrected_seconds(rates.correction, sizes, seconds)


def formula_seconds(
    rates: TensorRates, sizes: Sizes, gpu: Gpu, dtype: str, weight_dtype: str = ""
) -> Floats:
    """Return the seconds before the correction."""
    m, n, k, batch = sizes
    per_sm = gpu.peak(dtype) / gpu.sm_count
    machine = Machine(
        sm_count=gpu.sm_count,
        flops_per_s_per_sm=rates.compute * per_sm,
        load_bytes_per_s_per_sm=rates.load_bytes_per_clock * gpu.clock_hz,
        hbm_bytes_per_s=rates.bandwidth * gpu.hbm_bytes_per_s,
        l2_bytes=float(gpu.l2_bytes),
        a_bytes=BYTES[dtype],
        b_bytes=BYTES[weight_dtype or dtype],
        c_bytes=max(2.0, BYTES[dtype]),
        tail=rates.tail,
        prologue=rates.prologue * per_sm / gpu.clock_hz / PROLOGUE_RATE,
        k_step=K_STEP,
        step_s=rates.step_s,
        split_s=rates.split_s,
    )
    return rates.start_s + tile_seconds(m * batch, n, k, batch, rates.tiles, machine)


def tensor_rates_from(table: Mapping[str, Any], kind: str, measured_on: str) -> TensorRates:
    """Return the rates a calibration file holds of one framework and kind."""
    return TensorRates(
        kind=kind,
        measured_on=measured_on,
        tiles=tuple(
            Tile(int(m), int(n), float(efficiency), int(splits))
            for splits in table["splits"]
            for m, n, efficiency in table["tiles"]
        ),
        **{name: float(table[name]) for name in NUMBERS},
        correction=bend_from(table["correction"]) if "correction" in table else None,
        seen=tuple((float(lo), float(hi)) for lo, hi in table["seen"]),
        band=band_from(table["band"]),
        calibrated=True,
    )
