"""Profile of a GPU: the sustained share of each data-sheet rate, and constants of its library.

No kernel reaches the rates of a data sheet. A profile has, per class of operators, the sustained
share of the peak, the sustained share of the memory bandwidth, and the seconds of an empty call.
The table of tiles belongs to the library and the architecture. `default_profile` is the profile of
a GPU without measurements; `levels.py` replaces its numbers by calibrations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simulators.catalog.gpu import INSTRUCTION_ROWS, Gpu
from simulators.core.folder import read_toml
from simulators.core.jit import Floats
from simulators.evidence.intervals import Band
from simulators.evidence.lookup import DEFAULT_FRAMEWORK, DEFAULT_RATES, Stamp
from simulators.kernels.corrections import Correction, corrected_seconds
from simulators.kernels.tiling import Tile, TileRates, tile_seconds
from simulators.workload.precision import BYTES

Sizes = tuple[Floats, Floats, Floats, Floats]
"""Sizes of matrix products: m, n, k and batch."""

TENSOR_K_STEP = 32.0
"""Length of a step of k: one or a few matrix instructions. One length serves all formats."""

TENSOR_PROLOGUE_RATE = 4096.0
"""FLOPs per clock and SM at which a prologue is stated: of a Hopper SM, dense, at 16 bits."""


@dataclass(frozen=True, kw_only=True)
class ProductRates:
    """Rates of matrix products: the tiles of the library and the sustained share of each rate."""

    tiles: tuple[Tile, ...]
    tail: float  # cost of the last, partly filled wave, as a share of a full wave
    prologue: float  # steps of k that fill and drain a block's pipeline, at `prologue_rate`
    prologue_rate: float  # FLOPs per clock and SM; the pipeline is a latency: faster SMs wait more
    k_step: float
    compute: float  # sustained share of the data sheet's peak
    bandwidth: float  # sustained share of the memory bandwidth
    load_bytes_per_clock: float  # from L2 to an SM
    start_s: float = 0.0  # of a launch, and of quantizing activations if the framework's call does
    quantising: float = 0.0  # time of that quantization over the time to move activations once
    step_s: float = 0.0  # least time of a unit of k
    split_s: float = 0.0  # of adding up the partial results of a split k
    correction: Correction | None = None
    seen: tuple[tuple[float, float], ...] = ()  # smallest and largest m, n, k, batch of the fit
    calibrated: bool = False


@dataclass(frozen=True, kw_only=True)
class GemmRates(ProductRates):
    """Rates of one class of products: fp32, or tensor cores without measurements."""

    dispatch_s: float  # an empty call from the host, timed alone


@dataclass(frozen=True, kw_only=True)
class TensorRates(ProductRates):
    """Rates of one kind of tensor-core products of a framework, measured on this or another GPU."""

    kind: str
    measured_on: str
    framework: str = ""  # of the measured kernel
    prologue_rate: float = TENSOR_PROLOGUE_RATE
    k_step: float = TENSOR_K_STEP
    band: Band | None = None


@dataclass(frozen=True, kw_only=True)
class VectorRates:
    """Rates of pointwise kernels."""

    bandwidth: float
    ramp_s: float  # to fill and drain the memory pipeline
    dispatch_s: float
    calibrated: bool = False


@dataclass(frozen=True, kw_only=True)
class ReductionRates(VectorRates):
    """Rates of row reductions: pointwise kernels that may have to read rows again."""

    l2_share: float  # share of L2 at which half of the rows in flight are read again
    step_clocks: float  # of one step of a block along its row
    row_clocks: float  # to start and end a row


@dataclass(frozen=True, kw_only=True)
class AttentionRates:
    """Rates of fused attention without a measured library."""

    prefill_compute: float
    decode_compute: float
    bandwidth: float
    query_tile: float  # query rows per block
    kv_tile: float  # keys per block of a decode step
    group_tile: float  # query heads of one group per matrix instruction
    load_bytes_per_clock: float
    dispatch_s: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Sustained rates of a GPU and their error bands, at one level of information."""

    level: str
    gemm: Mapping[str, GemmRates]  # linear, bmm, conv: fp32; tensor: faster formats, not measured
    vector: Mapping[str, VectorRates]  # unary, binary, and operators with rates of their own
    reduction: Mapping[str, ReductionRates]  # softmax, layer_norm
    attention: AttentionRates
    kernel_s: float  # an empty kernel, back to back with others
    bands: Mapping[str, Band] = field(default_factory=dict)
    tensor: Mapping[str, TensorRates] = field(default_factory=dict)  # measured rates by kind
    asked: str = "best"  # the requested level of information
    framework: str = DEFAULT_FRAMEWORK  # library of the kernels, where several were measured
    stamp: Stamp = ()  # of the calibrations behind the profile


def default_profile(vendor: str) -> Profile:
    """Return the profile of a GPU on which nothing was measured, from `default_rates.toml`."""
    defaults = read_toml(DEFAULT_RATES)
    own = defaults["amd" if vendor == "amd" else "nvidia"]
    dispatch_s = own["dispatch_s"]
    simt = GemmRates(
        **defaults["fp32"],
        tiles=tiles_from(own),
        compute=own["compute"],
        prologue_rate=own["prologue_rate"],
        dispatch_s=dispatch_s,
    )
    numbers = {n: v for n, v in defaults["tensor"].items() if n not in ("tiles", "splits")}
    tensor = replace(simt, tiles=tiles_from(defaults["tensor"]), **numbers)
    vector = VectorRates(**defaults["vector"], dispatch_s=dispatch_s)
    reductions = {
        name: ReductionRates(**defaults[name], dispatch_s=dispatch_s)
        for name in ("softmax", "layer_norm")
    }
    return Profile(
        level="zero_shot",
        gemm={"linear": simt, "bmm": simt, "conv": simt, "tensor": tensor},
        vector={"unary": vector, "binary": vector},
        reduction=reductions,
        attention=AttentionRates(
            **defaults["attention"], group_tile=INSTRUCTION_ROWS, dispatch_s=dispatch_s
        ),
        kernel_s=defaults["kernel_s"],
    )


def tiles_from(table: Mapping[str, Any]) -> tuple[Tile, ...]:
    """Return the tiles of a calibration table, for each number of splits."""
    return tuple(
        Tile(int(m), int(n), float(efficiency), int(splits))
        for splits in table["splits"]
        for m, n, efficiency in table["tiles"]
    )


def product_seconds(
    rates: ProductRates, sizes: Sizes, gpu: Gpu, dtype: str, weight_dtype: str = ""
) -> Floats:
    """Return the seconds of matrix products on the GPU, with the rates of one class."""
    m, n, k, batch = sizes
    seconds = rates.start_s + tile_seconds(
        m * batch, n, k, batch, rates.tiles, tile_rates_of(gpu, rates, dtype, weight_dtype)
    )
    if rates.quantising:
        seconds = seconds + quantised_s(rates, sizes, gpu, dtype)
    if rates.correction is None:
        return seconds
    return corrected_seconds(rates.correction, sizes, seconds)


def quantised_s(rates: ProductRates, sizes: Sizes, gpu: Gpu, dtype: str) -> Floats:
    """Return the seconds in which a kernel of its own quantizes 16-bit activations, after a start.

    The kernel reads the activations and writes them in the format of the product.
    """
    m, _, k, batch = sizes
    moved = (BYTES["bf16"] + BYTES[dtype]) * m * batch * k
    return rates.quantising * moved / gpu.hbm_bytes_per_s


def result_bytes(dtype: str) -> float:
    """Return the bytes per number of a result: products in 8 bits or fewer have 16-bit results."""
    return max(2.0, BYTES[dtype])


def tile_rates_of(gpu: Gpu, rates: ProductRates, dtype: str, weight_dtype: str = "") -> TileRates:
    """Return the parameters of the tile model for a GPU and a precision."""
    flops_per_s_per_sm = gpu.peak(dtype) / gpu.sm_count
    return TileRates(
        sm_count=gpu.sm_count,
        flops_per_s_per_sm=rates.compute * flops_per_s_per_sm,
        load_bytes_per_s_per_sm=rates.load_bytes_per_clock * gpu.clock_hz,
        hbm_bytes_per_s=rates.bandwidth * gpu.hbm_bytes_per_s,
        l2_bytes=float(gpu.l2_bytes),
        a_bytes=BYTES[dtype],
        b_bytes=BYTES[weight_dtype or dtype],
        c_bytes=result_bytes(dtype),
        tail=rates.tail,
        prologue=rates.prologue * flops_per_s_per_sm / gpu.clock_hz / rates.prologue_rate,
        k_step=rates.k_step,
        step_s=rates.step_s,
        split_s=rates.split_s,
    )
