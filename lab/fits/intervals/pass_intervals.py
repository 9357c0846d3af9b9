"""Fit what of a forward pass no kernel's interval explains: a share of the pass.

Repeats of a configuration count once, with their mean: they err together. The share covers nine of
ten configurations of a board. There are two: of boards that a runtime was fitted on, seen on the
rows of the fit, that of the board with the widest; and of boards that are new to it, the mean over
these boards. Of new boards the whole error counts: those seen lend most kernels, whose intervals
are so wide that they would explain anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.fits.methods.coverage import COVERED
from lab.tables.forward_passes import TABLES, Case
from simulators.composition.intervals import (
    CALIBRATION,
    HalfWidths,
    half_widths_of,
    interval_s,
    summed,
)
from simulators.composition.price import part_rows
from simulators.composition.replica import Runtime, load_runtime
from simulators.workload.llm.parallelism import stage_of

FOLDER = CALIBRATION.parent
SPLIT = "known boards: configurations of the runtimes' fits; new ones: all; test: by device"


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the shares of known and of new boards."""
    known = configurations(reference)
    share = shares(known)
    found = {"known_boards": share[True], "new_boards": share[False]}
    yield calibration(
        CALIBRATION.stem,
        hashes(reference, [t.path for t in TABLES]),
        rows=len(known),
        split=SPLIT,
        held_out=np.expm1(np.abs([np.log(one.predicted_s / one.measured_s) for one in known])),
        lines=table_lines("unexplained", found, ".3f"),
    )


@dataclass(frozen=True)
class Configuration:
    """One configuration that was measured, perhaps several times."""

    case: Case
    measured_s: float
    predicted_s: float
    half_widths: HalfWidths
    is_known: bool  # its runtime was fitted on its board

    @property
    def board(self) -> str:
        """Name of the GPU."""
        return self.case.replica.gpu.name

    def interval_s(self, share: float) -> tuple[float, float]:
        """Return the ends of its interval, given the share that no kernel's explains."""
        lo_s, hi_s = interval_s(self.predicted_s, self.half_widths, share)
        return float(lo_s), float(hi_s)

    @property
    def off_share(self) -> float:
        """How far it was measured from what is predicted, as a share of that."""
        return self.measured_s / self.predicted_s - 1.0

    @property
    def needed_share(self) -> float:
        """Unexplained share that just covers it."""
        lo_s, hi_s = self.interval_s(0.0)
        end_s = hi_s if self.measured_s > self.predicted_s else lo_s
        off, explained = self.measured_s - self.predicted_s, end_s - self.predicted_s
        return float(np.sqrt(max(0.0, off**2 - explained**2))) / self.predicted_s


def configurations(reference: Path) -> list[Configuration]:
    """Return every configuration of the tables that are here."""
    found = []
    for table in TABLES:
        if not (reference / table.path).is_file():
            continue
        runtime = load_runtime(table.runtime)
        repeats: dict[tuple[str, ...], list[Case]] = {}
        for case in table.cases(reference):
            replica = case.replica
            key = (case.group, replica.model.name, replica.dtype, repr(case.terms))
            repeats.setdefault(key, []).append(case)
        found += [_configuration(same, runtime) for same in repeats.values()]
    return found


def shares(configurations: Sequence[Configuration]) -> dict[bool, float]:
    """Return the unexplained shares on boards that are known to a runtime, and on new ones."""
    known = [one for one in configurations if one.is_known and not one.case.is_test]
    new = [one for one in configurations if not one.is_known]
    widest = _covering((one.board, one.needed_share) for one in known)
    each = _covering((one.board, abs(one.off_share)) for one in new)
    return {True: max(widest, default=nan), False: float(np.mean(each)) if each else nan}


def _covering(shares: Iterable[tuple[str, float]]) -> list[float]:
    """Return the share that covers nine of ten configurations of each board."""
    of_board: dict[str, list[float]] = {}
    for board, share in shares:
        of_board.setdefault(board, []).append(share)
    return [float(np.quantile(many, COVERED)) for many in of_board.values()]


def _configuration(same: Sequence[Case], runtime: Runtime) -> Configuration:
    """Return repeats of a configuration as one, priced under a runtime."""
    case = same[0]
    replica = dataclasses.replace(case.replica, runtime=runtime)
    part = stage_of(replica.model, replica.cut, 0)
    steps = [
        {
            family: half_width.times(term.times)
            for family, half_width in half_widths_of(part_rows(replica, term.step, part)).items()
        }
        for term in case.terms
    ]
    return Configuration(
        case=case,
        measured_s=float(np.mean([one.measured_s for one in same])),
        predicted_s=case.predicted_s(runtime),
        half_widths=summed(steps),
        is_known=replica.gpu.name in runtime.boards,
    )
