"""Predictions beside measured rows, as all claims about kernels compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, at_most, kendall_tau, percent_off, was_fitted
from lab.fits.kernels.fused_kernels import predicted_s
from lab.fits.methods.borrowing_trials import formats_of
from lab.fits.methods.held_out import band_of
from lab.tables.rows import BANDED, Bools, Floats, Rows, evenly, mape
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.evidence.calibration_files import CALIBRATIONS
from simulators.evidence.intervals import Band, interval_s
from simulators.evidence.lookup import BEST
from simulators.kernels.entries import Entry, entry_of
from simulators.kernels.levels import profile_of
from simulators.kernels.price import Priced, price


@dataclass(frozen=True)
class Judged:
    """Predicted and measured seconds, and which of these lie in their interval."""

    predicted_s: Floats
    measured_s: Floats
    inside: Bools
    unseen: Bools  # rows that not even an interval was fitted to
    calibrated: bool  # all of them

    @property
    def errors(self) -> Floats:
        """Signed errors in percent."""
        return percent_off(self.predicted_s, self.measured_s)

    @property
    def mape(self) -> float:
        """Mean absolute error in percent."""
        return 100.0 * mape(self.predicted_s, self.measured_s)


def priced_alike(rows: Rows) -> Priced:
    """Return the answer of `price` about rows, for kernels of the framework they are of."""
    return price(rows.operator, load_gpu(rows.gpu), framework=rows.framework)


def judged(parts: Iterable[Rows], answer: Callable[[Rows], Priced] = priced_alike) -> Judged:
    """Return answers beside measurements, all parts together; nothing of no rows."""
    columns: list[tuple[Floats, Floats, Bools, Bools]] = []
    calibrated = True
    for part in parts:
        if len(part):
            priced = answer(part)
            inside = (priced.lo_s <= part.seconds) & (part.seconds <= priced.hi_s)
            columns.append((priced.latency_s, part.seconds, inside, part.bucket >= BANDED))
            calibrated &= priced.calibrated
    if not columns:
        nothing, no = np.ones(0), np.ones(0, bool)
        return Judged(nothing, nothing, no, no, calibrated=True)
    predicted_s, measured_s, inside, unseen = map(np.concatenate, zip(*columns, strict=True))
    return Judged(predicted_s, measured_s, inside, unseen, calibrated)


def is_fitted_to(folder: str, reference: Path, tables: Iterable[str]) -> bool:
    """Say whether calibrations of a folder rest on a table: held-out rows alone judge them."""
    files = (CALIBRATIONS / folder).glob("*.toml")
    return was_fitted(files, (reference / table for table in tables))


def entry_for(rows: Rows, level: str = BEST) -> Entry | None:
    """Return whose numbers attention or experts of some rows would run by."""
    gpu = load_gpu(rows.gpu)
    profile = replace(profile_of(gpu, level), framework=rows.framework)
    return entry_of(gpu, profile, rows.kernel, formats_of(rows))


def own_entry(rows: Rows) -> Entry | None:
    """Return the entry that was fitted to such rows, if one was."""
    entry = entry_for(rows)
    is_own = entry is not None and entry.calibrated and entry.framework == rows.framework
    return entry if is_own else None


def entry_errors(rows: Rows, entry: Entry) -> Floats:
    """Return the signed errors of an entry in percent."""
    if not len(rows):
        return np.zeros(0)
    return percent_off(predicted_s(rows, load_gpu(rows.gpu), entry), rows.seconds)


def entry_holds(rows: Rows, entry: Entry) -> Bools:
    """Say which rows lie in the interval of an entry."""
    if not len(rows):
        return np.zeros(0, bool)
    lo_s, hi_s = interval_s(entry.band, predicted_s(rows, load_gpu(rows.gpu), entry))
    return np.asarray((lo_s <= rows.seconds) & (rows.seconds <= hi_s))


def held_by_others(
    groups: Sequence[tuple[Floats, Floats]],
    band: Callable[[Sequence[tuple[Floats, Floats]]], Band],
) -> list[Bools]:
    """Say which rows of each group, predicted and measured, lie in the band of the other groups."""
    found = []
    for number, (said, measured) in enumerate(groups):
        if others := [group for at, group in enumerate(groups) if at != number]:
            lo_s, hi_s = interval_s(band(others), said)
            found.append(np.asarray((lo_s <= measured) & (measured <= hi_s)))
    return found


def band_of_turns(turns: Sequence[tuple[Floats, Floats]]) -> Band:
    """Return the band of several turns together, of each what was predicted and measured."""
    return band_of(*(np.concatenate(column) for column in zip(*turns, strict=True)))


def detailed(name: str, judged: Judged, note: str, limit: float | None = None) -> Check:
    """Return a mean error with median, rank correlation, bias and worst case in its note."""
    if not judged.measured_s.size:
        return absent(name, unit="%")
    said = f"{note}; {details(judged)}"
    return at_most(name, judged.mape, limit, judged.measured_s.size, said)


def quantiles(errors: Floats) -> str:
    """Return median, ninth decile and bias of signed errors in percent."""
    if not errors.size:
        return "no rows"
    median, high = np.quantile(np.abs(errors), (0.5, 0.9))
    return f"median {median:.1f}, p90 {high:.1f}, bias {np.mean(errors):+.1f}"


TAU_ROWS = 2000
"""Kendall's tau compares all pairs; of more rows than this, evenly spaced ones stand for all."""


def details(judged: Judged) -> str:
    """Return median, root mean square, rank correlation, bias and worst case, in percent."""
    error = judged.errors
    if not error.size:
        return "no rows"
    some = evenly(error.size, TAU_ROWS)
    tau = kendall_tau(judged.predicted_s[some], judged.measured_s[some])
    return (
        f"median {np.median(np.abs(error)):.1f}, RMSE {np.sqrt(np.mean(error**2)):.1f}, "
        f"tau {tau:.3f}, "
        f"bias {np.mean(error):+.1f}, worst {error[np.argmax(np.abs(error))]:+.0f}"
    )
