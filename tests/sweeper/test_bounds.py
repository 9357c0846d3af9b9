"""The bounds sampler finds the full front with few evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from simulators.core.columns import numbers, outcome
from simulators.core.contract import choice, metric
from simulators.core.errors import UserError
from sweeper.query.pareto import pareto_front
from sweeper.samplers import load_sampler
from sweeper.space.design_space import DesignSpace
from sweeper.sweep import Sweep
from tests.contracts import check_sampler

GOALS = {"time_s": "min", "price": "min"}


@dataclass(frozen=True)
class Point:
    """A design of a factory."""

    size: int = choice("how large it is", default=1)
    speed: int = choice("how fast", default=1)
    kind: str = choice("of what sort", default="a")
    load: int = choice("what it is asked for", default=1, given=True)


@dataclass(frozen=True)
class Metrics:
    """What comes of it."""

    time_s: float = metric("how long it takes", better="min")
    price: float = metric("what it costs", better="min")


@dataclass(frozen=True)
class Factory:
    """Work is shared by workers, who cost more the faster they are; sorts have quirks."""

    name: str = "factory"
    version: int = 1
    point: type = Point
    metrics: type = Metrics
    ranged: tuple[str, ...] = ("size", "speed")
    asked: list[int] = field(default_factory=list, compare=False)

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return time and price of each factory; large ones of sort b wait for each other."""
        self.asked.append(batch.num_rows)
        size, speed, load = (numbers(batch, n).astype(float) for n in ("size", "speed", "load"))
        quirk = np.array([w == "b" for w in batch.column("kind").to_pylist()])
        time_s = 100.0 * load / (size * speed) + np.where(quirk, size % 7, 0.0)
        price = size * (1.0 + speed**1.5) + np.where(quirk, 0.0, 3.0)
        return outcome(Metrics, {"time_s": time_s, "price": price})

    def bounds(self, low: pa.RecordBatch, high: pa.RecordBatch) -> Mapping[str, Any]:
        """Return the time of the largest and fastest, and the price of the other."""
        size, speed, load = (numbers(high, n).astype(float) for n in ("size", "speed", "load"))
        least, slowest = (numbers(low, n).astype(float) for n in ("size", "speed"))
        return {"time_s": 100.0 * load / (size * speed), "price": least * (1.0 + slowest**1.5)}


def vectors(rows: pl.LazyFrame, per: list[str], where: str | None) -> set[tuple[float, ...]]:
    return set(pareto_front(rows, GOALS, where=where, per=per).select(*per, *GOALS).rows())  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [None, "time_s <= 8"])
def test_bounded_search_front_equals_the_full_front(where: str | None, tmp_path: Path) -> None:
    factory = Factory()
    space = DesignSpace.of(
        factory,
        size="1..40",
        speed="1..12",
        kind=["a", "b"],
        load=[1, 3],
        constraints=["size * speed <= 200", "kind = 'a' OR size > 2"],
    )
    whole = Sweep.of(space, outputs=str(tmp_path / "all" / "rows"), where=where).run()
    factory.asked.clear()
    some = Sweep.of(space, outputs=str(tmp_path / "b" / "rows"), where=where, sampler="bounds")
    rows = some.run()
    assert vectors(rows, ["load"], where) == vectors(whole, ["load"], where)
    assert sum(factory.asked) < 0.4 * space.count(np.arange(len(space)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bounded_search_of_analytic_points_equals_the_full_front(seed: int, tmp_path: Path) -> None:
    random, gpus = np.random.default_rng(seed), ["l4", "h100_sxm", "mi300x", "b200_sxm"]
    space = DesignSpace.of(
        "serving",
        fidelity="analytic",
        qps=None,
        model="llama3_1_8b",
        gpu=random.choice(gpus, 1 + seed, replace=False).tolist(),
        tp=[1, 2],
        pp=[1, 2][: 1 + seed],
        scheduler=["vllm", "sarathi"][seed % 2],
        max_batch=f"1..{random.integers(8, 20 + 20 * seed)}",
        chunk_size=[128, 512],
        **{"scheduling.max_batch_tokens": [2048, 4096]},
        prompt_tokens=int(random.integers(50, 2000)),
        output_tokens=[32, 256],
    )
    goals: Any = {"ttft_mean_s": "min", "tpot_mean_s": "min", "cost_usd_per_mtok": "min"}
    found = []
    for name in ("grid", "bounds"):
        sweep = Sweep.of(
            space, outputs=str(tmp_path / name / "rows"), objectives=goals, sampler=name
        )
        rows = sweep.run()
        front = pareto_front(rows, goals, per=["output_tokens"])
        found.append((set(front.select("output_tokens", *goals).rows()), len(rows.collect())))
    (whole, all_points), (proved, few) = found
    assert proved == whole
    assert few < 0.8 * all_points


def test_bounds_sampler_fulfils_the_contract() -> None:
    check_sampler(load_sampler("bounds"), DesignSpace.of(Factory(), size="1..9", speed="1..4"))


def test_simulator_without_bounds_is_refused(tmp_path: Path) -> None:
    space = DesignSpace.of("kernels", gpu="l4", op="gemm", m="1..4")
    sweep = Sweep.of(space, outputs=str(tmp_path / "rows"), sampler="bounds")
    with pytest.raises(UserError, match="needs a simulator that states bounds"):
        sweep.run()
    space = DesignSpace.of(Factory(), size="1..4")
    sweep = Sweep.of(
        space, outputs=str(tmp_path / "rows"), sampler="bounds", objectives={"size": "max"}
    )
    with pytest.raises(UserError, match="states no bounds of size"):
        sweep.run()
