"""A few points of every space, with the numbers they had when somebody last looked at them.

    python -m tests.golden            write the files of all spaces again
    python -m tests.golden NAME ...   those of some

A number that moves is a change that users see: the simulator's version goes up with it, or the pull
request says why not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from simulators.core.contract import Simulator, WarmsUp, load_simulator
from sweeper.engines.task import evaluate
from sweeper.space import shipped_files
from sweeper.space.design_space import DesignSpace, space_of
from sweeper.space.objectives import objectives
from sweeper.space.space_file import read_space
from sweeper.store.keys import define, keys

FOLDER = Path(__file__).resolve().parent
POINTS = 6
DIGESTED, DEAR = 240, 40
MANY_REQUESTS = 10_000
"""Points of a space whose columns are kept as digests; fewer where each is dear."""
DIGESTS = FOLDER / "digests.json"
_MOST = 4096
"""Numbers looked at to find points that constraints allow."""


def version_of(name: str) -> int:
    """Return the version of the simulator that answers a space."""
    return load_simulator(read_space(shipped_files.spaces()[name])["simulator"]).version


def rows_of(name: str) -> pl.DataFrame:
    """Evaluate a few points spread over a space: what varies, the verdict and the objectives."""
    written = read_space(shipped_files.spaces()[name])
    space = space_of(written)
    where, results = evaluated(space, POINTS)
    wanted = [n for n in objectives(written, space) if n in results.columns]
    outcome = results.select(pl.col("status").cast(pl.String), *wanted)
    return space.points(where).select(space.varied).hstack(outcome.get_columns())


def digests_of(name: str) -> dict[str, str]:
    """Return a digest of each column of many points of a space, and of the points' keys.

    Numbers count by seven digits: other processors round otherwise in the last ones.
    """
    space = space_of(read_space(shipped_files.spaces()[name]))
    where, results = evaluated(space, DEAR if _is_dear(space) else DIGESTED)
    columns = {"key": keys(define(space), space.points(where)), **results.to_dict()}
    return {column: _digest(values) for column, values in sorted(columns.items())}


def _is_dear(space: DesignSpace) -> bool:
    """Return whether each point is a search, or tables of its own, or a run of many requests."""
    requests = max(space.axes.get("requests", (0,)))
    return space.simulator in ("dataflow", "codesign") or requests >= MANY_REQUESTS


def _digest(values: pl.Series) -> str:
    words = (f"{v:.6e}" if isinstance(v, float) else str(v) for v in values.to_list())
    return hashlib.blake2b("\n".join(words).encode(), digest_size=6).hexdigest()


def evaluated(space: DesignSpace, points: int) -> tuple[NDArray[np.int64], pl.DataFrame]:
    """Return evenly spread points that constraints allow, and what the simulator says of them."""
    simulator, where = simulator_of(space), allowed(space, points)
    return where, pl.DataFrame(pl.from_arrow(evaluate(simulator, space.batch(where))))


def simulator_of(space: DesignSpace) -> Simulator:
    """Return what answers a space, with its kernels compiled."""
    simulator = load_simulator(space.simulator)
    if isinstance(simulator, WarmsUp):
        simulator.warm_up()
    return simulator


def allowed(space: DesignSpace, points: int) -> NDArray[np.int64]:
    """Return the numbers of evenly spread points that constraints allow."""
    where = np.unique(np.linspace(0, len(space) - 1, _MOST).astype(np.int64))
    kept = space.kept(where)
    where = where if kept is None else where[kept]
    return where[np.unique(np.linspace(0, len(where) - 1, points).astype(np.int64))]


def file_of(name: str) -> Path:
    """Return where the numbers of a space are kept."""
    return FOLDER / f"{name}.csv"


def write(name: str) -> None:
    """Keep the numbers of a space as they are now."""
    head = f"# {name}, version {version_of(name)}; written by `python -m tests.golden {name}`\n"
    file_of(name).write_text(head + rows_of(name).write_csv())
    kept = json.loads(DIGESTS.read_text()) if DIGESTS.is_file() else {}
    kept[name] = digests_of(name)
    DIGESTS.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def read(name: str) -> tuple[int, pl.DataFrame]:
    """Return the version the numbers of a space were kept at, and the numbers."""
    head, _, table = file_of(name).read_text().partition("\n")
    version = int(head.split("version ")[1].split(";")[0])
    return version, pl.read_csv(table.encode())
