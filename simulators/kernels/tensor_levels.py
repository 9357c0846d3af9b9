"""Whose tensor-core numbers a GPU gets: its own, its architecture's, or its nearest relative's.

A board that was measured has numbers of its own for each framework and kind of product. Any other
takes all of them from a board of its architecture, else of the architecture whose kernels its own
most resemble, and its data sheet says the rest. Bands widen with the distance.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simulators.catalog.gpu import load_gpu
from simulators.core.calibration import read_calibration
from simulators.core.errors import UnknownNameError, UserError
from simulators.kernels.families.tensor_cores import (
    MEASURED,
    PLAIN,
    TensorRates,
    stand_ins,
    tensor_rates_from,
)
from simulators.kernels.frameworks import DEFAULT_FRAMEWORK
from simulators.kernels.frameworks import FRAMEWORKS as KNOWN
from simulators.kernels.intervals import LEAST_KNOWN, WIDEST, stretched

FOLDER = "tensor"
"""Of these calibrations, beside those of fp32 operators."""

FRAMEWORKS = ("trtllm", "vllm", "sglang", "pytorch")

RELATIVES = {
    "volta": ("ampere",),
    "turing": ("ampere",),
    "ampere": ("ampere", "hopper"),
    "ada": ("ada", "blackwell_rtx", "ampere"),
    "hopper": ("hopper", "blackwell"),
    "blackwell": ("blackwell", "hopper"),
    "blackwell_rtx": ("blackwell_rtx", "ampere"),
}
"""Architectures by likeness of their matrix instructions: warp-wide on GeForce, Turing and Ampere
boards, by groups of warps from operands in shared memory on Hopper and data-centre Blackwell. GA10x
boards have no relative: plain tiles are nearer to an A40 than either Ampere's or RTX's numbers."""

KIN, STRANGER = 2.0, 3.0
"""Powers that widen the band of a board's numbers on a sister board and on another architecture."""


LENDS = 3.0
"""Least ratio of the 16-bit to the fp32 rate on a lender's data sheet. GeForce boards add up in
fp32 at half their sisters' rate (a ratio of 2), which any of them sustains; the whole rate is
another matter."""


@dataclass(frozen=True)
class Measured:
    """One board's calibration: rates by framework and kind."""

    name: str
    architecture: str
    rates: dict[tuple[str, str], TensorRates]
    lends: bool = True  # to other boards


def tensor_folders(places: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders there are."""
    return tuple(folder for place in places if (folder := place / FOLDER).is_dir())


def tensor_files(places: Sequence[Path]) -> tuple[Path, ...]:
    """Return every tensor calibration; of two of one name the first place's."""
    found: dict[str, Path] = {}
    for folder in tensor_folders(places):
        for file in sorted(folder.glob("*.toml")):
            found.setdefault(file.name, file)
    return tuple(found.values())


def tensor_boards(places: Sequence[Path]) -> tuple[Measured, ...]:
    """Return every measured board."""
    return tuple(_board(file, file.stat().st_mtime_ns) for file in tensor_files(places))


def tensor_rates(
    boards: Sequence[Measured],
    name: str,
    architecture: str,
    framework: str = DEFAULT_FRAMEWORK,
    *,
    own: bool = True,
) -> dict[str, TensorRates]:
    """Return the rates of each kind for a device, its own measurements among them if `own`.

    Empty where no relative was measured.

    Raises:
        UnknownNameError: nothing was measured of a framework of that name.
    """
    if framework not in KNOWN:
        raise UnknownNameError("framework", framework, KNOWN)
    lenders = _lenders(boards, name, architecture, own=own)
    found = {}
    for kind in MEASURED:
        for wanted in stand_ins(kind):
            choices = [
                (board, board.rates[by, wanted])
                for board in lenders
                for by in dict.fromkeys((framework, *FRAMEWORKS))
                if (by, wanted) in board.rates
            ]
            if choices:
                found[kind] = _lent(*choices[0], name, architecture)
                break
    return found


def has_own(boards: Sequence[Measured], name: str) -> bool:
    """Say whether a device was measured."""
    return any(board.name == name for board in boards)


def _lenders(
    boards: Sequence[Measured], name: str, architecture: str, *, own: bool
) -> list[Measured]:
    """Return boards from the nearest to the farthest."""
    likeness = RELATIVES.get(architecture, ())
    near = [b for b in boards if b.name == name and own]
    rest = [b for b in boards if b.name != name and b.architecture in likeness and b.lends]
    return near + sorted(rest, key=lambda b: (likeness.index(b.architecture), b.name))


def _lent(board: Measured, rates: TensorRates, name: str, architecture: str) -> TensorRates:
    """Return a board's rates as they are known of another."""
    if board.name == name:
        return rates
    power = KIN if board.architecture == architecture else STRANGER
    band = stretched(rates.band or WIDEST, power, LEAST_KNOWN)
    return replace(rates, band=band, calibrated=False)


@functools.lru_cache(maxsize=64)
def _board(file: Path, _mtime_ns: int) -> Measured:
    content = read_calibration(file)
    name = str(content["name"])
    return Measured(
        name=name,
        lends=_lends(name),
        architecture=str(content["architecture"]),
        rates={
            (framework, kind): tensor_rates_from(table, kind, name)
            for framework, kinds in content["tensor"].items()
            for kind, table in kinds.items()
        },
    )


def _lends(name: str) -> bool:
    """Say whether a board's matrix units run at the whole rate of their generation."""
    try:
        peak = load_gpu(name).peak_flops
    except UserError:  # a data sheet given by path has no name to be found by
        return True
    return peak.get(PLAIN, peak["fp32"]) >= LENDS * peak["fp32"]
