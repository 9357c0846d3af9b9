"""Options that a point leaves to its engine: scheduler, runtime, limits of a batch, precision.

`auto` or null means the default of the engine for the GPU and the model, from the engine's TOML
file. Schedulers of papers and of older releases, which are no engine's default, have the limits of
`OTHER_SCHEDULERS`. With separate pools, each pool takes the limits of its own GPU and degree of
tensor parallelism: limits of the whole deployment stay null. So does `max_batch` in a steady state
with a full batch, which then holds as many requests as fit, up to the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulators.catalog.cluster import AUTO
from simulators.catalog.engine import engine_of, load_engine, reference_engine, resolve_runtime
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.replica import load_runtime
from simulators.core.folder import ENGINES
from simulators.workload.precision import precision

LIMITS = ("chunk_size", "max_batch", "memory_fraction")
"""Options whose defaults depend on the GPU of a pool."""

RULES = ("scheduling.async_scheduling", "scheduling.scheduler_reserve_full_isl")
"""Options whose defaults depend on the release of an engine."""

CACHE = ("cache.block_size", "cache.prefix_caching")
"""Options of the KV cache."""

NAMES = ("scheduler", "runtime", "release", "dtype", *RULES)
"""Options whose defaults are names, with the release that selects them."""

OTHER_SCHEDULERS: Mapping[str, Any] = {
    "chunk_size": 512,
    "max_batch": 128,
    "memory_fraction": 0.9,
    "cache.block_size": 16,
    "cache.prefix_caching": False,
}
"""Options of schedulers that are no engine's default: a choice, in the range of their papers."""

OFF = "off"
SWAP = "swap"
HALF_DTYPES = ("bf16", "fp16")
"""Precisions of checkpoints without quantization. A GPU without the published one uses the other
(`--dtype` of vLLM)."""


def resolved_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `NAMES`: scheduler, runtime, precision and rules of the release.

    Args:
        values: the value of each field in `NAMES`, of the model and of the GPU. Without a model or
            a GPU, as for a load alone, the precision stays open.

    Raises:
        UserError: a name or a release is unknown.
    """
    found = {name: values[name] for name in NAMES}
    scheduler, release = values["scheduler"], values["release"]
    if scheduler == AUTO:
        scheduler = found["scheduler"] = default_scheduler(values["runtime"])
    if release:
        for option in later_rules(scheduler, release):
            if values[f"scheduling.{option}"] == AUTO:
                found[f"scheduling.{option}"] = OFF
    found["runtime"] = resolve_runtime(values["runtime"], scheduler, release)
    found["release"] = ""
    if values["dtype"] == AUTO and values["model"] and values["gpu"]:
        found["dtype"] = checkpoint_dtype(values["model"], values["gpu"])
    return found


def later_rules(scheduler: str, release: str) -> tuple[str, ...]:
    """Return the options that became defaults of a scheduler after a release.

    >>> later_rules("vllm_v1", "0.14.1")
    ('scheduler_reserve_full_isl',)
    """
    rules = engine_of(scheduler).scheduling_rules(scheduler, release)
    return tuple(option for option, is_default in rules.items() if not is_default)


def default_scheduler(runtime: str) -> str:
    """Return the scheduler of an engine's current releases, by the runtime of one of its releases.

    Runtimes without an engine have the usual scheduler of papers.

    >>> [default_scheduler(runtime) for runtime in ("auto", "sglang_0_5_8", "graphs")]
    ['vllm_v1', 'sglang', 'vllm']
    """
    if runtime == AUTO:
        return reference_engine().schedulers[0]
    framework = load_runtime(runtime).framework
    if ENGINES.has(framework):
        return load_engine(framework).schedulers[0]
    return reference_engine().default_scheduler


def limits(scheduler: str, gpu: str, tp: int, attention_dp: int = 1) -> Mapping[str, Any]:
    """Return the default limits of a scheduler's engine on a GPU.

    >>> limits("vllm_v1", "h100_sxm", tp=1)
    {'chunk_size': 8192, 'max_batch': 1024, 'memory_fraction': 0.9}
    >>> limits("vllm_v1", "l40s", tp=1)["chunk_size"], limits("sarathi", "l40s", tp=1)["chunk_size"]
    (2048, 512)
    """
    engine = engine_of(scheduler)
    if scheduler not in engine.defaults.schedulers:
        return {name: OTHER_SCHEDULERS[name] for name in LIMITS}
    sheet = load_gpu(gpu)
    tokens = engine.defaults.batch_limits(sheet).tokens
    return {
        "chunk_size": tokens // attention_dp if engine.defaults.ranks_share_tokens else tokens,
        "max_batch": engine.running_requests(sheet),
        "memory_fraction": engine.defaults.memory_fraction(sheet.hbm_bytes, tp),
    }


def cache_defaults(scheduler: str, preemption: str) -> Mapping[str, Any]:
    """Return the default options of the KV cache; swapped blocks belong to one request."""
    defaults = engine_of(scheduler).defaults
    if scheduler not in defaults.schedulers:
        return {name: OTHER_SCHEDULERS[name] for name in CACHE}
    return {
        "cache.block_size": defaults.block_size,
        "cache.prefix_caching": defaults.prefix_caching and preemption != SWAP,
    }


def checkpoint_dtype(model: str, gpu: str) -> str:
    """Return the precision of a model's checkpoint: the first that the GPU supports.

    >>> checkpoint_dtype("deepseek_v3", "h200_sxm"), checkpoint_dtype("llama3_1_8b", "h100_sxm")
    ('fp8_block', 'bf16')
    """
    return (checkpoint_dtypes(model, gpu) or published_dtypes(model))[0]


def checkpoint_dtypes(model: str, gpu: str) -> tuple[str, ...]:
    """Return the precisions of a model's checkpoint that a GPU supports, perhaps none.

    >>> checkpoint_dtypes("llama2_7b", "h100_sxm"), checkpoint_dtypes("llama2_7b", "tpu_v6e")
    (('fp16',), ('bf16',))
    """
    published, rates = published_dtypes(model), load_gpu(gpu).peak_flops
    found = tuple(dtype for dtype in published if is_supported(rates, dtype))
    if found or published[0] not in HALF_DTYPES:
        return found
    return tuple(dtype for dtype in HALF_DTYPES if is_supported(rates, dtype))


def published_dtypes(model: str) -> tuple[str, ...]:
    """Return the precisions of a model's published checkpoint."""
    return load_model(model).formats or HALF_DTYPES[:1]


def is_supported(peak_flops: Mapping[str, float], dtype: str) -> bool:
    """Return whether a GPU with these rates multiplies in a precision."""
    found = precision(dtype)
    return {found.compute, found.activations, found.expert_compute} - {""} <= set(peak_flops)
