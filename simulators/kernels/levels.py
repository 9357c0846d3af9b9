"""Sustained rates of a GPU at a level of information; levels are never mixed.

- `zero_shot`: the data sheet alone. Tiles come from a GPU of the same architecture, else from the
  vendor's GPU that sustains most of its peak; the sustained part of the peak follows a line through
  all other GPUs, by the arithmetic that the peak asks for per watt.
- `few_shot`: tens of rows fit three numbers per operator class; tiles as above.
- `full`: hundreds of rows fit tiles, rates and, where it helps, a correction.

`best` is the highest level a GPU has. Zero-shot answers use no measurement of the GPU itself.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from simulators.catalog.gpu import Gpu
from simulators.core.calibration import read_calibration
from simulators.core.errors import UnknownNameError, UserError
from simulators.evidence.calibration_files import (
    Stamp,
    calibration_file,
    calibration_files,
    calibrations,
    stamp,
)
from simulators.evidence.fp32_bands import bands_by_sheet
from simulators.evidence.intervals import band_from
from simulators.evidence.lookup import (
    BEST,
    DEFAULT_FRAMEWORK,
    FRAMEWORKS,
    LEVELS,
    NAMED_KERNELS,
    NEW_ARCHITECTURE,
    nearest_relation,
)
from simulators.evidence.measured_gpus import (
    Identity,
    MeasuredGpu,
    identity_of,
    mean_of,
    measured_gpus,
    nearest_gpu,
    of_architecture,
    sustained_by_line,
)
from simulators.evidence.sustained import sheet_bands
from simulators.kernels.families.tensor_cores import (
    SHEET_CLASSES,
    band_name,
    rates_from,
    tensor_rates,
)
from simulators.kernels.profile import Profile, ReductionRates, VectorRates, default_profile

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
