"""A batch of points becomes replicas and steps, and what composition says of them, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.cluster import AUTO, cluster_for
from simulators.catalog.engine import resolve_runtime
from simulators.catalog.gpu import GPU_SCALES, Gpu, load_gpu, what_if
from simulators.catalog.model import load_model
from simulators.composition.price import Iteration, useful_flops
from simulators.composition.replica import (
    NOTHING,
    Replica,
    effects_without,
    load_runtime,
    runtime_across,
)
from simulators.composition.uncertainty import add_up, pass_interval_s, runtime_level, shares
from simulators.core.columns import Shares, categories, numbers
from simulators.core.errors import Infeasible
from simulators.workload.llm.memory import activation_bytes, weight_bytes
from simulators.workload.llm.parallelism import Parallelism, check_blocks, check_cut
from simulators.workload.llm.step import Step, decode_step, prefill_step
from simulators.workload.operators import Column
from simulators.workload.precision import precision

Columns = dict[str, NDArray[np.float64]]

GB = 1e9
WATTS_SHARE = 0.25
"""Nine of ten mean watts of kernels are within this share (the kernels' page has their errors)."""


def gpu_of(point: Mapping[str, Any]) -> Gpu:
    """Return the GPU of a point, or what it would be with more or less of some parts."""
    return what_if(load_gpu(point["gpu"]), **{scale: point[scale] for scale in GPU_SCALES})


def replica_of(group: Mapping[str, Any]) -> Replica:
    """Return the replica that a group of rows shares.

    Raises:
        Infeasible: the model cannot be cut this way, or the GPU lacks units for its precision.
        UserError: a word nothing answers to.
    """
    gpu, model, how = gpu_of(group), load_model(group["model"]), precision(group["dtype"])
    cut = Parallelism(tp=int(group["tp"]), pp=int(group["pp"]))
    check_cut(model, cut)
    check_blocks(model, cut, group["dtype"])
    for dtype in (how.compute, how.activations):
        if dtype not in gpu.peak_flops:
            has = ", ".join(gpu.peak_flops)
            raise Infeasible(
                "dtype_not_supported", f"gpu '{gpu.name}' has no {dtype} rate, it has {has}"
            )
    runtime = resolve_runtime(group["runtime"], release=group["release"])
    return Replica(
        model=model,
        gpu=gpu,
        cluster=cluster_for(group["cluster"], gpu),
        cut=cut,
        dtype=group["dtype"],
        kv_dtype=group["kv_dtype"],
        runtime=runtime_across(load_runtime(runtime), cut.width),
        framework="" if group["framework"] == AUTO else group["framework"],
        overlap=group["overlap"],
        effects=effects_without(group["without"]),
        accelerator="" if group["accelerator"] == NOTHING else group["accelerator"],
    )


def step_of(batch: pa.RecordBatch, where: NDArray[np.int64]) -> Step:
    """Return the step of each row: either phase's sums, and nothing of the other."""
    codes, phases = categories(batch, "phase")
    is_prefill = (codes[where] == phases.index("prefill")) if "prefill" in phases else False
    requests, context = (
        numbers(batch, name)[where].astype(np.float64) for name in ("batch", "context")
    )
    prompts = np.where(is_prefill, requests, 0.0)
    prefill, decode = prefill_step(prompts, context), decode_step(requests - prompts, context)
    return Step(**{name: column + vars(decode)[name] for name, column in vars(prefill).items()})


def memory_of(
    replica: Replica, step: Step, batch: pa.RecordBatch, where: NDArray[np.int64]
) -> Columns:
    """Return what the fullest GPU must hold.

    Raises:
        Infeasible: it cannot even hold the weights.
    """
    model, cut = replica.model, replica.cut
    weights = weight_bytes(model, cut, replica.dtype)
    if weights > replica.gpu.hbm_bytes:
        raise Infeasible("weights_exceed_hbm", _needs(weights, replica.gpu.hbm_bytes))
    cached = numbers(batch, "batch")[where] * numbers(batch, "context")[where].astype(np.float64)
    return {
        "weight_bytes": np.full(where.size, weights),
        "kv_bytes": cached * replica.kv_token_bytes,
        "activation_bytes": np.asarray(
            activation_bytes(model, cut, replica.dtype, step.tokens, step.logits_rows)
        ),
    }


def why_not(replica: Replica, memory: Columns) -> list[str]:
    """Return for each row why its batch does not fit beside the weights, or nothing."""
    needed = memory["weight_bytes"] + memory["kv_bytes"] + memory["activation_bytes"]
    has = replica.gpu.hbm_bytes
    return [f"batch_exceeds_hbm: {_needs(float(n), has)}" if n > has else "" for n in needed]


def _needs(needed: float, has: float) -> str:
    return f"needs {needed / GB:.1f} GB, has {has / GB:.1f} GB"


def pass_metrics(replica: Replica, step: Step, stages: Sequence[Iteration]) -> Columns:
    """Return the metrics of a batch that passes all stages."""
    host_s = prompt_s(replica, step)
    latency_s = _total([stage.latency_s for stage in stages]) + host_s
    # While one stage works, the others wait.
    energy_j = _total(
        [stage.energy_j + stage.waiting_w * (latency_s - stage.latency_s) for stage in stages]
    )
    lo_s, hi_s = pass_interval_s(latency_s, (stage.half_widths for stage in stages), replica)
    tokens = np.asarray(step.tokens)
    peak = replica.gpu.peak(precision(replica.dtype).compute) * replica.cut.gpus
    same = ("prefill_attention_s", "decode_attention_s", "collective_s", "send_recv_s", "launch_s")
    columns = {name: _total([getattr(stage, name) for stage in stages]) for name in same}
    columns["linear_s"] = _total([stage.tokens_s + stage.experts_s for stage in stages])
    below = np.hypot(1.0 - lo_s / latency_s, WATTS_SHARE)
    above = np.hypot(hi_s / latency_s - 1, WATTS_SHARE)
    return columns | {
        "latency_s": latency_s,
        "latency_s_lo": lo_s,
        "latency_s_hi": hi_s,
        "prompt_s": host_s,
        "tokens_per_s": tokens / latency_s,
        "energy_j": energy_j,
        "energy_j_lo": energy_j * np.maximum(0.0, 1.0 - below),
        "energy_j_hi": energy_j * (1.0 + above),
        "energy_per_token_j": energy_j / tokens,
        "mfu": useful_flops(replica, step) / (peak * latency_s),
    }


def evidence(replica: Replica, step: Step, stages: Sequence[Iteration]) -> Shares:
    """Return the shares of the pass's time by what they rest on."""
    host = {runtime_level(replica): prompt_s(replica, step)}
    return shares(add_up((1.0, part) for part in (host, *(s.seconds_by_level for s in stages))))


def prompt_s(replica: Replica, step: Step) -> NDArray[np.float64]:
    """Return the host's time to tokenise the prompts of each row."""
    prompts, tokens = np.asarray(step.prefills), np.asarray(step.prefill_tokens)
    host_s = replica.runtime.prompt_s(tokens, prompts, replica.cluster)
    return np.asarray(host_s * replica.effects.prompt, np.float64)


def _total(columns: Sequence[Column]) -> NDArray[np.float64]:
    """Return the sum over stages, one after another: the order never depends on the batch."""
    total = np.zeros(())
    for column in columns:
        total = total + column
    return total
