"""A scatter plot of results and their Pareto front as SVG, which notebooks show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from simulators.core.errors import UserError
from sweeper.query.fronts import Matrix
from sweeper.query.pareto import pareto_front, qualifying
from sweeper.space.design_space import Objectives

_WIDTH, _HEIGHT, _EDGE, _DOTS = 640, 360, 56, 3_000
"""Size and margin of the picture in pixels, and most designs drawn."""
_TICKS = 4


@dataclass(frozen=True)
class Picture:
    """A picture that notebooks show and `save` writes."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, file: str | Path) -> None:
        """Write the picture as an SVG file."""
        Path(file).write_text(self.svg, encoding="utf-8")


def plot(results: pl.LazyFrame, objectives: Objectives, *, where: str | None = None) -> Picture:
    """Return a picture of feasible designs in two objectives, with the Pareto front as a line.

    An axis is logarithmic if its values are positive.

    Raises:
        UserError: there are not two objectives, or no design qualifies.

    >>> rows = pl.LazyFrame({"cost": [1.0, 2.0, 3.0], "speed": [1.0, 3.0, 2.0]})
    >>> plot(rows, {"cost": "min", "speed": "max"}).svg.count("<circle")
    5
    """
    if len(objectives) != 2:
        raise UserError(f"a plot has two objectives, not {len(objectives)}")
    front = pareto_front(results, objectives, where=where)
    found = qualifying(results, where=where).select(*objectives).drop_nulls().collect()
    if front.is_empty():
        raise UserError("no design qualifies, so there is nothing to plot")
    values = found.gather_every(max(1, -(-len(found) // _DOTS))).cast(pl.Float64).to_numpy()
    line = front.sort(next(iter(objectives))).select(*objectives).cast(pl.Float64).to_numpy()
    both = np.concatenate([values, line])
    log = np.all(both > 0.0, axis=0, keepdims=True)[0]
    low, high = both.min(axis=0), both.max(axis=0)
    drawn = "".join(
        [*_axes(tuple(objectives), low, high, log), *_dots(values, line, low, high, log)]
    )
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="11" fill="#888">{drawn}</svg>'
    )


def _places(values: Matrix, low: Matrix, high: Matrix, log: NDArray[np.bool_]) -> Matrix:
    """Return pixels of points, of shape (points, 2)."""
    share = np.empty_like(values)
    for j in range(2):
        scale = np.log if log[j] else np.asarray
        start, end = float(scale(low[j])), float(scale(high[j]))
        share[:, j] = (scale(values[:, j]) - start) / ((end - start) or 1.0)
    x = _EDGE + share[:, 0] * (_WIDTH - 1.5 * _EDGE)
    y = _HEIGHT - _EDGE * 0.75 - share[:, 1] * (_HEIGHT - 1.25 * _EDGE)
    return np.column_stack([x, y]).round(1)


def _dots(
    values: Matrix, line: Matrix, low: Matrix, high: Matrix, log: NDArray[np.bool_]
) -> Iterator[str]:
    for x, y in _places(values, low, high, log).tolist():
        yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="#999" fill-opacity=".5"/>'
    path = _places(line, low, high, log).tolist()
    points = " ".join(f"{x},{y}" for x, y in path)
    yield f'<polyline points="{points}" fill="none" stroke="#0a6" stroke-width="1.5"/>'
    for x, y in path:
        yield f'<circle cx="{x}" cy="{y}" r="4" fill="#0a6"/>'


def _axes(
    names: tuple[str, ...], low: Matrix, high: Matrix, log: NDArray[np.bool_]
) -> Iterator[str]:
    ticks = np.empty((_TICKS, 2))
    for j in range(2):
        spaced = np.geomspace if log[j] else np.linspace
        ticks[:, j] = spaced(low[j], high[j], _TICKS)
    for (x, y), (a, b) in zip(_places(ticks, low, high, log).tolist(), ticks.tolist(), strict=True):
        yield f'<text x="{x}" y="{_HEIGHT - 24}" text-anchor="middle">{a:.3g}</text>'
        yield f'<text x="{_EDGE - 8}" y="{y + 4}" text-anchor="end">{b:.3g}</text>'
    middle, end = _WIDTH / 2, _HEIGHT - 8
    yield f'<text x="{middle}" y="{end}" text-anchor="middle">{escape(names[0])}</text>'
    yield f'<text x="8" y="14">{escape(names[1])}</text>'
