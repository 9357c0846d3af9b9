"""Whose calibration a GPU is priced by, how much wider its interval becomes, and from which files.

Boards are measured one by one. A GPU that was not, or of which nothing measured may be used
(`zero_shot`), takes another's numbers, and so does a framework or a precision that was not timed on
it. Of all that may lend (`relatives.toml`) the one does whose kind of borrowing erred least where
the answer is known (`borrowing.py`). A user's own calibrations stand before those shipped.
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
from simulators.evidence.borrowing import (
    ALL,
    ARCHITECTURE,
    COSTS,
    GENERATION,
    LINES,
    OWN,
    RELATIONS,
    Cost,
    Loan,
    cheapest,
    cost_of,
    loans_of,
    may_speak,
    nearness,
    relation_of,
    sheet_cost,
    stand_ins,
    succession,
)
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
NEW_ARCHITECTURE = "new_architecture"  # not even its architecture lends: for those who judge

FRAMEWORKS = library_order()
"""Where a library has no measured kernel of a kind, the first of these that has one substitutes."""

DEFAULT_FRAMEWORK = FRAMEWORKS[0]
"""Library whose kernels run where no other is chosen."""

NAMED_KERNELS = ("triton_8",)
"""Kernels that a launch asks for by name, whatever else is faster: no other's stand in."""

T = TypeVar("T")


@dataclass(frozen=True)
class Lender:
    """A board whose numbers a GPU may take."""

    board: str
    architecture: str
    relation: str  # one of RELATIONS
    newer: int = 0  # by so many generations than the GPU
    unlike: float = 0.0  # |log| of memory bandwidth and 16-bit rate over the GPU's, together


@dataclass(frozen=True)
class Found(Generic[T]):
    """Numbers of one kind for a GPU, and what they may be called there."""

    numbers: T
    board: str  # that was measured
    framework: str
    loan: Loan
    cost: Cost
    here: Found[T] | None = None  # what the GPU itself has for the same work, where another lends

    @property
    def is_of_this_board(self) -> bool:
        """Whether this was measured on the GPU itself."""
        return self.loan.relation == OWN

    @property
    def is_own(self) -> bool:
        """Whether this was measured on the GPU itself, in the precision asked for."""
        return self.is_of_this_board and self.loan.same_precision

    def widened(self, band: Band) -> Band:
        """Return a measured band as wide as it must be here."""
        return band if self.loan.name == OWN else self.cost.widened(band)


def nearest_lender(level: str) -> str:
    """Return the nearest relation that may lend at a level of information."""
    return {LEVELS[0]: ARCHITECTURE, NEW_ARCHITECTURE: GENERATION}.get(level, OWN)


def find(
    kind: str,
    gpu: str,
    architecture: str,
    look: Callable[[str, str, str], T | None],
    *,
    family: str = "",
    framework: str = "",
    precisions: Sequence[str] = ("",),
    nearest: str = OWN,
) -> Found[T] | None:
    """Return the numbers that err least for a GPU; none if nobody lends any, or none is better.

    Of kinds that err alike the framework's own kernel goes first, then the nearest board. With
    another board's numbers comes what was measured for the same work on the GPU itself.

    Args:
        kind: of calibration: a table of `relatives.toml`.
        gpu: the name that calibrations know it by.
        architecture: of the GPU.
        look: returns what a board, a framework and a precision have, if anything.
        family: of kernels, as `borrowing.py` knows it.
        framework: whose kernels are wanted.
        precisions: the wanted one first and acceptable ones after it.
        nearest: relation of a board whose numbers may be used; by default the GPU's own too.
    """
    others: Sequence[str] = ()
    if framework not in ("", *NAMED_KERNELS) and kinds()[kind].frameworks == "any":
        others = (*stand_ins().get(family, {}).get(framework, ()), *FRAMEWORKS)
    names = dict.fromkeys((framework, *others))
    frameworks = [name for name in names if may_speak(name, framework, family, architecture)]
    best: Found[T] | None = None
    here: Found[T] | None = None
    for lender in lenders(kind, gpu, architecture, nearest):
        for precision in precisions:
            for whose in frameworks:
                lent, same = (whose, lender.architecture), precision == precisions[0]
                loans = loans_of(lender.relation, family, (framework, architecture), lent, same)
                cost, loan = cheapest(family, loans)
                if best is not None and nearness(cost, loan) >= nearness(best.cost, best.loan):
                    continue
                if (numbers := look(lender.board, whose, precision)) is not None:
                    best = Found(numbers, lender.board, whose, loan, cost, here)
        if lender.relation == OWN:
            here = best
    without = sheet_cost(family)
    if best is not None and without is not None and without.error < best.cost.error:
        return None
    return best


def lenders(kind: str, gpu: str, architecture: str, nearest: str = OWN) -> tuple[Lender, ...]:
    """Return the boards whose numbers a GPU may take, from a `nearest` relation on, in order.

    Of boards equally near the newer lends (its library is too), else the most alike data sheet.
    """
    return _lenders(kind, gpu, architecture, nearest, places(), stamp())


@functools.lru_cache(maxsize=512)
def _lenders(
    kind: str, gpu: str, architecture: str, nearest: str, _places: tuple[Path, ...], _now: Stamp
) -> tuple[Lender, ...]:
    row, measured = kinds()[kind], calibrations(kind)
    found = [Lender(gpu, architecture, OWN)] if gpu in measured else []
    for board, files in measured.items():
        if board == gpu or not _may_lend(board, row):
            continue
        theirs = _architecture_of(board, files)
        if _reaches(row.lends, architecture, theirs):
            unlike = _unlikeness(gpu, board)
            found.append(Lender(board, theirs, *relation_of(architecture, theirs), unlike))
    far = RELATIONS[RELATIONS.index(nearest) :]
    return tuple(sorted((one for one in found if one.relation in far), key=_distance))


def _distance(lender: Lender) -> tuple[int, int, int, float, str]:
    """Return what lenders are sorted by: relation, generations, the newer first, rates, name."""
    apart = abs(lender.newer) if lender.newer else len(succession())
    return RELATIONS.index(lender.relation), apart, -lender.newer, lender.unlike, lender.board


def _unlikeness(gpu: str, board: str) -> float:
    """Return how far two data sheets are apart; nothing where one has no name to be found by."""
    try:
        here, there = load_gpu(gpu), load_gpu(board)
    except UserError:
        return 0.0
    rates = zip(_rates(here), _rates(there), strict=True)
    return sum(abs(math.log(theirs / ours)) for ours, theirs in rates)


def _rates(gpu: Gpu) -> tuple[float, float]:
    return gpu.hbm_bytes_per_s, gpu.peak_flops.get("bf16", gpu.peak("fp32"))


def _reaches(lends: str, architecture: str, lender: str) -> bool:
    """Say whether a board lends as far as to an architecture."""
    if lends in ("anybody", "nobody"):
        return lends == "anybody"
    relation, newer = relation_of(architecture, lender)
    return relation == ARCHITECTURE or (lends == "line" and newer != 0)


def _architecture_of(board: str, files: Sequence[Path]) -> str:
    try:
        return load_gpu(board).architecture
    except UserError:  # a data sheet given by path has no name to be found by
        return str(read_calibration(files[0]).get("architecture", ""))


def _may_lend(board: str, row: Kind) -> bool:
    """Say whether a board's matrix units are as fast as the fp32 rate promises."""
    try:
        gpu = load_gpu(board)
    except UserError:
        return True
    fp32 = gpu.peak("fp32")
    return gpu.peak_flops.get("bf16", fp32) >= row.least_ratio * fp32


def files_behind(gpu: Gpu) -> tuple[Path, ...]:
    """Return every file an answer about a GPU may rest on: its own and its lenders', and who lends.

    In fp32 every board lends, by what `boards.py` makes of all of them.
    """
    name = gpu.measured_as or gpu.name
    summary = calibration_file("fp32", SUMMARY)
    summed = read_calibration(summary)["board"] if summary is not None else ()
    boards = {
        kind: [one.board for one in lenders(kind, name, gpu.architecture)] for kind in kinds()
    }
    boards["fp32"] = [SUMMARY, name, *(str(board["name"]) for board in summed)]
    found = (
        f for kind, some in boards.items() for b in some for f in calibrations(kind).get(b, ())
    )
    dram = (MEMORIES.find(gpu.memory),) if gpu.memory else ()
    return tuple(dict.fromkeys((RELATIVES, COSTS, LINES, *ENGINE_FILES, *dram, *found)))


def has_kin(gpu: Gpu, level: str = BEST) -> bool:
    """Say whether fused kernels of any board of the architecture were measured."""
    name = gpu.measured_as or gpu.name
    found = lenders("fused", name, gpu.architecture, nearest_lender(level))
    return any(one.relation in (OWN, ARCHITECTURE) for one in found)


def unmeasured(gpus: Iterable[str]) -> list[str]:
    """Return the GPUs of which no kernel was timed; a varied one is what it was measured as."""
    known = {board for kind in kinds() if kind != POWER for board in calibrations(kind)}
    found = {name: load_gpu(name) for name in dict.fromkeys(gpus)}
    return [name for name, gpu in found.items() if (gpu.measured_as or gpu.name) not in known]


def notes_on(gpus: Iterable[str]) -> tuple[str, ...]:
    """Return what is to be said of results on some GPUs: of which of them nothing was measured.

    And how far off times are in the mean that rest on another board's kernels, where they stand
    beside those of measured boards; and which board a sheet was copied from without saying so.
    """
    asked = list(dict.fromkeys(gpus))
    by_sheet = [name for name in asked if not load_gpu(name).validated]
    names = [name for name in unmeasured(asked) if name not in by_sheet]
    these = "this GPU" if len(names) == 1 else "these GPUs"
    said = f"{', '.join(names)}: no kernel of {these} was measured; times are by data sheets and "
    notes = [f"{said}by kernels of other GPUs."] if names else []
    if by_sheet:
        notes.append(
            f"{', '.join(by_sheet)}: nothing of such devices was ever measured here; times are the "
            "least that their data sheets allow, and no library reaches them."
        )
    measured = [name for name in asked if name not in (*names, *by_sheet)]
    if names and measured:
        errors = {name: _borrowed_error(load_gpu(name)) for name in names}
        told = ", ".join(
            f"{name} {error:.0%}" if error < math.inf else f"{name} not known"
            for name, error in errors.items()
        )
        notes.append(
            f"Beside times of {', '.join(measured)} smaller differences say little: with kernels "
            f"of such lenders measured boards were off in the mean by: {told}."
        )
    originals = {name: _original_of(load_gpu(name)) for name in names}
    notes += [
        f'{name} has the rates of {original}: with  like = "{original}"  in its file it takes what '
        "was measured there."
        for name, original in originals.items()
        if original
    ]
    return tuple(notes)


def _borrowed_error(gpu: Gpu) -> float:
    """Return how far off kernels are in the mean that a GPU borrows from its nearest lender."""
    nearest = lenders("tensor", gpu.measured_as or gpu.name, gpu.architecture)
    return math.expm1(cost_of(ALL, nearest[0].relation).error) if nearest else math.inf


def _original_of(gpu: Gpu) -> str:
    """Return the measured GPU whose rates a GPU of one's own has; nothing if none has them."""
    known = (load_gpu(name) for name in GPUS.names() if name != gpu.name)
    alike = [other.name for other in known if is_alike(gpu, other)]
    return next((name for name in alike if name not in unmeasured([name])), "")
