"""Laws of one forward pass of a replica, or of one pass over a graph.

Accelerators map every layer, which takes seconds per point: `tests/composition/test_accelerated.py`
has their tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from simulators.catalog.gpu import GPU_SCALES, Gpu, load_gpu, what_if
from simulators.catalog.model import load_model
from simulators.composition.replica import EFFECTS
from simulators.composition.simulator import SHARED, SIMULATOR
from simulators.core.columns import LEVELS, schema_of
from simulators.kernels.energy import idle_w_of, peak_w_of
from simulators.workload.graphs.families import is_graph_model
from tests.laws.laws import Laws, Mask, Sample, at_most, close, one_of, whole

DENSE = ("llama3_1_8b", "mistral_7b", "llama2_70b", "qwen3_0_6b", "gpt2", "phi_4")
OTHERS = ("mixtral_8x7b", "gpt_oss_20b", "deepseek_v2_lite", "qwen3_30b", "gemma3_4b", "glm_4_7")
OTHERS += ("qwen3_next_80b", "llama4_scout")
GRAPHS = ("resnet50", "bert_base", "vit_b16", "dlrm_criteo", "mobilenet_v2")
GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "mi300x", "l40s", "rtx_4090", "tpu_v5e")
PARTS = ("linear_s", "prefill_attention_s", "decode_attention_s", "collective_s", "send_recv_s")
PARTS += ("launch_s", "prompt_s")
MEMORY = ("weight_bytes", "kv_bytes", "activation_bytes")


def consistent(point: dict[str, Any]) -> dict[str, Any]:
    """Return a point with a phase that its model has, and no replicas of a decoder."""
    if is_graph_model(point["model"]):
        point["phase"] = "training" if point["phase"] == "prefill" else "inference"
        point |= {"tp": 1, "pp": 1, "dtype": "fp16"}
        point["batch"] = min(point["batch"], 64)
    else:
        point |= {"dp": 1, "size": 0}
    if point["phase"] == "prefill":
        point["batch"] = min(point["batch"], 8)
    return point


_scale = one_of(1.0, 1.0, 1.0, 0.5, 2.0)
LAWS = Laws(
    SIMULATOR,
    draws={
        "model": one_of(*DENSE, *OTHERS, *DENSE, *OTHERS, *GRAPHS),
        "gpu": one_of(*GPUS),
        "cluster": one_of("auto"),
        "tp": one_of(1, 1, 2, 4, 8),
        "pp": one_of(1, 1, 2, 4),
        "phase": one_of("prefill", "decode"),
        "batch": whole(1, 256),
        "context": whole(1, 8192),
        "size": one_of(0),
        "dp": one_of(1, 2, 8),
        "dtype": one_of("fp16", "fp16", "bf16", "fp8", "w4a16"),
        "kv_dtype": one_of("fp16", "fp8"),
        "runtime": one_of("graphs", "graphs", "eager", "vllm", "trtllm", "sglang"),
        "overlap": one_of(0.0, 0.0, 0.5, 1.0),
        "without": one_of("nothing", "nothing", "nothing", "launch+fusion", *EFFECTS),
        "accelerator": one_of("nothing"),
        **dict.fromkeys(GPU_SCALES, _scale),
    },
    consistent=consistent,
    shared=SHARED,
    alike=16,
)
law = LAWS.law
SCHEMA = schema_of(SIMULATOR.point)


def sheet(point: dict[str, Any]) -> Gpu:
    """Return the what-if GPU of a point."""
    return what_if(load_gpu(point["gpu"]), **{scale: point[scale] for scale in GPU_SCALES})


def gpus(sample: Sample) -> np.ndarray:
    """Return the number of GPUs per row."""
    return sample.per_row(lambda p: p["tp"] * p["pp"] * p["dp"])


def is_graph(sample: Sample) -> Mask:
    """Return the rows that are passes over a graph."""
    return sample.per_row(lambda p: is_graph_model(p["model"]))


@law
def latency_is_positive_and_finite(sample: Sample) -> Mask:
    """Every pass takes some time, and not for ever."""
    return (sample["latency_s"] > 0.0) & np.isfinite(sample["latency_s_hi"])


@law
def parts_are_not_negative(sample: Sample) -> Mask:
    """No part of a pass, and none of its memory, is negative."""
    return np.all([sample[part] >= 0.0 for part in (*PARTS, *MEMORY)], axis=0)


@law
def parts_sum_to_the_latency(sample: Sample) -> Mask:
    """Kernels, messages, launches and tokenization sum to the time of the pass."""
    return close(sum(sample[part] for part in PARTS), sample["latency_s"])


@law
def intervals_contain_their_values(sample: Sample) -> Mask:
    """The intervals of latency and energy contain the predictions, and begin at zero or later."""
    found = [
        (sample[f"{name}_lo"] >= 0.0)
        & at_most(sample[f"{name}_lo"], sample[name])
        & at_most(sample[name], sample[f"{name}_hi"])
        for name in ("latency_s", "energy_j")
    ]
    return np.all(found, axis=0)


@law
def tokens_are_conserved(sample: Sample) -> Mask:
    """Tokens per second times the latency are the tokens of the batch: one per decode."""
    tokens = sample["batch"] * np.where(sample["phase"] == "prefill", sample["context"], 1)
    tokens = tokens * np.where(is_graph(sample), sample["dp"], 1)
    return close(sample["tokens_per_s"] * sample["latency_s"], tokens)


@law
def energy_is_shared_among_tokens(sample: Sample) -> Mask:
    """The energy of all tokens is the energy of the pass."""
    tokens = sample["tokens_per_s"] * sample["latency_s"]
    return close(sample["energy_per_token_j"] * tokens, sample["energy_j"])


@law
def energy_is_at_least_idle_energy(sample: Sample) -> Mask:
    """A GPU draws at least its idle power during the whole pass."""
    idle_w = sample.per_row(lambda p: idle_w_of(sheet(p)))
    return at_most(idle_w * sample["latency_s"] * gpus(sample), sample["energy_j"])


@law
def energy_is_at_most_peak_energy(sample: Sample) -> Mask:
    """A GPU draws at most its power limit."""
    peak_w = sample.per_row(lambda p: peak_w_of(sheet(p)))
    return at_most(sample["energy_j"], peak_w * sample["latency_s"] * gpus(sample))


@law
def utilization_is_at_most_one(sample: Sample) -> Mask:
    """Model FLOPs utilization lies in 0 to 1."""
    return (sample["mfu"] > 0.0) & at_most(sample["mfu"], 1.0)


@law
def batch_fits_the_memory(sample: Sample) -> Mask:
    """Weights, cache and workspace of the fullest GPU fit its memory."""
    hbm_bytes = sample.per_row(lambda p: load_gpu(p["gpu"]).hbm_bytes)
    return at_most(sum(sample[name] for name in MEMORY), hbm_bytes)


@law
def gpus_hold_all_weights(sample: Sample) -> Mask:
    """The weights on the fullest GPU times the GPUs are at least half a byte per parameter."""
    facts = SIMULATOR.describe(pa.RecordBatch.from_pylist(sample.points, SCHEMA))
    parameters = facts["model_parameters"].to_numpy()[sample.feasible]
    held = sample["weight_bytes"] * gpus(sample) / sample["dp"]
    narrow = sample.per_row(lambda p: "4" in p["dtype"])
    least = np.where(narrow, 0.5, 1.0) * parameters
    return at_most(least, held)


@law
def decode_reads_weights_and_cache(sample: Sample) -> Mask:
    """A decode of a dense model reads the cache and all weights but embeddings from memory.

    The interval of its time does not begin before the time that the weights take.
    """

    def read(point: dict[str, Any]) -> float:
        model = load_model(point["model"])
        return 4.0 * model.vocab * model.hidden + 2.0 * model.learned_positions * model.hidden

    dense = (sample["phase"] == "decode") & np.isin(sample["model"], DENSE)
    kept = sample.per_row(lambda p: 0.0 if is_graph_model(p["model"]) else read(p))
    weights = np.maximum(0.0, sample["weight_bytes"] - kept)
    bandwidth = sample.per_row(lambda p: sheet(p).hbm_bytes_per_s)
    is_read = at_most((weights + sample["kv_bytes"]) / bandwidth, sample["latency_s"])
    return ~dense | (is_read & at_most(weights / bandwidth, sample["latency_s_lo"]))


@law
def lone_gpus_send_nothing(sample: Sample) -> Mask:
    """One tensor rank sums nothing, and one stage passes nothing on."""
    alone = (sample["tp"] > 1) | (sample["dp"] > 1) | (sample["collective_s"] == 0.0)
    return alone & ((sample["pp"] > 1) | (sample["send_recv_s"] == 0.0))


@law
def phases_have_their_own_attention(sample: Sample) -> Mask:
    """A prefill has no decode attention; a decode has no prefill attention and no prompts."""
    prefill = (sample["phase"] == "prefill") & (sample["decode_attention_s"] == 0.0)
    decode = (sample["prefill_attention_s"] == 0.0) & (sample["prompt_s"] == 0.0)
    return prefill | decode | is_graph(sample)


@law
def evidence_is_shared_out(sample: Sample) -> Mask:
    """Shares of evidence lie in 0 to 1 and sum to one."""
    shares = [sample[f"{level}_share"] for level in LEVELS]
    return close(sum(shares), 1.0) & np.all([share >= 0.0 for share in shares], axis=0)


@law
def hidden_sums_are_never_slower(sample: Sample) -> Mask:
    """Messages that are hidden behind products do not increase the latency."""
    pair = sample.changed(overlap=1.0)
    return pair.holds(lambda shown, hidden: at_most(hidden, shown), "latency_s")


@law
def effects_cost_time(sample: Sample) -> Mask:
    """A pass without launches, synchronization, throttling and prompts is never slower."""
    pair = sample.changed(
        without=lambda p: (
            "launch+synchronisation+clocks+prompt" + ("+fusion" if "fusion" in p["without"] else "")
        )
    )
    return pair.holds(lambda one, two: at_most(two, one), "latency_s")


@law
def larger_batches_are_never_faster(sample: Sample) -> Mask:
    """Twice the requests take at least the time, the cache and the workspace."""
    pair = sample.changed(batch=lambda p: 2 * p["batch"])
    return np.all([pair.holds(at_most, name) for name in ("latency_s", *MEMORY)], axis=0)


@law
def longer_contexts_are_never_faster(sample: Sample) -> Mask:
    """Twice the context takes at least the time, the cache and the workspace."""
    pair = sample.changed(context=lambda p: 2 * p["context"])
    return np.all([pair.holds(at_most, name) for name in ("latency_s", *MEMORY)], axis=0)


@law
def narrow_cache_takes_half(sample: Sample) -> Mask:
    """A cache with half the requests and the narrower numbers takes at most half the bytes."""
    pair = sample.changed(kv_dtype="fp8", batch=lambda p: max(1, p["batch"] // 2))
    half = pair.holds(lambda all_of, half: at_most(2.0 * half, all_of), "kv_bytes")
    return (sample["batch"] == 1) | half


@law
def explanation_sums_to_the_pass(sample: Sample) -> Mask:
    """Times and energies of `explain` sum to those of the row."""
    found = np.ones(int(sample.feasible.sum()), bool)
    for number in range(0, min(80, found.size), 16):
        rows = SIMULATOR.explain(sample.per_row(lambda p: p)[number])
        for name, total in (("time_s", "latency_s"), ("energy_j", "energy_j")):
            found[number] &= close(sum(getattr(r, name) for r in rows), sample[total][number])
    return found


LAWS.add_same_alone()
LAWS.add_larger_gpus()
test_laws_of_composition = LAWS.tests()
