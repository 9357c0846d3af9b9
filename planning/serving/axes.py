"""Axes of serving deployments: engines and precisions of a GPU, parallelism, pools, drafts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2
from pathlib import Path
from typing import Any

from planning.flags.serving import ANY, CHECKPOINT, NO, NOTHING, ONLY, ServingFlags
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.catalog.model import load_model
from simulators.composition.engine_defaults import (
    checkpoint_dtypes,
    is_supported,
    limits,
    published_dtypes,
)
from simulators.core.errors import UserError
from simulators.core.folder import ENGINES, ROUTERS
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.options import AUTO, DRAFT, RDMA, SPECULATIONS
from simulators.serving.speculation import survival
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.parallelism import (
    BACKENDS,
    GATHERED,
    HIGH_THROUGHPUT,
    LOW_LATENCY,
    Parallelism,
)
from sweeper.text import number_in

MAX_TP, MAX_EP, MAX_PP = 8, 16, 4
"""Largest degrees tried: tensor parallelism within a node, experts over two, four stages."""

MAX_EXACT = 4096
"""Number of replicas up to which every number is tried."""

SMALLER = ("fp8", "w4a16")
"""Precisions offered where those tried are too large or too slow."""

CHUNK_SIZES = (512, 2048, 8192, 16_384)
"""Token budgets tried besides the engine's default."""

ROUTERS_TRIED = LEAST_OUTSTANDING, ROUND_ROBIN = "least_outstanding", "round_robin"

SHARED_ROUTER = "cache_aware"
"""Routers tried, the last where prompts share prefixes. `power_of_two` and `random` approximate
the first with less knowledge."""

DRAFT_TOKENS = (1, 3, 5)
"""Draft tokens per sequence and iteration."""

MOE_BACKENDS = {"vllm_v1": (GATHERED, HIGH_THROUGHPUT, LOW_LATENCY), "sglang": BACKENDS}
"""MoE backends that an engine has options for, by its scheduler."""


def canonical_names(words: str, canonical: Any) -> list[str]:
    """Return the canonical names of comma-separated words; paths stay as they are."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    if not names:
        raise UserError("write at least one name")
    found = [name if "/" in name and Path(name).is_file() else canonical(name) for name in names]
    return list(dict.fromkeys(found))


def with_tiers(grids: Sequence[Mapping[str, Any]], flags: ServingFlags) -> list[Mapping[str, Any]]:
    """Return the grids of engines that have the drives and stores asked for, with their loads.

    Raises:
        UserError: none of the engines has them.
    """
    stores = bool(flags.nvme_kv) + bool(flags.remote_kv)
    if not stores:
        return list(grids)
    engines = map(load_engine, ENGINES.names())
    load_of = {e.schedulers[0]: e.kv_tier_load for e in engines if e.kv_tier_stores >= stores}
    found: list[Mapping[str, Any]] = []
    for grid in grids:
        able = [name for name in grid["scheduler"] if name in load_of]
        for load in dict.fromkeys(load_of[name] for name in able):
            alike = [name for name in able if load_of[name] == load]
            found.append({**grid, "scheduler": alike, "kv_tiers.load": load})
    if not found:
        names = ", ".join(map(engine_named, load_of))
        raise UserError(f"--nvme-kv, --remote-kv: none of these engines supports them; {names} do")
    return found


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
    supported = [engine for engine in asked if sheet.vendor in engine.vendors]
    tried = {model: _dtypes(sheet, model, dtypes) for model in models}
    refused = ""
    if not supported:
        do = "does" if len(asked) == 1 else "do"
        titles = ", ".join(engine.label for engine in asked)
        refused = f"{titles} {do} not run on {sheet.vendor.upper()} devices"
    elif not any(tried.values()):
        asked_for = dtypes if dtypes != CHECKPOINT else ", ".join(published_dtypes(models[0]))
        refused = f"no {asked_for} support"
    return GpuOptions(gpu, tuple(engine.schedulers[0] for engine in supported), tried, refused)


def _dtypes(gpu: Gpu, model: str, asked: str) -> tuple[str, ...]:
    if asked == CHECKPOINT:
        return checkpoint_dtypes(model, gpu.name)
    return tuple(name for name in asked.split(",") if is_supported(gpu.peak_flops, name))


def grids_of(
    gpus_tried: Sequence[GpuOptions], chunk_sizes: Sequence[int | None]
) -> list[dict[str, Any]]:
    """Return a grid of precisions, engines and chunk sizes for each model and GPU.

    Engines with the same default chunk size share a grid, which leaves that size out.
    """
    found = []
    for one in gpus_tried:
        default = {name: limits(name, one.gpu, tp=1)["chunk_size"] for name in one.engines}
        for model, dtypes in one.dtypes.items():
            if not dtypes or one.refused:
                continue
            grid = {"model": model, "gpu": [one.gpu], "dtype": list(dtypes)}
            for tokens in dict.fromkeys(default.values()):
                alike = [name for name in one.engines if default[name] == tokens]
                tried = [size for size in chunk_sizes if size != tokens] or [None]
                found.append({**grid, "scheduler": alike, "chunk_size": tried})
    return found


def routers_tried(flags: ServingFlags, *, is_shared: bool) -> list[str]:
    """Return the routers to try, the default first; one if a router makes no difference."""
    if flags.router != ANY:
        return canonical_names(
            flags.router, lambda name: known_names(name, "--router", ROUTERS.names())[0]
        )
    if flags.gpus == 1:
        return [ROUND_ROBIN]
    if has_sessions(flags.workload):
        return [SHARED_ROUTER]
    return [*ROUTERS_TRIED, *([SHARED_ROUTER] if is_shared else [])]


def chunk_sizes_tried(flags: ServingFlags) -> list[int | None]:
    """Return the chunk sizes to try; None is the engine's default.

    Raises:
        UserError: a size is not a whole number above 0.
    """
    if flags.chunk_size == ANY:
        return [None] if has_sessions(flags.workload) else [None, *CHUNK_SIZES]
    sizes = [number_in(word.strip()) for word in flags.chunk_size.split(",")]
    if any(size is None or size < 1 or size % 1 for size in sizes):
        raise UserError(f"--chunk-size {flags.chunk_size}: write tokens, as in 2048,8192")
    return [int(size) for size in sizes if size is not None]


def remedies(tried: Sequence[GpuOptions], gpus: int) -> tuple[list[str], int]:
    """Return flags of smaller precisions that fit, and the fewest GPUs for those tried.

    Both refer to weights in 0.9 of the memory; numbers of GPUs are powers of two.
    """
    used, fitting = [], []
    for one in tried:
        sheet = load_gpu(one.gpu)
        for model, dtypes in one.dtypes.items():
            free_bytes = 0.9 * sheet.hbm_bytes
            bytes_of = {
                dtype: weight_bytes(load_model(model), Parallelism(), dtype)
                for dtype in (*dtypes, *SMALLER)
                if is_supported(sheet.peak_flops, dtype)
            }
            least = min((bytes_of[dtype] for dtype in dtypes), default=inf)
            used += [least / free_bytes] if least < inf else []
            fitting += [d for d, size in bytes_of.items() if size < min(least, gpus * free_bytes)]
    needed = 2 ** max(0, ceil(log2(min(used)))) if used else gpus
    return [f"--dtype {dtype}" for dtype in SMALLER if dtype in fitting], needed


def replica_counts(gpus: int) -> str | list[int]:
    """Return the numbers of replicas tried: all up to 4,096, then steps of at most 0.05 %."""
    if gpus <= MAX_EXACT:
        return f"1..{gpus}"
    steps = (2**e for e in range(1, int(log2(gpus / MAX_EXACT)) + 2))
    larger = (n * step for step in steps for n in range(MAX_EXACT // 2 + 1, MAX_EXACT + 1))
    return [*range(1, MAX_EXACT + 1), *(n for n in larger if n < gpus), gpus]


def _powers(limit: int, most: int = 2**31) -> list[int]:
    return [2**n for n in range(int(log2(limit)) + 1) if 2**n <= most]


def parallelism_of(models: Sequence[str], gpus: int) -> tuple[dict[str, list[int]], list[str]]:
    """Return the axes of parallelism within a number of GPUs, and their constraints."""
    axes = {"tp": _powers(gpus, MAX_TP), "pp": _powers(gpus, MAX_PP)}
    mixtures = [name for name in models if load_model(name).experts]
    if not mixtures:
        return axes, []
    rules = [
        "ep = 1 OR ep = tp * attention_dp",
        "attention_dp = 1 OR (tp = 1 AND pp = 1 AND ep > 1)",
    ]
    if len(mixtures) < len(models):
        rules.append(f"ep * attention_dp = 1 OR model IN ({_quoted(mixtures)})")
    return axes | {"ep": _powers(gpus, MAX_EP), "attention_dp": _powers(gpus, MAX_EP)}, rules


def moe_backend_axis(
    flags: ServingFlags, *, mixtures: bool
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the axis of MoE backends and constraints; empty for the default backend."""
    asked = known_names(flags.moe_backend, "--moe-backend", BACKENDS)
    if asked == [GATHERED]:
        return {}, []
    if not mixtures:
        raise UserError(f"--moe-backend {flags.moe_backend}: none of the models has experts")
    supported = " OR ".join(
        f"(scheduler = '{scheduler}' AND moe.backend IN ({_quoted(backends)}))"
        for scheduler, backends in MOE_BACKENDS.items()
    )
    default = f"moe.backend = '{GATHERED}'"
    return {"moe.backend": asked}, [f"{default} OR attention_dp > 1", f"{default} OR {supported}"]


def pool_grids(
    flags: ServingFlags, tried: Sequence[GpuOptions], parallelism: Mapping[str, list[int]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return grids of separate prefill and decode pools, and their constraints.

    Each pool has its own number of GPUs and tensor parallelism, or, for mixtures of experts,
    data-parallel attention with experts on all GPUs of a replica. KV caches move by RDMA. The grid
    of one pool has the axes of `parallelism`. Empty for `--pools no`.
    """
    pools, gpus = flags.pools, flags.gpus
    if pools == NO:
        return [], []
    powers = _powers(gpus)
    sizes = sorted(n for n in {*powers, *(3 * n for n in powers)} if n < gpus)
    if not sizes:
        raise UserError(f"--pools {pools}: two pools need at least two GPUs (--gpus)")
    engines = [load_engine(name) for name in ENGINES.names()]
    able = {engine.schedulers[0]: engine.name for engine in engines if engine.kv_connector}
    if not any(scheduler in able for one in tried for scheduler in one.engines):
        raise UserError(f"--pools {pools}: separate pools need --engine {','.join(able.values())}")
    widths = _powers(gpus - 1, MAX_EP)[1:] if "ep" in parallelism else []
    prefill, decode = (
        [_pool(name, sizes, tp=_powers(gpus - 1, MAX_TP))]
        + [_pool(name, sizes, attention_dp=width) for width in widths]
        for name in ("prefill", "decode")
    )
    undivided = dict.fromkeys(parallelism, 1)
    separate = [
        {**undivided, **one, **other, "pools.kv_link": RDMA} for one in prefill for other in decode
    ]
    one_pool = {**dict.fromkeys(separate[0], 1), "pools.kv_link": AUTO}
    one_pool |= {"pools.prefill_gpus": 0, "pools.decode_gpus": 0, **parallelism}
    rules = [
        "pools.prefill_gpus = 0 OR replicas = 1",
        "pools.prefill_gpus % (pools.prefill_tp * pools.prefill_attention_dp) = 0",
        "pools.decode_gpus % (pools.decode_tp * pools.decode_attention_dp) = 0",
        f"pools.prefill_gpus = 0 OR scheduler IN ({_quoted(list(able))})",
    ]
    return separate if pools == ONLY else [one_pool, *separate], rules


def _pool(
    name: str, sizes: Sequence[int], *, tp: Sequence[int] = (1,), attention_dp: int = 1
) -> dict[str, Any]:
    """Return the axes of a pool; its experts are on all ranks of data-parallel attention."""
    axes = {"gpus": [*sizes], "tp": [*tp], "attention_dp": attention_dp, "ep": attention_dp}
    return {f"pools.{name}_{axis}": values for axis, values in axes.items()}


def known_names(names: str, option: str, known: Sequence[str]) -> list[str]:
    """Return comma-separated names as they are spelt in `known`.

    Raises:
        UserError: a name is unknown; the message names the option.
    """
    spelt = {name.lower(): name for name in known}
    words = [word.strip() for word in names.split(",") if word.strip()]
    found = list(dict.fromkeys(spelt.get(word.lower(), word) for word in words))
    for name in found:
        if name not in known:
            raise UserError(f"{option} {name}: choose from {', '.join(known)}")
    return found


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def drafting_grids(flags: ServingFlags) -> list[dict[str, Any]]:
    """Return grids of speculative decoding; empty without speculation."""
    names = known_names(flags.speculation, "--speculation", SPECULATIONS)
    if (flags.drafter != NOTHING) != (DRAFT in names):
        raise UserError("--drafter NAME and --speculation draft need each other")
    if flags.acceptance and names in ([], [NOTHING]):
        raise UserError(f"--acceptance {flags.acceptance} needs --speculation, as in eagle3")
    for name in names:
        if name != NOTHING:
            survival(name, flags.acceptance, max(DRAFT_TOKENS))
    if names in ([], [NOTHING]):
        return []
    return [
        {
            "speculation.method": name,
            "speculation.num_draft_tokens": 0 if name == NOTHING else list(DRAFT_TOKENS),
            "speculation.acceptance": "" if name == NOTHING else flags.acceptance,
            "speculation.draft_model": flags.drafter if name == DRAFT else NOTHING,
        }
        for name in sorted(names, key=lambda name: name != NOTHING)
    ]


@functools.cache
def engine_named(scheduler: str) -> str:
    """Return the engine whose own scheduler this is, or the scheduler's name."""
    engines = map(load_engine, ENGINES.names())
    return next((e.name for e in engines if e.schedulers[0] == scheduler), scheduler)
