"""Laws of training runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.catalog.gpu import load_gpu
from simulators.kernels.energy import idle_w_of, peak_w_of
from simulators.training.simulator import SIMULATOR
from tests.laws.laws import Laws, Mask, Sample, at_most, between, close, one_of, whole

MIXTURES = ("mixtral_8x7b", "gpt_oss_20b")
MODELS = ("llama3_1_8b", "mistral_7b", "llama2_70b", *MIXTURES)
GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb300", "mi300x", "l40s")
DEGREES = (1, 1, 2, 4, 8)


def consistent(point: dict[str, Any]) -> dict[str, Any]:
    """Return a point without the contradictions that make most random plans infeasible."""
    point["batch"] *= point["dp"] * point["micro_batch"]
    if point["model"] not in MIXTURES:
        point |= {"ep": 1, "expert_tp": 1, "capacity_factor": 0.0, "routing_skew": 0.0}
    if point["schedule"] != "interleaved":
        point["chunks"] = 2 if point["schedule"] == "dualpipe_v" else 1
    return point


LAWS = Laws(
    SIMULATOR,
    draws={
        "model": one_of(*MODELS),
        "gpu": one_of(*GPUS),
        "tp": one_of(*DEGREES),
        "pp": one_of(*DEGREES),
        "dp": one_of(*DEGREES, 64),
        "cp": one_of(1, 1, 1, 2),
        "ep": one_of(1, 1, 1, 2, 8),
        "expert_tp": one_of(1, 1, 1, 2),
        "chunks": one_of(1, 1, 1, 2),
        "batch": whole(1, 64),
        "micro_batch": one_of(1, 1, 2, 4),
        "sequence": one_of(512, 2048, 4096, 8192),
        "zero": one_of(0, 1, 1, 2, 3, 3),
        "shard_ranks": one_of(0, 0, 0, 2),
        "lora_rank": one_of(0, 0, 16),
        "routing_skew": one_of(0.0, 0.0, 0.5),
        "capacity_factor": one_of(0.0, 0.0, 1.25),
        "tokens": between(1e9, 1e13),
        "target_loss": one_of(0.0, 0.0, 2.2),
        "host_adam_per_s": between(1e8, 1e10),
        "token_bytes": one_of(4.0, 4.0, 1e4),
        "storage_bytes_per_s": between(1e6, 1e10),
        "gpu_mtbf_h": between(1e4, 1e6),
        "checkpoint_s": one_of(0.0, 0.0, 30.0),
        "restart_s": between(0.0, 3600.0),
        "cluster": one_of("auto"),
        "prices": one_of("public_cloud", "owned"),
    },
    consistent=consistent,
)
law = LAWS.law


def gpus(sample: Sample) -> np.ndarray:
    """Return the number of GPUs per row."""
    return sample.per_row(lambda p: p["tp"] * p["pp"] * p["dp"] * p["cp"])


@law
def energy_is_at_least_idle_energy(sample: Sample) -> Mask:
    """A GPU draws at least its idle power during the whole step."""
    idle_w = sample.per_row(lambda p: idle_w_of(load_gpu(p["gpu"])))
    return at_most(idle_w * sample["step_s"] * gpus(sample), sample["energy_j"])


@law
def energy_is_at_most_peak_energy(sample: Sample) -> Mask:
    """A GPU draws at most its power limit."""
    peak_w = sample.per_row(lambda p: peak_w_of(load_gpu(p["gpu"])))
    return at_most(sample["energy_j"], peak_w * sample["step_s"] * gpus(sample))


@law
def interval_contains_the_step_time(sample: Sample) -> Mask:
    """The prediction interval contains the predicted step time."""
    inside = at_most(sample["step_s_lo"], sample["step_s"])
    return inside & at_most(sample["step_s"], sample["step_s_hi"])


@law
def percentiles_are_ordered(sample: Sample) -> Mask:
    """The 95th percentile of the step time is at least its median."""
    return at_most(sample["step_p50_s"], sample["step_p95_s"])


@law
def parts_are_not_negative(sample: Sample) -> Mask:
    """No part of a step is negative."""
    parts = ("compute_s", "bubble_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "dp_comm_s")
    parts += ("straggler_s", "optimizer_s", "loading_s")
    return np.all([sample[part] >= 0.0 for part in parts], axis=0)


@law
def compute_is_part_of_the_step(sample: Sample) -> Mask:
    """A step takes at least the kernel time of a rank and its update."""
    return at_most(sample["compute_s"] + sample["optimizer_s"], sample["step_s"])


@law
def parts_sum_to_the_step_without_pipeline(sample: Sample) -> Mask:
    """Without pipeline stages, the parts of a step sum to its time."""
    parts = ("compute_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "dp_comm_s", "straggler_s")
    total = sum(sample[part] for part in (*parts, "optimizer_s", "loading_s"))
    return (sample["pp"] > 1) | close(total, sample["step_s"])


@law
def tokens_are_conserved(sample: Sample) -> Mask:
    """Tokens per second times the step time are the tokens of a batch."""
    tokens = sample["batch"] * sample["sequence"]
    return close(sample["tokens_per_s"] * sample["step_s"], tokens)


@law
def rates_per_gpu_sum_to_the_total(sample: Sample) -> Mask:
    """Tokens per second of all GPUs sum to the total."""
    return close(sample["tokens_per_s_per_gpu"] * gpus(sample), sample["tokens_per_s"])


@law
def utilization_is_at_most_one(sample: Sample) -> Mask:
    """Model FLOPs utilization lies in 0 to 1."""
    return (sample["mfu"] > 0.0) & (sample["mfu"] <= 1.0)


@law
def bubble_share_is_a_share(sample: Sample) -> Mask:
    """The pipeline bubble is a part of the pipeline's time."""
    return (sample["bubble_share"] >= 0.0) & (sample["bubble_share"] < 1.0)


@law
def goodput_is_a_share(sample: Sample) -> Mask:
    """Goodput lies in 0 to 1."""
    return (sample["goodput_share"] > 0.0) & (sample["goodput_share"] <= 1.0)


@law
def run_takes_at_least_its_steps(sample: Sample) -> Mask:
    """A run takes at least its tokens over the tokens per second, divided by nothing but losses."""
    return at_most(sample["run_tokens"] / sample["tokens_per_s"], sample["run_s"])


@law
def run_energy_is_at_least_energy_of_its_steps(sample: Sample) -> Mask:
    """A run needs at least the energy of its steps."""
    steps = sample["run_tokens"] / (sample["batch"] * sample["sequence"])
    return at_most(steps * sample["energy_j"], sample["run_energy_j"])


@law
def memory_fits_the_gpu(sample: Sample) -> Mask:
    """The fullest rank of a feasible plan fits its GPU's memory."""
    hbm_bytes = sample.per_row(lambda p: load_gpu(p["gpu"]).hbm_bytes)
    return at_most(sample["memory_bytes"], hbm_bytes)


@law
def memory_is_at_least_its_parts(sample: Sample) -> Mask:
    """Memory of the fullest rank holds weights, gradients, optimizer states and activations."""
    parts = ("weight_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes")
    return at_most(sum(sample[part] for part in parts), sample["memory_bytes"])


@law
def scaled_tokens_scale_the_run(sample: Sample) -> Mask:
    """Twice the tokens take twice the time, unless `target_loss` decides."""
    pair = sample.changed(tokens=lambda p: 2.0 * p["tokens"])
    fixed = sample["target_loss"] > 0.0
    return fixed | pair.holds(lambda one, two: close(2.0 * one, two, 1e-6), "run_s")


@law
def price_does_not_change_physics(sample: Sample) -> Mask:
    """A price list changes no time and no energy."""
    pair = sample.changed(prices="owned")
    return pair.holds(close, "step_s") & pair.holds(close, "run_energy_j")


@law
def faster_storage_is_never_slower(sample: Sample) -> Mask:
    """Ten times the storage bandwidth does not increase the step time."""
    pair = sample.changed(storage_bytes_per_s=lambda p: 10.0 * p["storage_bytes_per_s"])
    return pair.holds(lambda slow, fast: at_most(fast, slow), "step_s")


@law
def rarer_failures_increase_goodput(sample: Sample) -> Mask:
    """Ten times the time between failures does not lower goodput."""
    pair = sample.changed(gpu_mtbf_h=lambda p: 10.0 * p["gpu_mtbf_h"])
    return pair.holds(at_most, "goodput_share")


@law
def equal_gpus_do_not_wait_longer(sample: Sample) -> Mask:
    """The median step of equal GPUs is at most that of GPUs with different speeds."""
    pair = sample.changed(gpu_spread=0.0)
    return pair.holds(lambda spread, equal: at_most(equal, spread), "step_p50_s")


@law
def overlap_is_never_slower(sample: Sample) -> Mask:
    """Overlapping gradient reduction with the backward pass does not increase the step time."""
    pair = sample.changed(overlap=True)
    return pair.holds(lambda alone, hidden: at_most(hidden, alone), "step_s")


LAWS.add_same_alone()
test_laws_of_training = LAWS.tests()
