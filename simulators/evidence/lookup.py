"""Which GPU's calibration prices a GPU, how wide its interval becomes, and from which files.

A GPU without measured kernels, or of which nothing measured may be used (`zero_shot`), takes times
from another GPU; so do a library and a precision that were not timed on it. Among the sources that
`relatives.toml` allows, the one is taken whose kind of transfer had the least error
(`transfer.py`). A user's own calibrations come before those shipped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from simulators.catalog.engine import ENGINE_FILES, library_order
from simulators.catalog.gpu import Gpu, is_alike, load_gpu
from simulators.core.calibration import read_calibration
from simulators.core.errors import UserError
from simulators.core.folder import GPUS, MEMORIES
from simulators.evidence import transfer
from simulators.evidence.calibration_files import (
    POWER,
    RELATIVES,
    SUMMARY,
    Kind,
    Stamp,
    calibration_file,
    calibrations,
    kinds,
    places,
    stamp,
)
from simulators.evidence.intervals import Band

LEVELS = ("zero_shot", "few_shot", "full")
"""How much may be known of a GPU: its data sheet, some tens of rows, or all that was measured."""
BEST = "best"
NEW_ARCHITECTURE = "new_architecture"  # as zero_shot, without other GPUs of its architecture

FRAMEWORKS = library_order()
"""Where a library has no measured kernel of a kind, the first of these that has one substitutes."""

DEFAULT_FRAMEWORK = FRAMEWORKS[0]
"""Library whose kernels run where no other is chosen."""

NAMED_KERNELS = ("triton_8",)
"""Kernels that a launch asks for by name, whatever is faster: no other library substitutes."""

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """A measured GPU whose times another GPU may take."""

    gpu: str
    architecture: str
    relation: str  # one of RELATIONS
    newer: int = 0  # generations
    unlike: float = 0.0  # |log| of the ratios of memory bandwidth and of 16-bit rate, summed


@dataclass(frozen=True)
class CalibrationMatch(Generic[T]):
    """Numbers of one kind for a GPU, and the transfer they come by."""

    numbers: T
    gpu: str  # that was measured
    framework: str
    kind: transfer.TransferKind
    error: transfer.TransferError
    here: CalibrationMatch[T] | None = (
        None  # own numbers for the same work, where another GPU's are taken
    )

    @property
    def is_of_this_gpu(self) -> bool:
        """Whether this was measured on the GPU itself."""
        return self.kind.relation == transfer.OWN

    @property
    def is_own(self) -> bool:
        """Whether this was measured on the GPU itself, in the precision asked for."""
        return self.is_of_this_gpu and self.kind.same_precision

    def widened(self, band: Band) -> Band:
        """Return a measured band as wide as the transfer makes it."""
        return band if self.kind.name == transfer.OWN else self.error.widened(band)


def nearest_relation(level: str) -> str:
    """Return the nearest relation of sources that a level of information allows."""
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
    """Return the numbers with the least error for a GPU; none if the data sheet is better.

    Of equal errors the library's own kernel goes first, then the nearest GPU. Numbers of another
    GPU come with those of the GPU itself for the same work, if there are any.

    Args:
        kind: of calibration: a table of `relatives.toml`.
        gpu: the name that calibrations know it by.
        architecture: of the GPU.
        look: returns what a GPU, a library and a precision have, if anything.
        family: of kernels, as `transfer.py` knows it.
        framework: library whose kernels are wanted.
        precisions: the wanted one first and acceptable ones after it.
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
    """Return the GPUs whose times a GPU may take, nearest first, from a relation on.

    Of equally near GPUs the newer goes first (its library is newer too), then the one with the most
    similar data sheet.
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
            found.append(Source(name, theirs, relation, newer, _unlikeness(gpu, other)))
    far = transfer.RELATIONS[transfer.RELATIONS.index(nearest) :]
    return tuple(sorted((one for one in found if one.relation in far), key=_distance))


def _distance(source: Source) -> tuple[int, int, int, float, str]:
    """Return the sort key of sources: relation, generations, newer first, data sheet, name."""
    apart = abs(source.newer) if source.newer else len(transfer.succession())
    return (
        transfer.RELATIONS.index(source.relation),
        apart,
        -source.newer,
        source.unlike,
        source.gpu,
    )


def _known_gpu(name: str) -> Gpu | None:
    """Return a GPU of the catalog; none of a data sheet given by path, which has no such name."""
    try:
        return load_gpu(name)
    except UserError:
        return None


def _unlikeness(gpu: str, other: Gpu | None) -> float:
    """Return how far two data sheets are apart; 0 where one is not in the catalog."""
    here = _known_gpu(gpu)
    if here is None or other is None:
        return 0.0
    rates = zip(_rates(here), _rates(other), strict=True)
    return sum(abs(math.log(theirs / ours)) for ours, theirs in rates)


def _rates(gpu: Gpu) -> tuple[float, float]:
    return gpu.hbm_bytes_per_s, gpu.peak_flops.get("bf16", gpu.peak("fp32"))


def _is_source(gpu: Gpu, row: Kind) -> bool:
    """Return whether the 16-bit rate of a GPU is high enough over its fp32 rate for a source."""
    return _rates(gpu)[1] >= row.least_ratio * gpu.peak("fp32")


def files_behind(gpu: Gpu) -> tuple[Path, ...]:
    """Return the calibration files behind times of a GPU: own, sources' and the tables of sources.

    In fp32 all GPUs are sources, through the summary that `measured_gpus.py` reads.
    """
    name = gpu.measured_as or gpu.name
    summary = calibration_file("fp32", SUMMARY)
    summed = read_calibration(summary)["gpu"] if summary is not None else ()
    names = {kind: [one.gpu for one in sources(kind, name, gpu.architecture)] for kind in kinds()}
    names["fp32"] = [SUMMARY, name, *(str(other["name"]) for other in summed)]
    found = (f for kind, some in names.items() for n in some for f in calibrations(kind).get(n, ()))
    dram = (MEMORIES.find(gpu.memory),) if gpu.memory else ()
    return tuple(
        dict.fromkeys(
            (RELATIVES, transfer.CALIBRATION, transfer.LINES, *ENGINE_FILES, *dram, *found)
        )
    )


def has_kin(gpu: Gpu, level: str = BEST) -> bool:
    """Return whether fused kernels of any GPU of the architecture were measured."""
    name = gpu.measured_as or gpu.name
    found = sources("fused", name, gpu.architecture, nearest_relation(level))
    return any(one.relation in (transfer.OWN, transfer.ARCHITECTURE) for one in found)


def unmeasured(gpus: Iterable[str]) -> list[str]:
    """Return the GPUs without measured kernels; a what-if GPU counts as its original."""
    known = {name for kind in kinds() if kind != POWER for name in calibrations(kind)}
    found = {name: load_gpu(name) for name in dict.fromkeys(gpus)}
    return [name for name, gpu in found.items() if (gpu.measured_as or gpu.name) not in known]


def notes_on(gpus: Iterable[str]) -> tuple[str, ...]:
    """Return notes on the results of some GPUs: which of them have no measured kernel.

    With the mean error of times that are transferred from another GPU, where measured GPUs stand
    beside them; and which GPU a data sheet was copied from without `like`.
    """
    asked = list(dict.fromkeys(gpus))
    by_sheet = [name for name in asked if not load_gpu(name).validated]
    names = [name for name in unmeasured(asked) if name not in by_sheet]
    notes = []
    if names:
        notes.append(
            f"No measured kernels for {', '.join(names)}: times are estimated from data sheets and "
            "from kernels of other GPUs."
        )
    if by_sheet:
        notes.append(
            f"No measurements for {', '.join(by_sheet)}: times are lower bounds from data sheets, "
            "which no library reaches."
        )
    measured = [name for name in asked if name not in (*names, *by_sheet)]
    if names and measured:
        errors = {name: _transfer_error(load_gpu(name)) for name in names}
        listed = ", ".join(
            f"{name} {100 * error:.0f} %" if error < math.inf else f"{name} unknown"
            for name, error in errors.items()
        )
        notes.append(
            f"Mean error of kernel times transferred from other GPUs: {listed}. Treat smaller "
            f"differences to {', '.join(measured)} as a tie."
        )
    notes += [
        f'{name} has the rates of {original}: with  like = "{original}"  in its file it takes what '
        "was measured there."
        for name in names
        if (original := _original_of(load_gpu(name)))
    ]
    return tuple(notes)


def _transfer_error(gpu: Gpu) -> float:
    """Return the mean error of kernel times that a GPU takes from its nearest source."""
    nearest = sources("tensor", gpu.measured_as or gpu.name, gpu.architecture)
    return (
        math.expm1(transfer.error_of(transfer.ALL, nearest[0].relation).error)
        if nearest
        else math.inf
    )


def _original_of(gpu: Gpu) -> str:
    """Return the measured GPU with the rates of a user's own GPU; empty if none has them."""
    known = (load_gpu(name) for name in GPUS.names() if name != gpu.name)
    alike = [other.name for other in known if is_alike(gpu, other)]
    return next((name for name in alike if name not in unmeasured([name])), "")
