"""Calibration files of GPUs: their paths by kind, and the time of the last change."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from simulators.core.folder import PACKAGE, read_toml

CALIBRATIONS = PACKAGE / "kernels" / "calibration"
RELATIVES = Path(__file__).with_name("relatives.toml")
SUMMARY = "measured_gpus"  # the file of fp32 calibrations that sums up all GPUs shipped
POWER = "power"  # the kind of calibration that is of watts; all others are of times

Stamp = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of calibration: a table of `relatives.toml`, which explains the words."""

    folders: tuple[str, ...]
    transfers_to: str
    frameworks: str = "any"
    least_ratio: float = 0.0
    reason: str


def calibrations(kind: str) -> Mapping[str, tuple[Path, ...]]:
    """Return the files of each measured GPU, one per folder of a kind."""
    return _files(kind, places(), stamp())


def calibration_file(kind: str, gpu: str) -> Path | None:
    """Return the first calibration of a kind that a GPU has, if any."""
    return next(iter(calibrations(kind).get(gpu, ())), None)


def calibration_files(kind: str, gpu: str) -> tuple[Path, ...]:
    """Return all calibration files of a kind for a GPU, with the ones that another folder hides."""
    paths = (
        place / folder / f"{gpu}.toml" for place in places() for folder in kinds()[kind].folders
    )
    return tuple(path for path in paths if path.is_file())


@functools.lru_cache(maxsize=64)
def _files(kind: str, folders: tuple[Path, ...], _now: Stamp) -> Mapping[str, tuple[Path, ...]]:
    found: dict[str, dict[str, Path]] = {}
    for place in folders:
        for folder in kinds()[kind].folders:
            for file in sorted((place / folder).glob("*.toml")):
                found.setdefault(file.stem, {}).setdefault(folder, file)
    return {gpu: tuple(files.values()) for gpu, files in found.items()}


def places() -> tuple[Path, ...]:
    """Return the folders of calibrations, the user's own first."""
    return _places(os.environ.get("SWEEPER_HOME", ""))


@functools.lru_cache(maxsize=4)
def _places(home: str) -> tuple[Path, ...]:
    own = (Path("catalog") / "kernels", *([Path(home) / "kernels"] if home else []))
    return (*own, CALIBRATIONS)


@contextmanager
def one_look() -> Iterator[None]:
    """Look at the folders once for all that is priced within it."""
    token = _LOOKED.set(stamp())
    try:
        yield
    finally:
        _LOOKED.reset(token)


_LOOKED: ContextVar[Stamp] = ContextVar("_LOOKED", default=())


def stamp() -> Stamp:
    """Return when the folders of calibrations last changed; asked at each price, so it is cheap."""
    if looked := _LOOKED.get():
        return looked
    written: list[int] = []
    for place, *folders in _folders(places()):
        written.append(_written_ns(place))
        if written[-1]:
            written += map(_written_ns, folders)
    return tuple(written)


@functools.lru_cache(maxsize=4)
def _folders(folders: tuple[Path, ...]) -> tuple[tuple[str, ...], ...]:
    names = dict.fromkeys(name for kind in kinds().values() for name in kind.folders if name)
    return tuple((str(place), *(str(place / name) for name in names)) for place in folders)


def _written_ns(folder: str) -> int:
    """Return when a folder last changed; 0 if it is not there."""
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - asked ten thousand times a command
    except OSError:
        return 0


@functools.cache
def kinds() -> Mapping[str, Kind]:
    """Return the kinds of calibration by name."""
    tables = read_toml(RELATIVES)
    rows = {name: tables.get(row.get("like", ""), {}) | row for name, row in tables.items()}
    for row in rows.values():
        row.pop("like", None)
    return {name: Kind(**row) for name, row in rows.items()}
