"""What is known of a GPU comes in three levels of information, which are never mixed.

- `zero_shot`: the data sheet alone. Tile tables come from another board of the same architecture,
  else of the vendor's board that sustains most of its peak; the sustained part of the peak follows
  the arithmetic a board is asked to do per watt, along a line through all other boards.
- `few_shot`: some tens of rows. Three numbers per operator class are fitted; tables are borrowed
  as above.
- `full`: hundreds of rows. Tables, rates and, where it helps, a correction are the device's own.

`best` is the highest level a device has. Nothing measured on a device enters its zero-shot answers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import read_calibration
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import PACKAGE
from simulators.kernels.families.tensor_cores import band_name
from simulators.kernels.frameworks import DEFAULT_FRAMEWORK, fused_files
from simulators.kernels.intervals import LEAST_KNOWN, Band, band_from, stretched, widest_of
from simulators.kernels.monotone_correction import correction_from
from simulators.kernels.power_draw import power_files
from simulators.kernels.profile import (
    GemmRates,
    Profile,
    ReductionRates,
    VectorRates,
    default_profile,
)
from simulators.kernels.tensor_levels import (
    FOLDER,
    has_own,
    tensor_boards,
    tensor_files,
    tensor_rates,
)
from simulators.kernels.tiling import Tile

LEVELS = ("zero_shot", "few_shot", "full")
BEST = "best"
BOARDS = "boards"
"""The file that sums up all boards a calibration was shipped for."""

STRANGENESS = 3.0
"""Three sigmas' worth of one board: ranges of few boards are stretched more than those of many."""

LINE_BOARDS = 3
"""A line through fewer boards than this says nothing about another; their mean stands in."""

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Board:
    """A calibrated board in a few numbers: what other boards can borrow."""

    name: str
    vendor: str
    architecture: str
    flops_per_j: float  # fp32 peak over the power limit: how hard the board presses on it
    rates: Mapping[str, Table]  # by operator class: compute, bandwidth, dispatch_s ...
    bands: Mapping[str, Mapping[str, Band]]  # by level, then class: as if it had been left out


def places() -> tuple[Path, ...]:
    """Return the folders of calibrations, the user's own first."""
    return _places(os.environ.get("SWEEPER_HOME", ""))


@functools.lru_cache(maxsize=4)
def _places(home: str) -> tuple[Path, ...]:
    own = [Path("catalog") / "kernels"]
    if home:
        own.append(Path(home) / "kernels")
    return (*own, PACKAGE / "kernels" / "calibration")


def calibration_file(name: str) -> Path | None:
    """Return the calibration of a device, if there is one."""
    return _found(name)[0]


def _found(name: str) -> tuple[Path | None, int]:
    """Return the calibration of a device and when it was written; without one, nothing and 0."""
    for file in _candidates(places(), name):
        if written_ns := _written_ns(file):
            return file, written_ns
    return None, 0


@functools.lru_cache(maxsize=512)
def _candidates(folders: tuple[Path, ...], name: str) -> tuple[Path, ...]:
    return tuple(folder / f"{name}.toml" for folder in folders)


@functools.lru_cache(maxsize=4)
def _tensor_folders(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(folder / FOLDER for folder in folders)


def files_behind(gpu: Gpu, level: str) -> tuple[Path, ...]:
    """Return every calibration file an answer about this GPU may rest on."""
    names = [BOARDS, gpu.measured_as or gpu.name]
    names += [board.name for board in boards()] if level != "full" else []
    files = (calibration_file(name) for name in dict.fromkeys(names))
    found = tuple(file for file in files if file is not None)
    return found + tensor_files(places()) + fused_files() + power_files()


def profile_of(gpu: Gpu, level: str = BEST, framework: str = DEFAULT_FRAMEWORK) -> Profile:
    """Return what is known of a GPU at a level of information.

    `framework` says whose tensor-core kernels run; a board measured with others alone has theirs.

    Raises:
        UserError: there is no such level, or the device was not measured that far; or a
            calibration file was changed by hand.
    """
    if level not in (*LEVELS, BEST):
        raise UnknownNameError("level of information", level, (*LEVELS, BEST))
    name = gpu.measured_as or gpu.name
    file, written_ns = _found(name)
    stamps = (written_ns, _found(BOARDS)[1], *map(_written_ns, _tensor_folders(places())))
    sold = as_sold(gpu)
    key = _Key(name, sold.vendor, sold.architecture, sold.peak_flops.get("fp32", 0.0) / sold.tdp_w)
    return _profile(key, level, framework, file, stamps)


def as_sold(gpu: Gpu) -> Gpu:
    """Return the real device behind a what-if device."""
    if not gpu.is_what_if:
        return gpu
    try:
        return load_gpu(gpu.measured_as)
    except UserError:  # a data sheet given by path has no name to be found by
        return gpu


def boards() -> tuple[Board, ...]:
    """Return all calibrated boards that shipped calibrations sum up."""
    file, written_ns = _found(BOARDS)
    return () if file is None else _boards(file, written_ns)


@dataclass(frozen=True)
class _Key:
    """What of a GPU decides its profile: scaled variants of a device share one."""

    name: str
    vendor: str
    architecture: str
    flops_per_j: float


def _written_ns(path: Path) -> int:
    """Return when a file or folder last changed; 0 if it is not there. Asked at each price."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=64)
def _profile(
    key: _Key, level: str, framework: str, file: Path | None, _stamps: tuple[int, ...]
) -> Profile:
    """Return the profile of scalar operators, and of tensor-core products beside it."""
    known = tensor_boards(places())
    own = level != LEVELS[0]
    tensor = tensor_rates(known, key.name, key.architecture, framework, own=own)
    only_tensor = level == "full" and file is None and has_own(known, key.name)
    plain = _scalar_profile(key, BEST if only_tensor else level, file)
    bands = dict(plain.bands)
    bands |= {band_name(kind): rates.band for kind, rates in tensor.items() if rates.band}
    return replace(plain, tensor=tensor, bands=bands, asked=level, framework=framework)


def _scalar_profile(key: _Key, level: str, file: Path | None) -> Profile:
    """Return what is known at a level of everything that does not run on tensor cores."""
    content = {} if file is None else read_calibration(file)
    has = str(content.get("level", "zero_shot"))
    wanted = has if level == BEST else level
    if wanted == "zero_shot":
        return zero_shot_profile(key.name, key.vendor, key.architecture, key.flops_per_j)
    if wanted != has:
        raise UserError(
            f"gpu '{key.name}' is calibrated at level {has}, not {wanted}\n"
            f"To change that: python -m lab.fits fp32_kernels --device {key.name} --measured FILE"
        )
    donors = str(content["donor"]) if wanted == "few_shot" else ""
    under = zero_shot_profile(key.name, key.vendor, key.architecture, key.flops_per_j, donor=donors)
    return profile_from(content, under)


def zero_shot_profile(
    name: str,
    vendor: str,
    architecture: str,
    flops_per_j: float,
    *,
    donor: str = "",
    among: Sequence[Board] | None = None,
) -> Profile:
    """Return what other boards and the data sheet say about a device of this name."""
    others = [b for b in (boards() if among is None else among) if b.name != name]
    peers = [board for board in others if board.vendor == vendor]
    profile = default_profile(vendor)
    if not peers:
        return profile
    lender = next((b.name for b in peers if b.name == donor), donor_of(architecture, peers))
    file = calibration_file(lender)
    if file is not None:
        profile = profile_from(read_calibration(file), profile)
    kin = [board for board in peers if board.architecture == architecture] or peers
    gemm = {
        label: replace(
            rates,
            compute=_sustained(label, peers, flops_per_j),
            bandwidth=_mean(label, "bandwidth", kin, rates.bandwidth),
            dispatch_s=_mean(label, "dispatch_s", kin, rates.dispatch_s),
            correction=None,
            seen=(),
            calibrated=False,
        )
        if any(label in board.rates for board in peers)
        else rates
        for label, rates in profile.gemm.items()
    }
    vector = {label: _averaged(rates, label, kin) for label, rates in profile.vector.items()}
    reduction = {label: _averaged(rates, label, kin) for label, rates in profile.reduction.items()}
    bands = stranger_bands("zero_shot", others)
    return replace(
        profile, level="zero_shot", gemm=gemm, vector=vector, reduction=reduction, bands=bands
    )


def stranger_bands(level: str, others: Sequence[Board]) -> dict[str, Band]:
    """Return the bands of a device none of these boards is: as wide as theirs together, and more.

    The next board falls outside the range of `n` seen ones more often than one row in ten, so the
    range is stretched by `1 + STRANGENESS / n`.
    """
    found: dict[str, list[Band]] = {}
    for board in others:
        for label, band in board.bands[level].items():
            found.setdefault(label, []).append(band)
    least = LEAST_KNOWN if level == "zero_shot" else 1.0
    return {
        label: stretched(widest_of(bands), 1.0 + STRANGENESS / len(bands), least)
        for label, bands in found.items()
    }


def donor_of(architecture: str, peers: Sequence[Board]) -> str:
    """Return whose tables to borrow: the same architecture's, else the best sustained board's.

    A board that reaches its data sheet's clock shows its tiles without the mark of a power limit.
    """
    kin = [board for board in peers if board.architecture == architecture]
    return max(kin or peers, key=lambda board: (_compute(board), board.name)).name


def profile_from(content: Table, under: Profile) -> Profile:
    """Return a calibration's numbers, over a profile for everything it does not hold."""
    gemm = dict(under.gemm)
    for label, table in content.get("gemm", {}).items():
        gemm[label] = _gemm_rates(table, under.gemm[label])
    vector = dict(under.vector)
    for label, table in content.get("vector", {}).items():
        vector[label] = VectorRates(**table, calibrated=True)
    reduction = dict(under.reduction)
    for label, table in content.get("reduction", {}).items():
        reduction[label] = ReductionRates(**table, calibrated=True)
    bands = {**under.bands, **{k: band_from(v) for k, v in content.get("bands", {}).items()}}
    return replace(
        under,
        level=str(content["level"]),
        gemm=gemm,
        vector=vector,
        reduction=reduction,
        bands=bands,
    )


def _gemm_rates(table: Table, under: GemmRates) -> GemmRates:
    """Return one class of products; what the table lacks (few-shot: the tiles) stays as it was."""
    numbers = {key: value for key, value in table.items() if key not in _STRUCTURED}
    tiles = under.tiles
    if "tiles" in table:
        tiles = tuple(
            Tile(int(m), int(n), float(efficiency), int(splits))
            for splits in table["splits"]
            for m, n, efficiency in table["tiles"]
        )
    return replace(
        under,
        **numbers,
        tiles=tiles,
        seen=tuple((float(lo), float(hi)) for lo, hi in table.get("seen", ())),
        correction=correction_from(table["correction"]) if "correction" in table else None,
        calibrated=True,
    )


_STRUCTURED = ("tiles", "splits", "seen", "correction")


def _averaged(rates: Any, label: str, kin: Sequence[Board]) -> Any:
    """Return rates with every number the mean over the boards that have it."""
    names = [name for name in rates.__dataclass_fields__ if name != "calibrated"]
    numbers = {name: _mean(label, name, kin, getattr(rates, name)) for name in names}
    return replace(rates, **numbers, calibrated=False)


def _mean(label: str, number: str, kin: Sequence[Board], otherwise: float) -> float:
    """Return the geometric mean over boards: rates and overheads differ by factors."""
    values = [board.rates[label][number] for board in kin if label in board.rates]
    return float(np.exp(np.mean(np.log(values)))) if values else otherwise


def _sustained(label: str, peers: Sequence[Board], flops_per_j: float) -> float:
    """Return the part of the peak a board sustains, by the FLOPs asked of each joule.

    A straight line through the other boards, between the least seen and one.
    """
    seen = [(b.flops_per_j, float(b.rates[label]["compute"])) for b in peers if label in b.rates]
    x, s = np.array(seen).T
    if len(seen) < LINE_BOARDS:
        return float(np.mean(s))
    slope = np.sum((x - x.mean()) * (s - s.mean())) / np.sum((x - x.mean()) ** 2)
    guess = s.mean() + min(float(slope), 0.0) * (flops_per_j - x.mean())
    return float(np.clip(guess, s.min(), max(1.0, s.max())))


def _compute(board: Board) -> float:
    return float(board.rates.get("linear", {}).get("compute", 0.0))


@functools.lru_cache(maxsize=4)
def _boards(file: Path, _mtime_ns: int) -> tuple[Board, ...]:
    return tuple(
        Board(
            name=str(table["name"]),
            vendor=str(table["vendor"]),
            architecture=str(table["architecture"]),
            flops_per_j=float(table["flops_per_j"]),
            rates=table["rates"],
            bands={
                level: {
                    label: band_from(band) for label, band in table["bands"].get(level, {}).items()
                }
                for level in LEVELS[:2]
            },
        )
        for table in read_calibration(file)["board"]
    )
