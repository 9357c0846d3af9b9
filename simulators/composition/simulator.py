"""One forward pass of one replica: a prefill of whole prompts, or one decode iteration.

A batch passes all pipeline stages, one after another; nothing else is in flight. What many requests
do to each other is the serving simulator's question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.cluster import AUTO, cluster_for
from simulators.catalog.gpu import load_gpu, what_if
from simulators.catalog.model import load_model
from simulators.composition import bands, clocks, graphs, graphs_pass, network
from simulators.composition.bands import interval_s, together, unexplained_share
from simulators.composition.effects import NAMES as EFFECTS
from simulators.composition.effects import NOTHING, effects_without
from simulators.composition.explain import explained
from simulators.composition.iteration import Iteration, Replica, pipeline_iterations
from simulators.composition.network import LIBRARIES
from simulators.composition.overhead import DEFAULT, load_runtime, runtime_file
from simulators.core.contract import (
    Contribution,
    categories,
    choice,
    default_of,
    fact,
    metric,
    numbers,
    outcome,
    schema_of,
)
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import CLUSTERS, GPUS, MODELS
from simulators.kernels.latency import flops
from simulators.kernels.simulator import SIMULATOR as KERNELS
from simulators.workload.cut import Parallelism, check_cut
from simulators.workload.families import draw, is_graph_model
from simulators.workload.graph import Load
from simulators.workload.memory import activation_bytes, kv_bytes_per_token, weight_bytes
from simulators.workload.operators import Collective, Column
from simulators.workload.precision import precision
from simulators.workload.step import Step
from simulators.workload.transformer import forward

Columns = dict[str, NDArray[np.float64]]

SCALES = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")
WORDS = ("model", "gpu", "cluster", "dtype", "kv_dtype", "runtime", "framework", "without")
NUMBERS = ("tp", "pp", "overlap", *SCALES)
PHASES = ("prefill", "decode", *graphs_pass.PHASES)
GB = 1e9


@dataclass(frozen=True)
class CompositionPoint:
    """A replica and the batch it processes once."""

    model: str = choice("the model, or the path of a config.json", names="model")
    gpu: str = choice("the GPU, or the path of a data sheet of one's own", names="gpu")
    cluster: str = choice("the machine; auto: the one the GPU is sold in", default=AUTO)
    tp: int = choice("GPUs that share every layer", default=1)
    pp: int = choice("groups of GPUs that share the layers out", default=1)
    phase: str = choice(
        "prefill of whole prompts, decode of one token each, training; a graph's: inference",
        default="decode",
    )
    batch: int = choice("requests in the batch", default=1)
    context: int = choice("tokens of each prompt, or read by each decode", default=1024)
    size: int = choice(
        "of a graph model's inputs: pixels a side, tokens, rows looked up; 0: its usual", default=0
    )
    dp: int = choice("GPUs that train on batches of their own and sum gradients", default=1)
    dtype: str = choice("precision of the weights and their products", default="fp16")
    kv_dtype: str = choice("precision of the KV cache", default="fp16")
    runtime: str = choice("how kernels are launched: graphs, eager, eager_tp", default=DEFAULT)
    framework: str = choice(
        "whose kernels and messages: trtllm, vllm, sglang; auto: the runtime's", default=AUTO
    )
    overlap: float = choice("share of the sums over tensor ranks hidden by products", default=0.0)
    without: str = choice(
        f"effects left out, joined by +: {', '.join(EFFECTS)}, or nothing", default=NOTHING
    )
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
    prompt_s: float = metric("the host's time to turn text into tokens", unit="s")
    latency_s_lo: float = metric("lower end of its 90 % interval", unit="s")
    latency_s_hi: float = metric("upper end of its 90 % interval", unit="s")
    energy_j_lo: float = metric("lower end of its 90 % interval", unit="J")
    energy_j_hi: float = metric("upper end of its 90 % interval", unit="J")
    weight_bytes: float = metric("weights on the fullest GPU", unit="B")
    kv_bytes: float = metric("KV cache of the batch on the fullest GPU", unit="B")
    activation_bytes: float = metric("workspace on the fullest GPU", unit="B")


@dataclass(frozen=True)
class CompositionFacts:
    """What a constraint may ask about a point without simulating it."""

    gpus: int = fact("GPUs of all replicas", needs=("tp", "pp", "dp"))
    model_parameters: int = fact("weights of the model", needs=("model",))
    hbm_bytes_per_gpu: int = fact("memory of one GPU", unit="B", needs=("gpu",))


@dataclass(frozen=True)
class Composition:
    """The simulator of this room."""

    name: str = "composition"
    version: int = 2
    point: type = CompositionPoint
    metrics: type = CompositionMetrics
    facts: type = CompositionFacts

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Price every row; rows of one replica are priced together."""
        rows = batch.num_rows
        out = {f.name: np.full(rows, np.nan) for f in fields(CompositionMetrics)}
        reasons = np.full(rows, "", object)
        flags = np.zeros((2, rows), bool)
        drawn = graphs_pass.drawn_rows(batch)
        for row in np.flatnonzero(drawn):
            reasons[row] = _graph_row(batch, int(row), out, flags)
        for every, group in _groups(batch):
            where = every[~drawn[every]]
            if not where.size:
                continue
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
            fitted = (network.CALIBRATION, clocks.CALIBRATION, bands.CALIBRATION)
            return (*fitted, graphs.CALIBRATION, *KERNELS.reads("", value))
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

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return where the time, the energy and the memory of a design go, row by row.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value nothing answers to.
        """
        batch = _batch_of(point)
        if graphs_pass.drawn_rows(batch)[0]:
            job = graphs_pass.job_of(batch.to_pylist()[0])
            return graphs_pass.explained_pass(job, graphs_pass.run(job))
        [(where, group)] = _groups(batch)
        replica, step = _replica(group), _step(batch, where)
        if reason := _does_not_fit(replica, _memory(replica, step, batch, where))[0]:
            name, _, words = reason.partition(": ")
            raise Infeasible(name, words)
        prompt_s = float(_prompt_s(replica, step)[0])
        return explained(replica, step, str(categories(batch, "phase")[1][0]), prompt_s)

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the facts of every row."""
        models, model_names = categories(batch, "model")
        gpus, gpu_names = categories(batch, "gpu")
        parameters = np.array([_parameters(str(name)) for name in model_names])
        memory = np.array([load_gpu(name).hbm_bytes for name in gpu_names])
        columns = [
            numbers(batch, "tp") * numbers(batch, "pp") * numbers(batch, "dp"),
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
    keys += [numbers(batch, name).astype(np.float64) for name in NUMBERS]
    distinct, member = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    order = np.argsort(member.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(member.reshape(-1), minlength=len(distinct)))
    groups = []
    for key, where in zip(distinct, np.split(order, ends[:-1]), strict=True):
        words = zip(named.items(), key, strict=False)
        group: dict[str, Any] = {name: values[int(code)] for (name, (_, values)), code in words}
        group |= dict(zip(NUMBERS, map(float, key[len(named) :]), strict=True))
        groups.append((where, group))
    return groups


def _graph_row(batch: pa.RecordBatch, row: int, out: Columns, flags: NDArray[np.bool_]) -> str:
    """Write the metrics of a pass over a graph, and return why there are none."""
    try:
        job = graphs_pass.job_of(batch.slice(row, 1).to_pylist()[0])
        done = graphs_pass.run(job)
    except Infeasible as verdict:
        return str(verdict)
    for name, value in graphs_pass.metrics_of(job, done).items():
        out[name][row] = value
    flags[0, row], flags[1, row] = done.calibrated, done.extrapolated
    return ""


def _parameters(model: str) -> int:
    """Return the weights of a model, iterated or drawn."""
    drawn = is_graph_model(model)
    return draw(model, Load(batch=1)).parameters if drawn else load_model(model).parameters


def _replica(group: dict[str, Any]) -> Replica:
    """Return the replica that a group of rows shares.

    Raises:
        Infeasible: the model cannot be cut this way, or the GPU lacks units for its precision.
        UserError: a word nothing answers to, or a share that is none.
    """
    gpu = what_if(load_gpu(group["gpu"]), **{scale: group[scale] for scale in SCALES})
    model, how = load_model(group["model"]), precision(group["dtype"])
    cut = Parallelism(tp=int(group["tp"]), pp=int(group["pp"]))
    if group["framework"] not in (AUTO, *LIBRARIES):
        raise UnknownNameError("framework", str(group["framework"]), (AUTO, *LIBRARIES))
    if not 0.0 <= group["overlap"] <= 1.0:
        raise UserError(f"overlap is {group['overlap']:g}; it is a share, from 0 to 1")
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
        framework="" if group["framework"] == AUTO else group["framework"],
        overlap=group["overlap"],
        effects=effects_without(group["without"]),
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
    prompt_s = _prompt_s(replica, step)
    latency_s = _total([stage.latency_s for stage in stages]) + prompt_s
    # While one stage works, the others wait.
    energy_j = _total(
        [stage.energy_j + stage.waiting_w * (latency_s - stage.latency_s) for stage in stages]
    )
    doubts = together([stage.doubts for stage in stages])
    unexplained = unexplained_share(replica.runtime, replica.gpu)
    lo_s, hi_s = interval_s(latency_s, doubts, unexplained)
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
    below, above = (np.hypot(1.0 - lo_s / latency_s, WATTS), np.hypot(hi_s / latency_s - 1, WATTS))
    return columns | {
        "latency_s": latency_s,
        "latency_s_lo": lo_s,
        "latency_s_hi": hi_s,
        "prompt_s": prompt_s,
        "tokens_per_s": tokens / latency_s,
        "energy_j": energy_j,
        "energy_j_lo": energy_j * np.maximum(0.0, 1.0 - below),
        "energy_j_hi": energy_j * (1.0 + above),
        "energy_per_token_j": energy_j / tokens,
        "mfu": _useful_flops(replica, step) / (peak * latency_s),
    }


WATTS = 0.25
"""Nine of ten mean watts of kernels are within this share (the kernels' page has their errors)."""


def _prompt_s(replica: Replica, step: Step) -> NDArray[np.float64]:
    """Return the host's time to tokenise the prompts of each row."""
    prompts, tokens = np.asarray(step.prefills), np.asarray(step.prefill_tokens)
    prompt_s = replica.runtime.prompt_s(tokens, prompts, replica.cluster)
    return np.asarray(prompt_s * replica.effects.prompt, np.float64)


def _batch_of(point: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch of one point, fields left out with their defaults.

    Raises:
        UnknownNameError: a field the point type does not have.
        UserError: a field without a default is missing.
    """
    known = {f.name: default_of(f) for f in fields(CompositionPoint)}
    for name in point:
        if name not in known:
            raise UnknownNameError("input", name, tuple(known))
    values = known | dict(point)
    if missing := [name for name, value in values.items() if value is MISSING]:
        raise UserError(f"{', '.join(missing)} missing: what is explained is one whole design")
    schema = schema_of(CompositionPoint)
    return pa.RecordBatch.from_pylist([values], schema=schema)


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
