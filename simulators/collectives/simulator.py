"""One collective on one network: seconds, bandwidths, bytes and energy on the wires.

Several fidelities stand behind one interface. `measured` is what NCCL, or a framework's own
all-reduce, was measured to take inside a node; `analytic` and `event` are models of an algorithm on
a topology, without and with contention, equal to ASTRA-sim's to the nanosecond; in `flow` messages
share links max-min fairly. Only the first claims to predict hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.collectives.algorithms import COLLECTIVES, IMPOSSIBLE
from simulators.collectives.batch import Rows
from simulators.collectives.closed.hierarchy import measured_s
from simulators.collectives.closed.phases import BASELINE, OP
from simulators.collectives.closed.traffic import (
    BUSY_NS,
    COLUMNS,
    ENERGY_J,
    MESSAGES,
    RANK_BYTES,
    traffic,
)
from simulators.collectives.events.run import Report, has_event_model, simulate
from simulators.collectives.events.state import IN_TURN, SHARED
from simulators.collectives.explain import explained
from simulators.collectives.measured import GROWTH, NETWORKS
from simulators.collectives.topologies.blocks import MAX_DIMENSIONS, RANKS
from simulators.collectives.topologies.plan import NS, Plan
from simulators.collectives.topologies.topology import file_behind
from simulators.collectives.uncontended import uncontended_ns
from simulators.core.columns import outcome
from simulators.core.contract import Contribution, choice, metric
from simulators.core.errors import Infeasible
from simulators.core.jit import Ints
from simulators.core.levels import EXTRAPOLATED, MEASURED, UNMODELLED, shares_of
from simulators.core.rules import check_batch

Columns = dict[str, NDArray[Any]]
EVENTFUL = {"event": IN_TURN, "flow": SHARED}
"""Fidelities of the event loop, and how messages meet on links there."""
FIDELITIES = ("analytic", *EVENTFUL, "measured")
ORDERS = ("bandwidth_aware", "baseline")
UTILISATIONS = tuple(f"utilisation_{d + 1}" for d in range(MAX_DIMENSIONS))


_chunks = partial(choice, at_least=1, at_most=1 << 16)


@dataclass(frozen=True)
class CollectivePoint:
    """One collective, its algorithm, and the network it runs on."""

    collective: str = choice(f"{', '.join(COLLECTIVES[:-1])} or send_recv", known=COLLECTIVES)
    size_bytes: int = choice(
        "buffer of a rank, as nccl-tests count: of an all_gather what it has in the end", unit="B"
    )
    topology: str = choice(
        "a file of topologies/, or blocks from the inside out: switch:8,ring:4; torus:4x4; "
        "fat_tree:64:8:2",
        default="hgx_h100",
    )
    algorithm: str = choice(
        "ring, direct, direct:K, halving_doubling, double_binary_tree, in_network or flat:ring; "
        "one, or one per dimension with commas",
        default="halving_doubling",
    )
    splits: int = _chunks("chunks the buffer is cut into", default=4)
    active_chunks: int = _chunks("chunks a dimension works on at once", default=2)
    queues: int = _chunks("queues per dimension", default=1)
    order: str = choice(
        "phases of an all_reduce: bandwidth_aware or baseline", default=ORDERS[0], known=ORDERS
    )
    link_bytes_per_s: float | None = choice(
        "bandwidth of every link per direction; null: the topology's", unit="B/s", default=None
    )
    latency_s: float | None = choice(
        "latency of every link; null: the topology's", unit="s", default=None
    )
    endpoint_delay_s: float = choice(
        "before a first message and after every receive", unit="s", default=10e-9, at_least=0
    )
    local_memory_bytes_per_s: float = choice(
        "memory that reductions use", unit="B/s", default=3.35e12, above=0
    )
    fidelity: str = choice(
        "measured; or a model: analytic (no contention), event (links serve messages in turn) or "
        "flow (messages share links fairly)",
        default="measured",
        known=FIDELITIES,
    )
    gpu: str = choice("whose interconnect, when measured", names="gpu", default="h100_sxm")
    library: str = choice("whose collectives, when measured: nccl, trtllm, vllm", default="nccl")
    dtype: str = choice("precision of the numbers, when measured", default="fp16")


_time = partial(metric, unit="s", page="collectives.md#time-and-bandwidth")
_rate = partial(metric, unit="B/s", page="collectives.md#time-and-bandwidth")
_links = partial(metric, page="collectives.md#links")


@dataclass(frozen=True)
class CollectiveMetrics:
    """What nccl-tests would print, and what a network engineer would ask next."""

    time_s: float = _time("from the first rank's start to the last one's end", better="min")
    time_s_lo: float = _time("lower end of its 90 % interval")
    time_s_hi: float = _time("upper end of its 90 % interval")
    algbw_bytes_per_s: float = _rate("size over time")
    busbw_bytes_per_s: float = _rate("the same by the link's share of the data", better="max")
    busbw_bytes_per_s_lo: float = _rate("lower end of its 90 % interval")
    busbw_bytes_per_s_hi: float = _rate("upper end of its 90 % interval")
    utilisation: float = _links("share of the time the busiest link is in use")
    utilisation_1: float = _links("the same of the innermost dimension's links")
    utilisation_2: float = _links("of the second dimension's, null if there is none")
    utilisation_3: float = _links("of the third dimension's, null if there is none")
    utilisation_4: float = _links("of the fourth dimension's, null if there is none")
    messages: float = _links("messages of all ranks together")
    wire_bytes: float = _links("bytes each rank sends, on average", unit="B")
    energy_j: float = _links("of all links, null unless the topology states it", unit="J")
    ranks: int = _links("ranks that take part")


@dataclass(frozen=True)
class Collectives:
    """The simulator of this room."""

    name: str = "collectives"
    version: int = 4
    point: type = CollectivePoint
    metrics: type = CollectiveMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Time every row: the formulas in one call, events and measured curves by group."""
        check_batch(CollectivePoint, batch)
        rows = Rows.of(batch)
        reasons, whole = rows.reasons(), rows.stacked("whole")
        out: Columns = {f.name: np.full(batch.num_rows, np.nan) for f in fields(CollectiveMetrics)}
        seen = np.zeros((batch.num_rows, COLUMNS))
        traffic(rows.requests, whole, rows.stacked("rates"), rows.stacked("energy_j_per_bit"), seen)
        for d, name in enumerate(UTILISATIONS):
            out[name] = np.where(whole[rows.plan, d, RANKS] > 1, seen[:, BUSY_NS + d], np.nan)
        level = np.full(batch.num_rows, UNMODELLED)
        _analytic(rows, reasons, out)
        for fidelity in EVENTFUL:
            _event(rows, fidelity, reasons, out)
        _measured(rows, reasons, out, level)
        size = rows.size_bytes.astype(np.float64)
        moving = np.where(out["time_s"] > 0.0, out["time_s"], np.nan)
        for name in UTILISATIONS:
            out[name] = np.minimum(out[name] / NS / moving, 1.0)
        out["utilisation"] = np.fmax.reduce([out[name] for name in UTILISATIONS])
        for bound, other in (("", ""), ("_lo", "_hi"), ("_hi", "_lo")):
            over = np.where(out["time_s" + other] > 0.0, out["time_s" + other], np.nan)
            out["busbw_bytes_per_s" + bound] = rows.busbw_factor * size / over
        out["algbw_bytes_per_s"] = size / moving
        out["messages"], out["wire_bytes"] = seen[:, MESSAGES], seen[:, RANK_BYTES]
        out["energy_j"], out["ranks"] = seen[:, ENERGY_J], rows.ranks
        shares = shares_of(level)
        answer = outcome(CollectiveMetrics, out, infeasible=list(reasons), shares=shares)
        for name in ("energy_j", *UTILISATIONS):
            at = answer.schema.get_field_index(name)
            known = pa.array(out[name], mask=np.isnan(out[name]) | (reasons != ""))
            answer = answer.set_column(at, answer.schema.field(at), known)
        return answer

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return the phases of a modelled collective, or a measured one as a whole.

        Raises:
            Infeasible: the collective cannot be carried out so.
            UserError: a value nothing answers to.
        """
        batch = _batch_of(point)
        [row] = self.evaluate(batch).to_pylist()
        if row["status"] != "ok":
            name, _, words = row["reason"].partition(": ")
            raise Infeasible(name, words)
        rows, [given] = Rows.of(batch), batch.to_pylist()
        memory = float(rows.memory_bytes_per_s[0])
        return explained(rows.plans[0], rows.requests[0], memory, given | row)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files behind a topology's name, and the curves of a GPU."""
        if name == "topology":
            file = file_behind(str(value))
            return () if file is None else (file,)
        if name == "gpu" and str(value) in NETWORKS.names():
            return (NETWORKS.find(str(value)),)
        return (GROWTH,) if name == "" else ()

    def warm_up(self) -> None:
        """Compile the models."""
        for fidelity in ("analytic", *EVENTFUL):
            point = {"collective": "all_reduce", "size_bytes": 1024, "fidelity": fidelity}
            self.evaluate(_batch_of(point))


SIMULATOR = Collectives()


def _batch_of(point: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch of one point; fields that are left out have their defaults."""
    columns = {f.name: [point.get(f.name, f.default)] for f in fields(CollectivePoint)}
    return pa.RecordBatch.from_pydict(columns)


def _analytic(rows: Rows, reasons: NDArray[Any], out: Columns) -> None:
    """Time the rows that ask for the phase model."""
    where = np.flatnonzero(rows.is_word("fidelity", "analytic") & (reasons == ""))
    taken = uncontended_ns(rows.plans, rows.requests[where], rows.memory_bytes_per_s[where])
    impossible = taken == IMPOSSIBLE
    for i in where[impossible]:
        reasons[i] = _why_not(rows, int(i))
    _write(out, where[~impossible], taken[~impossible] / NS)


def _event(rows: Rows, fidelity: str, reasons: NDArray[Any], out: Columns) -> None:
    """Time the rows that ask for events, each distinct one once."""
    where = np.flatnonzero(rows.is_word("fidelity", fidelity) & (reasons == ""))
    done: dict[bytes, Report | str] = {}
    for i in where:
        plan, request = rows.plans[rows.plan[i]], rows.requests[i]
        memory = float(rows.memory_bytes_per_s[i])
        key = request.tobytes() + np.float64(memory).tobytes()
        if key not in done:
            if has_event_model(plan, int(request[OP]), baseline=bool(request[BASELINE])):
                done[key] = _simulated(plan, request, memory, EVENTFUL[fidelity])
            else:
                done[key] = _why_not(rows, int(i))
        found = done[key]
        if isinstance(found, str):
            reasons[i] = found
            continue
        _write(out, np.array([i]), np.array([found.finish_ns / NS]))
        for d in np.flatnonzero(plan.whole[:, RANKS] > 1):
            out[UTILISATIONS[d]][i] = float(found.busy_ns[d])


def _simulated(
    plan: Plan, request: NDArray[np.int64], memory_bytes_per_s: float, mode: int
) -> Report | str:
    """Return a run's report, or why there is none."""
    try:
        report = simulate(plan, request, memory_bytes_per_s, mode=mode)
    except Infeasible as verdict:
        return str(verdict)
    if report.unfinished:
        return f"too_many_events: gave up after {report.link_events:,} link events"
    return report


def _measured(rows: Rows, reasons: NDArray[Any], out: Columns, level: Ints) -> None:
    """Look up the rows that ask for measured times; rows of one curve together."""
    where = np.flatnonzero(rows.is_word("fidelity", "measured") & (reasons == ""))
    named = ("collective", "gpu", "library", "dtype")
    codes = np.stack([rows.plan[where], *(rows.words[n][0][where] for n in named)], axis=1)
    distinct, member = np.unique(codes, axis=0, return_inverse=True)
    for g, (plan, *group) in enumerate(distinct):
        mine = where[member.reshape(-1) == g]
        words = {n: rows.words[n][1][int(c)] for n, c in zip(named, group, strict=True)}
        try:
            timed = measured_s(
                rows.plans[plan],
                size_bytes=rows.size_bytes[mine].astype(np.float64),
                requests=rows.requests[mine],
                memory_bytes_per_s=rows.memory_bytes_per_s[mine],
                **words,
            )
        except Infeasible as verdict:
            reasons[mine] = str(verdict)
            continue
        _write(out, mine, timed.time_s, timed.lo_s, timed.hi_s)
        known = np.where(timed.extrapolated, EXTRAPOLATED, MEASURED)
        level[mine] = known if timed.calibrated else UNMODELLED


def _write(
    out: Columns,
    where: NDArray[np.int64],
    time_s: NDArray[np.float64],
    lo_s: NDArray[np.float64] | None = None,
    hi_s: NDArray[np.float64] | None = None,
) -> None:
    """Write times; a model without an interval states none wider than itself."""
    out["time_s"][where] = time_s
    out["time_s_lo"][where] = time_s if lo_s is None else lo_s
    out["time_s_hi"][where] = time_s if hi_s is None else hi_s


def _why_not(rows: Rows, row: int) -> str:
    """Say which rule an algorithm breaks."""
    plan = rows.plans[rows.plan[row]]
    words = (rows.named_at("algorithm", row), rows.named_at("collective", row), plan.topology.name)
    return "no_such_algorithm: {} cannot do {} on {}; ".format(*words) + (
        "halving_doubling and double_binary_tree need powers of two and do no all_to_all, "
        "in_network needs a switch; a double binary tree does all_reduces alone"
    )
