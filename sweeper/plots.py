"""The front as a picture: what was tried, what is best, and where the knee is.

The only module that imports matplotlib (the extra `viz`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from sweeper.commands.summary import units_of
from sweeper.query import knee
from sweeper.units import human

if TYPE_CHECKING:
    from sweeper.commands.summary import Answers

_CLOUD = 20_000
"""Designs drawn behind the front; a larger sweep is sampled evenly."""
_INK, _FRONT, _KNEE = "#9aa5b1", "#0b63ce", "#d1495b"


def front(answers: Answers, file: Path) -> None:
    """Draw the first two objectives of a sweep; a third one colours the front.

    Args:
        answers: a finished sweep with at least two objectives and one design on the front.
        file: where to write it; the suffix chooses PNG, SVG or PDF.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    x, y, *others = answers.objectives
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
    figure.savefig(file, dpi=140)
    plt.close(figure)


def _wide(column: pl.Series) -> bool:
    """Whether a logarithmic scale shows a column better."""
    values = column.drop_nulls().cast(pl.Float64).to_numpy()
    return bool(len(values)) and bool(values.min() > 0) and bool(values.max() > 5 * values.min())


def _ticks(answers: Answers, name: str) -> Any:
    from matplotlib.ticker import FuncFormatter

    unit = units_of(answers.space).get(name, "")
    return FuncFormatter(lambda value, _position: human(float(value), unit))


def _cloud(answers: Answers, columns: list[str]) -> pl.DataFrame:
    good = answers.results.filter(pl.col("status").cast(pl.String) == "ok")
    if answers.where:
        good = good.filter(pl.sql_expr(answers.where))
    rows = good.select(columns).drop_nulls().collect()
    return rows.gather_every(max(1, -(-rows.height // _CLOUD)))


def _label(answers: Answers, name: str) -> str:
    direction = "lower is better" if answers.objectives[name] == "min" else "higher is better"
    return f"{name} ({direction})"


def _knee(answers: Answers, chosen: Mapping[str, Any]) -> str:
    units = units_of(answers.space)
    words = [f"{a}={human(chosen[a], units.get(a, ''))}" for a in answers.space.varied[:6]]
    lines = [" ".join(words[i : i + 3]) for i in range(0, len(words), 3)]
    return "knee: " + "\n".join(lines)
