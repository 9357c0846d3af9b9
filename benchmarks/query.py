"""CPU-seconds of queries over one and ten million rows stored as Parquet."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.sweep_overhead import OBJECTIVES, space
from simulators.core.checks import Check, print_checks
from sweeper.engines.inline import Inline
from sweeper.engines.task import Task
from sweeper.query.analysis import best_per, cheapest, sensitivity
from sweeper.query.fronts import crowding_distance, epsilon_front, rank_layers
from sweeper.query.pareto import knee, minimised, objective_matrix, pareto_front
from sweeper.query.scenarios import repriced
from sweeper.query.uncertainty import probable_front
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Span
from sweeper.store.keys import define
from sweeper.store.store import Store

_ASKED = {1_000_000: 1.0, 10_000_000: 3.0}
"""Limit in CPU-seconds of a query, by stored rows."""


def main() -> None:
    """Print the CPU-seconds of each query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--values", type=int, nargs="+", default=[1, 10])
    chosen = parser.parse_args()
    checks: list[Check] = []
    for values in chosen.values:
        with tempfile.TemporaryDirectory() as folder:
            checks += measure(_space(values), folder)
    with tempfile.TemporaryDirectory() as folder:
        checks.append(_repriced(Path(folder) / "rows.parquet"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    checks.append(Check("peak memory of the process", peak, "GB", 1.0, peak < 1.0))
    print_checks(checks, as_json=chosen.json)


def _space(devices: int) -> DesignSpace:
    """Return a grid of a million points per device."""
    whole = space(10)
    kept = whole.axes["device"][:devices]
    return DesignSpace(
        whole.simulator, (type(whole.factors[0])({"device": kept}), *whole.factors[1:])
    )


def measure(grid: DesignSpace, folder: str) -> list[Check]:
    """Store the grid, run every query, and return the costs."""
    store = Store(folder, define(grid))
    writer = multiprocessing.get_context("spawn").Process(target=_fill, args=(grid, store))
    writer.start()  # a process of its own, so that the peak below is the questions' alone
    writer.join()
    front = pareto_front(store.scan(), OBJECTIVES)
    values = minimised(front, OBJECTIVES)
    axes = list(grid.varied)
    questions: dict[str, Callable[[], object]] = {
        "front": lambda: pareto_front(store.scan(), OBJECTIVES),
        "front where": lambda: pareto_front(
            store.scan(), OBJECTIVES, where="mfu > 0.3 AND m > 128"
        ),
        "front per group": lambda: pareto_front(store.scan(), OBJECTIVES, per=["devices"]),
        "knee": lambda: knee(pareto_front(store.scan(), OBJECTIVES), OBJECTIVES),
        "epsilon front": lambda: epsilon_front(
            objective_matrix(store.scan(), OBJECTIVES)[0],
            [float(x) for x in 0.05 * (values.max(axis=0) - values.min(axis=0) + 1e-12)],
        ),
        "cheapest under an SLO": lambda: cheapest(store.scan(), "cost", "latency_s < 0.001"),
        "iso-device table": lambda: best_per(store.scan(), "devices", "latency_s", "min"),
        "main effects and Sobol": lambda: sensitivity(store.scan(), "latency_s", axes),
        "three rank layers": lambda: rank_layers(objective_matrix(store.scan(), OBJECTIVES)[0], 3),
        "crowding": lambda: crowding_distance(
            minimised(pareto_front(store.scan(), OBJECTIVES), OBJECTIVES)
        ),
        "probable front": lambda: probable_front(
            store.scan(), OBJECTIVES, {"latency_s": 0.1, "cost": 0.1, "mfu": 0.1}
        ),
    }
    limit = _ASKED.get(len(grid))
    checks = []
    for name, ask in questions.items():
        started = time.process_time()
        ask()
        used = time.process_time() - started
        ok = None if limit is None else used <= limit
        checks.append(Check(f"{name}, {len(grid):,} rows", used, "CPU-s", limit, ok, len(grid)))
    return checks


def _repriced(file: Path) -> Check:
    """Return the cost of repricing a million rows of a serving sweep in two price lists."""
    random, rows = np.random.default_rng(0), 1_000_000
    gpus = ["h100_sxm", "l4", "a100_sxm", "b200_sxm", "mi300x"]
    pl.DataFrame(
        {
            "gpu": random.choice(gpus, rows),
            "prices": "public_cloud",
            "usd_per_gpu_hour": pl.Series([None] * rows, dtype=pl.Float64),
            "gpus": random.integers(1, 64, rows),
            "tokens_per_s": random.random(rows) * 1e4,
            "cost_usd_per_mtok": random.random(rows),
        }
    ).write_parquet(file)
    lists = ["owned", "public_cloud"]
    space = DesignSpace.of("serving", model="llama3_1_8b", gpu=gpus, prices=lists)
    started = time.process_time()
    priced = repriced(pl.scan_parquet(file), space).group_by("prices", "gpu")
    priced.agg(pl.col("cost_usd_per_mtok").min()).collect()
    used = time.process_time() - started
    return Check("repricing in two lists, 1,000,000 rows", used, "CPU-s", 1.0, used <= 1.0, rows)


def _fill(grid: DesignSpace, store: Store) -> None:
    with Inline().open() as pool:
        spans = [Span(0, len(grid))]
        for _ in pool.run(Task(grid, store, OBJECTIVES), spans, len(grid), lambda _: None):
            pass


if __name__ == "__main__":
    main()
