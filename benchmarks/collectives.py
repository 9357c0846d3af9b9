"""Collectives predicted and link events simulated per CPU-second."""

from __future__ import annotations

import argparse
import functools
import resource
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pyarrow as pa

from benchmarks.timing import median_cpu_s
from simulators.collectives.events.run import simulate
from simulators.collectives.phase_model import collectives_ns
from simulators.collectives.point import CollectivePoint
from simulators.collectives.simulator import SIMULATOR
from simulators.collectives.topologies.plan import plan_of
from simulators.core.checks import Check, print_checks
from tests.parity.astra_sim import request

_BATCH = 1_000_000
_ROWS = 200_000
_MEMORY = 3.35e12
_GIB = 1 << 30


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    SIMULATOR.warm_up()
    checks = [
        *_large_ring(),  # first: its peak memory is that of the process
        _formulas("analytic, 8 ranks, ring", "switch:8", "ring", 1e6),
        _formulas("analytic, 4x4x4 torus, ring", "torus:4x4x4", "ring", None),
        _rows(),
        _events("events, ring, one rank for 4,096", "switch:4096", "ring", 1e7, every_rank=False),
        _events("events, ring, each of 64 ranks", "switch:64", "ring", None, every_rank=True),
        _events("events, direct, each of 64 ranks", "switch:64", "direct", None, every_rank=True),
    ]
    print_checks(checks, as_json=chosen.json)


def _formulas(name: str, topology: str, algorithm: str, asked: float | None) -> Check:
    plan = plan_of(topology, algorithm)
    memory, out = np.full(_BATCH, _MEMORY), np.zeros(_BATCH, np.int64)
    whole, rates = plan.whole[None], plan.rates[None]

    def prepare(run: int) -> Callable[[], object]:
        requests = np.tile(request("all_reduce", 0), (_BATCH, 1))
        requests[:, 2] = np.random.default_rng(run).integers(1 << 10, _GIB, _BATCH)
        requests[:, 1] = np.arange(_BATCH) % 4
        return functools.partial(collectives_ns, requests, memory, whole, rates, out)

    rate = _BATCH / median_cpu_s(prepare)[1]
    ok = None if asked is None else rate >= asked
    return Check(name, rate, "collectives/CPU-s", asked, ok, _BATCH)


def _rows() -> Check:
    given = {"collective": "all_reduce", "fidelity": "analytic", "algorithm": "ring"}

    def prepare(run: int) -> Callable[[], object]:
        sizes = np.random.default_rng(run).integers(1 << 10, _GIB, _ROWS)
        columns = {
            f.name: pa.array(sizes)
            if f.name == "size_bytes"
            else pa.array([given.get(f.name, f.default)] * _ROWS)
            for f in fields(CollectivePoint)
        }
        batch = pa.RecordBatch.from_pydict(
            {
                name: column.dictionary_encode() if pa.types.is_string(column.type) else column
                for name, column in columns.items()
            }
        )
        return functools.partial(SIMULATOR.evaluate, batch)

    rate = _ROWS / median_cpu_s(prepare)[1]
    return Check("rows of the simulator, analytic", rate, "rows/CPU-s", rows=_ROWS)


def _large_ring() -> list[Check]:
    plan = plan_of("switch:4096", "ring")
    _, used = median_cpu_s(
        lambda run: lambda: simulate(plan, request("all_reduce", _GIB - run), _MEMORY)
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    name = "1 GiB ring all-reduce, 4,096 ranks, events"
    return [
        Check(name, used, "CPU-s", 5.0, used < 5.0, 1),
        Check(f"{name}, peak of the process", memory / 1e6, "MB", 500.0, memory < 500e6, 1),
    ]


def _events(
    name: str, topology: str, algorithm: str, asked: float | None, *, every_rank: bool
) -> Check:
    plan = plan_of(topology, algorithm)
    report, used = median_cpu_s(
        lambda run: functools.partial(
            simulate, plan, request("all_reduce", _GIB - run), _MEMORY, every_rank=every_rank
        )
    )
    rate = report.link_events / used
    ok = None if asked is None else rate >= asked
    return Check(name, rate, "link events/CPU-s", asked, ok, report.link_events)


if __name__ == "__main__":
    main()
