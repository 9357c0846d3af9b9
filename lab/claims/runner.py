"""Evaluates claims: one line for every group of predicted and measured rows.

Lines are yielded as they are computed. A claim that raises is a failed line, not the end of the
group; one whose reference table is absent says so and neither passes nor fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from lab.claims.claim import FOLDER, Claim, load_claims, load_function
from lab.claims.statistics import ERRORS, STATISTICS, described
from simulators.core.checks import Check
from simulators.core.errors import UserError

TEST, ALL = "test", "all"
"""Rows that no fit has seen, and all rows."""


def run(group: str, reference: Path, rows: str = TEST) -> Iterator[Check]:
    """Yield the lines of a group of claims as they are computed.

    Args:
        group: the name of a claims file, such as "kernels".
        reference: the folder of reference tables.
        rows: `test` for rows that no fit has seen, `all` for every row.

    Raises:
        UnknownNameError: there is no such group.
    """
    file = FOLDER.find(group)
    content = load_claims(file)
    frames = functools.cache(functools.partial(_predictions, file, content.inputs, reference, rows))
    for claim in content.claims:
        yield from _guarded(claim, frames)


def _predictions(
    file: Path, inputs: Mapping[str, Mapping[str, Any]], reference: Path, rows: str, named: str
) -> pl.DataFrame | Exception:
    """Return the frame of a predictor, or the exception raised; all claims share one call."""
    try:
        frame = load_function(file, named)(reference, **inputs.get(named, {}))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported as a failed line
        return error
    if "held_out" in frame.columns and rows == TEST:
        return frame.filter("held_out")
    return frame


def _guarded(claim: Claim, frames: Callable[[str], pl.DataFrame | Exception]) -> Iterator[Check]:
    """Yield the lines of a claim; an exception becomes a line."""
    try:
        frame = frames(claim.predictions)
        if isinstance(frame, Exception):
            raise frame
        yield from lines_of(claim, frame)
    except UserError as error:
        note = f"absent: {str(error).partition(chr(10))[0]}"
        yield Check(claim.name, None, claim.unit, note=note, kind=claim.line_kind)
    except Exception as error:  # noqa: BLE001 - one failing claim must not hide the others
        note = f"failed: {type(error).__name__}: {error}"
        yield Check(claim.name, None, claim.unit, ok=False, note=note, kind=claim.line_kind)


def lines_of(claim: Claim, frame: pl.DataFrame) -> Iterator[Check]:
    """Yield the lines of a claim on its predicted and measured rows.

    >>> rows = pl.DataFrame({"gpu": ["a", "b"], "predicted": [1.1, 1.0], "measured": [1.0, 1.0]})
    >>> claim = Claim(name="time on {gpu}", by=("gpu",), at_most=5.0)
    >>> [(line.name, round(line.value, 1), line.verdict) for line in lines_of(claim, rows)]
    [('time on a', 10.0, 'MISSED'), ('time on b', 0.0, 'ok')]
    """
    skipped = _skipped(frame)
    rows = frame.filter(pl.col(claim.column).is_not_null())
    if claim.where:
        rows = rows.filter(pl.sql_expr(claim.where))
    if not claim.by:
        yield _line(claim, claim.name, "", rows, skipped)
        return
    for key, part in rows.group_by(claim.by, maintain_order=True):
        names = dict(zip(claim.by, key, strict=True))
        yield _line(claim, claim.name.format(**names), " ".join(map(str, key)), part, skipped)


def _line(claim: Claim, name: str, key: str, rows: pl.DataFrame, skipped: str) -> Check:
    kind = claim.line_kind
    if rows.is_empty():
        return Check(name, None, claim.unit, note=f"no rows{skipped}", kind=kind)
    value = _value(claim, rows, claim.column)
    least, most = (_limit(claim, rows, key, limit) for limit in (claim.at_least, claim.at_most))
    ok = None
    if value is not None and (least, most) != (None, None):
        ok = (least is None or value >= least) and (most is None or value <= most)
    count = rows["row"].n_unique() if "row" in rows.columns else rows.height
    note = _note(claim, rows) + skipped
    limit = most if least is None else least
    return Check(name, value, claim.unit, limit, ok, count, note, kind, _value(claim, rows, "peer"))


def _limit(
    claim: Claim, rows: pl.DataFrame, key: str, limit: float | dict[str, float] | str | None
) -> float | None:
    """Return a limit: a number, the group's, or the statistic of another column."""
    if isinstance(limit, dict):
        return limit.get(key)
    return _value(claim, rows, limit) if isinstance(limit, str) else limit


def _value(claim: Claim, rows: pl.DataFrame, column: str) -> float | None:
    """Return the statistic of the rows that have a prediction in a column, if any has."""
    is_interval = claim.statistic == "coverage" and column != claim.column
    if column not in rows.columns or is_interval:
        return None
    known = rows.filter(pl.col(column).is_not_null())
    statistic = STATISTICS[claim.statistic](column).alias("value")
    if claim.mean_over:
        values = known.group_by(claim.mean_over, maintain_order=True).agg(statistic)
    else:
        values = known.select(statistic)
    value = values["value"].drop_nulls().mean()
    return None if value is None or value != value else float(value)  # type: ignore[arg-type]


def _note(claim: Claim, rows: pl.DataFrame) -> str:
    parts = [claim.split, claim.note]
    if claim.mean_over:
        statistic = STATISTICS[claim.statistic](claim.column).alias("value")
        means = rows.group_by(claim.mean_over, maintain_order=True).agg(statistic)
        *names, value = means.row(int(means["value"].arg_max() or 0))
        label = " ".join(map(str, names))
        parts.append(f"mean of {means.height} groups, largest {value:.1f} ({label})")
    elif claim.statistic in ERRORS and rows.height > 1:
        parts.append(described(rows))
    elif rows.height == 1 and "label" in rows.columns:
        parts.append(str(rows["label"][0]))
    if (baseline := _value(claim, rows, "baseline")) is not None:
        parts.append(f"baseline {baseline:.1f}")
    return "; ".join(part for part in parts if part)


def _skipped(frame: pl.DataFrame) -> str:
    """Return how many rows have no prediction, by reason."""
    if "skipped" not in frame.columns:
        return ""
    counts = frame["skipped"].drop_nulls().value_counts(sort=True)
    return "".join(f"; {count:,} rows skipped: {why}" for why, count in counts.iter_rows())
