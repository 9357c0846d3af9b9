"""Candidate deployments of a model on some GPUs, and reasons why GPUs are excluded.

Degrees of parallelism are powers of two; experts are split by expert or tensor parallelism; each
GPU runs the engines that support its vendor, in the precisions of the published checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from simulators.catalog.engine import ServingEngine, load_engine
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.replica import NOTHING
from simulators.core.errors import UserError
from simulators.core.folder import ENGINES
from simulators.serving.demand.workloads import is_trace, load_trace
from simulators.serving.point import AUTO, DRAFT, RDMA, SPECULATIONS
from simulators.serving.speculation import survival
from simulators.workload.llm.routing import BACKENDS, GATHERED, HIGH_THROUGHPUT, LOW_LATENCY
from simulators.workload.precision import precision

WIDEST_TP, WIDEST_EP, DEEPEST_PP = 8, 16, 4
"""Largest degrees tried: tensor parallelism within a node, experts over two, four stages."""

CHUNKS, BATCHES = (512, 2048, 8192), (64, 256)

DRAFT_TOKENS = (1, 3, 5)
"""Draft tokens per sequence and iteration."""

POOLS = NO, ALSO, ONLY = "no", "also", "only"
"""Separate prefill and decode pools: not tried, tried besides one pool, or tried alone."""

MOE_BACKENDS = {"vllm_v1": (GATHERED, HIGH_THROUGHPUT, LOW_LATENCY), "sglang": BACKENDS}
"""MoE backends that an engine has options for, by its scheduler."""

CHECKPOINT, ANY = "checkpoint", "any"
USUAL, OLDER = "bf16", "fp16"
"""Precision of checkpoints that state none; GPUs without bf16 use fp16."""

SETTLED = 50
"""Requests beyond a percentile that make it stable, for random loads."""

LEAST_S = 120.0
"""Least duration of such a load: a queue needs time to grow."""


@dataclass(frozen=True)
class GpuOptions:
    """The engines and precisions of each model on a GPU."""

    gpu: str
    engines: tuple[str, ...]
    dtypes: Mapping[str, tuple[str, ...]]  # by model
    refused: str  # why nothing can run; empty if something can


def options_on(gpu: str, models: Sequence[str], engines: str, dtypes: str) -> GpuOptions:
    """Return the engines and precisions to try on a GPU.

    `engines` and `dtypes` are comma-separated names, or `any` and `checkpoint`.

    Raises:
        UserError: a name is unknown.
    """
    sheet = load_gpu(gpu)
    asked = [load_engine(n) for n in (ENGINES.names() if engines == ANY else engines.split(","))]
    able = [engine for engine in asked if sheet.vendor in engine.vendors]
    tried = {model: _dtypes(sheet, load_model(model), dtypes) for model in models}
    if not able:
        titles = ", ".join(engine.label for engine in asked)
        do = "does" if len(asked) == 1 else "do"
        refused = f"{titles} {do} not run on {sheet.vendor.upper()} devices"
    elif not any(tried.values()):
        wanted = dtypes if dtypes != CHECKPOINT else ", ".join(_formats(load_model(models[0])))
        refused = f"no {wanted} support"
    else:
        refused = ""
    return GpuOptions(gpu, tuple(engine.schedulers[0] for engine in able), tried, refused)


def _formats(model: LanguageModel) -> tuple[str, ...]:
    return model.formats or (USUAL,)


def _dtypes(gpu: Gpu, model: LanguageModel, asked: str) -> tuple[str, ...]:
    """Return the wanted precisions that a GPU supports."""
    if asked != CHECKPOINT:
        return tuple(name for name in asked.split(",") if _has(gpu, name))
    own = tuple(name for name in _formats(model) if _has(gpu, name))
    if own or model.formats:
        return own
    return (OLDER,) if _has(gpu, OLDER) else ()


def _has(gpu: Gpu, dtype: str) -> bool:
    how = precision(dtype)
    needed = {how.compute, how.activations, how.expert_compute} - {""}
    return needed <= set(gpu.peak_flops)


def grids_of(gpus_tried: Sequence[GpuOptions]) -> list[dict[str, Any]]:
    """Return grids of model, GPU, precision and engine."""
    found: dict[Any, dict[str, Any]] = {}
    for one in gpus_tried:
        for model, dtypes in one.dtypes.items():
            if dtypes and not one.refused:
                grid = found.setdefault(
                    (model, dtypes, one.engines),
                    {
                        "model": model,
                        "gpu": [],
                        "dtype": list(dtypes),
                        "scheduler": list(one.engines),
                    },
                )
                grid["gpu"].append(one.gpu)
    return list(found.values())


def parallelism_of(models: Sequence[str], gpus: int) -> tuple[dict[str, list[int]], list[str]]:
    """Return the axes of parallelism within a number of GPUs, and their constraints."""
    powers = [2**n for n in range(int(log2(gpus)) + 1)]
    sheets = [load_model(name) for name in models]
    mixtures = [sheet.name for sheet in sheets if sheet.experts]
    axes = {
        "tp": [n for n in powers if n <= WIDEST_TP],
        "pp": [n for n in powers if n <= DEEPEST_PP],
    }
    if not mixtures:
        return axes, []
    wide = [n for n in powers if n <= WIDEST_EP]
    rules = [
        "ep = 1 OR ep = tp * attention_dp",
        "attention_dp = 1 OR (tp = 1 AND pp = 1 AND ep > 1)",
    ]
    if len(mixtures) < len(sheets):
        named = _quoted([name for name in models if load_model(name).experts])
        rules.append(f"ep * attention_dp = 1 OR model IN ({named})")
    return axes | {"ep": wide, "attention_dp": wide}, rules


def backends_of(names: str, *, mixtures: bool) -> tuple[dict[str, list[str]], list[str]]:
    """Return the axis of MoE backends and constraints; empty for the default backend.

    Raises:
        UserError: unknown name, or no model has experts.
    """
    asked = _known(names, "--moe-backend", BACKENDS)
    if asked == [GATHERED]:
        return {}, []
    if not mixtures:
        raise UserError(f"--moe-backend {names}: none of the models has experts")
    supported = " OR ".join(
        f"(scheduler = '{scheduler}' AND moe.backend IN ({_quoted(backends)}))"
        for scheduler, backends in MOE_BACKENDS.items()
    )
    usual = f"moe.backend = '{GATHERED}'"
    return {"moe.backend": asked}, [f"{usual} OR attention_dp > 1", f"{usual} OR {supported}"]


def pools_of_gpus(
    pools: str, gpus: int, gpus_tried: Sequence[GpuOptions]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return grids of separate pools within a number of GPUs, and their constraints.

    KV caches move by RDMA; experts are split by tensor parallelism. Empty for `--pools no`.

    Raises:
        UserError: there are too few GPUs, or no engine that starts such pools.
    """
    if pools == NO:
        return [], []
    powers = [2**n for n in range(int(log2(gpus)) + 1)]
    sizes = sorted(n for n in {*powers, *(3 * n for n in powers)} if n < gpus)
    if not sizes:
        raise UserError(f"--pools {pools}: two pools need at least two GPUs (--gpus)")
    cuts = [n for n in powers if n <= min(WIDEST_TP, gpus - 1)]
    apart = {
        "pools.prefill_gpus": sizes,
        "pools.decode_gpus": sizes,
        "pools.prefill_tp": cuts,
        "pools.decode_tp": cuts,
        "pools.kv_link": RDMA,
    }
    together = {
        "pools.prefill_gpus": 0,
        "pools.decode_gpus": 0,
        "pools.prefill_tp": 1,
        "pools.decode_tp": 1,
        "pools.kv_link": AUTO,
    }
    engines = [load_engine(name) for name in ENGINES.names()]
    able = {engine.schedulers[0]: engine.name for engine in engines if engine.kv_connector}
    if not any(scheduler in able for one in gpus_tried for scheduler in one.engines):
        raise UserError(f"--pools {pools}: separate pools need --engine {','.join(able.values())}")
    rules = [
        "pools.prefill_gpus = 0 OR tp * pp * ep * attention_dp * replicas = 1",
        "pools.prefill_gpus % pools.prefill_tp = 0",
        "pools.decode_gpus % pools.decode_tp = 0",
        f"pools.prefill_gpus = 0 OR scheduler IN ({_quoted(list(able))})",
    ]
    return [apart] if pools == ONLY else [together, apart], rules


def _known(names: str, option: str, known: Sequence[str]) -> list[str]:
    """Return comma-separated names, each of which must be known."""
    found = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in found:
        if name not in known:
            raise UserError(f"{option} {name}: choose from {', '.join(known)}")
    return found


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def drafting_of(methods: str, draft_model: str, acceptance: str) -> list[dict[str, Any]]:
    """Return grids of speculative decoding; empty without speculation.

    Raises:
        UserError: a name is unknown, or the acceptance length of a draft is.
    """
    names = _known(methods, "--speculation", SPECULATIONS)
    if (draft_model != NOTHING) != (DRAFT in names):
        raise UserError("--drafter NAME and --speculation draft need each other")
    drafting = [name for name in names if name != NOTHING]
    for name in drafting:
        survival(name, acceptance, max(DRAFT_TOKENS))
    if not drafting:
        return []
    found = [
        {
            "speculation.method": name,
            "speculation.num_draft_tokens": list(DRAFT_TOKENS),
            "speculation.acceptance": acceptance,
            "speculation.draft_model": draft_model if name == DRAFT else NOTHING,
        }
        for name in drafting
    ]
    plain = {
        "speculation.method": NOTHING,
        "speculation.num_draft_tokens": 0,
        "speculation.acceptance": "",
        "speculation.draft_model": NOTHING,
    }
    return [plain, *found] if NOTHING in names else found


@dataclass(frozen=True)
class OfferedLoad:
    """The load: request rates, and the number of replayed requests."""

    rates: tuple[float | None, ...]  # None: the trace's own
    requests: int  # 0: the whole trace
    available: int  # requests of the trace; 0 for a random load
    own_rate: float = 0.0  # requests per second of a trace


def load_of(
    workload: str, qps: float | None, traffic: Sequence[float], percentile: int, requests: int
) -> OfferedLoad:
    """Return the load: a whole trace, or enough requests for a stable percentile."""
    if is_trace(workload):
        trace = load_trace(workload)
        own = _own_rate(trace.arrival_s) if trace.arrival_s is not None else None
        base = qps or own
        if base is None:
            raise UserError(f"trace '{workload}' has no arrival times; say --qps")
        rates = tuple(None if qps is None and f == 1.0 else base * f for f in traffic)
        count = trace.prompt_tokens.size
        return OfferedLoad(rates, min(requests, count), count, own or 0.0)
    drawn = tuple((qps or 1.0) * factor for factor in traffic)
    tail = SETTLED / (1.0 - percentile / 100.0)
    enough = max(tail, *(rate * LEAST_S for rate in drawn))
    return OfferedLoad(drawn, requests or int(_rounded_up(enough)), 0)


def _own_rate(arrival_s: Any) -> float | None:
    """Return the mean rate of a trace's arrivals."""
    span_s = float(arrival_s[-1])
    return (arrival_s.size - 1) / span_s if span_s > 0.0 else None


def _rounded_up(count: float) -> float:
    """Return a number with two digits that is no smaller."""
    scale = 10.0 ** max(0, int(log2(count) / log2(10.0)) - 1)
    return -(-count // scale) * scale


@functools.cache
def engine_named(scheduler: str) -> str:
    """Return the engine whose own scheduler this is, or the scheduler's name."""
    engines: Iterator[ServingEngine] = map(load_engine, ENGINES.names())
    return next((e.name for e in engines if e.schedulers[0] == scheduler), scheduler)
