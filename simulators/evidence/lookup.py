"""Which GPU's calibration prices a GPU, how wide its interval becomes, and from which files.

A GPU without measured kernels takes times from another GPU. So does a GPU whose measurements may
not be used (`zero_shot`), and a library or a precision that was not timed on the GPU. Among the
sources that `relatives.toml` allows, `find` takes the one whose kind of transfer had the least
error (`transfer.py`). A user's own calibrations take precedence over the shipped ones.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from simulators.catalog.engine import ENGINE_FILES, library_order
from simulators.catalog.gpu import Gpu, is_alike, load_gpu
from simulators.core.calibration import read_calibration
from simulators.core.errors import UserError
from simulators.core.folder import GPUS, MEMORIES, PACKAGE, cached_in_scan, read_toml
from simulators.evidence import transfer
from simulators.evidence.intervals import BY_SHEET, Band

CALIBRATIONS = PACKAGE / "kernels" / "calibration"
DEFAULT_RATES = PACKAGE / "kernels" / "default_rates.toml"
RELATIVES = Path(__file__).with_name("relatives.toml")
SUMMARY = "measured_gpus"  # the fp32 calibration file that summarizes all shipped GPUs
POWER = "power"  # the kind of calibration that holds watts; all other kinds hold times
STATES = "states"  # the kind of calibration of recurrent states, timed also on GPUs without others

Stamp = tuple[int, ...]
"""Modification times of the calibration folders, in ns: part of the key of every cache."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of calibration: a table of `relatives.toml`, which explains the fields."""

    folders: tuple[str, ...]
    transfers_to: str
    frameworks: str = "any"
    least_ratio: float = 0.0
    reason: str


def calibrations(kind: str) -> Mapping[str, tuple[Path, ...]]:
    """Return the calibration files of a kind by measured GPU, one file per folder of the kind."""
    return _files(kind, places(), stamp())


def calibration_file(kind: str, gpu: str) -> Path | None:
    """Return the first calibration file of a kind for a GPU, or None."""
    return next(iter(calibrations(kind).get(gpu, ())), None)


def calibration_files(kind: str, gpu: str) -> tuple[Path, ...]:
    """Return all calibration files of a kind for a GPU, hidden shipped files included."""
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
    """Return the folders that are searched for calibrations, the user's own first."""
    return _places(os.environ.get("SWEEPER_HOME", ""))


@functools.lru_cache(maxsize=4)
def _places(home: str) -> tuple[Path, ...]:
    own = (Path("catalog") / "kernels", *([Path(home) / "kernels"] if home else []))
    return (*own, CALIBRATIONS)


def stamp() -> Stamp:
    """Return when the calibration folders last changed. Cheap, because every price calls it."""
    return cached_in_scan(stamp, _stamp)


def _stamp() -> Stamp:
    written: list[int] = []
    for place, *folders in _folders(places()):
        written.append(_mtime_ns(place))
        if written[-1]:
            written += map(_mtime_ns, folders)
    return tuple(written)


@functools.lru_cache(maxsize=4)
def _folders(folders: tuple[Path, ...]) -> tuple[tuple[str, ...], ...]:
    names = dict.fromkeys(name for kind in kinds().values() for name in kind.folders if name)
    return tuple((str(place), *(str(place / name) for name in names)) for place in folders)


def _mtime_ns(folder: str) -> int:
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


LEVELS = ("zero_shot", "few_shot", "full")
"""Levels of information about a GPU: its data sheet, some tens of rows, or all measurements."""
BEST = "best"
NEW_ARCHITECTURE = "new_architecture"  # as zero_shot, without other GPUs of its architecture

FRAMEWORKS = library_order()
"""Kernel libraries, in the order in which one substitutes for a kernel that another lacks."""

DEFAULT_FRAMEWORK = FRAMEWORKS[0]
"""Library whose kernels run by default."""

NAMED_KERNELS = ("triton_8",)
"""Kernels that a launch selects by name. No other library substitutes for them."""

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """A measured GPU whose times another GPU may take."""

    gpu: str
    architecture: str
    relation: str  # one of RELATIONS
    newer: int = 0  # generations
    data_sheet_distance: float = (
        0.0  # |log| of the ratios of memory bandwidth and of 16-bit rate, summed
    )


@dataclass(frozen=True)
class CalibrationMatch(Generic[T]):
    """Calibrated numbers for a GPU, and the kind of transfer from the measured GPU."""

    numbers: T
    gpu: str  # the measured GPU
    framework: str
    kind: transfer.TransferKind
    error: transfer.TransferError
    here: CalibrationMatch[T] | None = None  # the GPU's own numbers for the same work, if any

    @property
    def is_of_this_gpu(self) -> bool:
        """Whether the numbers were measured on the GPU itself."""
        return self.kind.relation == transfer.OWN

    @property
    def is_own(self) -> bool:
        """Whether the numbers were measured on the GPU itself in the requested precision."""
        return self.is_of_this_gpu and self.kind.same_precision

    def widened(self, band: Band) -> Band:
        """Return a measured band, widened by the error of the transfer."""
        return band if self.kind.name == transfer.OWN else self.error.widened(band)


def nearest_relation(level: str) -> str:
    """Return the nearest relation to a source GPU that a level of information allows."""
    return {LEVELS[0]: transfer.ARCHITECTURE, NEW_ARCHITECTURE: transfer.GENERATION}.get(
        level, transfer.OWN
    )


def find(
    kind: str,
    gpu: str,
    architecture: str,
    look: Callable[[str, str, str], T | None],
    *,
    family: str = "",
    framework: str = "",
    precisions: Sequence[str] = ("",),
    nearest: str = transfer.OWN,
) -> CalibrationMatch[T] | None:
    """Return the numbers with the least transfer error for a GPU.

    Returns None without any numbers, or if the data sheet alone has a smaller error. At equal
    errors the library's own kernel is preferred, then the nearest GPU. A match from another GPU
    includes the GPU's own numbers for the same work, if there are any.

    Args:
        kind: kind of calibration, a table of `relatives.toml`.
        gpu: name of the GPU in calibrations.
        architecture: architecture of the GPU.
        look: function of GPU, library and precision that returns their numbers or None.
        family: family of kernels in `transfer.py`.
        framework: library whose kernels are requested.
        precisions: the requested precision, followed by its substitutes.
        nearest: relation of the nearest sources that may be used.
    """
    others: Sequence[str] = ()
    if framework not in ("", *NAMED_KERNELS) and kinds()[kind].frameworks == "any":
        others = (*transfer.substitutes().get(family, {}).get(framework, ()), *FRAMEWORKS)
    names = dict.fromkeys((framework, *others))
    frameworks = [
        name for name in names if transfer.can_substitute(name, framework, family, architecture)
    ]
    best: CalibrationMatch[T] | None = None
    here: CalibrationMatch[T] | None = None
    for source in sources(kind, gpu, architecture, nearest):
        for precision in precisions:
            for whose in frameworks:
                there, same = (whose, source.architecture), precision == precisions[0]
                wanted = (framework, architecture)
                ways = transfer.transfer_kinds(source.relation, family, wanted, there, same)
                error, way = transfer.least_error(family, ways)
                if best is not None and transfer.rank(error, way) >= transfer.rank(
                    best.error, best.kind
                ):
                    continue
                if (numbers := look(source.gpu, whose, precision)) is not None:
                    best = CalibrationMatch(numbers, source.gpu, whose, way, error, here)
        if source.relation == transfer.OWN:
            here = best
    without = transfer.shipped_errors().get(family, {}).get(transfer.SHEET)
    if best is not None and without is not None and without.error < best.error.error:
        return None
    return best


def sources(
    kind: str, gpu: str, architecture: str, nearest: str = transfer.OWN
) -> tuple[Source, ...]:
    """Return the GPUs whose times a GPU may take, sorted by relation, `nearest` or farther.

    Among GPUs of the same relation the newer one comes first (its library is newer too), then the
    GPU with the most similar data sheet.
    """
    return _sources(kind, gpu, architecture, nearest, places(), stamp())


@functools.lru_cache(maxsize=512)
def _sources(
    kind: str, gpu: str, architecture: str, nearest: str, _places: tuple[Path, ...], _now: Stamp
) -> tuple[Source, ...]:
    row, measured = kinds()[kind], calibrations(kind)
    found = [Source(gpu, architecture, transfer.OWN)] if gpu in measured else []
    for name, files in measured.items():
        other = _known_gpu(name)
        if name == gpu or (other is not None and not _is_source(other, row)):
            continue
        content = read_calibration(files[0]) if other is None else {}
        theirs = str(content.get("architecture", "")) if other is None else other.architecture
        relation, newer = transfer.relation_of(architecture, theirs)
        is_near = relation == transfer.ARCHITECTURE or (row.transfers_to == "line" and newer != 0)
        if row.transfers_to == "all" or (is_near and row.transfers_to != "none"):
            found.append(Source(name, theirs, relation, newer, _data_sheet_distance(gpu, other)))
    allowed = transfer.RELATIONS[transfer.RELATIONS.index(nearest) :]
    return tuple(sorted((one for one in found if one.relation in allowed), key=_nearness))


def _nearness(source: Source) -> tuple[int, int, int, float, str]:
    """Return the sort key of sources: relation, generations, newer first, data sheet, name."""
    apart = abs(source.newer) if source.newer else len(transfer.succession())
    return (
        transfer.RELATIONS.index(source.relation),
        apart,
        -source.newer,
        source.data_sheet_distance,
        source.gpu,
    )


def _known_gpu(name: str) -> Gpu | None:
    try:
        return load_gpu(name)
    except UserError:
        return None


def _data_sheet_distance(gpu: str, other: Gpu | None) -> float:
    """Return the distance of two data sheets in log rates; 0 if one is not in the catalog."""
    here = _known_gpu(gpu)
    if here is None or other is None:
        return 0.0
    rates = zip(_rates(here), _rates(other), strict=True)
    return sum(abs(math.log(theirs / ours)) for ours, theirs in rates)


def _rates(gpu: Gpu) -> tuple[float, float]:
    return gpu.hbm_bytes_per_s, gpu.peak_flops.get("bf16", gpu.peak("fp32"))


def _is_source(gpu: Gpu, row: Kind) -> bool:
    return _rates(gpu)[1] >= row.least_ratio * gpu.peak("fp32")


def files_behind(gpu: Gpu) -> tuple[Path, ...]:
    """Return the files that times of a GPU depend on: calibrations of the GPU and its sources.

    In fp32 all GPUs are sources, through the summary that `default_rates.py` reads.
    """
    name = gpu.measured_as or gpu.name
    summary = calibration_file("fp32", SUMMARY)
    summed = read_calibration(summary)["gpu"] if summary is not None else ()
    names = {kind: [one.gpu for one in sources(kind, name, gpu.architecture)] for kind in kinds()}
    names["fp32"] = [SUMMARY, name, *(str(other["name"]) for other in summed)]
    found = (f for kind, some in names.items() for n in some for f in calibrations(kind).get(n, ()))
    dram = (MEMORIES.find(gpu.memory),) if gpu.memory else ()
    shared = (RELATIVES, DEFAULT_RATES, transfer.CALIBRATION, transfer.LINES, *ENGINE_FILES)
    return tuple(dict.fromkeys((*shared, *dram, *found)))


def has_related_gpu(gpu: Gpu, level: str = BEST) -> bool:
    """Return whether fused kernels were measured on any GPU of the architecture."""
    name = gpu.measured_as or gpu.name
    found = sources("fused", name, gpu.architecture, nearest_relation(level))
    return any(one.relation in (transfer.OWN, transfer.ARCHITECTURE) for one in found)


def unmeasured(gpus: Iterable[str]) -> list[str]:
    """Return the GPUs without measured kernels. A what-if GPU counts as its base GPU."""
    counted = (kind for kind in kinds() if kind not in (POWER, STATES))
    known = {name for kind in counted for name in calibrations(kind)}
    found = {name: load_gpu(name) for name in dict.fromkeys(gpus)}
    return [name for name, gpu in found.items() if (gpu.measured_as or gpu.name) not in known]


def notes_on(gpus: Iterable[str]) -> tuple[str, ...]:
    """Return footnotes to results over GPUs: which GPUs have no measured kernels.

    A comparison with measured GPUs adds the mean error of transferred times. A data sheet with the
    rates of a measured GPU adds a hint to use `like`.
    """
    asked = list(dict.fromkeys(gpus))
    by_sheet = [name for name in asked if not load_gpu(name).validated]
    names = [name for name in unmeasured(asked) if name not in by_sheet]
    measured = [name for name in asked if name not in (*names, *by_sheet)]
    notes = []
    if names:
        said = "times are estimated from data sheets and from kernels of other GPUs"
        if measured:
            errors = {name: _transfer_error(load_gpu(name)) for name in names}
            listed = ", ".join(
                f"{name} {100 * error:.0f} %" if error < math.inf else f"{name} unknown"
                for name, error in errors.items()
            )
            said += (
                f" (mean error elsewhere: {listed}). Treat smaller differences to "
                f"{', '.join(measured)} as a tie"
            )
        notes.append(f"No measured kernels for {', '.join(names)}: {said}.")
    if by_sheet:
        notes.append(
            f"No measurements for {', '.join(by_sheet)}: times are lower bounds from data sheets, "
            f"which no library reaches. Widest interval: {BY_SHEET.lo[0]:g} to {BY_SHEET.hi[0]:g} "
            "times the bound."
        )
    notes += [
        f'{name} has the rates of {original}: with  like = "{original}"  in its file it takes what '
        "was measured there."
        for name in names
        if (original := _identical_gpu(load_gpu(name)))
    ]
    return tuple(notes)


def _transfer_error(gpu: Gpu) -> float:
    """Return the mean error of kernel times from the nearest source; infinite without a source."""
    nearest = sources("tensor", gpu.measured_as or gpu.name, gpu.architecture)
    if not nearest:
        return math.inf
    return math.expm1(transfer.error_of(transfer.ALL, nearest[0].relation).error)


def _identical_gpu(gpu: Gpu) -> str:
    """Return the measured GPU that has the same rates as a GPU, or an empty string."""
    known = (load_gpu(name) for name in GPUS.names() if name != gpu.name)
    alike = [other.name for other in known if is_alike(gpu, other)]
    return next((name for name in alike if name not in unmeasured([name])), "")
