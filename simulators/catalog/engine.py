"""Serving engines: command-line options, schedulers, kernels, defaults, and runtime by release.

There is one file per engine in `catalog/engines/`. The package `deploy` writes command lines from
it; `composition` and `serving` read kernel choices and defaults.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from simulators.catalog.cluster import AUTO
from simulators.catalog.gpu import Gpu
from simulators.catalog.sheet import fill
from simulators.core.errors import UserError
from simulators.core.folder import ENGINES, read_toml

ORDER = Path(__file__).parent / "libraries.toml"

ENGINE_FILES = (ORDER, *sorted(ENGINES.shipped.glob("*.toml")))
"""Shipped files with the kernel choices of engines."""

GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class KernelChoices:
    """Work of an iteration in which engines differ, with the GPU architectures that it is for."""

    libraries: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Architectures by kernel and library, for kernels of other libraries."""

    without_attention_sinks: tuple[str, ...] = ()  # architectures
    unified_attention: tuple[str, ...] = ()  # architectures: sinks need one Triton kernel
    own_mxfp4_experts: tuple[str, ...] = ()  # architectures: not Marlin's kernels
    keeps_whole_windows: bool = False  # layers with a window cache all tokens
    fused_into_attention: tuple[str, ...] = ()  # names of operators
    attends_to_all_in_short_prompts: bool = False  # no sparse attention below the list's length
    skips_empty_keys: tuple[str, ...] = ()  # architectures: sparse attention reads no empty places
    lists_as_pages: tuple[str, ...] = ()  # architectures: decodes read lists as pages of one token
    first_rank_streams: bool = False  # it sends the tokens of all ranks within its loop


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Default limits of a batch, for GPUs with at most `to_bytes` of memory or for named GPUs."""

    to_bytes: float = math.inf
    gpus: tuple[str, ...] = ()  # beginnings of names; empty: all
    tokens: int  # of an iteration
    sequences: int = 0  # that run; 0: the engine's `max_sequences`


@dataclass(frozen=True, kw_only=True)
class ReservedMemory:
    """Default memory besides weights and KV cache, for GPUs with at most `to_bytes` of memory."""

    to_bytes: float = math.inf
    gib: float
    gib_per_gpu: float = 0.0  # for each tensor parallel rank


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Defaults of an engine."""

    schedulers: tuple[str, ...] = ()  # whose options have these defaults
    batch: tuple[BatchLimits, ...] = ()  # the first that applies to a GPU
    ranks_share_tokens: bool = False  # data-parallel ranks of attention divide the tokens
    tokens_limit_sequences: bool = False  # the default batch is at most the token budget
    tokens_beyond_prompt: int = 0  # a recipe's budget holds the longest prompt and these
    reserved_memory: tuple[ReservedMemory, ...] = ()  # in order of memory
    block_size: int = 16  # tokens per KV block
    prefix_caching: bool = True
    gpu_memory_fraction: float = 0.9  # for weights and cache, if no reserved memory is stated
    stream_interval: int = 1  # iterations between messages to a client, as in recipes

    def __post_init__(self) -> None:
        """Raise UserError unless every GPU has limits where schedulers have defaults."""
        is_total = any(math.isinf(one.to_bytes) and not one.gpus for one in self.batch)
        if self.schedulers and not is_total:
            raise UserError("[defaults] with schedulers needs an entry of batch for all GPUs")

    def batch_limits(self, gpu: Gpu) -> BatchLimits:
        """Return the default limits of a batch on a GPU."""
        return next(
            one
            for one in self.batch
            if gpu.hbm_bytes <= one.to_bytes and (not one.gpus or gpu.name.startswith(one.gpus))
        )

    def memory_fraction(self, hbm_bytes: float, tp: int) -> float:
        """Return the share of a GPU's memory for weights and KV cache."""
        for one in self.reserved_memory:
            if hbm_bytes <= one.to_bytes:
                return round(1.0 - (one.gib + one.gib_per_gpu * tp) * GIB / hbm_bytes, 3)
        return self.gpu_memory_fraction


@dataclass(frozen=True, kw_only=True)
class Release:
    """A range of releases with a common runtime."""

    first: str
    last: str
    before: str = ""  # ISO date: earlier images that name no release belong here
    runtime: str


@dataclass(frozen=True, kw_only=True)
class SchedulingRule:
    """An option of a scheduler that is on by default since a release."""

    scheduler: str
    option: str
    since: str


@dataclass(frozen=True, kw_only=True)
class ServingEngine:
    """Facts about a serving engine from its documentation and source."""

    name: str
    title: str = ""  # official spelling, if different from the name
    command: tuple[str, ...]  # starts a server; the model's repository follows
    image: str
    port: int
    schedulers: tuple[str, ...]  # with the engine's batching policy, its own first
    optional_schedulers: tuple[str, ...] = ()  # further policies that the engine can be given
    default_scheduler: str = ""  # of runtimes without an engine; only of the reference engine
    vendors: tuple[str, ...]  # of supported GPUs
    runtime: str = ""  # of today's release; empty: the runtime with the engine's name
    max_sequences: int  # default of running sequences, if not stated by GPU
    block_sizes: tuple[int, ...]  # tokens per KV block
    options: tuple[str, ...]  # all documented options
    keys: tuple[str, ...] = ()  # of the YAML file that an option names
    dynamo_model: str = ""  # option of a Dynamo worker that names the model
    kv_connector: tuple[str, ...] = ()  # options that transfer KV caches between pools
    kv_tier_stores: int = 0  # drives or remote stores behind host memory, at once
    kv_tier_load: str = ""  # what waits for a load from them: the batch, or the request alone
    dtypes: Mapping[str, tuple[str, ...]]  # options by precision; empty: set by the checkpoint
    kv_dtypes: Mapping[str, tuple[str, ...]]
    remarks: Mapping[str, str] = field(default_factory=dict)  # further needs of a precision
    kernels: KernelChoices = KernelChoices()
    defaults: Defaults = Defaults()
    releases: tuple[Release, ...] = ()  # oldest first
    rules: tuple[SchedulingRule, ...] = ()
    # Architectures and runtimes where another kernel continues a cut prompt, compiled at first use.
    continued_prompts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warms_prompts: bool = False  # runs prompts of the token budget before it accepts requests
    source: str
    read: str  # date of reading

    @property
    def label(self) -> str:
        """The name as its makers write it."""
        return self.title or self.name

    @property
    def today(self) -> str:
        """The runtime of today's release."""
        return self.runtime or self.name

    def running_requests(self, gpu: Gpu) -> int:
        """Return the default limit of running requests on a GPU.

        >>> from simulators.catalog.gpu import load_gpu
        >>> [load_engine("vllm").running_requests(load_gpu(gpu)) for gpu in ("h100_sxm", "l4")]
        [1024, 256]
        """
        return self.defaults.batch_limits(gpu).sequences or self.max_sequences

    def runtime_of_release(self, release: str = "") -> str:
        """Return the runtime of a release.

        Args:
            release: a version such as "0.5.9" or "1.2.0rc6", or the ISO date of an image without a
                version; empty: today's release.

        Raises:
            UserError: no runtime describes the release.

        >>> engine = load_engine("sglang")
        >>> engine.runtime_of_release("0.5.10.post1"), engine.runtime_of_release("2026-03-10")
        ('sglang', 'sglang_0_5_9')
        """
        if _is_date(release) or not release:
            older = (one.runtime for one in self.releases if release and release < one.before)
            return next(older, self.today)
        version = _version(release)
        for one in self.releases:
            last = _version(one.last)
            if _version(one.first) <= version and version[: len(last)] <= last:
                return one.runtime
        known = ", ".join(f"{one.first} to {one.last}" for one in self.releases) or "none"
        raise UserError(
            f"release '{release}' of {self.name} is unknown; known are {known}, a date such as "
            "2026-01-31, and nothing for today's"
        )

    def scheduling_rules(
        self, scheduler: str, release: str = "", runtime: str = ""
    ) -> dict[str, bool]:
        """Return whether each option of a scheduler is on by default.

        Args:
            scheduler: a name.
            release: a version or an ISO date; empty: the last release of the runtime.
            runtime: a name; without releases of this engine, today's.

        >>> load_engine("vllm").scheduling_rules("vllm_v1", "0.14.1")
        {'async_scheduling': True, 'scheduler_reserve_full_isl': False}
        """
        version: tuple[float, ...] = () if _is_date(release) else _version(release)
        if not version:
            older = (one for one in self.releases if release and release < one.before)
            latest = (one for one in self.releases[::-1] if one.runtime == runtime)
            found = next(older, None) or next(latest, None)
            version = _version(found.last) if found else (math.inf,)
        rules = (rule for rule in self.rules if rule.scheduler == scheduler)
        return {rule.option: version >= _version(rule.since) for rule in rules}


def load_engine(name: str) -> ServingEngine:
    """Return an engine by name or TOML path.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file lacks a field, or a field is invalid.

    >>> load_engine("vllm").schedulers[0]
    'vllm_v1'
    """
    return ENGINES.load(name, _engine)


@functools.cache
def kernel_choices(library: str) -> KernelChoices:
    """Return the kernel choices of an engine, or the defaults for other libraries."""
    return load_engine(library).kernels if ENGINES.has(library) else KernelChoices()


def resolve_runtime(runtime: str, scheduler: str = "", release: str = "") -> str:
    """Return the name of a point's runtime.

    Args:
        runtime: a name, or `AUTO` for the engine of the scheduler.
        scheduler: a name. Schedulers without an engine run on the reference engine.
        release: a version or an ISO date of the engine; empty: today's release.

    Raises:
        UserError: the release is unknown, or a release is given for a runtime without an engine.

    >>> resolve_runtime("auto", "sglang"), resolve_runtime("auto", "orca")
    ('sglang', 'vllm')
    >>> resolve_runtime("vllm", release="0.8.5"), resolve_runtime("eager")
    ('vllm_0_13', 'eager')
    """
    if runtime == AUTO:
        return engine_of(scheduler).runtime_of_release(release)
    if not release:
        return runtime
    if not ENGINES.has(runtime):
        raise UserError(
            f"release '{release}' needs the runtime of an engine "
            f"({', '.join(ENGINES.names())}), and runtime is {runtime}"
        )
    return load_engine(runtime).runtime_of_release(release)


def engine_runtimes() -> tuple[str, ...]:
    """Return the runtimes of all releases of all engines."""
    engines = [load_engine(name) for name in ENGINES.names()]
    older = (release.runtime for engine in engines for release in engine.releases)
    return tuple(dict.fromkeys((*(engine.today for engine in engines), *older)))


def engine_of(scheduler: str) -> ServingEngine:
    """Return the engine of a scheduler; the reference engine for schedulers without an engine."""
    engines = map(load_engine, ENGINES.names())
    found = (engine for engine in engines if scheduler in engine.schedulers)
    return next(found, None) or reference_engine()


@functools.cache
def reference_engine() -> ServingEngine:
    """Return the shipped engine whose scheduler is the default one."""
    shipped = map(_engine, ENGINE_FILES[1:])
    return next(engine for engine in shipped if engine.default_scheduler)


@functools.cache
def library_order() -> tuple[str, ...]:
    """Return the kernel libraries in the order of substitution. The first one is the default."""
    return tuple(read_toml(ORDER)["order"])


@functools.cache
def engine_order() -> tuple[str, ...]:
    """Return the shipped engines in the order of `library_order`."""
    shipped = {file.stem for file in ENGINE_FILES[1:]}
    return tuple(name for name in library_order() if name in shipped)


def _is_date(release: str) -> bool:
    try:
        return bool(date.fromisoformat(release))
    except ValueError:
        return False


def _version(release: str) -> tuple[int, ...]:
    """Return the leading numbers of a release, or an empty tuple."""
    found = re.match(r"v?(\d+(\.\d+)*)", release)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _engine(path: Path) -> ServingEngine:
    return fill(ServingEngine, read_toml(path), path, "serving engine")
