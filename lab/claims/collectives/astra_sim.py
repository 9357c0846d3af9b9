"""Times of collectives and of a training step beside those of ASTRA-sim, in cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.parity.astra_sim import analytic_ns, event_ns, hgx, read_runs, single_ns
from simulators.collectives.topologies.plan import Plan
from simulators.collectives.traces.layers import operators_of, read_layers
from simulators.collectives.traces.matching import nodes_of
from simulators.collectives.traces.operators import Operator
from simulators.collectives.traces.timeline import timeline


def published(
    reference: Path,
    collectives: Mapping[str, int],
    networks: Sequence[tuple[int, float, int]],
    layers: str,
) -> pl.DataFrame:
    """Return our cycles beside published ones, of collectives and of training steps.

    Args:
        reference: the folder of reference tables.
        collectives: published cycles of 1 MiB on eight GPUs.
        networks: ranks, GB/s and published cycles of a step's collectives.
        layers: the table of the network's layers.
    """
    rows: list[tuple[str, int, int]] = [
        (name, single_ns(hgx(8, 400.0), name, 1 << 20), cycles)
        for name, cycles in collectives.items()
    ]
    operators = operators_of(read_layers(reference / layers))
    for ranks, rate, cycles in networks:
        plan = hgx(ranks, rate)

        def summed_ns(operator: Operator, _rank: int, plan: Plan = plan) -> int:
            return single_ns(plan, operator.collective, operator.size_bytes)

        step = timeline(nodes_of({0: operators}, summed_ns))
        rows.append((f"ResNet-50 on {ranks} at {rate:g} GB/s", step.comm_total_ns, cycles))
    return pl.DataFrame(rows, ["label", "predicted", "measured"], orient="row")


def runs(reference: Path) -> pl.DataFrame:
    """Return our cycles of every run beside ASTRA-sim's, by the model that answers it."""
    known = read_runs(reference)
    ring = np.array(["ring" in set(a.removeprefix("flat:").split(",")) for a in known.algorithm])
    events, aware = event_ns(known), known.is_aware
    analytic = analytic_ns(known)
    kinds = {
        "analytic": (analytic, ~aware),
        "event_ring": (events, aware & ring),
        "event_others": (events, aware & ~ring),
    }
    frame = together(
        columns(kind=kind, predicted=ours[which], measured=known.finish_ns[which])
        for kind, (ours, which) in kinds.items()
    )
    return frame.with_columns(equal=pl.col("predicted") == pl.col("measured"))
