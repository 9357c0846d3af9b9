"""Beyond its data sheet, what is known of a GPU is how much of each rate it sustains.

A rate on a data sheet is reached by no kernel. Three numbers per GPU say how much of it is: the
sustained part of the peak, the sustained part of the memory bandwidth, and the time a call takes
that does nothing. Tiles and their efficiencies belong to the architecture. Where nothing was
measured the numbers below stand in, and results say `calibrated = false`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulators.catalog.gpu import Gpu
from simulators.kernels.tiling import Machine, Tile
from simulators.workload.operators import BYTES

SIMT_TILES = tuple(
    Tile(m, n, efficiency, splits)
    for splits in (1, 4)
    for m, n, efficiency in (
        (256, 128, 0.95), (128, 128, 1.0), (128, 64, 0.97), (64, 128, 0.97),
        (64, 64, 0.90), (128, 32, 0.85), (32, 128, 0.85), (32, 32, 0.60),
    )
)  # fmt: skip
"""Tiles of fp32 libraries; the smaller a tile, the more it waits for shared memory."""

TENSOR_TILES = tuple(
    Tile(m, n, efficiency, splits)
    for splits in (1, 2, 4, 8)
    for m, n, efficiency in (
        (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.80), (64, 128, 0.80),
        (64, 256, 0.85), (64, 64, 0.60), (16, 128, 0.25),
    )
)  # fmt: skip
"""Tiles of tensor-core libraries; small ones cannot feed the matrix units from shared memory."""


@dataclass(frozen=True, kw_only=True)
class GemmProfile:
    """How matrix products run: the tiles of the library and the sustained part of each rate."""

    tiles: tuple[Tile, ...]
    tail: float
    prologue: float
    k_step: float
    compute: float  # sustained part of the data sheet's peak
    bandwidth: float  # sustained part of the memory bandwidth
    load_bytes_per_clock: float  # what an SM draws from L2 in a clock


@dataclass(frozen=True, kw_only=True)
class AttentionProfile:
    """How fused attention runs."""

    prefill_compute: float
    decode_compute: float
    bandwidth: float
    query_tile: float  # query rows one block handles
    kv_tile: float  # keys one block of a decode step handles
    group_tile: float  # query heads of one group that share a matrix instruction
    load_bytes_per_clock: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The sustained rates of one GPU, and where they come from."""

    simt: GemmProfile
    tensor: GemmProfile
    attention: AttentionProfile
    vector_bandwidth: float
    kernel_s: float  # an empty kernel, back to back with others
    dispatch_s: float  # an empty call from the host, timed alone
    calibrated: bool = False


def default_profile(gpu: Gpu) -> Profile:
    """Return what is assumed of a GPU nothing was measured on."""
    simt = GemmProfile(
        tiles=SIMT_TILES,
        tail=0.9,
        prologue=24.0,
        k_step=8.0,
        compute=0.65 if gpu.vendor == "amd" else 0.8,
        bandwidth=0.8,
        load_bytes_per_clock=64.0,
    )
    tensor = replace(
        simt, tiles=TENSOR_TILES, prologue=256.0, k_step=32.0, compute=0.75, bandwidth=0.85
    )
    attention = AttentionProfile(
        prefill_compute=0.55,
        decode_compute=0.3,
        bandwidth=0.8,
        query_tile=128.0,
        kv_tile=256.0,
        group_tile=16.0,
        load_bytes_per_clock=64.0,
    )
    return Profile(
        simt=simt,
        tensor=tensor,
        attention=attention,
        vector_bandwidth=0.8,
        kernel_s=2e-6,
        dispatch_s=15e-6 if gpu.vendor == "amd" else 25e-6,
    )


def machine(gpu: Gpu, profile: GemmProfile, dtype: str, weight_dtype: str = "") -> Machine:
    """Return what the tile model needs to know of `gpu` for one precision."""
    return Machine(
        sm_count=gpu.sm_count,
        flops_per_s_per_sm=profile.compute * gpu.peak(dtype) / gpu.sm_count,
        load_bytes_per_s_per_sm=profile.load_bytes_per_clock * gpu.clock_hz,
        hbm_bytes_per_s=profile.bandwidth * gpu.hbm_bytes_per_s,
        l2_bytes=float(gpu.l2_bytes),
        a_bytes=BYTES[dtype],
        b_bytes=BYTES[weight_dtype or dtype],
        c_bytes=max(2.0, BYTES[dtype]),
        tail=profile.tail,
        prologue=profile.prologue,
        k_step=profile.k_step,
    )
