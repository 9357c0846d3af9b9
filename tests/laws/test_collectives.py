"""Laws of collectives: measured, in closed form, and event by event."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.catalog.gpu import load_gpu
from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.measured import NETWORKS
from simulators.collectives.simulator import SIMULATOR
from simulators.collectives.topologies.blocks import BLOCK, BLOCKS, RANKS
from simulators.collectives.topologies.plan import NS, Plan, plan_of
from simulators.core.columns import LEVELS, batch_of
from simulators.core.folder import GPUS
from tests.laws.laws import Laws, Mask, Sample, at_most, between, close, one_of, whole

NODES = ("switch:2", "switch:4", "switch:8")
TOPOLOGIES = (*NODES, "ring:4", "ring:5", "full:4", "full:6", "torus:2x4", "switch:4,switch:4")
TOPOLOGIES += ("ring:4,switch:2", "fat_tree:16:4:2", "switch:2,full:2,ring:3")
ALGORITHMS = ("ring", "direct", "direct:2", "halving_doubling", "double_binary_tree")
EVENTS = ("event", "flow")


def consistent(point: dict[str, Any]) -> dict[str, Any]:
    """Return a point whose algorithm supports its collective, with a measured library."""
    if point["algorithm"] == "double_binary_tree":
        point["collective"] = "all_reduce"
    if point["algorithm"] == "in_network":
        point["topology"] = "switch:8"
    if point["collective"] != "all_reduce" or point["gpu"] == "b60":
        point["library"] = "oneccl" if point["gpu"] == "b60" else "nccl"
    return point


LAWS = Laws(
    SIMULATOR,
    draws={
        "collective": one_of(*COLLECTIVES),
        "size_bytes": whole(1 << 8, 1 << 32),
        "topology": one_of(*TOPOLOGIES, *NODES),
        "algorithm": one_of(*ALGORITHMS, "flat:ring", "in_network"),
        "splits": one_of(1, 2, 3, 4, 7, 16),
        "active_chunks": one_of(1, 2, 3, 16),
        "queues": one_of(1, 1, 2, 3),
        "link_bytes_per_s": one_of(None, 1e9, 2.5e10, 4.5e11),
        "latency_s": one_of(None, 0.0, 1e-7, 1e-5),
        "endpoint_delay_s": one_of(0.0, 1e-8, 1e-6),
        "local_memory_bytes_per_s": between(1e10, 1e13),
        "fidelity": one_of("measured", "measured", "analytic", "analytic", *EVENTS),
        "gpu": one_of(*NETWORKS.names()),
        "library": one_of("nccl", "nccl", "nccl", "vllm"),
        "dtype": one_of("fp16", "bf16"),
    },
    consistent=consistent,
)
law = LAWS.law
ENDS = ("", "_lo", "_hi")


def plans(sample: Sample) -> list[Plan]:
    """Return the plan of each row."""
    words = ("topology", "algorithm", "link_bytes_per_s", "latency_s")
    return list(sample.per_row(lambda p: plan_of(*(p[word] for word in words))))


def is_model(sample: Sample) -> Mask:
    """Return where the time is that of an algorithm, not of a measured library."""
    return np.asarray(sample["fidelity"] != "measured")


def in_closed_form(sample: Sample) -> Mask:
    """Return where the time is a closed form."""
    return np.asarray(sample["fidelity"] == "analytic")


def rank_bytes_per_s(sample: Sample) -> np.ndarray:
    """Return the bandwidth of all links that a rank sends over."""

    def links(row: Any) -> int:
        peers = max(int(row[RANKS]) - 1, 1)
        return {"ring": 2, "fully_connected": peers}.get(BLOCKS[row[BLOCK]], 1)

    return np.array(
        [
            sum(
                NS * rates[0] * links(row)
                for row, rates in zip(plan.whole, plan.rates, strict=True)
                if row[RANKS] > 1
            )
            for plan in plans(sample)
        ]
    )


def sent_share(sample: Sample) -> np.ndarray:
    """Return the share of its buffer that a rank at least sends, over all ranks."""
    sums = np.where(sample["collective"] == "all_reduce", 2.0, 1.0)
    sums = np.where(sample["algorithm"] == "in_network", 1.0, sums)
    share = sums * (sample["ranks"] - 1) / sample["ranks"]
    return np.asarray(np.where(sample["collective"] == "send_recv", 1.0, share))


def rounding_s(sample: Sample) -> np.ndarray:
    """Return a nanosecond for each message and chunk: the models count whole nanoseconds."""
    return np.asarray((sample["messages"] + 64.0 * sample["splits"]) / NS)


@law
def interval_contains_the_time(sample: Sample) -> Mask:
    """The prediction interval contains the predicted time; that of a model has no width."""
    lo_s, time_s, hi_s = (sample["time_s" + end] for end in ("_lo", "", "_hi"))
    has_width = (lo_s < time_s) & (time_s < hi_s)
    return np.where(is_model(sample), (lo_s == time_s) & (time_s == hi_s), has_width)


@law
def bandwidths_are_ordered(sample: Sample) -> Mask:
    """The interval of the bus bandwidth contains it."""
    lo, rate, hi = (sample["busbw_bytes_per_s" + end] for end in ("_lo", "", "_hi"))
    return at_most(lo, rate) & at_most(rate, hi)


@law
def bandwidth_times_time_is_size(sample: Sample) -> Mask:
    """Algorithm bandwidth times the time is the size of the buffer; a model counts whole
    nanoseconds, and without any there is no bandwidth."""
    return (sample["time_s"] == 0.0) | close(
        sample["algbw_bytes_per_s"] * sample["time_s"], sample["size_bytes"]
    )


@law
def bus_bandwidth_is_that_of_nccl_tests(sample: Sample) -> Mask:
    """Bus over algorithm bandwidth is 2(n-1)/n, (n-1)/n, or 1 of a broadcast and a send."""
    ranks, kind = sample["ranks"], sample["collective"]
    factor = np.where(kind == "all_reduce", 2.0, 1.0) * (ranks - 1) / ranks
    factor = np.where((kind == "broadcast") | (kind == "send_recv"), 1.0, factor)
    return close(sample["busbw_bytes_per_s"], factor * sample["algbw_bytes_per_s"])


@law
def utilization_is_a_share(sample: Sample) -> Mask:
    """Utilization lies in 0 to 1, and that of all links is the highest of a dimension; it is null
    for a measured collective that the named algorithm does not support, and without any time."""
    each = np.array([sample[f"utilisation_{d}"] for d in range(1, 5)], float)
    highest = np.fmax.reduce(each)
    is_share = (highest >= 0.0) & (highest <= 1.0) & (sample["utilisation"] == highest)
    return is_share | (np.isnan(highest) & (~is_model(sample) | (sample["time_s"] == 0.0)))


@law
def evidence_shares_sum_to_one(sample: Sample) -> Mask:
    """The shares of the time by evidence level sum to 1."""
    return close(sum(sample[f"{level}_share"] for level in LEVELS), 1.0)


@law
def bytes_are_conserved(sample: Sample) -> Mask:
    """A rank sends at least the part of its buffer that the other ranks need."""
    return at_most(sent_share(sample) * sample["size_bytes"], sample["wire_bytes"])


@law
def messages_are_whole(sample: Sample) -> Mask:
    """The number of messages of all ranks is a whole number of at least one less than the ranks."""
    whole_number = np.rint(sample["messages"])  # null where the algorithm does not apply
    expected = np.where(sample["collective"] == "send_recv", 1, sample["ranks"] - 1)
    return close(sample["messages"], whole_number) & at_most(expected, whole_number)


@law
def links_bound_the_time(sample: Sample) -> Mask:
    """A model takes at least the time of a rank's bytes over all its links."""
    least_s = sample["wire_bytes"] / rank_bytes_per_s(sample)
    return ~is_model(sample) | at_most(least_s, sample["time_s"] + rounding_s(sample))


@law
def bus_bandwidth_is_at_most_the_links(sample: Sample) -> Mask:
    """The bus bandwidth of a model is at most that of a rank's links; a switch that adds doubles
    it, and a root or a sender sends its whole buffer."""
    needed_s = sent_share(sample) * sample["size_bytes"] / rank_bytes_per_s(sample)
    return ~is_model(sample) | at_most(needed_s, sample["time_s"] + rounding_s(sample))


@law
def measured_bandwidth_is_at_most_the_ports(sample: Sample) -> Mask:
    """Inside a node the algorithm bandwidth of a measured library is at most that of the GPU's
    ports, over the part of the buffer that a switch with sums leaves to a rank."""
    ports = sample.per_row(
        lambda p: load_gpu(p["gpu"]).link_bytes_per_s if GPUS.has(p["gpu"]) else 0
    )
    elsewhere = ~np.isin(sample["topology"], NODES) | is_model(sample) | ~(ports > 0.0)
    ranks = np.where(sample["collective"] == "send_recv", np.inf, sample["ranks"])
    moved = sample["size_bytes"] * (1.0 - 1.0 / ranks)
    return elsewhere | at_most(moved / np.where(elsewhere, np.inf, ports), sample["time_s_hi"])


@law
def time_is_at_least_a_latency(sample: Sample) -> Mask:
    """A model takes at least the latency of a link and an endpoint delay."""
    least = [
        min(r[1] for row, r in zip(p.whole, p.rates, strict=True) if row[RANKS] > 1)
        for p in plans(sample)
    ]
    least_s = np.floor(least) / NS + sample["endpoint_delay_s"]
    return ~is_model(sample) | at_most(least_s, sample["time_s"] + 2.0 / NS)


@law
def larger_buffers_take_longer(sample: Sample) -> Mask:
    """One byte more is never faster in closed form. Measured curves fall where a library changes
    its protocol."""
    pair = sample.changed(size_bytes=lambda p: p["size_bytes"] + 1)
    return ~in_closed_form(sample) | pair.holds(at_most, "time_s")


@law
def twice_the_buffer_takes_longer(sample: Sample) -> Mask:
    """Twice the buffer is never faster in closed form."""
    pair = sample.changed(size_bytes=lambda p: 2 * p["size_bytes"])
    return ~in_closed_form(sample) | pair.holds(at_most, "time_s")


@law
def faster_links_are_never_slower(sample: Sample) -> Mask:
    """Links ten times as fast do not increase a closed form."""
    pair = sample.changed(link_bytes_per_s=lambda p: 10.0 * (p["link_bytes_per_s"] or 1e12))
    return ~in_closed_form(sample) | pair.holds(lambda slow, fast: at_most(fast, slow), "time_s")


@law
def faster_memory_is_never_slower(sample: Sample) -> Mask:
    """Memory ten times as fast does not increase a closed form."""
    pair = sample.changed(local_memory_bytes_per_s=lambda p: 10 * p["local_memory_bytes_per_s"])
    return ~in_closed_form(sample) | pair.holds(lambda slow, fast: at_most(fast, slow), "time_s")


@law
def links_without_latency_are_never_slower(sample: Sample) -> Mask:
    """Links without latency do not increase a closed form."""
    pair = sample.changed(latency_s=0.0)
    return ~in_closed_form(sample) | pair.holds(lambda slow, fast: at_most(fast, slow), "time_s")


@law
def units_scale(sample: Sample) -> Mask:
    """Twice the bytes over links and memory twice as fast take as long, up to nanoseconds."""
    pair = sample.changed(
        size_bytes=lambda p: 2 * p["size_bytes"],
        link_bytes_per_s=lambda p: 2.0 * (p["link_bytes_per_s"] or 1e12),
        local_memory_bytes_per_s=lambda p: 2.0 * p["local_memory_bytes_per_s"],
    )
    has_parts = sample["size_bytes"] >= 1e4 * sample["splits"] * sample["ranks"]
    applies = in_closed_form(sample) & has_parts & (sample["link_bytes_per_s"] > 0.0)
    return ~applies | pair.holds(lambda one, two: np.abs(one - two) <= 1e-6 + 1e-3 * one, "time_s")


@law
def closed_form_is_at_most_the_events(sample: Sample) -> Mask:
    """A collective without contention takes at most as long as with contention. In a fat tree the
    closed form sends all messages through the upper switches, events only those that must; of a
    window it takes the mean over its steps."""
    pair = sample.changed(fidelity="analytic")
    events = np.isin(sample["fidelity"], EVENTS)
    events &= ~sample.per_row(lambda p: "fat_tree" in p["topology"] or p["algorithm"] == "direct:2")
    found = pair.holds(lambda shared, alone: at_most(alone, shared, 1e-3), "time_s")
    tiny = sample["time_s"] < 1e3 * rounding_s(sample) / sample["ranks"]
    return np.asarray(~events | tiny | found)


@law
def model_options_leave_measured_times(sample: Sample) -> Mask:
    """Chunks, queues and delays of models change no measured time inside a node."""
    pair = sample.changed(splits=5, queues=4, endpoint_delay_s=1e-3, algorithm="ring")
    applies = ~is_model(sample) & np.isin(sample["topology"], NODES)
    return ~applies | pair.holds(close, "time_s")


@law
def unmeasured_nodes_have_wider_intervals(sample: Sample) -> Mask:
    """The interval over 64 nodes is at least as wide as inside a measured node."""
    pair = sample.changed(topology=lambda p: p["topology"] + ",switch:64", algorithm="ring")
    applies = ~is_model(sample) & np.isin(sample["topology"], NODES)
    size = int(pair.after.feasible.size)
    first = pair.both[pair.before.feasible]
    other = pair.both[:size][pair.after.feasible]
    alone, nodes = pair.before, pair.after
    wide = alone["time_s_hi"][first] / alone["time_s"][first]
    found = np.ones(applies.size, bool)
    found[first] = at_most(wide, nodes["time_s_hi"][other] / nodes["time_s"][other])
    return ~applies | found


@law
def explained_times_sum_to_the_time(sample: Sample) -> Mask:
    """The contributions to a collective sum to its time."""
    found = np.ones(int(sample.feasible.sum()), bool)
    for number, point in enumerate(sample.per_row(lambda p: p)[:20]):
        total = sum(part.time_s for part in SIMULATOR.explain(point))
        found[number] = bool(close(total, sample["time_s"][number]))
    return found


@law
def row_is_the_same_alone(sample: Sample) -> Mask:
    """A row has the same bits alone and in a batch."""
    found = np.ones(int(sample.feasible.sum()), bool)
    for number, point in enumerate(sample.per_row(lambda p: p)[:20]):
        [row] = SIMULATOR.evaluate(batch_of(SIMULATOR.point, point)).to_pylist()
        found[number] = all(row["time_s" + end] == sample["time_s" + end][number] for end in ENDS)
    return found


test_laws_of_collectives = LAWS.tests()
