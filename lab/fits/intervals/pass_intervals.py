"""Fit the part of a forward pass's error that no kernel's interval explains: a share of the pass.

The share covers 90 % of the configurations of a GPU; repeats of a configuration count once, with
their mean. One share is of GPUs that a runtime was fitted on: the widest. The other is of new GPUs:
their mean. On new GPUs the whole error counts, as the intervals of transferred kernels are so wide
that they would explain any error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.methods.held_out import COVERED_SHARE, quantile
from lab.tables.passes import TABLES, PassCase
from simulators.composition.intervals import (
    CALIBRATION,
    HalfWidths,
    added,
    half_widths_of,
    interval_s,
)
from simulators.composition.price import part_rows
from simulators.composition.replica import Runtime, load_runtime
from simulators.workload.llm.parallelism import stage_of

FOLDER = CALIBRATION.parent


@dataclass(frozen=True)
class PassConfiguration:
    """A measured configuration: the mean of its repeats, and its prediction."""

    case: PassCase
    measured_s: float
    predicted_s: float
    half_widths: HalfWidths
    is_known: bool  # its runtime was fitted on its GPU

    @property
    def gpu(self) -> str:
        """Name of the GPU."""
        return self.case.replica.gpu.name

    def interval_s(self, share: float) -> tuple[float, float]:
        """Return the interval, given the share that no kernel's interval explains."""
        lo_s, hi_s = interval_s(self.predicted_s, self.half_widths, share)
        return float(lo_s), float(hi_s)

    @property
    def off_share(self) -> float:
        """Measured over predicted time, less one."""
        return self.measured_s / self.predicted_s - 1.0

    @property
    def needed_share(self) -> float:
        """Least unexplained share whose interval covers the measurement."""
        lo_s, hi_s = self.interval_s(0.0)
        end_s = hi_s if self.measured_s > self.predicted_s else lo_s
        off, explained = self.measured_s - self.predicted_s, end_s - self.predicted_s
        return float(np.sqrt(max(0.0, off**2 - explained**2))) / self.predicted_s


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the shares of known and of new GPUs."""
    known = configurations(reference)
    share = shares(known)
    log_errors = np.log([one.predicted_s / one.measured_s for one in known])
    yield Calibration(
        name=CALIBRATION.stem,
        content={"unexplained": {"known_gpus": share[True], "new_gpus": share[False]}},
        style=".3f",
        tables=[table.path for table in TABLES],
        rows=len(known),
        split="known GPUs: configurations of the runtimes' fits; new ones: all; test: by device",
        errors=np.expm1(np.abs(log_errors)),
    )


def configurations(reference: Path) -> list[PassConfiguration]:
    """Return every configuration of the tables in the reference folder."""
    found = []
    for table in TABLES:
        if not (reference / table.path).is_file():
            continue
        runtime = load_runtime(table.runtime)
        repeats: dict[tuple[str, ...], list[PassCase]] = {}
        for case in table.cases(reference):
            replica = case.replica
            key = (case.group, replica.model.name, replica.dtype, repr(case.terms))
            repeats.setdefault(key, []).append(case)
        found += [_configuration(same, runtime) for same in repeats.values()]
    return found


def shares(configurations: Sequence[PassConfiguration]) -> dict[bool, float]:
    """Return the unexplained share of GPUs known to a runtime (True), and of new ones (False)."""
    known = [one for one in configurations if one.is_known and not one.case.is_test]
    new = [one for one in configurations if not one.is_known]
    widest = _covering((one.gpu, one.needed_share) for one in known)
    each = _covering((one.gpu, abs(one.off_share)) for one in new)
    return {True: max(widest, default=nan), False: float(np.mean(each)) if each else nan}


def _covering(shares: Iterable[tuple[str, float]]) -> list[float]:
    """Return the share that covers 90 % of the configurations of each GPU."""
    of_gpu: dict[str, list[float]] = {}
    for gpu, share in shares:
        of_gpu.setdefault(gpu, []).append(share)
    return [float(quantile(many, COVERED_SHARE)) for many in of_gpu.values()]


def _configuration(same: Sequence[PassCase], runtime: Runtime) -> PassConfiguration:
    case = same[0]
    replica = dataclasses.replace(case.replica, runtime=runtime)
    part = stage_of(replica.model, replica.cut, 0)
    steps = [
        {
            family: term.times * half_width
            for family, half_width in half_widths_of(part_rows(replica, term.step, part)).items()
        }
        for term in case.terms
    ]
    return PassConfiguration(
        case=case,
        measured_s=float(np.mean([one.measured_s for one in same])),
        predicted_s=case.predicted_s(runtime),
        half_widths=added(steps),
        is_known=replica.gpu.name in runtime.gpus,
    )
