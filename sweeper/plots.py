"""Pictures of a sweep: the front and its knee, the axes, what matters, where the points went.

The only module that imports matplotlib (the extra `viz`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np
import polars as pl

from simulators.core.contract import Direction
from simulators.core.errors import UserError
from sweeper.commands.summary import units_of
from sweeper.effects import sensitivity as sensitivity_of
from sweeper.query import check_columns, knee, qualifying
from sweeper.space import DesignSpace
from sweeper.units import human

mpl.use("Agg")
from matplotlib import pyplot as plt

_CLOUD = 20_000
"""Designs drawn behind the front; a larger sweep is sampled evenly."""
_INK, _FRONT, _KNEE = "#9aa5b1", "#0b63ce", "#d1495b"


_BARS = "#0b63ce"
_OTHERS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
_FEW = 8
"""Values of an axis up to which each has its tick."""
_LINES = 3_000
"""Designs drawn as lines of parallel coordinates."""


class Drawn(Protocol):
    """What a picture is drawn of: a finished sweep with at least one design on its front."""

    @property
    def name(self) -> str:
        """The name of the space."""

    @property
    def space(self) -> DesignSpace:
        """The space."""

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """Column to direction."""

    @property
    def where(self) -> str | None:
        """The condition designs must meet."""

    @property
    def results(self) -> pl.LazyFrame:
        """All rows."""

    @property
    def front(self) -> pl.DataFrame:
        """The front."""


def front(
    answers: Drawn, file: Path, *, x: str | None = None, y: str | None = None, of: str | None = None
) -> None:
    """Draw two objectives of a sweep; another one colours the front.

    Args:
        answers: a finished sweep with at least two objectives.
        file: where to write it; the suffix chooses PNG, SVG or PDF.
        x: the objective across; the first.
        y: the objective up; the second.
        of: the objective that colours the front; the third.

    Raises:
        UserError: there are not two objectives, or a column is none of them.
    """
    if len(answers.objectives) < 2:
        raise UserError("a picture of the front needs two objectives")
    for named in filter(None, (x, y, of)):
        check_columns([named], list(answers.objectives), "objective")
    x = x or next(o for o in answers.objectives if o not in (y, of))
    y = y or next(o for o in answers.objectives if o not in (x, of))
    others = [of] if of else [o for o in answers.objectives if o not in (x, y)]
    cloud = _cloud(answers, [x, y])
    best = answers.front.sort(x)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    what = "designs that qualify" if answers.where else "feasible designs"
    count = f"{cloud.height:,} {what}" if cloud.height < _CLOUD else f"{what} (sampled)"
    axes.scatter(cloud[x], cloud[y], s=7, color=_INK, alpha=0.45, linewidths=0, label=count)
    label = f"Pareto front ({best.height})"
    if others:
        norm = mpl.colors.LogNorm() if _wide(best[others[0]]) else None
        dots = axes.scatter(
            best[x], best[y], c=best[others[0]], s=26, cmap="viridis", norm=norm, zorder=3,
            edgecolors="white", linewidths=0.4, label=label,
        )  # fmt: skip
        bar = figure.colorbar(dots, ax=axes, label=_label(answers, others[0]))
        bar.ax.yaxis.set_major_formatter(_ticks(answers, others[0]))
        bar.ax.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    else:
        line = {"color": _FRONT, "markersize": 4, "lw": 1, "zorder": 3, "label": label}
        axes.plot(best[x], best[y], "-o", **line)
    knee_row = answers.front.row(knee(answers.front, answers.objectives), named=True)
    star = {"marker": "*", "s": 180, "color": _KNEE, "zorder": 4, "edgecolors": "white"}
    axes.scatter(knee_row[x], knee_row[y], label=_knee(answers, knee_row), **star)
    for name, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if _wide(cloud[name]):
            scale("log")
            axis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(_ticks(answers, name))
        axis.set_minor_formatter(mpl.ticker.NullFormatter())
        axis.set_label_text(_label(answers, name))
    axes.grid(visible=True, which="major", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{answers.name}: {answers.space.size:,} points", loc="left")
    axes.legend(frameon=False, fontsize=8, loc="best")
    _save(figure, file)


def _wide(column: pl.Series) -> bool:
    """Whether a logarithmic scale shows a column better."""
    values = column.drop_nulls().cast(pl.Float64).to_numpy()
    return bool(len(values)) and bool(values.min() > 0) and bool(values.max() > 5 * values.min())


def _ticks(answers: Drawn, name: str) -> Any:
    from matplotlib.ticker import FuncFormatter

    unit = units_of(answers.space).get(name, "")
    return FuncFormatter(lambda value, _position: human(float(value), unit))


def _cloud(answers: Drawn, columns: list[str]) -> pl.DataFrame:
    good = answers.results.filter(pl.col("status").cast(pl.String) == "ok")
    if answers.where:
        good = good.filter(pl.sql_expr(answers.where))
    rows = good.select(columns).drop_nulls().collect()
    return rows.gather_every(max(1, -(-rows.height // _CLOUD)))


def _label(answers: Drawn, name: str) -> str:
    direction = "lower is better" if answers.objectives[name] == "min" else "higher is better"
    return f"{name} ({direction})"


def _knee(answers: Drawn, chosen: Mapping[str, Any]) -> str:
    units = units_of(answers.space)
    words = [f"{a}={human(chosen[a], units.get(a, ''))}" for a in answers.space.varied[:6]]
    lines = [" ".join(words[i : i + 3]) for i in range(0, len(words), 3)]
    return "knee: " + "\n".join(lines)


def parallel(
    answers: Drawn, file: Path, *, x: str | None = None, y: str | None = None, of: str | None = None
) -> None:
    """Draw one line per design across all axes and objectives, the front in colour."""
    del x, y, of
    names = [*answers.space.varied, *answers.objectives]
    cloud = _cloud(answers, names)
    rows = cloud.gather_every(max(1, -(-cloud.height // _LINES)))
    scales = {n: _Scale(pl.concat([rows[n], answers.front[n].cast(rows[n].dtype)])) for n in names}
    figure, axes = plt.subplots(figsize=(1.2 * len(names) + 2, 5), layout="constrained")
    for table, color, alpha in ((rows, _INK, 0.08), (answers.front, _FRONT, 0.5)):
        lines = np.column_stack([scales[n].place(table[n]) for n in names])
        axes.plot(lines.T, color=color, alpha=alpha, lw=0.8)
    best = answers.front[[knee(answers.front, answers.objectives)]]
    axes.plot([scales[n].place(best[n])[0] for n in names], color=_KNEE, lw=2.5)
    units = units_of(answers.space)
    for i, name in enumerate(names):
        axes.axvline(i, color="black", lw=0.6)
        for value, place in scales[name].ticks():
            axes.text(i + 0.03, place, human(value, units.get(name, "")), fontsize=7, va="center")
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=8)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(f"{answers.name}: the front among {cloud.height:,} designs", loc="left")
    _save(figure, file)


def heat(
    answers: Drawn, file: Path, *, x: str | None = None, y: str | None = None, of: str | None = None
) -> None:
    """Draw the best value of a metric for each pair of values of two axes."""
    longest = sorted(answers.space.varied, key=lambda n: -len(set(answers.space.axes[n])))
    if len(longest) < 2:
        raise UserError("a heat map needs two axes that vary")
    x = x or next(n for n in longest if n != y)
    y = y or next(n for n in longest if n != x)
    of = of or list(answers.objectives)[-1]
    check_columns([x, y, of], answers.results.collect_schema().names(), "column")
    best = pl.col(of).max() if answers.objectives.get(of) == "max" else pl.col(of).min()
    good = qualifying(answers.results, where=answers.where)
    table = good.group_by(x, y).agg(best).collect()
    units = units_of(answers.space)
    across, up = (sorted(table[n].unique().to_list(), key=_order) for n in (x, y))
    cells = np.full((len(up), len(across)), np.nan)
    for a, b, value in table.iter_rows():
        cells[up.index(b), across.index(a)] = np.nan if value is None else value
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    norm = mpl.colors.LogNorm() if _wide(table[of]) else None
    cmap = "viridis" if answers.objectives.get(of) == "max" else "viridis_r"
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap=cmap, norm=norm)
    for axis, values, name in ((axes.xaxis, across, x), (axes.yaxis, up, y)):
        labels = [human(v, units.get(name, "")) for v in values]
        axis.set_ticks(range(len(values)), labels, fontsize=8)
        axis.set_label_text(name)
    bar = figure.colorbar(image, ax=axes, label=f"best {of}")
    bar.ax.yaxis.set_major_formatter(_ticks(answers, of))
    bar.ax.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    axes.set_title(f"{answers.name}: best {of} by {x} and {y}", loc="left")
    _save(figure, file)


def curves(
    answers: Drawn, file: Path, *, x: str | None = None, y: str | None = None, of: str | None = None
) -> None:
    """Draw how a metric changes along one axis, for the knee and others of the front.

    `of` names the axis that is walked along, `x` and `y` what is drawn; a load by default.
    """
    ordered = [n for n in answers.space.varied if _numeric(answers.space.axes[n])]
    if not ordered:
        raise UserError("curves need an axis of numbers")
    along = of or ("qps" if "qps" in ordered else ordered[-1])
    names = answers.results.collect_schema().names()
    x = x or ("tokens_per_s" if along == "qps" and "tokens_per_s" in names else along)
    y = y or next(iter(answers.objectives))
    check_columns([along, x, y], names, "column")
    others = [n for n in answers.space.varied if n != along]
    good = qualifying(answers.results).select(list(dict.fromkeys([*others, along, x, y]))).collect()
    best = knee(answers.front, answers.objectives)
    spread = range(0, answers.front.height, max(1, answers.front.height // 5))
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for i in dict.fromkeys([*spread, best]):
        row = answers.front.row(i, named=True)
        same = pl.all_horizontal(
            pl.lit(value=True), *(pl.col(n).eq_missing(row[n]) for n in others)
        )
        line = good.filter(same).sort(along)
        style = (
            {"color": _KNEE, "lw": 2.4, "label": "knee"} if i == best else {"lw": 1, "alpha": 0.7}
        )
        axes.plot(line[x], line[y], "-o", markersize=3, **style)
    for name, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if _wide(good[name]):
            scale("log")
        axis.set_major_formatter(_ticks(answers, name))
        axis.set_minor_formatter(mpl.ticker.NullFormatter())
        axis.set_label_text(name)
    axes.grid(visible=True, alpha=0.25)
    axes.legend(frameon=False)
    axes.set_title(f"{answers.name}: {y} along {along}", loc="left")
    _save(figure, file)


def sensitivity(
    answers: Drawn, file: Path, *, x: str | None = None, y: str | None = None, of: str | None = None
) -> None:
    """Draw which share of each objective's variance each axis explains alone."""
    del x, y
    metrics = [of] if of else list(answers.objectives)
    figure, panels = plt.subplots(
        1, len(metrics), figsize=(4 * len(metrics), 4), layout="constrained", squeeze=False
    )
    for axes, metric in zip(panels[0], metrics, strict=True):
        found = sensitivity_of(
            answers.results, metric, list(answers.space.varied), where=answers.where
        )
        names = [*found.indices["axis"], "axes together"]
        shares = [*found.indices["first_order"], found.interaction]
        axes.barh(names[::-1], shares[::-1], color=_BARS)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
        axes.set_title(metric, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{answers.name}: share of variance explained", x=0.01, ha="left")
    _save(figure, file)


def waterfall(
    answers: Drawn, file: Path, *, x: str | None = None, y: str | None = None, of: str | None = None
) -> None:
    """Draw what became of the points, from the whole space to the front."""
    del x, y, of
    steps: list[tuple[str, int]] = [("points of the space", answers.space.size)]
    steps += [(f"− {text}", count) for text, count in answers.space.removed().items()]
    counted = answers.results.group_by(pl.col("status").cast(pl.String)).len().collect()
    steps += [(str(word), count) for word, count in sorted(counted.rows())]
    good = qualifying(answers.results, where=answers.where).select(pl.len()).collect().item()
    steps += [(f"with {answers.where}", good)] if answers.where else []
    steps.append(("on the front", answers.front.height))
    labels, counts = zip(*steps, strict=True)
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(steps) + 1), layout="constrained")
    colors = [_INK if label.startswith("−") else _BARS for label in labels]
    bars = axes.barh(range(len(steps)), counts, color=colors)
    axes.bar_label(bars, [f"{n:,}" for n in counts], fontsize=8, padding=3)
    axes.set_yticks(range(len(steps)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(f"{answers.name}: where the points went", loc="left")
    _save(figure, file)


KINDS: dict[str, Callable[..., None]] = {
    "front": front,
    "parallel": parallel,
    "heat": heat,
    "curves": curves,
    "sensitivity": sensitivity,
    "waterfall": waterfall,
}
"""The pictures there are, by name."""


class _Scale:
    """Places a column's values between 0 and 1: names by position, wide ranges by logarithm."""

    def __init__(self, column: pl.Series) -> None:
        self.levels: list[Any] = []
        self.low: float
        self.high: float
        self.few: pl.Series | None = None
        if column.dtype.is_numeric():
            self.log = _wide(column)
            values = column.drop_nulls().cast(pl.Float64).to_numpy()
            low, high = float(values.min()), float(values.max())
            self.low, self.high = (np.log(low), np.log(high)) if self.log else (low, high)
            few = column.drop_nulls().unique().sort()
            self.few = few if len(few) <= _FEW else None
        else:
            self.levels = column.cast(pl.String).drop_nulls().unique().sort().to_list()
            self.log, self.low, self.high = False, 0.0, len(self.levels) - 1.0

    def place(self, column: pl.Series) -> Any:
        """Return where the values lie; NaN where there is none."""
        if self.levels:
            values = np.array([self.levels.index(str(v)) for v in column.cast(pl.String)], float)
        else:
            values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
            values = np.log(values) if self.log else values
        return (values - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self) -> list[tuple[Any, float]]:
        """Return some values and where they lie."""
        if self.levels:
            last = max(1, len(self.levels) - 1)
            return [(v, i / last) for i, v in enumerate(self.levels)]
        if self.few is not None:
            return list(zip(self.few.to_list(), self.place(self.few).tolist(), strict=True))
        places = np.linspace(0, 1, 5)
        values = self.low + places * (self.high - self.low)
        shown = np.exp(values) if self.log else values
        return [(float(v), float(p)) for v, p in zip(shown, places, strict=True)]


def _numeric(values: tuple[Any, ...]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _order(value: Any) -> tuple[bool, Any]:
    return (isinstance(value, str), value)


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, dpi=140)
    plt.close(figure)
