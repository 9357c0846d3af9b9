"""Draw pictures of a sweep: front, parallel coordinates, heat map, curves, sensitivity.

The only module that imports matplotlib (the extra `viz`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl

from simulators.core.errors import UserError
from simulators.core.folder import read_toml
from sweeper.query.pareto import alike, qualifying
from sweeper.report.answers import Answers
from sweeper.space.sql import check_columns

mpl.use("Agg")
from matplotlib import pyplot as plt

mpl.rcParams.update(read_toml(Path(__file__).with_suffix(".toml")))

_CLOUD = 20_000
"""Designs drawn behind the front; a larger sweep is sampled evenly."""
_INK, _FRONT, _KNEE = "#9aa5b1", "#0b63ce", "#d1495b"
_FEW = 8
"""Most values of an axis with one tick each."""
_LINES = 3_000
"""Designs drawn as lines of parallel coordinates."""


@dataclass(frozen=True)
class Columns:
    """Columns of the x axis, the y axis and the colour; pictures have different defaults."""

    x: str | None = None
    y: str | None = None
    of: str | None = None


def draw(kind: str, answers: Answers, file: Path, columns: Columns | None = None) -> None:
    """Draw a picture of `KINDS`; the suffix of the file selects PNG, SVG or PDF."""
    figure = KINDS[kind](answers, columns or Columns())
    figure.savefig(file)
    plt.close(figure)


def front(answers: Answers, asked: Columns) -> Any:
    """Draw two objectives of a sweep; a third objective colours the front."""
    if len(answers.objectives) < 2:
        raise UserError("a picture of the front needs two objectives")
    for named in filter(None, (asked.x, asked.y, asked.of)):
        check_columns([named], list(answers.objectives), "objective")
    x = asked.x or next(o for o in answers.objectives if o not in (asked.y, asked.of))
    y = asked.y or next(o for o in answers.objectives if o not in (x, asked.of))
    others = [asked.of] if asked.of else [o for o in answers.objectives if o not in (x, y)]
    cloud = _cloud(answers, [x, y])
    best = answers.front.sort(x)
    figure, axes = plt.subplots()
    what = "designs that qualify" if answers.where else "feasible designs"
    count = f"{cloud.height:,} {what}" if cloud.height < _CLOUD else f"{what} (sampled)"
    axes.scatter(cloud[x], cloud[y], s=7, color=_INK, alpha=0.45, linewidths=0, label=count)
    label = f"Pareto front ({best.height})"
    if others:
        norm = mpl.colors.LogNorm() if _wide(best[others[0]]) else None
        dots = {"c": best[others[0]], "s": 26, "edgecolors": "white", "linewidths": 0.4}
        drawn = axes.scatter(best[x], best[y], norm=norm, zorder=3, label=label, **dots)
        _colorbar(figure, drawn, answers, others[0], _label(answers, others[0]))
    else:
        line = {"color": _FRONT, "markersize": 4, "lw": 1, "zorder": 3, "label": label}
        axes.plot(best[x], best[y], "-o", **line)
    star = {"marker": "*", "s": 180, "color": _KNEE, "zorder": 4, "edgecolors": "white"}
    axes.scatter(answers.best[x], answers.best[y], label=_knee(answers), **star)
    for name, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if _wide(cloud[name]):
            scale("log")
            axis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        _ticks(axis, answers, name)
        axis.set_label_text(_label(answers, name))
    axes.grid(visible=True)
    axes.set_title(f"{answers.title}: {answers.space.size:,} points")
    axes.legend(fontsize=8)
    return figure


def parallel(answers: Answers, _asked: Columns) -> Any:
    """Draw one line per design across all axes and objectives, the front in colour."""
    names = list(dict.fromkeys([*answers.space.varied, *answers.objectives]))
    cloud = _cloud(answers, names)
    rows = cloud.gather_every(max(1, -(-cloud.height // _LINES)))
    scales = {n: _Scale(pl.concat([rows[n], answers.front[n].cast(rows[n].dtype)])) for n in names}
    figure, axes = plt.subplots(figsize=(1.2 * len(names) + 2, 5))
    for table, color, alpha in ((rows, _INK, 0.08), (answers.front, _FRONT, 0.5)):
        lines = np.column_stack([scales[n].place(table[n]) for n in names])
        axes.plot(lines.T, color=color, alpha=alpha, lw=0.8)
    best = answers.front[[answers.knee]]
    axes.plot([scales[n].place(best[n])[0] for n in names], color=_KNEE, lw=2.5)
    for i, name in enumerate(names):
        axes.axvline(i, color="black", lw=0.6)
        for value, place in scales[name].ticks():
            axes.text(i + 0.03, place, answers.human(name, value), fontsize=7, va="center")
    words = map(answers.word, names)
    axes.set_xticks(range(len(names)), words, rotation=25, ha="right", fontsize=8)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(f"{answers.title}: the front among {cloud.height:,} designs")
    return figure


def heat(answers: Answers, asked: Columns) -> Any:
    """Draw the best value of a metric for each pair of values of two axes."""
    longest = sorted(answers.space.varied, key=lambda n: -len(set(answers.space.axes[n])))
    if len(longest) < 2:
        raise UserError("a heat map needs two axes that vary")
    x = asked.x or next(n for n in longest if n != asked.y)
    y = asked.y or next(n for n in longest if n != x)
    of = asked.of or list(answers.objectives)[-1]
    check_columns([x, y, of], answers.results.collect_schema().names(), "column")
    largest = answers.objectives.get(of) == "max"
    good = qualifying(answers.results, where=answers.where)
    best = good.group_by(x, y).agg(pl.col(of).max() if largest else pl.col(of).min()).collect()
    across, up = (
        sorted(best[n].unique().to_list(), key=lambda v: (isinstance(v, str), v)) for n in (x, y)
    )
    cells = np.full((len(up), len(across)), np.nan)
    for a, b, value in best.iter_rows():
        cells[up.index(b), across.index(a)] = np.nan if value is None else value
    figure, axes = plt.subplots()
    norm = mpl.colors.LogNorm() if _wide(best[of]) else None
    cmap = "viridis" if largest else "viridis_r"
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap=cmap, norm=norm)
    for axis, values, name in ((axes.xaxis, across, x), (axes.yaxis, up, y)):
        labels = [answers.human(name, v) for v in values]
        axis.set_ticks(range(len(values)), labels, fontsize=8)
        axis.set_label_text(answers.word(name))
    word = answers.word
    _colorbar(figure, image, answers, of, f"best {word(of)}")
    axes.set_title(f"{answers.title}: best {word(of)} by {word(x)} and {word(y)}")
    return figure


def curves(answers: Answers, asked: Columns) -> Any:
    """Draw a metric as a function of one axis, for the knee and other designs of the front.

    `of` names the axis (by default the load), `x` and `y` the drawn columns.
    """
    schema = answers.results.collect_schema()
    ordered = [n for n in answers.space.varied if schema[n].is_numeric()]
    if not ordered:
        raise UserError("curves need an axis of numbers")
    load, throughput = answers.load or ("", "")
    along = asked.of or (load if load in ordered else ordered[-1])
    names = schema.names()
    x = asked.x or (throughput if along == load and throughput in names else along)
    y = asked.y or next(iter(answers.objectives))
    check_columns([along, x, y], names, "column")
    others = [n for n in answers.space.varied if n != along]
    good = qualifying(answers.results).select(list(dict.fromkeys([*others, along, x, y]))).collect()
    spread = range(0, answers.front.height, max(1, answers.front.height // 5))
    figure, axes = plt.subplots()
    for i in dict.fromkeys([*spread, answers.knee]):
        line = good.filter(alike(answers.front.row(i, named=True), others)).sort(along)
        knee = {"color": _KNEE, "lw": 2.4, "label": "knee"}
        style = knee if i == answers.knee else {"lw": 1, "alpha": 0.7}
        axes.plot(line[x], line[y], "-o", markersize=3, **style)
    for name, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if _wide(good[name]):
            scale("log")
        _ticks(axis, answers, name)
        axis.set_label_text(answers.word(name))
    axes.grid(visible=True)
    axes.legend()
    axes.set_title(f"{answers.title}: {answers.word(y)} along {answers.word(along)}")
    return figure


def sensitivity(answers: Answers, asked: Columns) -> Any:
    """Draw the first-order sensitivity of each objective to each axis."""
    metrics = [asked.of] if asked.of else list(answers.objectives)
    found = answers.sensitivities(metrics)
    if not found:
        raise UserError(f"no sensitivity is defined for {', '.join(metrics)}")
    figure, panels = plt.subplots(1, len(found), figsize=(4 * len(found), 4), squeeze=False)
    for axes, said in zip(panels[0], found, strict=True):
        names = [*map(answers.word, said.indices["axis"]), "axes together"]
        shares = [*said.indices["first_order"], said.interaction]
        axes.barh(names[::-1], shares[::-1], color=_FRONT)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
        axes.set_title(answers.word(said.metric), fontsize=10)
    figure.suptitle(f"{answers.title}: share of variance explained", x=0.01, ha="left")
    return figure


def waterfall(answers: Answers, _asked: Columns) -> Any:
    """Draw the numbers of points from the whole space to the front."""
    steps = answers.waterfall()
    labels, counts = zip(*steps, strict=True)
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(steps) + 1))
    colors = [_INK if label.startswith("−") else _FRONT for label in labels]
    bars = axes.barh(range(len(steps)), counts, color=colors)
    axes.bar_label(bars, [f"{n:,}" for n in counts], fontsize=8, padding=3)
    axes.set_yticks(range(len(steps)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(f"{answers.title}: points from the space to the front")
    return figure


_DRAWN = (front, parallel, heat, curves, sensitivity, waterfall)
KINDS: dict[str, Callable[[Answers, Columns], Any]] = {draws.__name__: draws for draws in _DRAWN}
"""Drawing functions by name."""


class _Scale:
    """Scale a column to [0, 1]: names by position, wide ranges logarithmically."""

    def __init__(self, column: pl.Series) -> None:
        self.named = not column.dtype.is_numeric()
        self.log = not self.named and _wide(column)
        self.levels = (
            (column.cast(pl.String) if self.named else column).drop_nulls().unique().sort()
        )
        placed = self._numbers(self.levels)
        self.low, self.width = placed.min(), placed.max() - placed.min()

    def _numbers(self, column: pl.Series) -> Any:
        if self.named:
            names = self.levels.to_list()
            return np.array([names.index(v) for v in column.cast(pl.String)], float)
        values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return np.log(values) if self.log else values

    def place(self, column: pl.Series) -> Any:
        """Return scaled values; NaN for missing values."""
        return (self._numbers(column) - self.low) / (self.width or 1.0)

    def ticks(self) -> list[tuple[Any, float]]:
        """Return tick values and their positions."""
        if self.named or len(self.levels) <= _FEW:
            places = self.place(self.levels)
            return list(zip(self.levels.to_list(), places.tolist(), strict=True))
        places = np.linspace(0, 1, 5)
        values = self.low + places * self.width
        return list(zip((np.exp(values) if self.log else values).tolist(), places, strict=True))


def _wide(column: pl.Series) -> bool:
    values = column.drop_nulls().cast(pl.Float64).to_numpy()
    return bool(len(values)) and bool(values.min() > 0) and bool(values.max() > 5 * values.min())


def _ticks(axis: Any, answers: Answers, name: str) -> None:
    text = mpl.ticker.FuncFormatter(lambda value, _position: answers.human(name, float(value)))
    axis.set_major_formatter(text)
    axis.set_minor_formatter(mpl.ticker.NullFormatter())


def _colorbar(figure: Any, drawn: Any, answers: Answers, name: str, label: str) -> None:
    bar = figure.colorbar(drawn, ax=figure.axes[0], label=label)
    _ticks(bar.ax.yaxis, answers, name)


def _cloud(answers: Answers, columns: list[str]) -> pl.DataFrame:
    good = qualifying(answers.results, where=answers.where)
    rows = good.select(columns).drop_nulls().collect()
    return rows.gather_every(max(1, -(-rows.height // _CLOUD)))


def _label(answers: Answers, name: str) -> str:
    direction = "lower is better" if answers.objectives[name] == "min" else "higher is better"
    return f"{answers.word(name)} ({direction})"


def _knee(answers: Answers) -> str:
    words = answers.choices(answers.best)[:6]
    lines = [" ".join(words[i : i + 3]) for i in range(0, len(words), 3)]
    return "knee: " + "\n".join(lines)
