"""Encode table columns for the HTML page: two bytes per value, deflated, as base64.

Columns with few distinct values are dictionary-encoded exactly; other columns are rounded to 65,534
steps of a linear or logarithmic scale. Low and high bytes are stored as separate planes, which
compress better.
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

_LISTED = 1024
"""Most distinct values of a dictionary-encoded column."""
_STEPS = 65_534
_NOTHING = 65_535
"""The code of a missing value."""


@dataclass(frozen=True)
class Coded:
    """One encoded column of the page.

    `levels` lists the values (codes are positions), or is empty where codes are steps between `low`
    and `high`; of a logarithmic scale these are logarithms.
    """

    name: str
    role: str
    unit: str
    doc: str
    levels: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    codes: NDArray[np.uint16] = field(default_factory=lambda: np.empty(0, np.uint16))

    def described(self) -> dict[str, Any]:
        """Return everything but the codes, for JSON."""
        shared = {"name": self.name, "role": self.role, "unit": self.unit, "doc": self.doc}
        if self.levels:
            return {**shared, "levels": list(self.levels)}
        return {**shared, "low": self.low, "high": self.high, "log": self.log}


def coded(column: pl.Series, *, role: str, unit: str = "", doc: str = "") -> Coded:
    """Return a column as codes."""
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if column.dtype.is_float():
        column = column.fill_nan(None)
    levels = column.drop_nulls().unique().sort()
    name = column.name
    if len(levels) <= _LISTED or not column.dtype.is_numeric():
        table = pl.DataFrame({"value": levels, "code": np.arange(len(levels), dtype=np.uint16)})
        joined = pl.DataFrame({"value": column}).join(
            table, on="value", how="left", maintain_order="left"
        )
        codes = joined["code"].fill_null(_NOTHING).to_numpy().astype(np.uint16)
        return Coded(name, role, unit, doc, levels=tuple(map(_plain, levels)), codes=codes)
    values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    log = low > 0 and high > 20 * low
    if log:
        values, low, high = np.log(values), math.log(low), math.log(high)
    steps = np.rint((values - low) / (high - low) * _STEPS)
    codes = np.where(np.isnan(steps), _NOTHING, steps).astype(np.uint16)
    return Coded(name, role, unit, doc, low=low, high=high, log=log, codes=codes)


def packed(columns: list[Coded]) -> str:
    """Return the codes of all columns, deflated, as base64."""
    planes = b"".join(
        (c.codes & 0xFF).astype(np.uint8).tobytes() + (c.codes >> 8).astype(np.uint8).tobytes()
        for c in columns
    )
    return base64.b64encode(zlib.compress(planes, 9)).decode()


def _plain(value: Any) -> Any:
    """Return a JSON-compatible value; floats are rounded to nine digits."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
