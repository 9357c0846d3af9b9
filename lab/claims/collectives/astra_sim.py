"""Times of collectives and of a training step against those of ASTRA-sim, cycle by cycle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.claims.lines import absent, at_least, at_most
from lab.parity.astra_sim import ASTRA_SIM, Runs, analytic_ns, event_ns, hgx, read_runs, single_ns
from simulators.collectives.topologies.plan import Plan
from simulators.collectives.traces.layers import operators_of, read_layers
from simulators.collectives.traces.matching import nodes_of
from simulators.collectives.traces.operators import Operator
from simulators.collectives.traces.timeline import timeline
from simulators.core.contract import PARITY, Check

KIND = PARITY
PUBLISHED_NS = {
    "all_reduce": 57_426,
    "all_gather": 44_058,
    "reduce_scatter": 28_950,
    "all_to_all": 114_000,
}
"""ASTRA-sim, HGX-H100 configuration, 8 NPUs, 1 MiB (an all-gather's is a shard): cycles."""
RESNET50_NS = {(2, 741.34): 574_289, (4, 741.34): 1_454_270, (8, 400.0): 3_307_886}
"""Data-parallel ResNet-50, by NPUs and GB/s: the published totals, which mix two bandwidths."""
LAYERS = "collectives/resnet50_layers.csv"


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield published figures, then how many runs are reproduced exactly; nothing was fitted."""
    for collective, published in PUBLISHED_NS.items():
        taken = single_ns(hgx(8, 400.0), collective, 1 << 20)
        yield _equal(f"published_{collective}", taken, published, 1)
    if (reference / LAYERS).is_file():
        yield from _resnet50(reference)
    else:
        yield absent("collectives/resnet50", f"absent: {LAYERS}")
    if not (reference / ASTRA_SIM).is_file():
        yield absent("collectives/parity", f"absent: {ASTRA_SIM}", "%")
        return
    runs = read_runs(reference)
    plain = np.array(["ring" in set(a.removeprefix("flat:").split(",")) for a in runs.algorithm])
    events = event_ns(runs)
    aware = runs.is_aware
    yield from _shares("analytic", analytic_ns(runs), runs, ~aware, exact=99.0, within=1.5)
    yield from _shares("event_ring", events, runs, aware & plain, exact=97.0)
    yield from _shares("event_others", events, runs, aware & ~plain, within=2.0)


def _resnet50(reference: Path) -> Iterator[Check]:
    layers = read_layers(reference / LAYERS)
    for (ranks, rate), published in (RESNET50_NS | {(2, 400.0): 0, (4, 400.0): 0}).items():
        plan = hgx(ranks, rate)

        def summed_ns(operator: Operator, _rank: int, plan: Plan = plan) -> int:
            return single_ns(plan, operator.collective, operator.size_bytes)

        step = timeline(nodes_of({0: operators_of(layers)}, summed_ns))
        note = f"a sum; exposed {step.comm_exposed_ns:,}, compute {step.compute_total_ns:,}"
        name = f"resnet50_{ranks}x{rate:g}"
        yield _equal(name, step.comm_total_ns, published or None, len(layers), note)


def _equal(name: str, taken: int, published: int | None, rows: int, note: str = "") -> Check:
    ok = taken == published if published else None
    return Check(f"collectives/{name}", taken, "cycles", published, ok, rows, note)


def _shares(
    name: str,
    ours: NDArray[np.int64],
    runs: Runs,
    where: NDArray[np.bool_],
    *,
    exact: float | None = None,
    within: float | None = None,
) -> Iterator[Check]:
    """Yield the share of runs without any error, and the largest error, in percent."""
    name, count = f"collectives/{name}", int(where.sum())
    if not count:
        yield absent(name, "no such runs", "%")
        return
    ratio = np.abs(ours[where] / runs.finish_ns[where] - 1.0)
    share, worst = 100.0 * float(np.mean(ratio == 0.0)), 100.0 * float(ratio.max())
    yield at_least(f"{name}_exact", round(share, 3), exact, count)
    yield at_most(f"{name}_worst", round(worst, 3), within, count)
