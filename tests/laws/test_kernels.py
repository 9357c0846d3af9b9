"""Laws of single operators on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from simulators.catalog.gpu import CACHE, GPU_SCALES, PIM, Gpu, load_gpu, what_if
from simulators.core.columns import LEVELS
from simulators.kernels.energy import idle_w_of, peak_w_of
from simulators.kernels.simulator import AUXILIARY, OPS, PRODUCTS, SIMULATOR
from simulators.workload.precision import PRECISIONS
from tests.laws.laws import Laws, Mask, Sample, at_most, close, one_of, whole

GPUS = ("v100_sxm", "t4", "a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm", "mi210")
GPUS += ("mi300x", "rtx_4090", "tpu_v5e", "xeon_8480", "mi100_pim", "epyc_9654")
SIZES = ("batch", "m", "n", "k", "rows", "cols", "new_tokens", "past_tokens")
IMAGES = ("in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")
HEADS = ("heads", "kv_heads", "head_dim")
ROUTES = ("experts", "top_k")
SAME = {"gemm": "bmm", "ln": "layer_norm", "sampling": "softmax", "add": "mul", "addu": "relu"}
"""Operators with two names: any name gives the same numbers."""

TUNED_BY = {**dict.fromkeys((*AUXILIARY, "embedding"), ("cols",)), "grouped_gemm": ("n", "k")}
"""Sizes for which libraries tune the kernels of an operator."""


def consistent(point: dict[str, Any]) -> dict[str, Any]:
    """Return a point whose heads, experts and filters can exist, mostly with a known tile."""
    point["heads"] *= point["kv_heads"]
    point["top_k"] = min(point["top_k"], point["experts"])
    point["kernel_size"] = min(point["kernel_size"], point["input_size"])
    if "attention" in point["op"] or point["op"].startswith(("conv", "state")):
        point["batch"] = min(point["batch"], 64)
    if point["op"] not in ("gemm", "linear", "bmm", "lm_head") or not point["tile_m"]:
        point |= {"tile_m": 0, "tile_n": 0, "split_k": 0}
    return point


_scale = one_of(1.0, 1.0, 0.5, 0.75, 2.0)
LAWS = Laws(
    SIMULATOR,
    draws={
        "gpu": one_of(*GPUS),
        "op": one_of(*PRODUCTS, *PRODUCTS, *OPS),
        "dtype": one_of("fp16", "fp16", "bf16", "fp32", "fp8", "w4a16", "int8"),
        "weight_dtype": one_of("", "", "", "int4", "fp8"),
        "batch": whole(1, 512),
        "m": whole(1, 16384),
        "n": whole(1, 16384),
        "k": whole(1, 16384),
        "rows": whole(1, 16384),
        "cols": whole(1, 16384),
        "heads": one_of(1, 2, 4, 8, 16),
        "kv_heads": one_of(1, 2, 8),
        "head_dim": one_of(64, 80, 128, 256),
        "new_tokens": whole(1, 4096),
        "past_tokens": whole(0, 16384),
        "experts": one_of(1, 8, 64, 128),
        "top_k": one_of(1, 2, 8),
        "in_channels": whole(1, 512),
        "out_channels": whole(1, 512),
        "kernel_size": one_of(1, 3, 3, 7),
        "input_size": whole(1, 224),
        "stride": one_of(1, 1, 2),
        "padding": one_of(0, 0, 1),
        "framework": one_of("trtllm", "trtllm", "vllm", "sglang"),
        "information": one_of("best", "best", "zero_shot"),
        "tile_m": one_of(0, 0, 0, 64, 128),
        "tile_n": one_of(64, 128, 256),
        "split_k": one_of(0, 1, 4),
        **dict.fromkeys(GPU_SCALES, _scale),
    },
    consistent=consistent,
)
law = LAWS.law


def sheet(point: dict[str, Any]) -> Gpu:
    """Return the what-if GPU of a point."""
    return what_if(load_gpu(point["gpu"]), **{scale: point[scale] for scale in GPU_SCALES})


def product_flops(point: dict[str, Any]) -> float:
    """Return the FLOPs of a matrix product, by its definition."""
    copies = point["batch"] if point["op"] in ("gemm", "bmm") else 1
    return 2.0 * copies * point["m"] * point["n"] * point["k"]


def has(sample: Sample, *ops: str) -> Mask:
    """Return the rows of some operators."""
    return np.isin(sample["op"], ops)


PLAIN_PRODUCTS = ("gemm", "linear", "bmm", "lm_head")


@law
def latency_is_positive_and_finite(sample: Sample) -> Mask:
    """Every launch takes some time, and not for ever."""
    return (sample["latency_s"] > 0.0) & np.isfinite(sample["latency_s_hi"])


@law
def memory_bandwidth_limits_the_latency(sample: Sample) -> Mask:
    """Operands move at most at the bandwidth of the device memory.

    Devices whose data sheet states caches or processing in memory are left out: small operands of
    a CPU stay in its caches, and memory that computes moves operands inside.
    """
    bandwidth = sample.per_row(lambda p: sheet(p).hbm_bytes_per_s)
    kinds = (CACHE, PIM)
    inside = sample.per_row(lambda p: any(v.kind in kinds for v in load_gpu(p["gpu"]).levels))
    return inside | at_most(sample["bytes"] / bandwidth, sample["latency_s"])


@law
def utilization_is_at_most_one(sample: Sample) -> Mask:
    """Model FLOPs utilization lies in 0 to 1.

    Winograd's convolution of 3 x 3 filters needs up to four times fewer multiplications than it is
    credited with, and memory that computes has FLOPs beyond the peak of the device.
    """
    most = np.where(has(sample, "conv") & (sample["kernel_size"] == 3), 4.0, 1.0)
    inside = sample["gpu"] == "mi100_pim"
    return (sample["mfu"] >= 0.0) & (inside | at_most(sample["mfu"], most))


@law
def interval_contains_the_latency(sample: Sample) -> Mask:
    """The prediction interval contains the predicted latency, and its lower end is positive."""
    inside = at_most(sample["latency_s_lo"], sample["latency_s"])
    return (
        (sample["latency_s_lo"] > 0.0)
        & inside
        & at_most(sample["latency_s"], sample["latency_s_hi"])
    )


@law
def energy_is_power_times_time(sample: Sample) -> Mask:
    """One power leads from the three times to the three energies."""
    watts = sample["energy_j"] / sample["latency_s"]
    lo = close(sample["energy_j_lo"], watts * sample["latency_s_lo"])
    return lo & close(sample["energy_j_hi"], watts * sample["latency_s_hi"])


@law
def energy_is_at_least_idle_energy(sample: Sample) -> Mask:
    """A GPU draws at least its idle power."""
    idle_w = sample.per_row(lambda p: idle_w_of(sheet(p)))
    return at_most(idle_w * sample["latency_s"], sample["energy_j"])


@law
def energy_is_at_most_peak_energy(sample: Sample) -> Mask:
    """A GPU draws at most its power limit."""
    peak_w = sample.per_row(lambda p: peak_w_of(sheet(p)))
    return at_most(sample["energy_j"], peak_w * sample["latency_s"])


@law
def products_have_the_flops_of_their_definition(sample: Sample) -> Mask:
    """A product of m x k by k x n has 2 m n k FLOPs; each expert row multiplies once."""
    found = sample.per_row(product_flops)
    routed = 2.0 * sample["m"] * sample["n"] * sample["k"] * sample["top_k"]
    plain = ~has(sample, *PLAIN_PRODUCTS) | close(sample["flops"], found)
    return plain & (~has(sample, "grouped_gemm") | close(sample["flops"], routed))


@law
def products_move_their_result(sample: Sample) -> Mask:
    """A product writes at least one byte per element of its result."""
    copies = np.where(has(sample, "gemm", "bmm"), sample["batch"], 1)
    least = copies * sample["m"] * sample["n"]
    return ~has(sample, *PLAIN_PRODUCTS) | at_most(least, sample["bytes"])


@law
def work_is_positive(sample: Sample) -> Mask:
    """Every operator moves bytes and has no negative arithmetic."""
    return (sample["bytes"] > 0.0) & (sample["flops"] >= 0.0)


@law
def utilization_is_achieved_over_peak(sample: Sample) -> Mask:
    """Utilization times latency times the peak of the scaled GPU gives the FLOPs."""

    def peak(point: dict[str, Any]) -> float:
        how, rates = PRECISIONS.get(point["dtype"]), sheet(point).peak_flops
        return rates.get(how.compute if how else point["dtype"], rates["fp32"])

    found = sample["mfu"] * sample["latency_s"] * sample.per_row(peak)
    return close(found, sample["flops"])


@law
def operands_fit_the_memory(sample: Sample) -> Mask:
    """Operands of a feasible operator fit the memory of the GPU."""
    return at_most(sample["bytes"], sample.per_row(lambda p: load_gpu(p["gpu"]).hbm_bytes))


@law
def evidence_is_shared_out(sample: Sample) -> Mask:
    """Shares of evidence sum to one, and times of a what-if GPU were never measured."""
    shares = [sample[f"{level}_share"] for level in LEVELS]
    scaled = sample.per_row(lambda p: any(p[scale] != 1.0 for scale in GPU_SCALES))
    known = sample["measured_share"] + sample["fitted_share"]
    return close(sum(shares), 1.0) & (~scaled | (known == 0.0))


@law
def hardware_does_not_change_the_work(sample: Sample) -> Mask:
    """FLOPs and bytes belong to the operator, not to the GPU, library or knowledge."""
    pair = sample.changed(
        sm_scale=3.0, bandwidth_scale=3.0, framework="vllm", information="zero_shot", isolated=True
    )
    return pair.holds(close, "flops") & pair.holds(close, "bytes")


@law
def larger_operators_are_never_faster(sample: Sample) -> Mask:
    """Twice of every size does not decrease latency, FLOPs or bytes.

    The width of states, quantization and embedding and the shape of experts stay: libraries tune
    their kernels for some of them, and the kernel of a wider row can be faster. A single product
    stays single: calls of a single 8-bit product also quantize, those of a batch do not.
    """

    def twice(name: str) -> Any:
        def size(point: dict[str, Any]) -> int:
            single = name == "batch" and point["op"] in ("gemm", "bmm") and point["batch"] == 1
            stays = single or name in TUNED_BY.get(point["op"], ())
            return point[name] * (1 if stays else 2)

        return size

    pair = sample.changed(**{name: twice(name) for name in SIZES})
    return np.all([pair.holds(at_most, n) for n in ("latency_s", "flops", "bytes")], axis=0)


@law
def longer_cache_is_never_faster(sample: Sample) -> Mask:
    """A request with twice the tokens in the cache, plus one, does not take less time."""
    pair = sample.changed(past_tokens=lambda p: 2 * p["past_tokens"] + 1)
    return np.all([pair.holds(at_most, n) for n in ("latency_s", "flops", "bytes")], axis=0)


@law
def shared_keys_move_fewer_bytes(sample: Sample) -> Mask:
    """Query heads that share one key head move at most as many bytes as with heads of their own."""
    pair = sample.changed(kv_heads=1)
    states = np.char.startswith(sample["op"].astype(str), "state")
    return states | pair.holds(lambda own, shared: at_most(shared, own), "bytes")


@law
def decode_is_a_prefill_of_one_token(sample: Sample) -> Mask:
    """A decode has the FLOPs and bytes of a prefill of one token.

    Updates of recurrent states are left out, since a prompt is processed in chunks of tokens, and
    latent attention, whose decodes attend in the latent space.
    """
    pair = sample.changed(op=lambda p: p["op"].replace("prefill", "decode"))
    alike = pair.holds(close, "flops") & pair.holds(close, "bytes")
    other = pl.Series(sample["op"]).str.contains("^state_update|^latent_attention").to_numpy()
    return (sample["new_tokens"] > 1) | alike | other


@law
def narrower_weights_move_fewer_bytes(sample: Sample) -> Mask:
    """Weights of four bits move at most as many bytes as weights of the operands' precision."""
    pair = sample.changed(weight_dtype="int4")
    return pair.holds(lambda wide, narrow: at_most(narrow, wide), "bytes")


@law
def ignored_sizes_change_nothing(sample: Sample) -> Mask:
    """Sizes that an operator lacks do not change its row."""

    def other(name: str) -> Any:
        return lambda p: p[name] if name in used(p["op"]) else 1

    pair = sample.changed(**{n: other(n) for n in (*SIZES, *IMAGES[:4], *HEADS, *ROUTES)})
    return pair.holds(lambda a, b: a == b, "latency_s") & pair.holds(close, "energy_j")


def used(op: str) -> tuple[str, ...]:
    """Return the sizes of an operator."""
    past = ("past_tokens",) if "attention" in op else ()
    return (*OPS[op].sizes, *past)


@law
def synonyms_are_equal(sample: Sample) -> Mask:
    """Operators with two names have the same row under both."""
    pair = sample.changed(op=lambda p: SAME.get(p["op"], p["op"]))
    return pair.holds(lambda a, b: a == b, "latency_s") & pair.holds(close, "energy_j")


@law
def batch_of_one_product_is_a_linear_layer(sample: Sample) -> Mask:
    """A batch of one product costs what a linear layer costs."""
    pair = sample.changed(op=lambda p: "linear" if p["op"] in ("gemm", "bmm") else p["op"])
    return (sample["batch"] > 1) | pair.holds(lambda a, b: a == b, "latency_s")


LAWS.add_same_alone()
LAWS.add_larger_gpus()
test_laws_of_kernels = LAWS.tests()
