"""What activity adds to a board at rest: its own numbers, a relative's, or chosen ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.catalog.gpu import Gpu
from simulators.core.calibration import read_calibration
from simulators.core.folder import PACKAGE

FOLDER = PACKAGE / "kernels" / "calibration" / "power"

MEMORY_SHARE = 0.55
"""HBM and its path take about half of a board's dynamic power in streaming kernels."""

RELATIVES = {"hopper": "h200_sxm", "blackwell": "b200_sxm"}
"""Whose numbers the boards of an architecture borrow."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Parts of the room between idle and the limit that activity takes."""

    awake: float
    memory: float
    compute: Mapping[str, float]  # by format; formats that are missing take `COMPUTE_SHARE`
    factor: Mapping[str, float]  # on compute, of attention by its phase
    limit: float  # of the data sheet's, that the board holds


CHOSEN = Draw(awake=0.0, memory=MEMORY_SHARE, compute={}, factor={}, limit=1.0)
"""Of boards without a measured relative."""


def draw_of(gpu: Gpu) -> Draw:
    """Return the numbers of a board: its own, its architecture's, or chosen ones."""
    return _draw(gpu.measured_as or gpu.name, RELATIVES.get(gpu.architecture, ""))


@functools.lru_cache(maxsize=128)
def _draw(board: str, relative: str) -> Draw:
    for name in (board, relative):
        if name and (file := power_file(name)).is_file():
            return draw_from(power_tables_of(file)["draw"])
    return CHOSEN


def draw_from(table: Mapping[str, Any]) -> Draw:
    """Return the numbers a calibration holds."""
    return Draw(
        awake=float(table["awake"]),
        memory=float(table["memory"]),
        compute={name: float(share) for name, share in table["compute"].items()},
        factor={name: float(factor) for name, factor in table["factor"].items()},
        limit=float(table["limit"]),
    )


def power_file(name: str) -> Path:
    """Return where the calibration of a board's watts lies, if there is one."""
    return FOLDER / f"{name}.toml"


def power_files() -> tuple[Path, ...]:
    """Return every file an answer about watts may rest on."""
    return tuple(sorted(FOLDER.glob("*.toml")))


@functools.lru_cache(maxsize=8)
def power_tables_of(file: Path) -> Mapping[str, Any]:
    """Return the content of a calibration of watts."""
    return read_calibration(file)
