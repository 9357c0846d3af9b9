"""A few points of every space, with the numbers they had when somebody last looked at them.

    python -m tests.golden            write the files of all spaces again
    python -m tests.golden NAME ...   those of some

A number that moves is a change that users see: the simulator's version goes up with it, or the pull
request says why not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from simulators.core.contract import WarmsUp, load_simulator
from sweeper.engines.task import evaluate
from sweeper.space import shipped_files
from sweeper.space.design_space import space_of
from sweeper.space.objectives import objectives
from sweeper.space.space_file import read_space

FOLDER = Path(__file__).resolve().parent
POINTS = 6
_MOST = 4096
"""Numbers looked at to find points that constraints allow."""


def version_of(name: str) -> int:
    """Return the version of the simulator that answers a space."""
    return load_simulator(read_space(shipped_files.spaces()[name])["simulator"]).version


def rows_of(name: str) -> pl.DataFrame:
    """Evaluate a few points spread over a space: what varies, the verdict and the objectives."""
    written = read_space(shipped_files.spaces()[name])
    space = space_of(written)
    simulator = load_simulator(space.simulator)
    if isinstance(simulator, WarmsUp):
        simulator.warm_up()
    where = np.unique(np.linspace(0, len(space) - 1, _MOST).astype(np.int64))
    kept = space.kept(where)
    where = where if kept is None else where[kept]
    where = where[np.linspace(0, len(where) - 1, POINTS).astype(np.int64)]
    results = pl.DataFrame(pl.from_arrow(evaluate(simulator, space.batch(where))))
    wanted = [n for n in objectives(written, space) if n in results.columns]
    outcome = results.select(pl.col("status").cast(pl.String), *wanted)
    return space.points(where).select(space.varied).hstack(outcome.get_columns())


def file_of(name: str) -> Path:
    """Return where the numbers of a space are kept."""
    return FOLDER / f"{name}.csv"


def write(name: str) -> None:
    """Keep the numbers of a space as they are now."""
    head = f"# {name}, version {version_of(name)}; written by `python -m tests.golden {name}`\n"
    file_of(name).write_text(head + rows_of(name).write_csv())


def read(name: str) -> tuple[int, pl.DataFrame]:
    """Return the version the numbers of a space were kept at, and the numbers."""
    head, _, table = file_of(name).read_text().partition("\n")
    version = int(head.split("version ")[1].split(";")[0])
    return version, pl.read_csv(table.encode())
