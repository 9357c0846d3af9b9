"""Times of rows by the fidelity they ask for: formulas, events or measured curves."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.collectives.algorithms import IMPOSSIBLE
from simulators.collectives.batch import CollectiveBatch
from simulators.collectives.closed.hierarchy import measured_s
from simulators.collectives.closed.phases import BASELINE, OP
from simulators.collectives.closed.traffic import BUSY_NS, COLUMNS, ENERGY_J, RANK_BYTES, traffic
from simulators.collectives.events.run import (
    EVENT_LIMIT,
    Report,
    has_event_model,
    simulate,
    uncontended_ns,
)
from simulators.collectives.point import EVENTFUL
from simulators.collectives.topologies.blocks import RANKS
from simulators.collectives.topologies.plan import NS, Plan
from simulators.collectives.traces.operators import Message
from simulators.collectives.traces.step import load_step
from simulators.collectives.traces.timeline import Timeline
from simulators.core.columns import LEVELS, MEASURED, UNMODELLED, shares_of
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints

TINY_S = 1e-12
"""Instead of no time at all where shares of it are taken."""


@dataclass(frozen=True)
class Times:
    """Seconds of rows, what is on their links, and on what evidence; or why there are none."""

    reasons: NDArray[Any]  # empty where there is a time
    seconds: Floats  # the time, and the lower and upper end of its interval
    busy_ns: Floats  # of the busiest links of each dimension; NaN without such a dimension
    traffic: Floats  # columns as of `traffic`
    level: Ints  # positions in `core.columns.LEVELS`

    def write(self, where: Any, *seconds: Any) -> None:
        """Write times; a model without an interval states none wider than itself."""
        for bound, column in enumerate(self.seconds):
            column[where] = seconds[bound if len(seconds) > 1 else 0]


def timed(rows: CollectiveBatch, reasons: NDArray[Any]) -> Times:
    """Return the times of rows that have no reason yet why they cannot exist."""
    count, whole = len(rows.plan), rows.stacked("whole")
    seen = np.zeros((count, COLUMNS))
    traffic(rows.requests, whole, rows.stacked("rates"), rows.stacked("energy_j_per_bit"), seen)
    busy_ns = np.where(whole[rows.plan, :, RANKS] > 1, seen[:, BUSY_NS:], np.nan)
    seconds, level = np.full((3, count), np.nan), np.full(count, UNMODELLED)
    times = Times(reasons, seconds, busy_ns, seen, level)
    _analytic(rows, times)
    for fidelity in EVENTFUL:
        _event(rows, fidelity, times)
    _measured(rows, times)
    return times


@dataclass(frozen=True)
class PlayedStep:
    """A step's timelines, with its messages as they are and at both ends of their intervals."""

    timelines: tuple[Timeline, ...]
    messages: tuple[Message, ...]
    senders: Floats  # ranks that take part in each message, every time it is sent
    times: Times  # of the messages

    def on_wires(self, column: int) -> Floats:
        """Return what every message puts on the wires, of all its ranks, as of `traffic`."""
        each: Floats = self.senders * self.times.traffic[:, column]
        return each if column == RANK_BYTES else each / [len(m.ranks) for m in self.messages]

    @property
    def exposed_s(self) -> Floats:
        """What each message leaves exposed: the whole is divided as their times are."""
        taken_s = self.senders * self.times.seconds[0]
        whole_s = self.timelines[0].comm_exposed_ns / NS
        return np.asarray(whole_s * taken_s / max(float(taken_s.sum()), TINY_S), np.float64)

    @property
    def shares(self) -> Floats:
        """What the step rests on, a share for each of `LEVELS`; its compute is as traced."""
        seconds = shares_of(self.times.level) @ self.exposed_s
        seconds[MEASURED] += max(self.timelines[0].compute_total_ns / NS, TINY_S)
        return np.asarray(seconds / seconds.sum(), np.float64)

    def contributions(self) -> list[Contribution]:
        """Return the compute of the busiest rank, and each message by what it leaves exposed.

        Bytes are those of all ranks.
        """
        step, exposed_s = self.timelines[0], self.exposed_s
        energy_j, moved_bytes = np.nan_to_num(self.on_wires(ENERGY_J)), self.on_wires(RANK_BYTES)
        rows = [
            Contribution(
                phase="step",
                name="compute",
                time_s=step.compute_total_ns / NS,
                bound="compute",
                level="measured",
                note="of the busiest rank, as the trace has it",
            )
        ]
        for i, message in enumerate(self.messages):
            size, ranks = message.size_bytes, len(message.ranks)
            rows.append(
                Contribution(
                    phase="step",
                    name=f"{message.kind} of {size:,} bytes, {ranks} ranks",
                    count=float(self.senders[i] / ranks),
                    time_s=float(exposed_s[i]),
                    energy_j=float(energy_j[i]),
                    moved_bytes=float(moved_bytes[i]),
                    devices=ranks,
                    bound="link",
                    level=LEVELS[self.times.level[i]],
                    note=f"{1e6 * self.times.seconds[0, i]:.1f} us each",
                )
            )
        return rows


def played(rows: CollectiveBatch, row: int) -> PlayedStep:
    """Return the step of a row, its messages timed by the fidelity the row asks for.

    Raises:
        Infeasible: the trace is of other ranks, or a message cannot be carried out so.
        UserError: the trace is not there or not right.
    """
    step = load_step(rows.named_at("trace", row), rows.plans[rows.plan[row]].ranks)
    messages = tuple(step.messages)
    one = rows.of_messages(row, messages)
    times = timed(one, np.full(len(messages), "", object))
    for message, reason in zip(messages, times.reasons, strict=True):
        if reason:
            raise Infeasible("message", f"{message.kind} of {message.size_bytes} bytes: {reason}")
    issue = rows.named_at("issue", row)

    @functools.cache  # ends of an interval without width are the same
    def timeline_with(*taken_ns: int) -> Timeline:
        return step.timeline(dict(zip(messages, taken_ns, strict=True)), issue)

    every_ns = np.rint(times.seconds * NS).astype(np.int64).tolist()
    timelines = tuple(timeline_with(*taken_ns) for taken_ns in every_ns)
    copies = step.ranks // len(step.programs)
    senders = copies * np.array([step.messages[m] for m in messages], np.float64)
    return PlayedStep(timelines, messages, senders, times)


def _analytic(rows: CollectiveBatch, times: Times) -> None:
    """Time the rows that ask for the phase model."""
    where = np.flatnonzero(rows.is_word("fidelity", "analytic") & (times.reasons == ""))
    taken = uncontended_ns(rows.plans, rows.requests[where], rows.memory_bytes_per_s[where])
    impossible = taken == IMPOSSIBLE
    for i in where[impossible]:
        times.reasons[i] = _why_not(rows, int(i))
    times.write(where[~impossible], taken[~impossible] / NS)


def _event(rows: CollectiveBatch, fidelity: str, times: Times) -> None:
    """Time the rows that ask for events, each distinct one once."""
    where = np.flatnonzero(rows.is_word("fidelity", fidelity) & (times.reasons == ""))
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
            times.reasons[i] = found
            continue
        times.write(i, found.finish_ns / NS)
        for d in np.flatnonzero(plan.whole[:, RANKS] > 1):
            times.busy_ns[i, d] = float(found.busy_ns[d])


def _simulated(plan: Plan, request: Ints, memory_bytes_per_s: float, mode: int) -> Report | str:
    """Return a run's report, or why there is none."""
    try:
        report = simulate(plan, request, memory_bytes_per_s, mode=mode)
    except Infeasible as verdict:
        return str(verdict)
    if report.unfinished and report.link_events < EVENT_LIMIT:
        return (
            f"deadlock: {report.unfinished:,} parts of chunks wait in queues for one another; "
            "with queues: 2 both visits of a dimension have queues of their own"
        )
    if report.unfinished:
        return f"too_many_events: gave up after {report.link_events:,} link events"
    return report


def _measured(rows: CollectiveBatch, times: Times) -> None:
    """Look up the rows that ask for measured times; rows of one curve together."""
    where = np.flatnonzero(rows.is_word("fidelity", "measured") & (times.reasons == ""))
    named = ("collective", "gpu", "library", "dtype")
    codes = np.stack([rows.plan[where], *(rows.words[n][0][where] for n in named)], axis=1)
    distinct, member = np.unique(codes, axis=0, return_inverse=True)
    for g, (plan, *group) in enumerate(distinct):
        mine = where[member.reshape(-1) == g]
        words = {n: rows.words[n][1][int(c)] for n, c in zip(named, group, strict=True)}
        try:
            found = measured_s(
                rows.plans[plan],
                size_bytes=rows.size_bytes[mine].astype(np.float64),
                requests=rows.requests[mine],
                memory_bytes_per_s=rows.memory_bytes_per_s[mine],
                **words,
            )
        except Infeasible as verdict:
            times.reasons[mine] = str(verdict)
            continue
        times.write(mine, found.time_s, found.lo_s, found.hi_s)
        times.level[mine] = found.level


def _why_not(rows: CollectiveBatch, row: int) -> str:
    """Say which rule an algorithm breaks."""
    plan = rows.plans[rows.plan[row]]
    words = (rows.named_at("algorithm", row), rows.named_at("collective", row), plan.topology.name)
    return "no_such_algorithm: {} cannot do {} on {}; ".format(*words) + (
        "halving_doubling and double_binary_tree need powers of two and do no all_to_all, "
        "in_network needs a switch; a double binary tree does all_reduces alone"
    )
