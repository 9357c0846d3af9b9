"""One collective, or a step of many, on one network: time, bandwidths, bytes and energy.

Several fidelities stand behind one interface. `measured` is what NCCL, or a framework's own
all-reduce, was measured to take inside a node; `analytic` and `event` are models of an algorithm on
a topology, without and with contention, equal to ASTRA-sim's to the nanosecond; in `flow` messages
share links max-min fairly. Only the first claims to predict hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.collectives.batch import CollectiveBatch
from simulators.collectives.closed.traffic import ENERGY_J, MESSAGES, RANK_BYTES
from simulators.collectives.explain import explained
from simulators.collectives.fidelities import Times, played, timed
from simulators.collectives.measured import GROWTH, NETWORKS
from simulators.collectives.point import EVENTFUL, CollectiveMetrics, CollectivePoint
from simulators.collectives.topologies.plan import NS
from simulators.collectives.topologies.topology import file_behind
from simulators.collectives.traces.step import trace_files
from simulators.core.columns import Shares, batch_of, outcome, shares_of
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible
from simulators.core.fields import check_batch

Columns = dict[str, NDArray[Any]]
BOUNDS = ("", "_lo", "_hi")
"""What the name of a metric ends in, at the ends of its interval."""


@dataclass(frozen=True)
class Collectives:
    """The simulator of collectives and traces of operators."""

    name: str = "collectives"
    version: int = 6
    point: type = CollectivePoint
    metrics: type = CollectiveMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Time every row: the formulas in one call, events and measured curves by group."""
        check_batch(CollectivePoint, batch)
        rows = CollectiveBatch.of(batch)
        reasons, is_step = rows.reasons(), ~rows.is_word("trace", "")
        reasons[is_step] = "played below"
        times = timed(rows, reasons)
        out, shares = _columns(rows, times), shares_of(times.level)
        for i in np.flatnonzero(is_step):
            reasons[i] = _play(rows, int(i), out, shares)
        return outcome(CollectiveMetrics, out, infeasible=list(reasons), shares=shares, sparse=True)

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return the phases of a modelled collective, a measured one as a whole, or a step's parts.

        Raises:
            Infeasible: the collective cannot be carried out so.
            UserError: a value nothing answers to.
        """
        batch = batch_of(CollectivePoint, point)
        [row] = self.evaluate(batch).to_pylist()
        if row["status"] != "ok":
            name, _, words = row["reason"].partition(": ")
            raise Infeasible(name, words)
        rows, [given] = CollectiveBatch.of(batch), batch.to_pylist()
        if given["trace"]:
            return played(rows, 0).contributions()
        memory = float(rows.memory_bytes_per_s[0])
        return explained(rows.plans[0], rows.requests[0], memory, given | row)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files behind a topology or a trace, and the curves of a GPU."""
        if name == "topology":
            file = file_behind(str(value))
            return () if file is None else (file,)
        if name == "trace" and value:
            return trace_files(str(value))
        if name == "gpu" and str(value) in NETWORKS.names():
            return (NETWORKS.find(str(value)),)
        return (GROWTH,) if name == "" else ()

    def warm_up(self) -> None:
        """Compile the models."""
        for fidelity in ("analytic", *EVENTFUL):
            point = {"collective": "all_reduce", "size_bytes": 1024, "fidelity": fidelity}
            self.evaluate(batch_of(CollectivePoint, point))


SIMULATOR = Collectives()


def _columns(rows: CollectiveBatch, times: Times) -> Columns:
    """Return the metrics of rows of single collectives; others have no time yet."""
    out: Columns = {f.name: np.full(len(rows.plan), np.nan) for f in fields(CollectiveMetrics)}
    size = rows.size_bytes.astype(np.float64)
    moving = np.where(times.seconds > 0.0, times.seconds, np.nan)
    for name, other, seconds in zip(BOUNDS, ("", "_hi", "_lo"), times.seconds, strict=True):
        out["time_s" + name] = seconds
        out["busbw_bytes_per_s" + name] = rows.busbw_factor * size / moving[BOUNDS.index(other)]
    for d, busy_ns in enumerate(times.busy_ns.T, start=1):
        out[f"utilisation_{d}"] = np.minimum(busy_ns / NS / moving[0], 1.0)
    out["utilisation"] = np.fmax.reduce(np.minimum(times.busy_ns.T / NS / moving[0], 1.0))
    out["algbw_bytes_per_s"] = size / moving[0]
    out["messages"], out["wire_bytes"] = times.traffic[:, MESSAGES], times.traffic[:, RANK_BYTES]
    out["energy_j"], out["ranks"] = times.traffic[:, ENERGY_J], rows.ranks
    return out


def _play(rows: CollectiveBatch, row: int, out: Columns, shares: Shares) -> str:
    """Write the metrics and shares of a row that is a step, or return why it cannot be."""
    try:
        step = played(rows, row)
    except Infeasible as verdict:
        return str(verdict)
    for name, found in zip(BOUNDS, step.timelines, strict=True):
        out["time_s" + name][row] = found.finish_ns / NS
    found = step.timelines[0]
    out["compute_s"][row] = found.compute_total_ns / NS
    out["comm_total_s"][row] = found.comm_total_ns / NS
    out["comm_exposed_s"][row] = found.comm_exposed_ns / NS
    out["messages"][row] = step.on_wires(MESSAGES).sum()
    out["wire_bytes"][row] = step.on_wires(RANK_BYTES).sum() / rows.ranks[row]
    out["energy_j"][row] = step.on_wires(ENERGY_J).sum()
    shares[:, row] = step.shares
    return ""
