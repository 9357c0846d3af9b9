"""The sustained part of each data-sheet rate of one GPU: what formulas need besides the sheet.

A rate on a data sheet is reached by no kernel. Three numbers per GPU and operator class say how
much of it is: the sustained part of the peak, the sustained part of the memory bandwidth, and the
seconds of a call that does nothing. The table of tiles belongs to the library and architecture.
The numbers in this file stand in where nothing was measured; `levels.py` replaces them by
calibrations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simulators.catalog.gpu import INSTRUCTION_ROWS, Gpu
from simulators.core.jit import Floats
from simulators.evidence.calibration_files import Stamp
from simulators.evidence.intervals import Band
from simulators.evidence.lookup import DEFAULT_FRAMEWORK
from simulators.kernels.corrections import Correction, corrected_seconds
from simulators.kernels.tiling import Tile, TileRates, tile_seconds
from simulators.workload.precision import BYTES

Sizes = tuple[Floats, Floats, Floats, Floats]
"""Of products: m, n, k and batch."""

TENSOR_K_STEP = 32.0
"""Steps of k are a matrix instruction's or a few; one length serves all formats."""

TENSOR_PROLOGUE_RATE = 4096.0
"""FLOPs per clock and SM at which a prologue is stated: a Hopper SM's, dense, at 16 bits."""


@dataclass(frozen=True, kw_only=True)
class ProductRates:
    """How matrix products run: the tiles of the library and the sustained part of each rate."""

    tiles: tuple[Tile, ...]
    tail: float  # share of the last, partly filled wave that is paid for
    prologue: float  # steps of k that fill and drain a block's pipeline, at `prologue_rate`
    prologue_rate: float  # FLOPs per clock and SM; a pipeline is a latency, so faster SMs wait more
    k_step: float
    compute: float  # sustained part of the data sheet's peak
    bandwidth: float  # sustained part of the memory bandwidth
    load_bytes_per_clock: float  # what an SM draws from L2 in a clock
    start_s: float = 0.0  # of a launch, of quantising activations where the framework's call does
    step_s: float = 0.0  # least time of a unit of k
    split_s: float = 0.0  # of adding up the shares of a split k
    correction: Correction | None = None
    seen: tuple[tuple[float, float], ...] = ()  # least and largest m, n, k, batch of the fit
    calibrated: bool = False


@dataclass(frozen=True, kw_only=True)
class GemmRates(ProductRates):
    """One class of products: fp32, or tensor cores without measurements."""

    dispatch_s: float  # an empty call from the host, timed alone


@dataclass(frozen=True, kw_only=True)
class TensorRates(ProductRates):
    """Tensor-core products of a kind and a framework, measured on the GPU or a similar GPU."""

    kind: str
    measured_on: str
    framework: str = ""  # whose kernel it is
    prologue_rate: float = TENSOR_PROLOGUE_RATE
    k_step: float = TENSOR_K_STEP
    band: Band | None = None


@dataclass(frozen=True, kw_only=True)
class VectorRates:
    """How pointwise kernels run."""

    bandwidth: float
    ramp_s: float  # until the memory system streams, and until it has drained
    dispatch_s: float
    calibrated: bool = False


@dataclass(frozen=True, kw_only=True)
class ReductionRates(VectorRates):
    """How row reductions run: as pointwise kernels, but rows may have to be read again."""

    l2_share: float  # part of L2 that rows in flight fill before half of them is read again
    step_clocks: float  # of one step of a block along its row
    row_clocks: float  # of starting and ending a row


@dataclass(frozen=True, kw_only=True)
class AttentionRates:
    """How fused attention runs where no library was measured."""

    prefill_compute: float
    decode_compute: float
    bandwidth: float
    query_tile: float  # query rows one block handles
    kv_tile: float  # keys one block of a decode step handles
    group_tile: float  # query heads of one group that share a matrix instruction
    load_bytes_per_clock: float
    dispatch_s: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Sustained rates of a GPU and their error bands, at one level of information."""

    level: str
    gemm: Mapping[str, GemmRates]  # linear, bmm, conv: fp32; tensor: faster, not measured
    vector: Mapping[str, VectorRates]  # unary, binary, and operators that have numbers of their own
    reduction: Mapping[str, ReductionRates]  # softmax, layer_norm
    attention: AttentionRates
    kernel_s: float  # an empty kernel, back to back with others
    bands: Mapping[str, Band] = field(default_factory=dict)
    tensor: Mapping[str, TensorRates] = field(default_factory=dict)  # by kind, where measured
    asked: str = "best"  # the level of information that was asked for
    framework: str = DEFAULT_FRAMEWORK  # whose kernels run, where several were measured
    stamp: Stamp = ()  # of the calibrations it was read from


def _tiles(splits: tuple[int, ...], *tiles: tuple[int, int, float]) -> tuple[Tile, ...]:
    return tuple(Tile(m, n, efficiency, s) for s in splits for m, n, efficiency in tiles)


SIMT_TILES = _tiles(
    (1, 4),
    (256, 128, 1.00),
    (128, 128, 0.95),
    (128, 64, 0.85),
    (64, 128, 0.85),
    (64, 64, 0.70),
    (128, 32, 0.70),
    (32, 128, 0.70),
    (64, 32, 0.60),
    (32, 32, 0.60),
)
"""Tiles of NVIDIA's fp32 kernels by their names; the smaller, the more a block waits for loads."""

MATRIX_TILES = _tiles(
    (1, 4),
    (256, 128, 1.00),
    (128, 256, 1.00),
    (128, 128, 1.00),
    (128, 96, 0.95),
    (96, 96, 0.90),
    (128, 64, 0.90),
    (64, 128, 0.90),
    (64, 64, 0.80),
    (64, 32, 0.60),
    (32, 64, 0.60),
    (32, 32, 0.40),
    (64, 16, 0.40),
    (16, 64, 0.40),
    (16, 16, 0.20),
)
"""Macro tiles of AMD's fp32 matrix-core kernels by their names."""

TENSOR_TILES = _tiles(
    (1, 2, 4, 8),
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.95),
    (128, 64, 0.80),
    (64, 128, 0.80),
    (64, 256, 0.85),
    (64, 64, 0.60),
    (16, 128, 0.25),
)
"""Tiles of tensor-core libraries; small ones cannot feed the matrix units from shared memory."""

KERNEL_S = 2e-6
"""Launching an empty kernel back to back takes about 2 us on every GPU since Pascal."""

DISPATCH_S = {"nvidia": 30e-6, "amd": 15e-6}
"""An empty framework call timed from the host: 25-50 us under CUDA, 12-30 us under ROCm."""

SUSTAINED = {"nvidia": 0.8, "amd": 0.65}
"""fp32 products sustain .5 to .97 of the peak, by the margin to the power limit."""

L2_BYTES_PER_CLOCK = 64.0
"""What the path from L2 hands an SM in a clock, on every NVIDIA GPU since Volta."""


def default_profile(vendor: str) -> Profile:
    """Return what is assumed of a GPU nothing was measured on.

    Numbers without a reason of their own are about the mean over the GPUs that were measured.
    """
    maker = "amd" if vendor == "amd" else "nvidia"
    dispatch_s = DISPATCH_S[maker]
    simt = GemmRates(
        tiles=MATRIX_TILES if maker == "amd" else SIMT_TILES,
        tail=0.9,
        prologue=20.0,
        prologue_rate=256.0 if maker == "amd" else 128.0,  # FLOPs of an SM or CU per clock, in fp32
        k_step=8.0,  # the unrolled inner loop of fp32 kernels
        compute=SUSTAINED[maker],
        bandwidth=0.75,
        load_bytes_per_clock=L2_BYTES_PER_CLOCK,
        dispatch_s=dispatch_s,
    )
    tensor = replace(
        simt,
        tiles=TENSOR_TILES,
        prologue=256.0,
        prologue_rate=TENSOR_PROLOGUE_RATE,
        k_step=TENSOR_K_STEP,
        compute=1.0,  # of what is sustained: the part of the peak is `evidence.sustained`'s
        bandwidth=0.85,
    )
    vector = VectorRates(bandwidth=0.83, ramp_s=15e-6, dispatch_s=dispatch_s)
    softmax = ReductionRates(
        bandwidth=0.83,
        ramp_s=25e-6,
        dispatch_s=dispatch_s,
        l2_share=0.7,
        step_clocks=5000.0,
        row_clocks=1000.0,
    )
    attention = AttentionRates(
        prefill_compute=0.55,
        decode_compute=0.3,
        bandwidth=0.8,
        query_tile=128.0,  # FlashAttention's block of queries, and FlashDecoding's of keys
        kv_tile=256.0,
        group_tile=INSTRUCTION_ROWS,
        load_bytes_per_clock=L2_BYTES_PER_CLOCK,
        dispatch_s=dispatch_s,
    )
    return Profile(
        level="zero_shot",
        gemm={"linear": simt, "bmm": simt, "conv": simt, "tensor": tensor},
        vector={"unary": vector, "binary": vector},
        reduction={
            "softmax": softmax,
            "layer_norm": replace(softmax, step_clocks=500.0, row_clocks=500.0),
        },
        attention=attention,
        kernel_s=KERNEL_S,
    )


def product_seconds(
    rates: ProductRates, sizes: Sizes, gpu: Gpu, dtype: str, weight_dtype: str = ""
) -> Floats:
    """Return the seconds of products of m, n, k and batch with the rates of one class."""
    m, n, k, batch = sizes
    seconds = rates.start_s + tile_seconds(
        m * batch, n, k, batch, rates.tiles, machine(gpu, rates, dtype, weight_dtype)
    )
    if rates.correction is None:
        return seconds
    return corrected_seconds(rates.correction, sizes, seconds)


def result_bytes(dtype: str) -> float:
    """Return the bytes of one number of a result: 8-bit and narrower products end as 16 bits."""
    return max(2.0, BYTES[dtype])


def machine(gpu: Gpu, rates: ProductRates, dtype: str, weight_dtype: str = "") -> TileRates:
    """Return the tile model's rates of `gpu` in one precision."""
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
