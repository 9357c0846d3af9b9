"""Lines of `validate`: an error beside its limit, a coverage beside its range, a table not there.

A claim is a module of `lab/claims/<room>/` with a function `checks(reference, rows)`, found by its
place in that folder. `rows` is `test` for what no fit has seen, and `all` for every row of a folder
that nothing was fitted to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from lab.fits.driver import fitted_tables, sha256_of
from lab.tables.rows import Bools, Floats
from simulators.core.contract import COVERAGE, Check
from simulators.core.errors import Infeasible, UserError


def absent(name: str, note: str = "no rows", unit: str = "") -> Check:
    """Return a line for what cannot be judged, and why."""
    return Check(name, None, unit, note=note)


COVERAGE_BAR, SHAPES_COVERAGE_BAR = (85.0, 95.0), (87.0, 94.0)
"""Percent of rows that 90 % intervals should hold: of what was left out, and of shapes alone."""

Row = TypeVar("Row")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Answered(Generic[Row, Answer]):
    """Rows that have an answer, in the order they came, and lines about those that have none."""

    rows: list[Row]
    answers: list[Answer]
    lines: list[Check]


def answered(
    name: str, rows: Iterable[Row], answer: Callable[[Row], Answer]
) -> Answered[Row, Answer]:
    """Return rows with their answers; those without one are counted by the reason.

    >>> answered("boards", [{"gpu": "t4"}], lambda row: row["gpu"]).answers
    ['t4']
    """
    found, skipped = [], Counter[str]()
    for row in rows:
        try:
            found.append((row, answer(row)))
        except (Infeasible, UserError) as error:
            skipped[reason(error)] += 1
    lines = list(skipped_lines(name, skipped))
    return Answered([row for row, _ in found], [one for _, one in found], lines)


def reason(error: Infeasible | UserError) -> str:
    """Return why something has no answer, in one line that rows with the same reason share.

    >>> reason(Infeasible("weights_exceed_hbm", "needs 171 GB, has 80 GB"))
    'weights_exceed_hbm'
    """
    return error.reason if isinstance(error, Infeasible) else str(error).partition("\n")[0]


def skipped_lines(name: str, skipped: Counter[str]) -> Iterator[Check]:
    """Yield one line for each reason that left rows without an answer, with their number."""
    for why, rows in sorted(skipped.items()):
        note = f"{rows:,} rows skipped: {why}"
        yield Check(f"{name}: skipped, {why}", None, rows=rows, note=note)


def at_most(
    name: str,
    value: float,
    limit: float | None,
    rows: int = 0,
    note: str = "",
    unit: str = "%",
    peer: float | None = None,
) -> Check:
    """Return a value beside the largest that is allowed, if one is set."""
    if np.isnan(value):
        return absent(name, unit=unit)
    ok = None if limit is None else bool(value <= limit)
    return Check(name, value, unit, limit, ok, rows, note, peer=known(peer))


def at_least(
    name: str,
    value: float,
    limit: float | None,
    rows: int = 0,
    note: str = "",
    unit: str = "%",
    peer: float | None = None,
) -> Check:
    """Return a value beside the smallest that is allowed, if one is set."""
    line = at_most(name, value, None, rows, note, unit, peer)
    if limit is None or line.value is None:
        return line
    return replace(line, limit=limit, ok=bool(value >= limit))


def known(peer: float | None) -> float | None:
    """Return a peer's figure, None where it has no answer."""
    return None if peer is None or np.isnan(peer) else float(peer)


def within(
    name: str,
    inside: Sequence[Bools],
    note: str = "",
    allowed: tuple[float, float] = COVERAGE_BAR,
) -> list[Check]:
    """Return the share of rows inside their intervals beside its allowed range, in percent.

    >>> within("coverage", [np.array([True, True])])[0].verdict
    'too wide'
    """
    held = np.concatenate([np.zeros(0, bool), *inside])
    if not held.size:
        return []
    low, high = allowed
    value = 100.0 * float(np.mean(held))
    asked = f"{note}; asked for {low:g} to {high:g} %".removeprefix("; ")
    ok = bool(low <= value <= high)
    return [Check(name, value, "%", low, ok, held.size, asked, COVERAGE)]


def error_line(
    name: str, errors: Iterable[Floats], limit: float | None = None, note: str = ""
) -> Check:
    """Return the mean absolute error with median and bias.

    Args:
        name: of the line.
        errors: signed, in percent, in as many parts as there are.
        limit: that the mean may not exceed.
        note: what else to say after them.
    """
    signed = np.concatenate([np.zeros(0), *errors])
    if not signed.size:
        return absent(name, unit="%")
    said = "; ".join(text for text in (spread(signed), note) if text)
    return at_most(name, float(np.mean(np.abs(signed))), limit, signed.size, said)


def spread(errors: Floats) -> str:
    """Return median and bias of signed errors in percent.

    >>> spread(np.array([-10.0, 4.0, 3.0]))
    'median 4.0, bias -1.0'
    """
    return f"median {np.median(np.abs(errors)):.1f}, bias {np.mean(errors):+.1f}"


def mean_error(
    name: str,
    errors: Floats | Sequence[float],
    limit: float | None = None,
    note: str = "",
    peer: float | None = None,
) -> Check:
    """Return the mean of relative errors of rows, in percent to two decimals.

    >>> mean_error("mean", [0.05, -0.15]).value
    10.0
    """
    if not len(errors):
        return absent(name, unit="%")
    value = round(100.0 * float(np.mean(np.abs(errors))), 2)
    return at_most(name, value, limit, len(errors), note, peer=peer)


def ratio_line(name: str, ratio: Floats, limit: float | None = None, note: str = "") -> Check:
    """Return the mean error in percent, given ours over theirs, not a number where ours is absent.

    The bias is that of the median.
    """
    known = ratio[~np.isnan(ratio)]
    if not known.size:
        return absent(name)
    error = 100.0 * np.abs(known - 1.0)
    said = f"median {np.median(error):.1f}, bias {100.0 * (np.median(known) - 1.0):+.1f} %{note}"
    return at_most(name, float(error.mean()), limit, known.size, said)


def compared(
    name: str, predicted: Floats, measured: Floats, groups: Sequence[str], limit: float | None
) -> Check:
    """Return the mean error of seconds in percent, with the rest of an error table in its note.

    Args:
        name: of the line.
        predicted: seconds, one per row.
        measured: the same.
        groups: what to call each row where it is the worst.
        limit: that the mean may not exceed.
    """
    if not groups:
        return absent(name, unit="%")
    ratio = predicted / measured - 1.0
    worst = int(np.argmax(np.abs(ratio)))
    rmse_ms = 1e3 * float(np.sqrt(np.mean((predicted - measured) ** 2)))
    note = (
        f"median {100 * np.median(np.abs(ratio)):.1f} %, bias {100 * np.mean(ratio):+.1f} %, "
        f"RMSE {rmse_ms:.3g} ms, tau {kendall_tau(predicted, measured):.2f}, "
        f"worst {100 * ratio[worst]:+.0f} % ({groups[worst]})"
    )
    return mean_error(name, ratio, limit, note)


def kendall_tau(a: Floats, b: Floats) -> float:
    """Return Kendall's tau-b, which counts ties in neither direction.

    >>> kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])).__round__(3)
    0.333
    """
    signs_a = np.sign(np.subtract.outer(a, a))
    signs_b = np.sign(np.subtract.outer(b, b))
    untied = float(np.sqrt(np.sum(signs_a**2) * np.sum(signs_b**2)))
    return float(np.sum(signs_a * signs_b)) / untied if untied else 1.0


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's coefficient, equal values sharing their mean rank.

    >>> rank_correlation(np.array([1.0, 5.0, 9.0]), np.array([2.0, 3.0, 40.0])).__round__(3)
    1.0
    """

    def ranks(values: Floats) -> Floats:
        _, member, counts = np.unique(values, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        return np.asarray((ends - (counts - 1) / 2.0)[member])

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def percent_off(predicted: Floats, measured: Floats) -> Floats:
    """Return signed errors in percent."""
    return np.asarray(100.0 * (predicted / measured - 1.0), np.float64)


def was_fitted(calibrations: Iterable[Path], tables: Iterable[Path]) -> bool:
    """Say whether a calibration rests on one of these tables, so that its rows do not judge it."""
    digests = {digest for _, digest in fitted_tables(calibrations)}
    return any(sha256_of(table) in digests for table in tables if table.is_file())


def missing(reference: Path, tables: Iterable[str]) -> list[Check]:
    """Return a line for each table of kernels that is not there."""
    return [
        absent(f"kernels: {table}", "skipped: no table")
        for table in tables
        if not (reference / table).is_file()
    ]
