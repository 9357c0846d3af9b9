"""Whose calibration a GPU is priced by, how much wider its interval becomes, and from which files.

Boards are measured one by one. A GPU that was not, or of which nothing measured may be used
(`zero_shot`), takes another's numbers: of a similar board, else of a fallback. `relatives.toml`
says who these are for each kind of calibration. A user's own calibrations
stand before those shipped.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import read_calibration
from simulators.core.errors import UserError
from simulators.core.folder import PACKAGE, read_toml
from simulators.evidence.intervals import LEAST_KNOWN, Band, stretched

CALIBRATIONS = PACKAGE / "kernels" / "calibration"
RELATIVES = Path(__file__).with_name("relatives.toml")
SUMMARY = "boards"
"""The file of fp32 calibrations that sums up all boards a calibration was shipped for."""

POWER = "power"
"""The kind of calibration that is of watts; all others are of times."""

LEVELS = ("zero_shot", "few_shot", "full")
"""How much may be known of a GPU: its data sheet, some tens of rows, or all that was measured."""
BEST = "best"

DEFAULT_FRAMEWORK = "trtllm"
"""Whose kernels run, in every family, unless a caller names another's."""

FRAMEWORKS = (
    DEFAULT_FRAMEWORK, "vllm", "sglang", "flashinfer", "flash_attention", "frontier", "pytorch",
)  # fmt: skip
"""Where the framework asked for has no kernel of a kind, the first of these that has one speaks."""

T = TypeVar("T")
Stamp = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of calibration: a table of `relatives.toml`, which explains the words."""

    folders: tuple[str, ...]
    similar: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fallback: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fallback_lends: str = "all"
    widen: Mapping[str, float] = field(default_factory=dict)
    first: str = "board"
    frameworks: str = "any"
    least_ratio: float = 0.0
    source: str = ""
    reason: str


@dataclass(frozen=True)
class Found(Generic[T]):
    """Numbers of one kind for a GPU, and what they may be called there."""

    numbers: T
    board: str  # that was measured
    framework: str
    widening: float  # power of the ends of the interval; 1: measured here, in this precision
    whole: bool  # with what corrects the numbers: trees, grids

    @property
    def is_own(self) -> bool:
        """Whether this was measured on the GPU itself, in the precision asked for."""
        return self.widening == 1.0

    def widened(self, band: Band) -> Band:
        """Return a measured band as wide as it must be here."""
        return band if self.is_own else stretched(band, self.widening, LEAST_KNOWN)


def find(
    kind: str,
    gpu: str,
    architecture: str,
    look: Callable[[str, str, str], T | None],
    *,
    framework: str = "",
    precisions: Sequence[str] = ("",),
    own: bool = True,
) -> Found[T] | None:
    """Return the nearest numbers there are for a GPU; none if nobody lends any.

    Args:
        kind: of calibration: a table of `relatives.toml`.
        gpu: the name that calibrations know it by.
        architecture: of the GPU.
        look: returns what a board, a framework and a precision have, if anything.
        framework: whose kernels are wanted.
        precisions: the wanted one first and acceptable ones after it.
        own: whether what was measured on the GPU itself may be used.
    """
    row = kinds()[kind]
    frameworks: Sequence[str] = (framework,)
    if framework and row.frameworks == "any":
        frameworks = tuple(dict.fromkeys((framework, *FRAMEWORKS)))
    for board, relation, precision in _pairs(row, kind, gpu, architecture, precisions, own=own):
        for whose in frameworks:
            if (numbers := look(board, whose, precision)) is None:
                continue
            if relation == "own":
                relation = "precision" if precision != precisions[0] else relation
            whole = relation != "fallback" or row.fallback_lends == "all"
            return Found(numbers, board, whose, row.widen.get(relation, 1.0), whole)
    return None


def _pairs(
    row: Kind, kind: str, gpu: str, architecture: str, precisions: Sequence[str], *, own: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield boards, how each is related to a GPU, and precisions, from the nearest on."""
    boards = lenders(kind, gpu, architecture, own=own)
    if row.first == "precision":
        yield from ((*board, precision) for precision in precisions for board in boards)
    else:
        yield from ((*board, precision) for board in boards for precision in precisions)


def lenders(
    kind: str, gpu: str, architecture: str, *, own: bool = True
) -> tuple[tuple[str, str], ...]:
    """Return the boards whose numbers a GPU may take, the nearest first: own, similar, fallback."""
    return _lenders(kind, gpu, architecture, own, places(), stamp())


@functools.lru_cache(maxsize=512)
def _lenders(
    kind: str, gpu: str, architecture: str, own: bool, folders: tuple[Path, ...], now: Stamp
) -> tuple[tuple[str, str], ...]:
    row, measured = kinds()[kind], _files(kind, folders, now)
    found = {gpu: "own"} if own and gpu in measured else {}
    for relation, table in (("similar", row.similar), ("fallback", row.fallback)):
        for word in table.get(gpu) or table.get(architecture) or table.get("any", ()):
            alike = [word] if word in measured else _of_architecture(word, measured, row)
            for board in alike:
                if board != gpu:
                    found.setdefault(board, relation)
    return tuple(found.items())


def _of_architecture(
    architecture: str, measured: Mapping[str, tuple[Path, ...]], row: Kind
) -> list[str]:
    """Return the boards of an architecture that lend, by name."""
    boards = []
    for board, files in sorted(measured.items()):
        try:
            gpu = load_gpu(board)
        except UserError:  # a data sheet given by path has no name to be found by
            if read_calibration(files[0]).get("architecture") == architecture:
                boards.append(board)
            continue
        fp32 = gpu.peak("fp32")
        lends = gpu.peak_flops.get("bf16", fp32) >= row.least_ratio * fp32
        if gpu.architecture == architecture and lends:
            boards.append(board)
    return boards


def files_behind(gpu: Gpu) -> tuple[Path, ...]:
    """Return every file an answer about a GPU may rest on: its own and its lenders', and who lends.

    In fp32 every board lends, by what `boards.py` makes of all of them.
    """
    name = gpu.measured_as or gpu.name
    summary = calibration_file("fp32", SUMMARY)
    summed = read_calibration(summary)["board"] if summary is not None else ()
    boards = {
        kind: [board for board, _ in lenders(kind, name, gpu.architecture)] for kind in kinds()
    }
    boards["fp32"] = [SUMMARY, name, *(str(board["name"]) for board in summed)]
    found = (
        file
        for kind, some in boards.items()
        for b in some
        for file in calibrations(kind).get(b, ())
    )
    return tuple(dict.fromkeys((RELATIVES, *found)))


def unmeasured(gpus: Iterable[str]) -> list[str]:
    """Return the GPUs of which no kernel was timed; a varied one is what it was measured as."""
    known = {board for kind in kinds() if kind != POWER for board in calibrations(kind)}
    found = {name: load_gpu(name) for name in dict.fromkeys(gpus)}
    return [name for name, gpu in found.items() if (gpu.measured_as or gpu.name) not in known]


def notes_on(gpus: Iterable[str]) -> tuple[str, ...]:
    """Return what is to be said of results on some GPUs: of which of them nothing was measured."""
    names = unmeasured(gpus)
    these = "this GPU" if len(names) == 1 else "these GPUs"
    said = f"{', '.join(names)}: no kernel of {these} was measured; times are by data sheets and "
    return (f"{said}by kernels of other GPUs.",) if names else ()


def calibrations(kind: str) -> Mapping[str, tuple[Path, ...]]:
    """Return the files of each measured board, one per folder of a kind."""
    return _files(kind, places(), stamp())


def calibration_file(kind: str, board: str) -> Path | None:
    """Return the first calibration of a kind that a board has, if any."""
    return next(iter(calibrations(kind).get(board, ())), None)


@functools.lru_cache(maxsize=64)
def _files(kind: str, folders: tuple[Path, ...], _now: Stamp) -> Mapping[str, tuple[Path, ...]]:
    found: dict[str, dict[str, Path]] = {}
    for place in folders:
        for folder in kinds()[kind].folders:
            for file in sorted((place / folder).glob("*.toml")):
                found.setdefault(file.stem, {}).setdefault(folder, file)
    return {board: tuple(files.values()) for board, files in found.items()}


def places() -> tuple[Path, ...]:
    """Return the folders of calibrations, the user's own first."""
    return _places(os.environ.get("SWEEPER_HOME", ""))


@functools.lru_cache(maxsize=4)
def _places(home: str) -> tuple[Path, ...]:
    own = [Path("catalog") / "kernels"]
    if home:
        own.append(Path(home) / "kernels")
    return (*own, CALIBRATIONS)


def stamp() -> Stamp:
    """Return when the folders of calibrations last changed; asked at each price, so it is cheap."""
    written: list[int] = []
    for place, *folders in _folders(places()):
        written.append(_written_ns(place))
        if written[-1]:
            written += map(_written_ns, folders)
    return tuple(written)


@functools.lru_cache(maxsize=4)
def _folders(folders: tuple[Path, ...]) -> tuple[tuple[Path, ...], ...]:
    names = dict.fromkeys(name for kind in kinds().values() for name in kind.folders if name)
    return tuple((place, *(place / name for name in names)) for place in folders)


def _written_ns(folder: Path) -> int:
    """Return when a folder last changed; 0 if it is not there."""
    try:
        return folder.stat().st_mtime_ns
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
