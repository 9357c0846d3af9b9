"""Rates of a GPU at a level of information. Levels are never mixed.

- `zero_shot`: the data sheet alone. Tiles come from a GPU of the same architecture, else from the
  vendor's GPU with the largest sustained share of its peak. The sustained share of the peak follows
  a line through all other GPUs in FLOPs per joule.
- `few_shot`: tens of rows fit three numbers per operator class; tiles as for `zero_shot`.
- `full`: hundreds of rows fit tiles, rates and, where it helps, a correction.

`best` is the highest level of a GPU. `zero_shot` uses no measurement of the GPU itself.

Tensor-core products are measured or transferred per kind, a pair of formats: of the multiplication
and of the stored weights.

    t = start + tiles in waves, with a latency per step of k and a cost of split-k

Matrix units are so fast that latencies matter: each step of k waits for its strips however small
the tile is, and split-k adds a second pass that sums partial results. `NUMBERS` and a table of
tiles are fitted per GPU, framework and kind; monotone trees correct the residuals.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from simulators.catalog.gpu import Gpu, base_gpu, load_gpu
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
"""The kind that every measured GPU has; unmeasured formats use its rates."""

PLAIN_BATCH = "bmm"
"""The kind of 16-bit batched products, each with its own matrices."""

TENSOR_SPEEDUP = 3.0
"""A precision with at least this ratio to the fp32 rate runs on matrix units; fp16 on a P100 (2x)
does not. GPUs with a tf32 rate have matrix units at any ratio (2x on GeForce)."""

RATES = ("compute", "bandwidth", "load_bytes_per_clock")
NUMBERS = (*RATES, "tail", "prologue", "start_s", "step_s", "split_s")

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
"""Formats of the multiplication and of the weights in the measured tables of each kind."""

WEIGHT_ONLY = ("w8a16", "w4a16")
"""Kinds that unpack narrow weights before the multiplication, to read fewer bytes."""

SIDE = 8192.0
"""Side of a square matrix. On every GPU the product with one row is bound by memory, and the
product of two such matrices by arithmetic."""


def kind_of(dtype: str, weight_dtype: str = "") -> str:
    """Return the kind of a tensor-core product.

    >>> kind_of("fp16"), kind_of("fp8"), kind_of("fp8", "fp8_block"), kind_of("fp16", "int4")
    ('bf16', 'fp8', 'fp8_block', 'w4a16')
    """
    if (dtype, weight_dtype) == MEASURED["fp8_block"]:
        return "fp8_block"
    if weight_dtype and BYTES[weight_dtype] < BYTES[dtype] <= BYTES["bf16"]:
        return "w4a16" if BYTES[weight_dtype] <= BYTES["int4"] else "w8a16"
    return dtype if dtype in ("fp8", "fp4", "int8") else PLAIN


def on_tensor_cores(gpu: Gpu, dtype: str) -> bool:
    """Return whether a precision runs on matrix units, which have tiles of their own."""
    fp32 = gpu.peak_flops.get("fp32", gpu.peak(dtype))
    has_units = "tf32" in gpu.peak_flops or gpu.peak(dtype) > TENSOR_SPEEDUP * fp32
    return dtype != "fp32" and has_units


SHEET_CLASSES = ("tensor", "tensor_quantised")
"""Interval classes of products by data sheet: 16-bit formats, and formats with quantization."""


def sheet_rates(gpu: Gpu, profile: Profile, dtype: str) -> tuple[str, GemmRates]:
    """Return the interval class and the rates of unmeasured products on matrix units."""
    rates = profile.gemm["tensor"]
    if not rates.calibrated:
        rates = limited_to_share(rates, sustained_share(gpu, dtype), gpu, dtype)
    return SHEET_CLASSES[dtype in QUANTISED], rates


def limited_to_share(rates: GemmRates, share: float, gpu: Gpu, dtype: str) -> GemmRates:
    """Return rates at which a large square product reaches at most a share of the peak.

    The soft minimum over tiles of equal time is up to a tenth faster than each tile; the returned
    rates correct for it. The correction is computed for the base GPU, so that a what-if GPU with
    more resources is never slower.
    """
    rates, gpu = replace(rates, compute=share), base_gpu(gpu)
    one, side = np.ones(1), np.full(1, SIDE)
    least_s = 2.0 * SIDE**3 / (share * gpu.peak(dtype))
    seconds = float(product_seconds(rates, (side, side, side, one), gpu, dtype)[0])
    return replace(rates, compute=share * min(1.0, seconds / least_s))


def band_name(kind: str) -> str:
    """Return the interval class of a kind of tensor-core products."""
    return f"tensor_{kind}"


def tensor_rates(
    gpu: str, architecture: str, framework: str, nearest: str = OWN
) -> dict[str, TensorRates]:
    """Return the rates of each kind for a GPU, from sources of the relation `nearest` or farther.

    The result is empty if no source was measured.
    """
    rates = {}
    for kind in MEASURED:
        found = find(
            "tensor",
            gpu,
            architecture,
            functools.partial(_transferable_rates, (gpu, framework)),
            family=kind,
            framework=framework,
            precisions=substitute_kinds(kind),
            nearest=nearest,
        )
        if found is not None:
            numbers, is_own = found.numbers, found.is_of_this_gpu
            band = found.widened(numbers.band or WIDEST)
            rates[kind] = replace(numbers, band=band, calibrated=is_own, framework=found.framework)
    return rates


def substitute_kinds(kind: str) -> tuple[str, ...]:
    """Return a kind of products, followed by its substitutes.

    >>> substitute_kinds("bmm_fp8")
    ('bmm_fp8', 'fp8', 'bf16')
    """
    wider = {PLAIN_BATCH: PLAIN, "bmm_fp8": "fp8"}.get(kind, PLAIN)
    return tuple(dict.fromkeys((kind, wider, PLAIN)))


def _transferable_rates(
    asked: tuple[str, str], source: str, whose: str, kind: str
) -> TensorRates | None:
    """Return the rates measured on a source GPU, or None if they cannot be transferred.

    A weight-only kernel that reads no faster than the plain kernel of its own library is not
    transferred: other engines use such kernels because they read faster.
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
    """Return the rates measured on a GPU, by framework and kind."""
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
    """Return rates that are updated with a calibration table; missing numbers keep their value."""
    found: dict[str, Any] = {k: v for k, v in table.items() if isinstance(v, float | int)}
    if "tiles" in table:
        found["tiles"] = tiles_from(table)
    correction = correction_from(table["correction"]) if "correction" in table else None
    seen = tuple((float(lo), float(hi)) for lo, hi in table.get("seen", ()))
    return replace(under, **found, seen=seen, correction=correction, calibrated=True)


Table = Mapping[str, Any]
V = TypeVar("V", VectorRates, ReductionRates)


def profile_of(gpu: Gpu, level: str = BEST, framework: str = DEFAULT_FRAMEWORK) -> Profile:
    """Return the profile of a GPU at a level of information.

    `framework` selects the library of tensor-core kernels. A GPU that was measured only with other
    libraries has their rates.

    Raises:
        UserError: the level or framework is unknown, the GPU has no calibration at this level, or a
            calibration file was changed by hand.
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
    """Return the profile of scalar operators, with the rates of tensor-core products."""
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
    """Return the profile of all operators that do not run on tensor cores."""
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
    """Return a profile in which each class comes from the first calibration that has the class.

    A calibration from a user's own rows may have some classes only.
    """
    profile: Profile | None = None
    for file in reversed(files):
        content = read_calibration(file)
        source = str(content["source"]) if content["level"] == "few_shot" else ""
        under = zero_shot_profile(replace(device, name=file.stem), source=source)
        profile = profile_from(content, under, otherwise=profile or under)
    return profile or zero_shot_profile(device)


def scalar_files(*names: str) -> tuple[Path, ...]:
    """Return the calibration files of scalar operators of GPUs; repeated names count once."""
    return tuple(f for name in dict.fromkeys(names) for f in calibration_files("fp32", name))


def zero_shot_profile(
    device: Identity, *, source: str = "", among: Sequence[MeasuredGpu] | None = None
) -> Profile:
    """Return the profile of a GPU from its data sheet and other GPUs.

    Args:
        device: identity of the GPU.
        source: name of the GPU whose tiles are used; empty: the nearest one.
        among: measured GPUs to use; None: all.
    """
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
        vector=_averaged(profile.vector, kin),
        reduction=_averaged(profile.reduction, kin),
        bands=bands_by_sheet([other.name for other in others]),
    )


def _averaged(rates: Mapping[str, V], kin: Sequence[MeasuredGpu]) -> dict[str, V]:
    """Return rates in which every number is the mean over GPUs."""
    found = {}
    for label, own in rates.items():
        known = {name: value for name, value in vars(own).items() if name != "calibrated"}
        means: Any = {name: mean_of(label, name, kin, value) for name, value in known.items()}
        found[label] = replace(own, **means, calibrated=False)
    return found


def profile_from(content: Table, under: Profile, otherwise: Profile | None = None) -> Profile:
    """Return a profile that is updated with a calibration.

    Args:
        content: the calibration.
        under: profile with the numbers that a class of the calibration lacks (few-shot: tiles).
        otherwise: profile with the classes that the calibration lacks; None: `under`.
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
