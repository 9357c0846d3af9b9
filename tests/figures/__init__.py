"""About 150 named figures of shipped spaces, with the values they had when last accepted.

    python -m tests.figures           compare all figures; print value, change and tolerance
    python -m tests.figures --write   accept the values of today

A figure that moves is a change that users see: raise the simulator's version and say why.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from simulators.core.contract import Simulator, WarmsUp, load_simulator
from sweeper.engines.task import evaluate
from sweeper.space import shipped_files
from sweeper.space.design_space import DesignSpace, objectives, space_of
from sweeper.space.space_file import parse_space, read_space

FILE = Path(__file__).with_name("figures.toml")
MOST_FIGURES = 3
"""Figures of each of three points of a space."""
TOLERANCE = 1e-6
"""Accepted relative change: processors and libraries round differently in the last digits."""
_CANDIDATES, _SPREAD = 5, 4096


@dataclass(frozen=True)
class Figure:
    """One result column of one design point of a shipped space."""

    space: str
    design: str  # the values of the axes that vary
    point: int  # the number of the design in the grid
    metric: str
    value: float

    @property
    def name(self) -> str:
        """The figure as a test failure names it."""
        return f"{self.space}, {self.design}: {self.metric}"


def accepted() -> Iterator[Figure]:
    """Yield the figures of `figures.toml`."""
    for space, designs in tomllib.loads(FILE.read_text()).items():
        for design, row in designs.items():
            for metric, value in row.items():
                if metric != "point":
                    yield Figure(space, design, int(row["point"]), metric, float(value))


def computed(name: str, points: Sequence[int] = ()) -> dict[tuple[int, str], Figure]:
    """Return today's figures of some points of a space, by point and metric.

    Without points: of the first, middle and last feasible one of `_CANDIDATES` spread evenly.
    """
    config = parse_space(read_space(shipped_files.spaces()[name]))
    space = space_of(config)
    where = np.array(points, np.int64) if points else allowed_points(space, _CANDIDATES)
    rows = pl.DataFrame(pl.from_arrow(evaluate(loaded(space), space.batch(where))))
    if not points:
        feasible = np.flatnonzero(rows["status"].cast(pl.String).to_numpy() == "ok")
        chosen = np.unique(feasible[[0, len(feasible) // 2, -1]])
        where, rows = where[chosen], rows[chosen]
    wanted = [m for m in objectives(config, space) if m in rows.columns][:MOST_FIGURES]
    axes = space.points(where).select(space.varied)
    found = {}
    for number, point in enumerate(where.tolist()):
        design = " ".join(f"{axis}={value}" for axis, value in axes.row(number, named=True).items())
        for metric in wanted:
            if (value := rows[metric][number]) is not None:
                found[point, metric] = Figure(name, design, point, metric, float(value))
    return found


def loaded(space: DesignSpace) -> Simulator:
    """Return the simulator of a space, compiled."""
    simulator = load_simulator(space.simulator)
    if isinstance(simulator, WarmsUp):
        simulator.warm_up()
    return simulator


def allowed_points(space: DesignSpace, count: int) -> NDArray[np.int64]:
    """Return the numbers of evenly spread points that the constraints allow."""
    where = np.unique(np.linspace(0, len(space) - 1, _SPREAD).astype(np.int64))
    kept = space.kept(where)
    where = where if kept is None else where[kept]
    spread = np.unique(np.linspace(0, len(where) - 1, count).astype(np.int64))
    chosen: NDArray[np.int64] = where[spread]
    return chosen


def write(figures: Mapping[str, Mapping[tuple[int, str], Figure]]) -> None:
    """Accept figures: replace `figures.toml`."""
    lines = ["# Accepted by `python -m tests.figures --write`."]
    for name, found in figures.items():
        lines += ["", f"[{name}]"]
        rows: dict[int, list[Figure]] = {}
        for figure in found.values():
            rows.setdefault(figure.point, []).append(figure)
        for point, each in rows.items():
            values = ", ".join(f"{f.metric} = {f.value:.9g}" for f in each)
            lines.append(f'"{each[0].design}" = {{point = {point}, {values}}}')
    FILE.write_text("\n".join(lines) + "\n")
