"""Ten million points of seven axes through two Ray actors into Parquet, with a live front.

Overhead of a sweep beyond the simulator, in CPU-seconds of all processes. A small sweep with the
same actors runs first, so that interpreter start, `ray.init` and actor start are not counted. The
second case has twenty thousand points of a millisecond each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.points.millisecond import POINT_S
from simulators.core.checks import Check, print_checks
from simulators.core.contract import Direction
from sweeper.engines import Pool
from sweeper.engines.inline import Inline
from sweeper.engines.ray import Ray
from sweeper.engines.task import Task
from sweeper.report.progress import Progress
from sweeper.space.axes import Factor, Scalar
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Span
from sweeper.store.keys import define
from sweeper.store.store import Store

OBJECTIVES: dict[str, Direction] = {"latency_s": "min", "cost": "min", "mfu": "max"}


def space(values: int = 10, simulator: str = "benchmarks.points.roofline") -> DesignSpace:
    """Return a space of seven axes with `values` values each; ten make ten million points."""
    steps = range(1, values + 1)
    axes: dict[str, tuple[Scalar, ...]] = {
        "device": tuple(f"device_{i}" for i in range(values)),
        "m": tuple(64 * i for i in steps),
        "n": tuple(64 * i for i in steps),
        "k": tuple(64 * i for i in steps),
        "batch": tuple(8 * i for i in steps),
        "bandwidth": tuple(1e12 * i for i in steps),
        "devices": tuple(steps),
    }
    return DesignSpace(simulator, tuple(Factor({n: v}) for n, v in axes.items()))


def main() -> None:
    """Print the rates and the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--values", type=int, default=10, help="values per axis, of seven axes")
    parser.add_argument("--slow", type=int, default=20_000, help="points of a millisecond")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cheap = measure(space(chosen.values), folder)
        slow = measure_slow(chosen.slow, f"{folder}/slow") if chosen.slow else []
        print_checks(cheap + slow, as_json=chosen.json)


def measure(grid: DesignSpace, folder: str) -> list[Check]:
    """Sweep the grid with Ray and in this process, and return the cost."""
    progress = Progress(total=len(grid), objectives=OBJECTIVES)
    with Ray(actors=2).open() as pool:
        _sweep(pool, space(4), f"{folder}/warm", Progress(4**7, OBJECTIVES))
        before, memory_before, driver_s = _cpu_s(), _rss_bytes(), time.process_time()
        progress.started = time.perf_counter()
        _sweep(pool, grid, f"{folder}/grid", progress)
        used, wall_s = _cpu_s() - before, progress.elapsed_s
        driver_s = time.process_time() - driver_s
        grown = _rss_bytes() - memory_before
    alone_s = time.process_time()
    with Inline().open() as pool:
        _sweep(pool, grid, f"{folder}/inline", Progress(len(grid), OBJECTIVES))
    alone_s = time.process_time() - alone_s
    files = list(Path(folder, "grid").rglob("*.parquet"))
    written = sum(f.stat().st_size for f in files)
    points, share = progress.done, 1.0 - alone_s / used
    rate, note = points / used, f"driver {driver_s / used:.1%} of it all"
    return [
        Check("points", float(points), "", rows=points),
        Check("points per CPU-second, all processes", rate, "1/s", 3e6, rate >= 3e6),
        Check("points per second of wall time", points / wall_s, "1/s"),
        Check("CPU per point", used / points * 1e6, "us"),
        Check("share of orchestration", 100 * share, "%", 15.0, share <= 0.15, note=note),
        Check("growth of the driver's memory", grown / 1e6, "MB", 50.0, grown < 50e6),
        Check("bytes per point in Parquet", written / points, "B", note=f"{len(files)} files"),
        Check("designs on the live front", float(len(progress.front()))),
    ]


def measure_slow(points: int, folder: str) -> list[Check]:
    """Sweep points of a millisecond and return the overhead."""
    grid = space(simulator="benchmarks.points.millisecond")
    progress = Progress(total=points, objectives=OBJECTIVES)
    with Ray(actors=2).open() as pool:
        _sweep(pool, space(2, grid.simulator), f"{folder}/warm", progress)
        before, began, driver_s = _cpu_s(), time.perf_counter(), time.process_time()
        _sweep(pool, grid, f"{folder}/grid", progress, points)
        used, wall_s = _cpu_s() - before, time.perf_counter() - began
        driver_s = time.process_time() - driver_s
    work_s = points * POINT_S
    share = 1.0 - work_s / used
    note = (
        f"driver {driver_s / used:.1%}, in {wall_s / work_s * 2:.1f} times the wall time of two "
        "cores at work"
    )
    name = "points of 1 ms: share of all but the simulator"
    return [Check(name, 100 * share, "%", 3.0, share <= 0.03, note=note, rows=points)]


def _sweep(
    pool: Pool, grid: DesignSpace, folder: str, progress: Progress, points: int | None = None
) -> None:
    task = Task(grid, Store(folder, define(grid)), OBJECTIVES)
    points, drawn = points or len(grid), 0.0
    for part in pool.run(task, [Span(0, points)], points, lambda _: None):
        progress.add(part)
        if progress.elapsed_s - drawn > 0.25:
            progress.line()
            drawn = progress.elapsed_s


def _cpu_s() -> float:
    """CPU-seconds of this process and all below it."""
    import psutil

    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def _rss_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
