"""Reference runs of ASTRA-sim, as requests of the collectives simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.tables.rows import read_records
from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.events.run import simulate, uncontended_ns
from simulators.collectives.phase_model import PLAN
from simulators.collectives.topologies.plan import Dimension, Plan, Topology, plan_for, plan_of
from simulators.core.errors import UserError
from simulators.core.jit import Ints

ASTRA_SIM = "collectives/astra_sim.parquet"
BLOCKS = {"Ring": "ring", "FullyConnected": "fully_connected", "Switch": "switch"}
NAMES = {"halvingDoubling": "halving_doubling", "doubleBinaryTree": "double_binary_tree"}
GIB = 2.0**30
"""A bandwidth of 1 GB/s is 2^30 bytes per second there; the local memory's is 1e9."""
HGX_LATENCY_S, HGX_MEMORY_BYTES_PER_S = 936.25e-9, 3.35e12


def request(
    collective: str,
    size: int,
    *,
    splits: int = 4,
    active: int = 2,
    queues: int = 1,
    endpoint_ns: int = 10,
    baseline: bool = False,
) -> Ints:
    """Return a request, by default with the settings of ASTRA-sim's HGX H100."""
    op = COLLECTIVES.index(collective)
    return np.array([0, op, size, splits, active, queues, endpoint_ns, baseline], np.int64)


@dataclass(frozen=True)
class Runs:
    """Reference runs that finished, with our requests for the same."""

    algorithm: list[str]
    is_aware: NDArray[np.bool_]
    plans: list[Plan]
    requests: NDArray[np.int64]
    memory_bytes_per_s: NDArray[np.float64]
    finish_ns: NDArray[np.int64]


def read_runs(reference: Path) -> Runs:
    """Return every run that did not abort."""
    rows = [r for r in read_records(reference / ASTRA_SIM) if r["status"] == "ok"]
    if not rows:
        raise UserError(f"{ASTRA_SIM} has no run that finished")
    return Runs(
        algorithm=[algorithm_of(r["algorithm"]) for r in rows],
        is_aware=np.array([r["backend"].endswith("_aware") for r in rows]),
        plans=[plan_of_row(r) for r in rows],
        requests=np.array([_request(r) for r in rows]),
        memory_bytes_per_s=np.array([r["local_mem_bw_GBps"] * 1e9 for r in rows]),
        finish_ns=np.array([r["finish_ns_max"] for r in rows]),
    )


def analytic_ns(runs: Runs) -> NDArray[np.int64]:
    """Return what every run takes without contention."""
    requests = runs.requests.copy()
    requests[:, PLAN] = np.arange(len(runs.plans))
    return uncontended_ns(runs.plans, requests, runs.memory_bytes_per_s)


def event_ns(runs: Runs) -> NDArray[np.int64]:
    """Return what the event loop says of every run with contention, and 0 of the others."""
    out = np.zeros(len(runs.plans), np.int64)
    for i in np.flatnonzero(runs.is_aware):
        memory = float(runs.memory_bytes_per_s[i])
        out[i] = simulate(runs.plans[i], runs.requests[i], memory).finish_ns
    return out


def hgx(ranks: int, gbytes_per_s: float) -> Plan:
    """Return the network of the HGX-H100 configuration of ASTRA-sim."""
    return plan_of(f"switch:{ranks}", "ring", gbytes_per_s * GIB, HGX_LATENCY_S)


def single_ns(plan: Plan, collective: str, size_bytes: int) -> int:
    """Return nanoseconds of a collective by the event loop, in the HGX configuration."""
    return simulate(plan, request(collective, size_bytes), HGX_MEMORY_BYTES_PER_S).finish_ns


def plan_of_row(row: dict[str, Any]) -> Plan:
    """Return the network of a run."""
    parts = [str(row[name]).split(",") for name in ("npus_per_dim", "bandwidth_GBps", "latency_ns")]
    dimensions = tuple(
        Dimension(
            block=BLOCKS[block],
            ranks=int(float(n)),
            bytes_per_s=float(rate) * GIB,
            latency_s=float(latency) * 1e-9,
        )
        for block, n, rate, latency in zip(row["topology"].split("_"), *parts, strict=True)
    )
    return plan_for(
        Topology(name=row["topology"], dimensions=dimensions), algorithm_of(row["algorithm"])
    )


def algorithm_of(written: str) -> str:
    """Return the reference's algorithm in our words.

    >>> algorithm_of("oneDirect"), algorithm_of("direct2"), algorithm_of("ring,halvingDoubling")
    ('flat:direct', 'direct:2', 'ring,halving_doubling')
    """
    return ",".join(_algorithm_of(name) for name in written.split(","))


def _algorithm_of(name: str) -> str:
    if name.startswith("one"):
        return "flat:" + _algorithm_of(name[3].lower() + name[4:])
    if name.startswith("direct") and name != "direct":
        return f"direct:{name.removeprefix('direct')}"
    return NAMES.get(name, name)


def _request(row: dict[str, Any]) -> Ints:
    return request(
        row["collective"],
        row["size_bytes"],
        splits=row["preferred_dataset_splits"],
        active=row["active_chunks_per_dimension"],
        queues=row["num_queues_per_dim"],
        endpoint_ns=row["endpoint_delay"],
        baseline=row["collective_optimization"] == "baseline",
    )
