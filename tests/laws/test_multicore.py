"""Laws of networks on chips of several cores."""

from __future__ import annotations

import numpy as np

from simulators.dataflow.mapping import layers_of
from simulators.multicore.simulator import SIMULATOR
from tests.laws.laws import Laws, Mask, Sample, at_most, close, one_of, whole

CHIPS = ("two_level", "2*two_level", "3*two_level", "eyeriss_like + simba_like", "2*eyeriss_like")
NETWORKS = ("llama7b_decode_block_1024", "llama7b_decode_block_1024", "llama7b_prefill_block_512")
FIXED = ("round_robin", "rows", "channels")


LAWS = Laws(
    SIMULATOR,
    draws={
        "cores": one_of(*CHIPS),
        "network": one_of(*NETWORKS),
        "batch": one_of(1, 1, 2),
        "pipelining": one_of("layers", "rows"),
        "tiles": one_of(1, 4, 16),
        "allocation": one_of("search", *FIXED),
        "noc": one_of("bus", "mesh"),
        "noc_bytes_per_s": one_of(1e9, 32e9),
        "noc_pj_per_bit": one_of(0.0, 1.0),
        "memory_bytes_per_s": one_of(2e9, 2e10),
        "l2_bytes": one_of(0.0, 0.0, 1e6),
        "l2_bytes_per_s": one_of(0.0, 1e11),
        "l2_pj_per_bit": one_of(0.0, 0.1),
        "dataflow": one_of("any"),
        "evaluations": one_of(10),
        "allocations": whole(1, 8),
        "seed": one_of(0, 1),
    },
    few=12,
    many=200,
)
law = LAWS.law


@law
def totals_are_positive_and_finite(sample: Sample) -> Mask:
    """Energy, time, area and traffic are positive and finite."""
    names = ("energy_j", "latency_s", "area_mm2", "dram_bytes")
    return np.all([(sample[n] > 0.0) & np.isfinite(sample[n]) for n in names], axis=0)


@law
def delay_product_is_energy_times_time(sample: Sample) -> Mask:
    """The energy-delay product is the product of both columns."""
    return close(sample["energy_j"] * sample["latency_s"], sample["edp_js"])


@law
def throughput_is_inputs_over_time(sample: Sample) -> Mask:
    """Batches run one after the other."""
    return close(sample["inputs_per_s"] * sample["latency_s"], sample["batch"])


@law
def multiplies_are_those_of_the_layers(sample: Sample) -> Mask:
    """A chip multiplies what the layers ask for, whatever its cores."""
    macs = sample.per_row(
        lambda p: sum(n * one.macs * p["batch"] for one, n in layers_of(p["network"], "all"))
    )
    return sample["macs"] == macs


@law
def shares_are_between_zero_and_one(sample: Sample) -> Mask:
    """No core, link or port is busy for longer than the batch takes."""
    names = ("utilization", "core_utilization_max", "dram_port_utilization", "noc_utilization")
    return np.all([(sample[n] >= 0.0) & (sample[n] <= 1.0 + 1e-9) for n in names], axis=0)


@law
def cores_are_ordered_by_use(sample: Sample) -> Mask:
    """The mean is between the idlest and the busiest core."""
    mean = sample["core_utilization"]
    least = at_most(sample["core_utilization_min"], mean)
    return least & at_most(mean, sample["core_utilization_max"])


@law
def the_bound_is_below_the_time(sample: Sample) -> Mask:
    """No allocation beats the bound, and the gap is their distance."""
    gap = 1.0 - sample["latency_bound_s"] / sample["latency_s"]
    return at_most(sample["latency_bound_s"], sample["latency_s"]) & close(sample["gap"], gap)


@law
def weights_are_part_of_what_dram_moves(sample: Sample) -> Mask:
    """Weights and spilled tensors are among the bytes of the DRAM port."""
    parts = sample["weight_dram_bytes"] + sample["spilled_bytes"]
    return at_most(parts, sample["dram_bytes"])


@law
def one_core_moves_nothing_between_cores(sample: Sample) -> Mask:
    """Bytes between cores need two of them."""
    alone = sample.per_row(lambda p: p["cores"] == "two_level").astype(bool)
    return ~alone | ((sample["noc_bytes"] == 0.0) & (sample["cores_used"] == 1))


@law
def searches_keep_to_their_budget(sample: Sample) -> Mask:
    """A search simulates at most as many allocations as the point allows."""
    return sample["allocations_tried"] <= np.maximum(sample["allocations"], 1)


test_laws_of_multicore = LAWS.tests()
