"""Axes and metrics of collectives and of traced steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.events.state import IN_TURN, SHARED
from simulators.collectives.traces.timeline import ORDERS as ISSUES
from simulators.core.contract import asked, choice, metric

EVENTFUL = {"event": IN_TURN, "flow": SHARED}
"""Fidelities of the event loop, and their way of sharing links."""
FIDELITIES = ("analytic", *EVENTFUL, "measured")
ORDERS = ("bandwidth_aware", "baseline")
_chunks = partial(choice, at_least=1, at_most=1 << 16)
_routing = partial(choice, at_least=1, at_most=1 << 16, acts_if={"library": ()})
MEASURED_ALONE = {"fidelity": ("measured",)}
_delay = partial(choice, unit="s", at_least=0, at_most=1.0)


@dataclass(frozen=True)
class CollectivePoint:
    """One collective or one step, with algorithm and network."""

    collective: str = asked(
        f"{', '.join(COLLECTIVES[:-1])} or send_recv", default="all_reduce", known=COLLECTIVES
    )
    size_bytes: int = asked(
        "buffer of a rank as in nccl-tests; of an all_gather, the final buffer",
        unit="B",
        default=1 << 20,
        at_least=0,
        at_most=1 << 40,
    )
    trace: str = asked(
        "a step instead of one collective: a folder of Chakra traces or operator graphs, one per "
        "rank, or a file of operators or layers that all ranks run",
        default="",
    )
    issue: str = choice(
        "order of a step's ready communication: earliest first (fifo) or latest first (lifo)",
        default=ISSUES[0],
        known=ISSUES,
        acts_if={"trace": ()},
    )
    topology: str = asked(
        "a file of topologies/, or blocks from the inside out: switch:8,ring:4; torus:4x4; "
        "fat_tree:64:8:2",
        default="hgx_h100",
    )
    algorithm: str = choice(
        "ring, direct, direct:K, halving_doubling, double_binary_tree, in_network or flat:ring; "
        "one for all dimensions, or one per dimension, separated by commas",
        default="halving_doubling",
    )
    splits: int = _chunks("number of chunks of the buffer", default=4)
    active_chunks: int = _chunks("chunks in flight per dimension", default=2)
    queues: int = _chunks("queues per dimension", default=1)
    order: str = choice(
        "order of the phases of an all_reduce over dimensions", default=ORDERS[0], known=ORDERS
    )
    link_bytes_per_s: float | None = choice(
        "bandwidth of every link per direction; null: the topology's",
        unit="B/s",
        default=None,
        at_least=1e6,
        at_most=1e15,
    )
    latency_s: float | None = _delay("latency of every link; null: the topology's", default=None)
    endpoint_delay_s: float = _delay(
        "delay before a first message and after every receive", default=10e-9
    )
    local_memory_bytes_per_s: float = choice(
        "bandwidth of the memory of reductions",
        unit="B/s",
        default=3.35e12,
        at_least=1e6,
        at_most=1e18,
    )
    fidelity: str = asked(
        "measured; or a model: analytic (no contention), event (links serve messages in turn) or "
        "flow (messages share links fairly)",
        default="measured",
        known=FIDELITIES,
    )
    gpu: str = choice(
        "the GPU of measured curves", names="gpu", default="h100_sxm", acts_if=MEASURED_ALONE
    )
    library: str = choice(
        "library of measured times: nccl, an engine with its own all-reduce, or for the all_to_all "
        "of experts deepep_high_throughput, deepep_low_latency or nvlink_all_to_all, whose "
        "size_bytes are a copy of every token for each of its experts",
        default="nccl",
        acts_if=MEASURED_ALONE,
    )
    dtype: str = asked("precision of measured curves", default="fp16", acts_if=MEASURED_ALONE)
    experts: int = _routing("experts on all ranks of an exchange of tokens", default=256)
    top_k: int = _routing("experts that a token is sent to", default=8)


_time = partial(metric, unit="s", page="collectives.md#time-and-bandwidth")
_rate = partial(metric, unit="B/s", page="collectives.md#time-and-bandwidth")
_links = partial(metric, page="collectives.md#links")
_step = partial(metric, unit="s", page="collectives.md#steps")


@dataclass(frozen=True)
class CollectiveMetrics:
    """Times and bandwidths as in nccl-tests, link use, and the parts of a step."""

    time_s: float = _time("time from the first rank's start to the last rank's end", better="min")
    time_s_lo: float = _time("lower end of its 90 % interval")
    time_s_hi: float = _time("upper end of its 90 % interval")
    algbw_bytes_per_s: float = _rate("algorithm bandwidth: size over time")
    busbw_bytes_per_s: float = _rate("bus bandwidth: bytes per link over time", better="max")
    busbw_bytes_per_s_lo: float = _rate("lower end of its 90 % interval")
    busbw_bytes_per_s_hi: float = _rate("upper end of its 90 % interval")
    utilisation: float = _links("share of the time the busiest link is in use")
    utilisation_1: float = _links("share of the time the innermost links are in use")
    utilisation_2: float = _links("the same of the second dimension; null without one")
    utilisation_3: float = _links("the same of the third dimension; null without one")
    utilisation_4: float = _links("the same of the fourth dimension; null without one")
    messages: float = _links("number of messages of all ranks")
    wire_bytes: float = _links("mean bytes sent per rank", unit="B")
    energy_j: float = _links("energy of all links; null unless the topology states it", unit="J")
    ranks: int = _links("participating ranks")
    compute_s: float = _step("compute of a step's busiest rank")
    comm_total_s: float = _step("communication of the rank with the most communication")
    comm_exposed_s: float = _step("exposed communication: not hidden by compute")
    comm_recorded_s: float = _step(
        "communication as recorded in the trace, of the rank with the most; null if not recorded"
    )
