"""Times of a batch of collectives by fidelity: formulas, events or measured curves."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.cluster import AUTO, Cluster, cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.collectives import phase_model as at
from simulators.collectives.algorithms import (
    ALL_GATHER,
    BROADCAST,
    COLLECTIVES,
    HALVING_DOUBLING,
    IMPOSSIBLE,
    RING,
    SEND_RECV,
)
from simulators.collectives.events.run import (
    EVENT_LIMIT,
    Report,
    has_event_model,
    simulate,
    uncontended_ns,
)
from simulators.collectives.library_models import (
    HIGH_THROUGHPUT,
    LOW_LATENCY,
    NVLINK,
    Routed,
    between_s,
    network_between,
)
from simulators.collectives.measured import CollectiveTime, busbw_factor, measured_time, over_nodes
from simulators.collectives.point import EVENTFUL, CollectivePoint
from simulators.collectives.price import expert_exchange_time
from simulators.collectives.topologies.blocks import ALGORITHM, BLOCK, FULL_BLOCK, RANKS, RING_BLOCK
from simulators.collectives.topologies.plan import NS, Plan, plan_among, plan_of
from simulators.collectives.traces.operators import Message
from simulators.collectives.traces.step import load_step
from simulators.collectives.traces.timeline import Timeline
from simulators.core.columns import (
    DATASHEET,
    FITTED,
    LEVELS,
    MEASURED,
    categories,
    equal_row_groups,
    numbers,
    shares_of,
)
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible
from simulators.core.fields import columns_of
from simulators.core.jit import Floats, Ints

WORDS = tuple(column.name for column in columns_of(CollectivePoint) if column.hint is str)


@dataclass(frozen=True)
class CollectiveBatch:
    """A batch as the arrays that kernels take."""

    words: dict[str, tuple[NDArray[np.int64], list[Any]]]
    plans: tuple[Plan, ...]
    plan: NDArray[np.int64]
    requests: NDArray[np.int64]
    memory_bytes_per_s: NDArray[np.float64]
    size_bytes: NDArray[np.int64]
    routed: NDArray[np.int64]  # experts and experts per token

    @staticmethod
    def of(batch: pa.RecordBatch) -> CollectiveBatch:
        """Return the arrays of a validated batch.

        Raises:
            UserError: the topology or the algorithm is invalid.
        """
        words = {name: categories(batch, name) for name in WORDS}
        plans, plan = _plans(batch)
        size = numbers(batch, "size_bytes").astype(np.int64)
        ranks = np.array([p.ranks for p in plans], np.int64)[plan]
        op = np.array([COLLECTIVES.index(c) for c in words["collective"][1]], np.int64)
        op = op[words["collective"][0]]
        memory = numbers(batch, "local_memory_bytes_per_s").astype(np.float64)
        requests = np.zeros((batch.num_rows, 8), np.int64)
        requests[:, at.PLAN], requests[:, at.OP] = plan, op
        for column, name in (
            (at.SPLITS, "splits"),
            (at.ACTIVE, "active_chunks"),
            (at.QUEUES, "queues"),
        ):
            requests[:, column] = numbers(batch, name).astype(np.int64)
        requests[:, at.SIZE] = _padded(
            np.where(op == ALL_GATHER, -(-size // ranks), size), op, ranks, requests[:, at.SPLITS]
        )
        requests[:, at.ENDPOINT_NS] = np.rint(numbers(batch, "endpoint_delay_s") * NS)
        codes, orders = words["order"]
        requests[:, at.BASELINE] = np.array([o == "baseline" for o in orders], np.int64)[codes]
        routed = [numbers(batch, name).astype(np.int64) for name in ("experts", "top_k")]
        return CollectiveBatch(words, plans, plan, requests, memory, size, np.stack(routed, axis=1))

    def of_messages(self, row: int, messages: Sequence[Message]) -> CollectiveBatch:
        """Return a batch of a step's messages, each on its part of the network of one row."""
        whole, algorithm = self.plans[self.plan[row]], self.named_at("algorithm", row)
        plans = (*(plan_among(m.ranks, whole.topology, algorithm) for m in messages), whole)
        count = len(messages)
        words = {name: (np.zeros(count, np.int64), [self.named_at(name, row)]) for name in WORDS}
        op = np.array([COLLECTIVES.index(message.kind) for message in messages])
        words["collective"] = op, list(COLLECTIVES)
        size = np.array([max(message.size_bytes, 1) for message in messages])
        requests = np.tile(self.requests[row], (count, 1))
        requests[:, at.PLAN], requests[:, at.OP] = np.arange(count), op
        everyone = np.array([len(m.ranks) for m in messages])
        requests[:, at.SIZE] = _padded(size, op, everyone, requests[:, at.SPLITS])
        gathered = size * np.where(op == ALL_GATHER, everyone, 1)
        memory = np.full(count, self.memory_bytes_per_s[row])
        routed = np.tile(self.routed[row], (count, 1))
        return CollectiveBatch(words, plans, np.arange(count), requests, memory, gathered, routed)

    def named_at(self, name: str, row: int) -> str:
        """Return the value of a text column in one row."""
        codes, values = self.words[name]
        return str(values[codes[row]])

    def is_word(self, name: str, value: str) -> NDArray[np.bool_]:
        """Return a mask of the rows where a text column has a value."""
        codes, values = self.words[name]
        found: NDArray[np.bool_] = np.array([v == value for v in values], bool)[codes]
        return found

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Participating ranks of each row."""
        ranks: NDArray[np.int64] = np.array([p.ranks for p in self.plans], np.int64)[self.plan]
        return ranks

    @property
    def busbw_factor(self) -> NDArray[np.float64]:
        """Bus bandwidth over algorithm bandwidth of each row."""
        codes, collectives = self.words["collective"]
        table = np.array([[busbw_factor(c, p.ranks) for p in self.plans] for c in collectives])
        factor: NDArray[np.float64] = table[codes, self.plan]
        return factor

    def reasons(self) -> NDArray[Any]:
        """Return the reason of each row that its sizes make infeasible; empty for other rows."""
        ranks = self.ranks
        reasons = np.full(self.size_bytes.size, "", object)
        reasons[ranks < 2] = "one_rank: a collective needs at least two"
        small = (self.size_bytes < ranks) & (self.requests[:, at.OP] != SEND_RECV)
        for i in np.flatnonzero(small | (self.size_bytes < 1)):
            reasons[i] = f"size_below_ranks: {self.size_bytes[i]} bytes for {ranks[i]} ranks"
        return reasons


def _padded(size_bytes: Ints, op: Ints, ranks: Ints, splits: Ints) -> Ints:
    """Return sizes that divide into equal chunks with an equal part for each rank.

    ASTRA-sim sends the remainder of a size as another chunk of full size, which may take half as
    long again for a byte less; here the last chunk is padded.
    """
    part = np.where(np.isin(op, (ALL_GATHER, BROADCAST, SEND_RECV)), splits, splits * ranks)
    return np.maximum(-(-size_bytes // part), 1) * part


def _plans(batch: pa.RecordBatch) -> tuple[tuple[Plan, ...], NDArray[np.int64]]:
    groups = equal_row_groups(batch, ("topology", "algorithm", "link_bytes_per_s", "latency_s"))
    plan = np.zeros(batch.num_rows, np.int64)
    for position, (rows, _) in enumerate(groups):
        plan[rows] = position
    return tuple(plan_of(*words.values()) for _, words in groups), plan


def measured_s(
    plan: Plan,
    *,
    collective: str,
    gpu: str,
    library: str,
    dtype: str,
    routed: tuple[int, int],
    size_bytes: Floats,
    requests: Ints,
    memory_bytes_per_s: Floats,
) -> CollectiveTime:
    """Return the time of a collective on one node or several.

    `routed` are experts and experts per token of an exchange by DeepEP.

    Raises:
        UnknownNameError: the library was not measured on this GPU.
        Infeasible: this collective was not measured with the library.
    """
    inside, plan = plan.topology.dimensions[0].ranks, _with_network(plan, gpu)
    if library in EXCHANGES:
        if collective != "all_to_all":
            raise Infeasible("not_measured", f"{library} sends tokens to experts: an all_to_all")
        return _exchanged(plan, library, gpu, Routed(*routed), size_bytes)

    def timed(part: str) -> CollectiveTime:
        return measured_time(
            gpu=gpu,
            library=library,
            collective=part,
            dtype=dtype,
            ranks=inside,
            size_bytes=size_bytes,
        )

    if plan.ranks == inside:
        return timed(collective)
    known, is_exchange = network_between(collective), collective == "all_to_all"
    if is_exchange:  # as NCCL exchanges, whatever the algorithm of the topology
        nodes, cluster = plan.ranks // inside, _cluster_of(plan, gpu)
        nodes_s = between_s(collective, size_bytes, nodes, inside, cluster, known)
    else:
        share_bytes = size_bytes / inside
        nodes_s = _between_nodes_s(plan, collective, share_bytes, requests, memory_bytes_per_s)
    level = np.full(size_bytes.shape, FITTED if is_exchange else DATASHEET)
    between = CollectiveTime(nodes_s, nodes_s / known.band, nodes_s * known.band, level)
    found = over_nodes(collective, between, timed)
    if inside == 1:
        return found
    node = timed(collective)  # no setting is better known than a measured node
    lo_s = np.minimum(found.lo_s, found.time_s * node.lo_s / node.time_s)
    hi_s = np.maximum(found.hi_s, found.time_s * node.hi_s / node.time_s)
    return replace(found, lo_s=lo_s, hi_s=hi_s)


EXCHANGES = {
    "deepep_high_throughput": HIGH_THROUGHPUT,
    "deepep_low_latency": LOW_LATENCY,
    "nvlink_all_to_all": NVLINK,
}
"""Modes of expert exchanges by library."""


def _exchanged(
    plan: Plan, library: str, gpu: str, routed: Routed, size_bytes: Floats
) -> CollectiveTime:
    """Return the time of a dispatch or a combine of tokens; sizes count a copy for each expert."""
    if routed.experts % plan.ranks or routed.top_k > routed.experts:
        raise Infeasible(
            "experts",
            f"{routed.experts} experts, {routed.top_k} per token, on {plan.ranks} ranks: experts "
            "must be a multiple of the ranks, and top_k at most experts",
        )
    if library == "nvlink_all_to_all" and plan.ranks > plan.topology.dimensions[0].ranks:
        raise Infeasible(
            "several_domains", f"{library} stays in one NVLink domain, such as switch:72"
        )
    return expert_exchange_time(
        EXCHANGES[library],
        size_bytes / routed.top_k,
        routed,
        ranks=plan.ranks,
        gpu=load_gpu(gpu),
        cluster=_cluster_of(plan, gpu),
    )


def _with_network(plan: Plan, gpu: str) -> Plan:
    """Return a plan whose nodes are joined by the GPU's usual network, where none is stated."""
    node, *outer = plan.topology.dimensions
    if not any(one.is_usual for one in outer):
        return plan
    port = cluster_for(AUTO, load_gpu(gpu)).inter.bytes_per_s
    stated = [replace(one, bytes_per_s=port) if one.is_usual else one for one in outer]
    rates, dimensions = plan.rates.copy(), (node, *stated)
    if plan.whole[1, RANKS] == 1:  # a flat ring, on the slowest link
        rates[0, 0] = min(one.bytes_per_s for one in dimensions) / NS
    else:
        rates[: len(dimensions), 0] = [one.bytes_per_s / NS for one in dimensions]
    return replace(plan, topology=replace(plan.topology, dimensions=dimensions), rates=rates)


def _cluster_of(plan: Plan, gpu: str) -> Cluster:
    """Return the GPU's usual cluster with the nodes of a plan and its slowest link between them."""
    node, *outer = plan.topology.dimensions
    usual = cluster_for(AUTO, load_gpu(gpu))
    slowest = min((one.bytes_per_s for one in outer), default=usual.inter.bytes_per_s)
    inter = replace(usual.inter, bytes_per_s=slowest)
    return replace(usual, gpus_per_node=node.ranks, inter=inter)


def _between_nodes_s(
    plan: Plan, collective: str, share_bytes: Floats, requests: Ints, memory_bytes_per_s: Floats
) -> Floats:
    """Return the seconds of the dimensions between nodes, by the phase model."""
    node, *outer = plan.topology.dimensions
    network = replace(plan.topology, dimensions=(replace(node, ranks=1), *outer))
    whole = plan.whole.copy()
    whole[0, RANKS] //= node.ranks  # one node, or all nodes around a flat ring
    op, nodes = COLLECTIVES.index(collective), network.ranks
    asked = requests.copy()
    asked[:, at.PLAN] = 0
    size = share_bytes / nodes if op == ALL_GATHER else share_bytes
    if collective in ("all_to_all", "send_recv", "broadcast"):
        size = share_bytes * node.ranks
    asked[:, at.OP] = op
    asked[:, at.SIZE] = _padded(
        np.ceil(size).astype(np.int64),
        asked[:, at.OP],
        np.full(len(asked), nodes),
        asked[:, at.SPLITS],
    )
    taken = _closed_form_ns(
        [replace(plan, topology=network, whole=whole)], asked, memory_bytes_per_s
    )
    if (taken == IMPOSSIBLE).any():
        raise Infeasible(
            "no_such_algorithm", f"{collective} over {nodes} nodes of {plan.topology.name}"
        )
    return taken / NS


TINY_S = 1e-12
"""Lower limit of a time that shares are divided by."""


@dataclass(frozen=True)
class Times:
    """Times of rows with their link traffic and evidence level, or reasons without a time."""

    reasons: NDArray[Any]  # of infeasible rows; empty for rows with a time
    seconds: Floats  # the time, and the lower and upper end of its interval
    busy_ns: Floats  # of the busiest links, by row and dimension; NaN without the dimension
    traffic: Floats  # with the columns of `phase_model.traffic`
    level: Ints  # positions in `core.columns.LEVELS`

    def write(self, where: Any, *seconds: Any) -> None:
        """Write times of rows; without an interval, both ends equal the time."""
        for bound, column in enumerate(self.seconds):
            column[where] = seconds[bound if len(seconds) > 1 else 0]


def timed(rows: CollectiveBatch, reasons: NDArray[Any]) -> Times:
    """Return the times of the feasible rows; write the reasons of the others."""
    count = len(rows.plan)
    seen, busy_ns = _traffic(rows.plans, rows.requests)
    seconds, level = np.full((3, count), np.nan), np.full(count, DATASHEET)
    times = Times(reasons, seconds, busy_ns, seen, level)
    _analytic(rows, times)
    for fidelity in EVENTFUL:
        _event(rows, fidelity, times)
    _measured(rows, times)
    return times


def _traffic(plans: Sequence[Plan], requests: Ints) -> tuple[Floats, Floats]:
    """Return the columns of `traffic`, and ns of the links in use by row and dimension.

    NaN without the dimension, and where the algorithm does not support the collective.
    """
    whole = np.stack([p.whole for p in plans])
    seen = np.zeros((len(requests), at.COLUMNS))
    energy = np.stack([p.energy_j_per_bit for p in plans])
    at.traffic(requests, whole, np.stack([p.rates for p in plans]), energy, seen)
    seen[seen[:, at.MESSAGES] == 0.0] = np.nan
    links = _links_in_use(whole[requests[:, at.PLAN]], requests[:, at.QUEUES, None])
    ranks = whole[requests[:, at.PLAN], :, RANKS]
    busy_ns = seen[:, at.BUSY_NS : at.LEAST_NS] / links
    return seen, np.where(ranks > 1, busy_ns, np.nan)


def _links_in_use(dimensions: Ints, queues: Ints) -> Floats:
    """Return the number of links that a rank sends over; a second queue goes backwards."""
    block, ranks, algorithm = (dimensions[..., column] for column in (BLOCK, RANKS, ALGORITHM))
    peers = np.maximum(ranks - 1, 1)
    along = np.minimum(queues, 2)
    halving = np.ceil(np.log2(np.maximum(ranks, 2)))
    used = np.where(algorithm == HALVING_DOUBLING, halving, peers)
    used = np.where(algorithm == RING, np.minimum(along, peers), used)
    around = np.where(algorithm == RING, along, 2)
    is_ring, is_full = block == RING_BLOCK, block == FULL_BLOCK
    return np.where(is_ring, around, np.where(is_full, used, 1)).astype(np.float64)


def _closed_form_ns(plans: Sequence[Plan], requests: Ints, memory_bytes_per_s: Floats) -> Floats:
    """Return the ns of every request without contention, or IMPOSSIBLE.

    Messages pass through one another in the phase model, but links have a bandwidth: no collective
    is faster than its bytes over the links that carry them: those of a mean rank, the port of a
    broadcast's root, and the uplinks of a leaf switch. The last chunk of a broadcast follows the
    first one at the pace of the busiest link.
    """
    taken = uncontended_ns(plans, requests, memory_bytes_per_s)
    seen, busy_ns = _traffic(plans, requests)
    busiest_ns = np.fmax.reduce(np.hstack([busy_ns, seen[:, at.LEAST_NS :]]), axis=1)
    if (rows := np.flatnonzero(requests[:, at.OP] == BROADCAST)).size:
        everyone = np.array([plan.ranks for plan in plans])[requests[rows, at.PLAN]]
        first = requests[rows]
        sizes = zip(requests[rows], everyone, strict=True)
        first[:, at.SIZE] = [at.chunk_bytes(row, ranks) for row, ranks in sizes]
        first[:, at.SPLITS] = 1
        one_ns = uncontended_ns(plans, first, memory_bytes_per_s[rows])
        one_ns = uncontended_ns(plans, first, memory_bytes_per_s[rows])
        chunks = np.ceil(requests[rows, at.SIZE] / first[:, at.SIZE])
        lines = np.minimum(requests[rows, at.QUEUES], 2)  # of chunks that do not follow each other
        later_ns = np.maximum(chunks - lines, 0.0) * np.floor(busiest_ns[rows] / chunks)
        busiest_ns[rows] = np.fmax(busiest_ns[rows], one_ns + later_ns)
    return np.where(taken == IMPOSSIBLE, taken, np.fmax(taken, np.ceil(busiest_ns)))


@dataclass(frozen=True)
class PlayedStep:
    """Timelines of a step: at the predicted message times and at both ends of their intervals."""

    timelines: tuple[Timeline, ...]
    messages: tuple[Message, ...]
    senders: Floats  # number of sends of each message, summed over its ranks
    times: Times  # of the messages
    recorded_ns: int  # communication as the trace states it, of the rank with most; 0: unknown

    def on_wires(self, column: int) -> Floats:
        """Return a column of `traffic` for every message, summed over all ranks and sends."""
        each: Floats = self.senders * self.times.traffic[:, column]
        return each if column == at.RANK_BYTES else each / [len(m.ranks) for m in self.messages]

    @property
    def exposed_s(self) -> Floats:
        """Exposed seconds of each message: the total, divided in proportion to message times."""
        taken_s = self.senders * self.times.seconds[0]
        whole_s = self.timelines[0].comm_exposed_ns / NS
        return np.asarray(whole_s * taken_s / max(float(taken_s.sum()), TINY_S), np.float64)

    @property
    def shares(self) -> Floats:
        """Shares of the step's time by evidence level; compute counts as measured."""
        seconds = shares_of(self.times.level) @ self.exposed_s
        seconds[MEASURED] += max(self.timelines[0].compute_total_ns / NS, TINY_S)
        return np.asarray(seconds / seconds.sum(), np.float64)

    def contributions(self) -> list[Contribution]:
        """Return the compute of the busiest rank, and the exposed time of each message.

        Bytes are sums over all ranks.
        """
        step, exposed_s = self.timelines[0], self.exposed_s
        energy_j = np.nan_to_num(self.on_wires(at.ENERGY_J))
        moved_bytes = self.on_wires(at.RANK_BYTES)
        rows = [
            Contribution(
                phase="step",
                name="compute",
                time_s=step.compute_total_ns / NS,
                bound="compute",
                level="measured",
                note="of the busiest rank, from the trace",
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
    """Return the step of a row, with message times of the row's fidelity.

    Raises:
        Infeasible: the trace has another number of ranks, or a message has no algorithm.
        UserError: the trace is missing or malformed.
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
    return PlayedStep(timelines, messages, senders, times, step.recorded_ns)


def _analytic(rows: CollectiveBatch, times: Times) -> None:
    where = np.flatnonzero(rows.is_word("fidelity", "analytic") & (times.reasons == ""))
    taken = _closed_form_ns(rows.plans, rows.requests[where], rows.memory_bytes_per_s[where])
    impossible = taken == IMPOSSIBLE
    for i in where[impossible]:
        times.reasons[i] = _why_not(rows, int(i))
    times.write(where[~impossible], taken[~impossible] / NS)


def _event(rows: CollectiveBatch, fidelity: str, times: Times) -> None:
    """Write the times of rows of an event fidelity; equal rows are simulated once."""
    where = np.flatnonzero(rows.is_word("fidelity", fidelity) & (times.reasons == ""))
    done: dict[bytes, Report | str] = {}
    for i in where:
        plan, request = rows.plans[rows.plan[i]], rows.requests[i]
        memory = float(rows.memory_bytes_per_s[i])
        key = request.tobytes() + np.float64(memory).tobytes()
        if key not in done:
            if has_event_model(plan, int(request[at.OP]), baseline=bool(request[at.BASELINE])):
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
    """Write the times of rows with the fidelity `measured`; rows of one curve are read together."""
    where = np.flatnonzero(rows.is_word("fidelity", "measured") & (times.reasons == ""))
    named = ("collective", "gpu", "library", "dtype")
    codes = [rows.plan[where], *rows.routed[where].T, *(rows.words[n][0][where] for n in named)]
    distinct, member = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    for g, (plan, experts, top_k, *group) in enumerate(distinct):
        mine = where[member.reshape(-1) == g]
        words = {n: rows.words[n][1][int(c)] for n, c in zip(named, group, strict=True)}
        try:
            found = measured_s(
                rows.plans[plan],
                routed=(int(experts), int(top_k)),
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
    plan = rows.plans[rows.plan[row]]
    words = (rows.named_at("algorithm", row), rows.named_at("collective", row), plan.topology.name)
    return "no_such_algorithm: {} cannot do {} on {}; ".format(*words) + (
        "halving_doubling and double_binary_tree need powers of two and do no all_to_all, "
        "in_network needs a switch; a double binary tree does all_reduces alone"
    )
