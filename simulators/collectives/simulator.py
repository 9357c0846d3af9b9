"""One collective, or a step of many, on one network: time, bandwidths, bytes and energy.

Several fidelities have one interface. `measured` is the measured time of NCCL, of a framework's own
all-reduce inside a node, or of DeepEP's exchange of tokens; `analytic` and `event` are models of an
algorithm on a topology, without and with contention, equal to ASTRA-sim's to the nanosecond; in
`flow` messages share links max-min fairly. Only `measured` claims to predict hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.collectives import phase_model as at
from simulators.collectives.algorithms import ALGORITHMS, COLLECTIVES
from simulators.collectives.fidelities import CollectiveBatch, Times, played, timed
from simulators.collectives.library_models import BETWEEN_CALIBRATION, EXCHANGE_CALIBRATION
from simulators.collectives.measured import GROWTH, NETWORKS
from simulators.collectives.point import EVENTFUL, CollectiveMetrics, CollectivePoint
from simulators.collectives.topologies import blocks
from simulators.collectives.topologies.plan import NS, Plan, file_behind
from simulators.collectives.traces.step import trace_files
from simulators.core.columns import LEVELS, Shares, batch_of, outcome, shares_of
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible
from simulators.core.fields import check_batch
from simulators.core.jit import Ints

BUSY = 0.5
"""A phase whose links are in use for at least this share of the time is bound by the link."""


def explained(
    plan: Plan, request: Ints, memory_bytes_per_s: float, row: Mapping[str, Any]
) -> list[Contribution]:
    """Return contributions of a modelled collective by phase, or of a measured one as a whole.

    Phases of different chunks overlap; the total time is divided in proportion to the times of the
    phases alone. Energies and bytes are sums over all ranks. `row` has the fields and the metrics
    of the point.
    """
    if row["fidelity"] == "measured":
        level = max(LEVELS, key=lambda level: row[f"{level}_share"])
        note = f"{row['library']} on {row['gpu']}, {row['ranks']} ranks"
        return [
            Contribution(
                phase=row["topology"],
                name=row["collective"],
                time_s=row["time_s"],
                energy_j=row["energy_j"] or 0.0,
                moved_bytes=(row["wire_bytes"] or 0.0) * row["ranks"],
                devices=row["ranks"],
                bound=_bound(row["utilisation"] or 0.0),
                level=level,
                note=note,
            )
        ]
    chunk = at.chunk_bytes(request, plan.ranks)
    phases = at.phases_of(
        plan.whole, int(request[at.OP]), chunk, baseline=bool(request[at.BASELINE])
    )
    endpoint_ns, chunks = int(request[at.ENDPOINT_NS]), at.chunks_of(request, plan.ranks)
    alone_ns = [
        at.phase_ns(op, payload, plan.whole[d], plan.rates[d], endpoint_ns, memory_bytes_per_s)
        for d, op, payload, _ in phases.tolist()
    ]
    share = np.array(alone_ns) / max(1, sum(alone_ns))
    everything = float(chunks * plan.ranks)
    rows = []
    for i, (d, op, payload, _) in enumerate(phases.tolist()):
        sent, network = np.zeros(3), plan.whole[d]
        at.phase_traffic(op, payload, network, sent)
        used = row[f"utilisation_{d + 1}"] or 0.0
        joules = 8.0 * sent[at.ENERGY_J] * plan.energy_j_per_bit[d] * everything
        block, ranks = blocks.BLOCKS[network[blocks.BLOCK]], network[blocks.RANKS]
        rows.append(
            Contribution(
                phase=f"dimension {d + 1}, {block}:{ranks}",
                name=f"{COLLECTIVES[op]}, {ALGORITHMS[network[blocks.ALGORITHM]]}",
                count=float(chunks),
                time_s=float(share[i]) * row["time_s"],
                energy_j=0.0 if row["energy_j"] is None else joules,
                moved_bytes=float(sent[at.RANK_BYTES]) * everything,
                devices=plan.ranks,
                bound=_bound(used),
                level="datasheet",
                note=f"links in use {100 * used:.0f} % of the time",
            )
        )
    return rows


def _bound(used: float) -> str:
    return "link" if used >= BUSY else "latency"


Columns = dict[str, NDArray[Any]]
BOUNDS = ("", "_lo", "_hi")
"""Suffixes of a metric, and of the lower and upper end of its interval."""


@dataclass(frozen=True)
class Collectives:
    """The simulator of collectives and traces of operators."""

    name: str = "collectives"
    version: int = 14
    point: type = CollectivePoint
    metrics: type = CollectiveMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the metrics of every row: formulas in one call, events and curves by group."""
        check_batch(CollectivePoint, batch)
        rows = CollectiveBatch.of(batch)
        reasons, is_step = rows.reasons(), ~rows.is_word("trace", "")
        reasons[is_step] = "simulated as a step below"
        times = timed(rows, reasons)
        out, shares = _columns(rows, times), shares_of(times.level)
        for i in np.flatnonzero(is_step):
            reasons[i] = _play(rows, int(i), out, shares)
        return outcome(CollectiveMetrics, out, infeasible=list(reasons), shares=shares, sparse=True)

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return contributions: phases of a modelled collective, or the parts of a step.

        A measured collective is one contribution.

        Raises:
            Infeasible: the collective is infeasible with the options of the point.
            UserError: a value is unknown.
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
        """Return the files behind an axis value; for an empty name, the files of all points."""
        if name == "topology":
            file = file_behind(str(value))
            return () if file is None else (file,)
        if name == "trace" and value:
            return trace_files(str(value))
        if name == "gpu" and str(value) in NETWORKS.names():
            return (NETWORKS.find(str(value)),)
        return (GROWTH, BETWEEN_CALIBRATION, EXCHANGE_CALIBRATION) if name == "" else ()

    def warm_up(self) -> None:
        """Compile the models."""
        for fidelity in ("analytic", *EVENTFUL):
            point = {"collective": "all_reduce", "size_bytes": 1024, "fidelity": fidelity}
            self.evaluate(batch_of(CollectivePoint, point))


SIMULATOR = Collectives()


def _columns(rows: CollectiveBatch, times: Times) -> Columns:
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
    out["messages"], out["wire_bytes"] = (
        times.traffic[:, at.MESSAGES],
        times.traffic[:, at.RANK_BYTES],
    )
    out["energy_j"], out["ranks"] = times.traffic[:, at.ENERGY_J], rows.ranks
    return out


def _play(rows: CollectiveBatch, row: int, out: Columns, shares: Shares) -> str:
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
    if step.recorded_ns:
        out["comm_recorded_s"][row] = step.recorded_ns / NS
    out["messages"][row] = step.on_wires(at.MESSAGES).sum()
    out["wire_bytes"][row] = step.on_wires(at.RANK_BYTES).sum() / rows.ranks[row]
    out["energy_j"][row] = step.on_wires(at.ENERGY_J).sum()
    shares[:, row] = step.shares
    return ""
