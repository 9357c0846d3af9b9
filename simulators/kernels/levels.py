"""Kinds of tensor-core products, and the own or transferred rates of each for a GPU.

    t = start + tiles in waves, with a latency per step of k and a price for splitting it

Matrix units are fast enough that latencies show: each step of k waits for its strips however small
the tile is, and a split k costs a second pass that adds up the shares. Eight numbers per GPU,
framework and kind of product (`NUMBERS`) and a table of tiles are fitted, and monotone trees
correct what is left; features and formula only ever rise with a size, so the laws hold.

A kind is a pair of formats: of the multiplication and of the stored weights.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from simulators.catalog.gpu import Gpu, as_sold, load_gpu
from simulators.core.calibration import read_calibration
from simulators.core.errors import UnknownNameError, UserError
from simulators.evidence.default_rates import (
    Identity,
    MeasuredGpu,
    bands_by_sheet,
    identity_of,
    mean_of,
    measured_gpus,
    nearest_gpu,
    of_architecture,
    sheet_bands,
    sustained_by_line,
    sustained_share,
)
from simulators.evidence.intervals import WIDEST, band_from
from simulators.evidence.lookup import (
    BEST,
    DEFAULT_FRAMEWORK,
    FRAMEWORKS,
    LEVELS,
    NAMED_KERNELS,
    NEW_ARCHITECTURE,
    Stamp,
    calibration_file,
    calibration_files,
    calibrations,
    find,
    nearest_relation,
    stamp,
)
from simulators.evidence.transfer import OWN
from simulators.kernels.corrections import correction_from
from simulators.kernels.profile import (
    GemmRates,
    ProductRates,
    Profile,
    ReductionRates,
    TensorRates,
    VectorRates,
    default_profile,
    product_seconds,
    tiles_from,
)
from simulators.workload.precision import BYTES, QUANTISED

R = TypeVar("R", bound=ProductRates)

PLAIN = "bf16"
"""The kind that every measured GPU has; unmeasured formats use its numbers."""

PLAIN_BATCH = "bmm"
"""The kind of 16-bit products with a matrix each."""

TENSOR_SPEEDUP = 3.0
"""A precision this much faster than fp32 runs on matrix units; P100's fp16 (2x) does not. GPUs
with a tf32 rate have matrix units anyway: on GeForce ones these are only twice as fast as fp32."""

RATES, LATENCIES = (
    ("compute", "bandwidth", "load_bytes_per_clock"),
    ("start_s", "step_s", "split_s"),
)
NUMBERS = (*RATES, "tail", "prologue", *LATENCIES)

MEASURED = {
    "bf16": ("bf16", "bf16"),
    "fp8": ("fp8", "fp8"),
    "fp8_block": ("fp8", "fp8_block"),
    "fp4": ("fp4", "fp4"),
    "int8": ("int8", "int8"),
    "w8a16": ("fp16", "int8"),
    "w4a16": ("fp16", "int4"),
    "bmm": ("bf16", "bf16"),
    "bmm_fp8": ("fp8", "fp8"),
}
"""Formats of the multiplication and of the weights in the tables of each kind."""


WEIGHT_ONLY = ("w8a16", "w4a16")
"""Kinds that exist to read fewer bytes of weights: they are unpacked before they are multiplied."""

SIDE = 8192.0
"""One row by a square matrix of this side is nothing but reading it, on every GPU; two such
matrices are nothing but arithmetic."""


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


def on_tensor_cores(gpu: Gpu, dtype: str) -> bool:
    """Say whether a precision runs on matrix units with tiles of their own."""
    fp32 = gpu.peak_flops.get("fp32", gpu.peak(dtype))
    has_units = "tf32" in gpu.peak_flops or gpu.peak(dtype) > TENSOR_SPEEDUP * fp32
    return dtype != "fp32" and has_units


SHEET_CLASSES = ("tensor", "tensor_quantised")
"""Classes of products by the data sheet alone, and of those in formats that are quantised to."""


def sheet_rates(gpu: Gpu, profile: Profile, dtype: str) -> tuple[str, GemmRates]:
    """Return the class and the rates of unmeasured products on matrix units."""
    rates = profile.gemm["tensor"]
    if not rates.calibrated:
        rates = sustaining(rates, sustained_share(gpu, dtype), gpu, dtype)
    return SHEET_CLASSES[dtype in QUANTISED], rates


def sustaining(rates: GemmRates, share: float, gpu: Gpu, dtype: str) -> GemmRates:
    """Return rates by which a large square product reaches no more than a share of the peak.

    Tiles that do equally well add up in the soft minimum over them, to a tenth more than any does.
    By how much is the real device's: one with more of something is never slower for it.
    """
    rates, gpu = replace(rates, compute=share), as_sold(gpu)
    one, side = np.ones(1), np.full(1, SIDE)
    least_s = 2.0 * SIDE**3 / (share * gpu.peak(dtype))
    seconds = float(product_seconds(rates, (side, side, side, one), gpu, dtype)[0])
    return replace(rates, compute=share * min(1.0, seconds / least_s))


def band_name(kind: str) -> str:
    """Return the class under which a profile has the band of a kind."""
    return f"tensor_{kind}"


def tensor_rates(
    gpu: str, architecture: str, framework: str, nearest: str = OWN
) -> dict[str, TensorRates]:
    """Return the rates of each kind for a GPU, by sources of a `nearest` relation or farther.

    Empty where no relative was measured.
    """
    rates = {}
    for kind in MEASURED:
        found = find(
            "tensor",
            gpu,
            architecture,
            functools.partial(_offered, (gpu, framework)),
            family=kind,
            framework=framework,
            precisions=stand_in_kinds(kind),
            nearest=nearest,
        )
        if found is not None:
            numbers, is_own = found.numbers, found.is_of_this_gpu
            band = found.widened(numbers.band or WIDEST)
            rates[kind] = replace(numbers, band=band, calibrated=is_own, framework=found.framework)
    return rates


def stand_in_kinds(kind: str) -> tuple[str, ...]:
    """Return a kind, followed by its substitutes.

    >>> stand_in_kinds("bmm_fp8")
    ('bmm_fp8', 'fp8', 'bf16')
    """
    wider = {PLAIN_BATCH: PLAIN, "bmm_fp8": "fp8"}.get(kind, PLAIN)
    return tuple(dict.fromkeys((kind, wider, PLAIN)))


def _offered(asked: tuple[str, str], source: str, whose: str, kind: str) -> TensorRates | None:
    """Return what was measured on a GPU, if it says anything of the GPU and framework asked.

    A weight-only kernel that reads no faster than its own library's plain one says nothing of any
    other's: engines have kernels of that kind to read faster.
    """
    measured = measured_rates(source)
    rates, plain = measured.get((whose, kind)), measured.get((whose, PLAIN))
    if rates is None or plain is None or kind not in WEIGHT_ONLY or (source, whose) == asked:
        return rates
    one, side, gpu = np.ones(1), np.full(1, SIDE), load_gpu(source)
    narrow_s, plain_s = (
        float(product_seconds(of, (one, side, side, one), gpu, *MEASURED[of.kind])[0])
        for of in (rates, plain)
    )
    return rates if narrow_s < plain_s else None


def measured_rates(source: str) -> Mapping[tuple[str, str], TensorRates]:
    """Return what was measured on a GPU, by framework and kind."""
    file = calibration_file("tensor", source)
    return {} if file is None else _rates_of(file, stamp())


@functools.lru_cache(maxsize=64)
def _rates_of(file: Path, _now: Stamp) -> Mapping[tuple[str, str], TensorRates]:
    content = read_calibration(file)
    rates = {}
    for framework, kinds in content["tensor"].items():
        for kind, table in kinds.items():
            numbers: dict[str, Any] = {name: float(table[name]) for name in NUMBERS}
            plain = TensorRates(**numbers, tiles=(), kind=kind, measured_on=str(content["name"]))
            band = band_from(table["band"])
            rates[framework, kind] = replace(rates_from(table, plain), band=band)
    return rates


def rates_from(table: Mapping[str, Any], under: R) -> R:
    """Return rates updated with a calibration; numbers missing there keep their value."""
    found: dict[str, Any] = {k: v for k, v in table.items() if isinstance(v, float | int)}
    if "tiles" in table:
        found["tiles"] = tiles_from(table)
    correction = correction_from(table["correction"]) if "correction" in table else None
    seen = tuple((float(lo), float(hi)) for lo, hi in table.get("seen", ()))
    return replace(under, **found, seen=seen, correction=correction, calibrated=True)


Table = Mapping[str, Any]
V = TypeVar("V", VectorRates, ReductionRates)


def profile_of(gpu: Gpu, level: str = BEST, framework: str = DEFAULT_FRAMEWORK) -> Profile:
    """Return what is known of a GPU at a level of information.

    `framework` says whose tensor-core kernels run; a GPU measured with others alone has theirs.

    Raises:
        UserError: there is no such level or framework, or the device was not measured that far; or
            a calibration file was changed by hand.
    """
    if level not in (*LEVELS, BEST, NEW_ARCHITECTURE):
        raise UnknownNameError("level of information", level, (*LEVELS, BEST))
    if framework not in (*FRAMEWORKS, *NAMED_KERNELS):
        raise UnknownNameError("framework", framework, FRAMEWORKS)
    alike = identity_of(gpu)  # scalar rates are a GPU's own if measured, though it is like another
    own = alike.name if calibration_file("fp32", gpu.name) is None else gpu.name
    return _profile(alike, own, level, framework, stamp())


@functools.lru_cache(maxsize=64)
def _profile(device: Identity, own: str, level: str, framework: str, now: Stamp) -> Profile:
    """Return the profile of scalar operators, and of tensor-core products beside it."""
    tensor = tensor_rates(device.name, device.architecture, framework, nearest_relation(level))
    unmeasured = calibration_file("fp32", own) is None
    only_tensor = level == "full" and unmeasured and device.name in calibrations("tensor")
    plain = _scalar_profile(replace(device, name=own), device.name, BEST if only_tensor else level)
    bands = dict(zip(SHEET_CLASSES, sheet_bands(device.vendor).values(), strict=True)) | dict(
        plain.bands
    )
    bands |= {band_name(kind): rates.band for kind, rates in tensor.items() if rates.band}
    return replace(plain, tensor=tensor, bands=bands, asked=level, framework=framework, stamp=now)


def _scalar_profile(device: Identity, like: str, level: str) -> Profile:
    """Return what is known at a level of everything that does not run on tensor cores."""
    files = scalar_files(device.name, like)
    has = str(read_calibration(files[0])["level"]) if files else "zero_shot"
    wanted = has if level == BEST else level
    if wanted == "zero_shot":
        return zero_shot_profile(device)
    if wanted == NEW_ARCHITECTURE:
        others = [other for other in measured_gpus() if other.architecture != device.architecture]
        return zero_shot_profile(device, among=others)
    if wanted != has:
        raise UserError(
            f"gpu '{device.name}' is calibrated at level {has}, not {wanted}\n"
            f"To change that: python -m sweeper calibrate {device.name} "
            "--measured FILE"
        )
    return measured_profile(device, files)


def measured_profile(device: Identity, files: Sequence[Path]) -> Profile:
    """Return each class of scalar operators by the first of some calibrations that holds it.

    A GPU of one's own rows may hold some classes alone: the others are as they were before it.
    """
    profile: Profile | None = None
    for file in reversed(files):
        content = read_calibration(file)
        source = str(content["source"]) if content["level"] == "few_shot" else ""
        under = zero_shot_profile(replace(device, name=file.stem), source=source)
        profile = profile_from(content, under, otherwise=profile or under)
    return profile or zero_shot_profile(device)


def scalar_files(*names: str) -> tuple[Path, ...]:
    """Return the calibrations of scalar operators of some GPUs, which may be one twice."""
    return tuple(f for name in dict.fromkeys(names) for f in calibration_files("fp32", name))


def zero_shot_profile(
    device: Identity, *, source: str = "", among: Sequence[MeasuredGpu] | None = None
) -> Profile:
    """Return the profile of a device from other GPUs and the data sheet."""
    others = [b for b in (measured_gpus() if among is None else among) if b.name != device.name]
    peers = [other for other in others if other.vendor == device.vendor]
    profile = default_profile(device.vendor)
    if not peers:
        return profile
    kin = of_architecture(device.architecture, peers)
    nearest = source if any(b.name == source for b in peers) else nearest_gpu(kin)
    if (file := calibration_file("fp32", nearest)) is not None:
        profile = profile_from(read_calibration(file), profile)
    gemm = {
        label: replace(
            rates,
            compute=sustained_by_line(label, peers, device.flops_per_j),
            bandwidth=mean_of(label, "bandwidth", kin, rates.bandwidth),
            dispatch_s=mean_of(label, "dispatch_s", kin, rates.dispatch_s),
            correction=None,
            seen=(),
            calibrated=False,
        )
        if any(label in other.rates for other in peers)
        else rates
        for label, rates in profile.gemm.items()
    }
    return replace(
        profile,
        level="zero_shot",
        gemm=gemm,
        vector={label: _averaged(rates, label, kin) for label, rates in profile.vector.items()},
        reduction={
            label: _averaged(rates, label, kin) for label, rates in profile.reduction.items()
        },
        bands=bands_by_sheet([other.name for other in others]),
    )


def _averaged(rates: V, label: str, kin: Sequence[MeasuredGpu]) -> V:
    """Return rates with every number the mean over the GPUs that have it."""
    names = [name for name in rates.__dataclass_fields__ if name != "calibrated"]
    numbers: Any = {name: mean_of(label, name, kin, getattr(rates, name)) for name in names}
    return replace(rates, **numbers, calibrated=False)


def profile_from(content: Table, under: Profile, otherwise: Profile | None = None) -> Profile:
    """Return a calibration's numbers, over a profile for everything it does not hold.

    What a class of products lacks (few-shot: the tiles) stays as it was; classes it does not hold
    are as `otherwise` has them, if it is given.
    """
    rest = otherwise or under
    gemm, vector, reduction = (content.get(name, {}) for name in ("gemm", "vector", "reduction"))
    vectors = {k: VectorRates(**t, calibrated=True) for k, t in vector.items()}
    reductions = {k: ReductionRates(**t, calibrated=True) for k, t in reduction.items()}
    return replace(
        under,
        level=str(content["level"]),
        gemm={**rest.gemm, **{k: rates_from(t, under.gemm[k]) for k, t in gemm.items()}},
        vector={**rest.vector, **vectors},
        reduction={**rest.reduction, **reductions},
        bands={**rest.bands, **{k: band_from(t) for k, t in content.get("bands", {}).items()}},
    )
