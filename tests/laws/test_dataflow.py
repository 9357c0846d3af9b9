"""Laws of layers and networks on spatial accelerators.

The mapper is a heuristic: more evaluations, or a larger buffer, may find a worse mapping. So laws
that compare two accelerators are about the bounds of all mappings and all schedules.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.catalog.accelerator import Accelerator
from simulators.dataflow.mapping import layers_of, network_names
from simulators.dataflow.network import batched
from simulators.dataflow.search.map_space import dataflows
from simulators.dataflow.simulator import SIMULATOR, DataflowPoint, machine_for
from tests.laws.laws import Laws, Mask, Sample, at_most, close, one_of, whole

ARRAYS = ("eyeriss_like", "two_level", "two_level")
MACHINES = (*ARRAYS * 9, "simba_like", "gpu_sm_like", "tpu_like")
LAYERS = [(net, layer.name) for net in network_names() for layer, _ in layers_of(net, "all")]
CHAIN = "llama7b_decode_block_1024"


def consistent(point: dict[str, Any]) -> dict[str, Any]:
    """Return a point with a layer of its network, or a short network as a whole."""
    point["network"], point["layer"] = point["layer"]
    if point["accelerator"] not in ARRAYS:
        point |= {"pe_rows": 0, "pe_cols": 0}
    if point["most_fused"] > 1:
        point |= {"network": CHAIN, "layer": "all", "accelerator": "two_level"}
    return point


LAWS = Laws(
    SIMULATOR,
    draws={
        "accelerator": one_of(*MACHINES),
        "network": one_of(""),
        "layer": lambda dice: LAYERS[int(dice.integers(len(LAYERS)))],
        "pe_rows": one_of(0, 0, 4, 8, 16, 24),
        "pe_cols": one_of(0, 0, 4, 14, 16, 32),
        "buffer_scale": one_of(1.0, 1.0, 0.5, 4.0),
        "spad_scale": one_of(1.0, 1.0, 0.5, 2.0),
        "dram_type": one_of("", "", "lpddr4", "ddr3", "gddr5", "hbm2"),
        "node_nm": one_of(0.0, 0.0, 65.0, 28.0, 7.0),
        "dataflow": one_of("any", "any", *dataflows()),
        "constraints": one_of(""),
        "mapping": one_of(""),
        "residency": one_of("network", "network", "layer"),
        "most_fused": one_of(*[1] * 19, 4),
        "batch": one_of(1, 1, 2),
        "buffer_bytes": one_of(0.0),
        "memory_bytes_per_s": one_of(0.0, 0.0, 1e10),
        "ports": one_of(0, 0, 1, 2),
        "buffering": one_of(0, 0, 1, 2),
        "weight_density": one_of("1", "1", "0.3", "2:4", "banded 0.1"),
        "input_density": one_of("1", "1", "0.5"),
        "weight_format": one_of("none", "none", "bitmask", "coordinate", "run_length"),
        "input_format": one_of("none", "none", "bitmask"),
        "zeros": one_of("none", "none", "gating", "skipping"),
        "evaluations": whole(10, 200),
        "seed": one_of(0, 1, 2),
    },
    consistent=consistent,
    few=80,
)
law = LAWS.law


def machine(point: dict[str, Any]) -> Accelerator:
    """Return the accelerator of a point."""
    return machine_for(DataflowPoint(**point))


def is_dense(sample: Sample) -> Mask:
    """Return the rows without zeros, in which every word moves and every multiply runs."""
    given = ("weight_density", "input_density", "weight_format", "input_format", "zeros")
    usual = ("1", "1", "none", "none", "none")
    return np.all([sample[n] == v for n, v in zip(given, usual, strict=True)], axis=0)


def lower(before: Any, after: Any) -> Mask:
    """Return where a changed column is at most the column before."""
    return at_most(after, before)


@law
def totals_are_positive_and_finite(sample: Sample) -> Mask:
    """Energy, time, area and traffic are positive and finite."""
    names = ("energy_j", "latency_s", "area_mm2", "dram_bytes", "cycles")
    return np.all([(sample[n] > 0.0) & np.isfinite(sample[n]) for n in names], axis=0)


@law
def time_is_cycles_over_the_clock(sample: Sample) -> Mask:
    """Cycles take the time of the accelerator's clock."""
    return close(
        sample["cycles"] / sample.per_row(lambda p: machine(p).clock_hz), sample["latency_s"]
    )


@law
def delay_product_is_energy_times_time(sample: Sample) -> Mask:
    """The energy-delay product is the product of both columns."""
    return close(sample["energy_j"] * sample["latency_s"], sample["edp_js"])


@law
def multiplies_are_those_of_the_layers(sample: Sample) -> Mask:
    """An accelerator multiplies what the layers ask for, whatever its mapping and zeros."""
    macs = sample.per_row(
        lambda p: sum(
            times * one.macs * p["batch"] for one, times in layers_of(p["network"], p["layer"])
        )
    )
    return sample["macs"] == macs


@law
def utilization_is_at_most_one(sample: Sample) -> Mask:
    """A multiplier multiplies at most once per cycle; skipped multiplies of zeros count as work."""
    share = (sample["utilization"] > 0.0) & (sample["utilization"] <= 1.0)
    return share | (sample["zeros"] == "skipping")


@law
def cycles_are_at_least_multiplies_over_multipliers(sample: Sample) -> Mask:
    """Multipliers times cycles are at least the multiplies, unless zeros are skipped."""
    units = sample.per_row(lambda p: machine(p).mac.instances)
    return at_most(sample["macs"], units * sample["cycles"]) | (sample["zeros"] == "skipping")


@law
def bounds_are_below_the_found_mapping(sample: Sample) -> Mask:
    """No mapping needs less energy or time than the bounds of all mappings."""
    energy = at_most(sample["energy_bound_j"], sample["energy_j"])
    return energy & at_most(sample["latency_bound_s"], sample["latency_s"])


@law
def gap_is_a_share(sample: Sample) -> Mask:
    """The possible saving of the energy-delay product lies in 0 to 1."""
    return (sample["gap"] >= -1e-9) & (sample["gap"] < 1.0)


@law
def energy_is_shared_out(sample: Sample) -> Mask:
    """The shares of the outermost level and of the array lie in 0 to 1, and so does their sum."""
    dram, array = sample["dram_energy_share"], sample["array_energy_share"]
    return (dram >= 0.0) & (array >= 0.0) & at_most(dram + array, 1.0)


@law
def tensors_cross_the_outermost_level(sample: Sample) -> Mask:
    """Weights and result of a dense layer cross the outermost level at least once.

    Inputs are left out, because a stride skips some of them. Fused layers keep tensors on chip.
    """

    def words(point: dict[str, Any]) -> float:
        [(layer, _)] = layers_of(point["network"], point["layer"])
        layer = batched(layer, point["batch"])
        sizes = [one.words(layer.extents) for one in layer.tensors if one.name != "Inputs"]
        return sum(sizes) * machine(point).levels[0].word_bits / 8.0

    least = sample.per_row(lambda p: 0.0 if p["most_fused"] > 1 else words(p))
    return ~is_dense(sample) | at_most(least, sample["dram_bytes"])


@law
def explanation_sums_to_the_row(sample: Sample) -> Mask:
    """Times, energies and FLOPs of `explain` sum to those of the row."""
    found = np.ones(int(sample.feasible.sum()), bool)
    for number, point in enumerate(sample.per_row(lambda p: p)[:12]):
        lines = SIMULATOR.explain(point)
        found[number] = (
            close(sum(line.time_s for line in lines), sample["latency_s"][number])
            & close(sum(line.energy_j for line in lines), sample["energy_j"][number])
            & close(sum(line.flops for line in lines), 2.0 * sample["macs"][number])
        )
    return found


@law
def larger_arrays_have_lower_time_bounds(sample: Sample) -> Mask:
    """Four times the multipliers do not raise the least time, and take more area."""
    pair = sample.changed(
        pe_rows=lambda p: 2 * machine(p).mac.mesh[1] if p["accelerator"] in ARRAYS else 0,
        pe_cols=lambda p: 2 * machine(p).mac.mesh[0] if p["accelerator"] in ARRAYS else 0,
        evaluations=1,
    )
    time = (sample["most_fused"] > 1) | pair.holds(lower, "latency_bound_s")
    return time & pair.holds(at_most, "area_mm2")


@law
def larger_buffers_have_lower_time_bounds(sample: Sample) -> Mask:
    """Twice the shared buffer takes more area and does not raise the least time.

    Energy is left out: an access of a larger buffer needs more.
    """
    pair = sample.changed(buffer_scale=lambda p: 2.0 * p["buffer_scale"], evaluations=1)
    time = (sample["most_fused"] > 1) | pair.holds(lower, "latency_bound_s")
    return time & pair.holds(at_most, "area_mm2")


@law
def newer_nodes_have_lower_energy_bounds(sample: Sample) -> Mask:
    """A node of 5 nm lowers area and least energy."""
    pair = sample.changed(node_nm=5.0, evaluations=1)
    energy = (sample["most_fused"] > 1) | pair.holds(lower, "energy_bound_j")
    return energy & pair.holds(lower, "area_mm2")


@law
def zeros_save_energy_and_time(sample: Sample) -> Mask:
    """Skipped zeros without metadata never cost energy or cycles over dense operands.

    The mapping is that of the dense operands in both cases.
    """
    plain = {"weight_format": "none", "input_format": "none"}
    dense = sample.changed(weight_density="1", input_density="1", zeros="none", **plain)
    sparse = sample.changed(weight_density="0.3", zeros="skipping", **plain)
    pair = type(dense)(dense.after, sparse.after)
    saved = pair.holds(lower, "energy_j") & pair.holds(lower, "cycles")
    found = np.ones(sample.feasible.size, bool)
    found[: dense.after.feasible.size][dense.after.feasible] = saved
    return found[sample.feasible]


LAWS.add_same_alone(12)
test_laws_of_dataflow = LAWS.tests()
