"""One forward pass of one replica: a prefill of whole prompts, or one decode iteration.

A batch passes all pipeline stages, one after another; nothing else is in flight. What many requests
do to each other is the serving simulator's question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.cluster import AUTO, cluster_for
from simulators.catalog.gpu import load_gpu, what_if
from simulators.catalog.model import load_model
from simulators.composition.iteration import Iteration, Replica, pipeline_iterations
from simulators.composition.network import CALIBRATION
from simulators.composition.overhead import DEFAULT, load_runtime, runtime_file
from simulators.core.contract import categories, choice, fact, metric, numbers, outcome, schema_of
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import CLUSTERS, GPUS, MODELS
from simulators.kernels.latency import flops
from simulators.kernels.simulator import SIMULATOR as KERNELS
from simulators.workload.cut import Parallelism, check_cut
from simulators.workload.memory import activation_bytes, kv_bytes_per_token, weight_bytes
from simulators.workload.operators import Collective, Column
from simulators.workload.precision import precision
from simulators.workload.step import Step
from simulators.workload.transformer import forward

Columns = dict[str, NDArray[np.float64]]

SCALES = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")
WORDS = ("model", "gpu", "cluster", "dtype", "kv_dtype", "runtime")
PHASES = ("prefill", "decode")
GB = 1e9


@dataclass(frozen=True)
class CompositionPoint:
    """A replica and the batch it processes once."""

    model: str = choice("the model, or the path of a config.json", names="model")
    gpu: str = choice("the GPU, or the path of a data sheet of one's own", names="gpu")
    cluster: str = choice("the machine; auto: the one the GPU is sold in", default=AUTO)
    tp: int = choice("GPUs that share every layer", default=1)
    pp: int = choice("groups of GPUs that share the layers out", default=1)
    phase: str = choice("prefill of whole prompts, or decode of one token each", default="decode")
    batch: int = choice("requests in the batch", default=1)
    context: int = choice("tokens of each prompt, or read by each decode", default=1024)
    dtype: str = choice("precision of the weights and their products", default="fp16")
    kv_dtype: str = choice("precision of the KV cache", default="fp16")
    runtime: str = choice("how kernels are launched: graphs, eager, eager_tp", default=DEFAULT)
    sm_scale: float = choice("SMs of a what-if device, relative", default=1.0)
    clock_scale: float = choice("clock of a what-if device, relative", default=1.0)
    bandwidth_scale: float = choice("memory bandwidth of a what-if device, relative", default=1.0)
    l2_scale: float = choice("L2 size of a what-if device, relative", default=1.0)


@dataclass(frozen=True)
class CompositionMetrics:
    """Where the time, the energy and the memory of one pass go."""

    latency_s: float = metric("time of the pass through all stages", unit="s", better="min")
    tokens_per_s: float = metric("tokens processed over that time", unit="1/s", better="max")
    energy_j: float = metric("energy of all GPUs during the pass", unit="J", better="min")
    energy_per_token_j: float = metric("that over the tokens", unit="J")
    mfu: float = metric("useful over peak FLOP/s of all GPUs")
    linear_s: float = metric("linear layers, norms, pointwise, embedding, LM head", unit="s")
    prefill_attention_s: float = metric("attention of prompts", unit="s")
    decode_attention_s: float = metric("attention of new tokens", unit="s")
    collective_s: float = metric("sums over tensor ranks", unit="s")
    send_recv_s: float = metric("messages between pipeline stages", unit="s")
    launch_s: float = metric("gaps between kernels and host work that shows", unit="s")
    weight_bytes: float = metric("weights on the fullest GPU", unit="B")
    kv_bytes: float = metric("KV cache of the batch on the fullest GPU", unit="B")
    activation_bytes: float = metric("workspace on the fullest GPU", unit="B")


@dataclass(frozen=True)
class CompositionFacts:
    """What a constraint may ask about a point without simulating it."""

    gpus: int = fact("GPUs of the replica", needs=("tp", "pp"))
    model_parameters: int = fact("weights of the model", needs=("model",))
    hbm_bytes_per_gpu: int = fact("memory of one GPU", unit="B", needs=("gpu",))


@dataclass(frozen=True)
class Composition:
    """The simulator of this room."""

    name: str = "composition"
    version: int = 1
    point: type = CompositionPoint
    metrics: type = CompositionMetrics
    facts: type = CompositionFacts

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Price every row; rows of one replica are priced together."""
        rows = batch.num_rows
        out = {f.name: np.full(rows, np.nan) for f in fields(CompositionMetrics)}
        reasons = np.full(rows, "", object)
        flags = np.zeros((2, rows), bool)
        for where, group in _groups(batch):
            try:
                replica = _replica(group)
                local = _memory(replica, _step(batch, where), batch, where)
            except Infeasible as verdict:
                reasons[where] = str(verdict)
                continue
            reasons[where] = _does_not_fit(replica, local)
            stages = pipeline_iterations(replica, _step(batch, where))
            local |= _pass(replica, _step(batch, where), stages)
            for name, column in local.items():
                out[name][where] = column
            flags[0, where] = all(stage.calibrated for stage in stages)
            for stage in stages:
                flags[1, where] |= stage.extrapolated
        return outcome(
            CompositionMetrics,
            out,
            infeasible=list(reasons),
            calibrated=flags[0],
            extrapolated=flags[1],
        )

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the facts and calibrations behind a value; those of every point for no name."""
        if name == "":
            return (CALIBRATION, *KERNELS.reads("", value))
        if name == "model":
            return (MODELS.find(str(value)),)
        if name == "gpu":
            usual = CLUSTERS.find(load_gpu(str(value)).cluster)
            return (*dict.fromkeys((GPUS.find(str(value)), *KERNELS.reads(name, value))), usual)
        if name == "cluster" and value != AUTO:
            return (CLUSTERS.find(str(value)),)
        if name == "runtime":
            return (runtime_file(str(value)),)
        return ()

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the facts of every row."""
        models, model_names = categories(batch, "model")
        gpus, gpu_names = categories(batch, "gpu")
        parameters = np.array([load_model(name).parameters for name in model_names])
        memory = np.array([load_gpu(name).hbm_bytes for name in gpu_names])
        columns = [
            numbers(batch, "tp") * numbers(batch, "pp"),
            parameters[models],
            memory[gpus],
        ]
        schema = schema_of(CompositionFacts)
        arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def warm_up(self) -> None:
        """Compile what the kernels' room compiles."""
        KERNELS.warm_up()


SIMULATOR = Composition()


def _groups(batch: pa.RecordBatch) -> list[tuple[NDArray[np.int64], dict[str, Any]]]:
    """Return row numbers and common fields of rows that have the same replica."""
    named = {name: categories(batch, name) for name in WORDS}
    keys = [codes.astype(np.float64) for codes, _ in named.values()]
    keys += [numbers(batch, name).astype(np.float64) for name in ("tp", "pp", *SCALES)]
    distinct, member = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    order = np.argsort(member.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(member.reshape(-1), minlength=len(distinct)))
    groups = []
    for key, where in zip(distinct, np.split(order, ends[:-1]), strict=True):
        words = zip(named.items(), key, strict=False)
        group: dict[str, Any] = {name: values[int(code)] for (name, (_, values)), code in words}
        group |= dict(zip(("tp", "pp", *SCALES), map(float, key[len(named) :]), strict=True))
        groups.append((where, group))
    return groups


def _replica(group: dict[str, Any]) -> Replica:
    """Return the replica that a group of rows shares.

    Raises:
        Infeasible: the model cannot be cut this way, or the GPU lacks units for its precision.
    """
    gpu = what_if(load_gpu(group["gpu"]), **{scale: group[scale] for scale in SCALES})
    model, how = load_model(group["model"]), precision(group["dtype"])
    cut = Parallelism(tp=int(group["tp"]), pp=int(group["pp"]))
    check_cut(model, cut)
    for dtype in (how.compute, how.activations):
        if dtype not in gpu.peak_flops:
            has = ", ".join(gpu.peak_flops)
            raise Infeasible(
                "dtype_unsupported", f"gpu '{gpu.name}' has no {dtype} rate, it has {has}"
            )
    return Replica(
        model=model,
        gpu=gpu,
        cluster=cluster_for(group["cluster"], gpu),
        cut=cut,
        dtype=group["dtype"],
        kv_dtype=group["kv_dtype"],
        runtime=load_runtime(group["runtime"]),
    )


def _step(batch: pa.RecordBatch, where: NDArray[np.int64]) -> Step:
    """Return the step of each row: either phase's sums, and nothing of the other.

    Raises:
        UserError: a phase that does not exist, or an empty batch.
    """
    codes, phases = categories(batch, "phase")
    for phase in phases:
        if phase not in PHASES:
            raise UnknownNameError("phase", str(phase), PHASES)
    is_prefill = (codes[where] == phases.index("prefill")) if "prefill" in phases else False
    requests = numbers(batch, "batch")[where].astype(np.float64)
    context = numbers(batch, "context")[where].astype(np.float64)
    for name, column in (("batch", requests), ("context", context)):
        if column.size and column.min() < 1:
            raise UserError(f"{name} is {column.min():g}; it must be at least 1")
    prompts = np.where(is_prefill, requests, 0.0)
    decodes = requests - prompts
    return Step(
        prefills=prompts,
        prefill_tokens=prompts * context,
        prefill_pairs=prompts * context * (context + 1.0) / 2.0,
        prefill_kv_tokens=prompts * context,
        decodes=decodes,
        decode_kv_tokens=decodes * context,
        logits_rows=requests,
    )


def _memory(
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
        "kv_bytes": cached * kv_bytes_per_token(model, cut, replica.kv_dtype),
        "activation_bytes": np.asarray(
            activation_bytes(model, cut, replica.dtype, step.tokens, step.logits_rows)
        ),
    }


def _does_not_fit(replica: Replica, memory: Columns) -> list[str]:
    """Return for each row why its batch does not fit beside the weights, or nothing."""
    needed = memory["weight_bytes"] + memory["kv_bytes"] + memory["activation_bytes"]
    has = replica.gpu.hbm_bytes
    return [f"batch_exceeds_hbm: {_needs(float(n), has)}" if n > has else "" for n in needed]


def _needs(needed: float, has: float) -> str:
    return f"needs {needed / GB:.1f} GB, has {has / GB:.1f} GB"


def _pass(replica: Replica, step: Step, stages: tuple[Iteration, ...]) -> Columns:
    """Return the metrics of a batch that passes all stages."""
    latency_s = _total([stage.latency_s for stage in stages])
    # While one stage works, the others wait.
    energy_j = _total(
        [stage.energy_j + stage.waiting_w * (latency_s - stage.latency_s) for stage in stages]
    )
    tokens = np.asarray(step.tokens)
    peak = replica.gpu.peak(precision(replica.dtype).compute) * replica.cut.gpus
    parts = {
        "linear_s": "tokens_s",
        **{name: name for name in ("prefill_attention_s", "decode_attention_s")},
        **{name: name for name in ("collective_s", "send_recv_s", "launch_s")},
    }
    columns = {
        name: _total([getattr(stage, part) for stage in stages]) for name, part in parts.items()
    }
    return columns | {
        "latency_s": latency_s,
        "tokens_per_s": tokens / latency_s,
        "energy_j": energy_j,
        "energy_per_token_j": energy_j / tokens,
        "mfu": _useful_flops(replica, step) / (peak * latency_s),
    }


def _total(columns: Sequence[Column]) -> NDArray[np.float64]:
    """Return the sum over stages, one after another: the order never depends on the batch."""
    total = np.zeros(())
    for column in columns:
        total = total + column
    return total


def _useful_flops(replica: Replica, step: Step) -> NDArray[np.float64]:
    """Return the arithmetic the model asks of all GPUs, without padding or copies of heads."""
    total = np.zeros_like(np.asarray(step.tokens, np.float64))
    for stage in range(replica.cut.pp):
        for operator in forward(
            replica.model, replica.cut, step, replica.dtype, replica.kv_dtype, stage
        ):
            if not isinstance(operator, Collective):
                total = total + replica.cut.tp * operator.repeat * flops(operator)
    return total
