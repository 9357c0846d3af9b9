"""What can be asked of a collective or a step of many, and what is answered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.events.state import IN_TURN, SHARED
from simulators.collectives.traces.timeline import ORDERS as ISSUES
from simulators.core.contract import asked, choice, metric

EVENTFUL = {"event": IN_TURN, "flow": SHARED}
"""Fidelities of the event loop, and how messages meet on links there."""
FIDELITIES = ("analytic", *EVENTFUL, "measured")
ORDERS = ("bandwidth_aware", "baseline")
_chunks = partial(choice, at_least=1, at_most=1 << 16)


@dataclass(frozen=True)
class CollectivePoint:
    """One collective, or a step of many, their algorithm, and the network they run on."""

    collective: str = asked(
        f"{', '.join(COLLECTIVES[:-1])} or send_recv", default="all_reduce", known=COLLECTIVES
    )
    size_bytes: int = asked(
        "buffer of a rank, as nccl-tests count: of an all_gather what it has in the end",
        unit="B",
        default=1 << 20,
    )
    trace: str = asked(
        "a step instead: a folder of Chakra traces or operator graphs, one for each rank, or a "
        "file of operators or layers that all ranks run",
        default="",
    )
    issue: str = choice(
        "of a step's communication that is ready: the earliest first (fifo) or the latest (lifo)",
        default=ISSUES[0],
        known=ISSUES,
    )
    topology: str = asked(
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
    fidelity: str = asked(
        "measured; or a model: analytic (no contention), event (links serve messages in turn) or "
        "flow (messages share links fairly)",
        default="measured",
        known=FIDELITIES,
    )
    gpu: str = choice("whose interconnect, when measured", names="gpu", default="h100_sxm")
    library: str = choice(
        "whose collectives, when measured: nccl, or an engine that has its own", default="nccl"
    )
    dtype: str = asked("precision of the numbers, when measured", default="fp16")


_time = partial(metric, unit="s", page="collectives.md#time-and-bandwidth")
_rate = partial(metric, unit="B/s", page="collectives.md#time-and-bandwidth")
_links = partial(metric, page="collectives.md#links")
_step = partial(metric, unit="s", page="collectives.md#steps")


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
    compute_s: float = _step("compute of a step's busiest rank")
    comm_total_s: float = _step("sum of a step's communication, of the rank that has most")
    comm_exposed_s: float = _step("communication that compute does not hide")
