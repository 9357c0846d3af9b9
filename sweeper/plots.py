"""The front as a picture: what was tried, what is best, and where the knee is.

The only module that imports matplotlib (the extra `viz`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

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
    cloud = _cloud(answers.results, [x, y])
    best = answers.front.sort(x)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    count = (
        f"{cloud.height:,} feasible designs"
        if cloud.height < _CLOUD
        else "feasible designs (sampled)"
    )
    axes.scatter(cloud[x], cloud[y], s=7, color=_INK, alpha=0.45, linewidths=0, label=count)
    if others:
        shade = axes.scatter(best[x], best[y], c=best[others[0]], s=30, cmap="viridis", zorder=3)
        figure.colorbar(shade, ax=axes, label=_label(answers, others[0]))
        shade.set_label(f"Pareto front ({best.height})")
    else:
        axes.plot(best[x], best[y], "-o", color=_FRONT, markersize=4, lw=1, zorder=3,
                  label=f"Pareto front ({best.height})")  # fmt: skip
    chosen = answers.front.row(knee(answers.front, answers.objectives), named=True)
    axes.scatter(
        chosen[x], chosen[y], marker="*", s=180, color=_KNEE, zorder=4, label=_knee(answers, chosen)
    )
    for name, column, scale in ((x, cloud[x], axes.set_xscale), (y, cloud[y], axes.set_yscale)):
        low, high = column.min(), column.max()
        if isinstance(low, float | int) and isinstance(high, float | int) and 0 < low * 20 < high:
            scale("log")
        (axes.set_xlabel if name == x else axes.set_ylabel)(_label(answers, name))
    axes.grid(visible=True, which="major", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{answers.name}: {answers.space.size:,} points", loc="left")
    axes.legend(frameon=False, fontsize=8, loc="best")
    figure.savefig(file, dpi=140)
    plt.close(figure)


def _cloud(results: pl.LazyFrame, columns: list[str]) -> pl.DataFrame:
    good = (
        results.filter(pl.col("status").cast(pl.String) == "ok")
        .select(columns)
        .drop_nulls()
        .collect()
    )
    return good.gather_every(max(1, -(-good.height // _CLOUD)))


def _label(answers: Answers, name: str) -> str:
    from sweeper.commands.summary import units_of

    unit = units_of(answers.space).get(name, "")
    direction = "lower is better" if answers.objectives[name] == "min" else "higher is better"
    return f"{name}{f' [{unit}]' if unit else ''}, {direction}"


def _knee(answers: Answers, chosen: Mapping[str, Any]) -> str:
    words = [f"{a}={human(chosen[a])}" for a in answers.space.varied[:6]]
    lines = [" ".join(words[i : i + 3]) for i in range(0, len(words), 3)]
    return "knee: " + "\n".join(lines)
