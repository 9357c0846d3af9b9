"""Schedulers and routers by name, and the limits of a replica: requests, tokens, KV blocks.

`mine` is `catalog/schedulers/mine.py` or a scheduler of this package; a dotted name is an installed
module. A scheduler's file sets its properties as constants, as in `CHUNKED = True`: they are the
fields of `Scheduler`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from types import ModuleType
from typing import Any

import numpy as np

from simulators.catalog.engine import engine_of
from simulators.composition.replica import NOTHING
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import ROUTERS, SCHEDULERS, load_module
from simulators.core.jit import Ints, Kernel
from simulators.serving.adapters import fleet_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ROUTE
from simulators.serving.engine.tier_limits import KVTier, is_inline, swap_space, tiers_of
from simulators.serving.options import (
    ADAPTIVE,
    AUTO,
    CACHED,
    EVICTIONS,
    LRU,
    OF_REQUEST,
    ON,
    SSD,
    SWAP,
    THROUGH,
    TIERS,
    WRITE_POLICIES,
)
from simulators.serving.point import ServingPoint
from simulators.serving.prices.hardware import Hardware
from simulators.serving.speculation import Drafter
from simulators.workload.llm.memory import activation_bytes, weight_bytes
from simulators.workload.operators import Column
from simulators.workload.precision import BYTES

ROUTED_BY = len(ROUTE.arguments)
"""Number of arguments of a router's kernel."""


@dataclass(frozen=True)
class Scheduler:
    """A scheduler: a compiled kernel, and the properties set as constants in its file."""

    schedule: Kernel[..., int]
    chunked: bool = False  # chunked prefill
    prefill_first: bool = False  # whole prompts are processed before any decode
    reserves: bool = False  # memory is reserved for the longest possible sequence
    fraction_of_free: bool = False  # memory_fraction refers to what the weights leave
    caches_prefixes: bool = False  # has a prefix cache
    caches_at_end: bool = False  # which finds the blocks of a batch when the batch has ended
    shared_rank_queue: bool = False  # one queue for all data-parallel ranks, not one for each
    reserves_output: bool = False  # admission allocates the blocks of prompt and output
    overlap_schedule: bool = False  # tokens are sent while the next batch runs
    kv_transfer: bool = False  # can decode requests of separate prefill replicas
    watermark: float = 0.01  # share of the blocks kept free at admission
    options: tuple[str, ...] = ()  # further rules, fields of `SchedulingConfig`
    drafts_beyond_end: bool = False  # all drafts allocate blocks, also those after the last token
    async_methods: tuple[str, ...] = ()  # of speculation, with asynchronous scheduling
    lookahead_methods: tuple[str, ...] = ()  # whose drafter needs slots after the batch's tokens
    block_drop_methods: tuple[str, ...] = ()  # that compute the last cached block again
    poll_interval: int = 0  # decode iterations between polls of the queue; 0: not configurable
    limits_only_refuse: bool = False  # a limit that never refused a request had no other effect
    requires: Mapping[str, int] = field(default_factory=dict)  # fields of a point and their values


def load_scheduler(name: str) -> Scheduler:
    """Return a scheduler by name, path or dotted module name.

    >>> load_scheduler("sarathi").chunked
    True
    """
    return _scheduler(load_module(SCHEDULERS, name))


def load_router(name: str) -> Kernel[..., int]:
    """Return the kernel `route` of a router by name, path or dotted module name.

    Raises:
        UserError: the file has no such kernel, or its number of arguments is wrong.

    >>> load_router("round_robin").__name__
    'route'
    """
    module = load_module(ROUTERS, name)
    found = _kernel(module, "route")
    takes = found.py_func.__code__.co_varnames[: found.py_func.__code__.co_argcount]
    if len(takes) != ROUTED_BY:
        raise UserError(
            f"{module.__file__}: route takes {', '.join(takes)}; it must take arrivals, waiting, "
            "running, found (thousandths of the prompt in each replica's prefix cache) and draws"
        )
    return found


@functools.lru_cache(maxsize=64)
def _scheduler(module: ModuleType) -> Scheduler:
    constants = {f.name: f.name.upper() for f in fields(Scheduler)}
    properties = {n: getattr(module, c) for n, c in constants.items() if hasattr(module, c)}
    return Scheduler(**{**properties, "schedule": _kernel(module, "schedule")})


def _kernel(module: ModuleType, name: str) -> Kernel[..., Any]:
    found = getattr(module, name, None)
    if not isinstance(found, Kernel):
        raise UserError(f"{module.__file__} has no kernel named '{name}'")
    return found


GB = 1e9

MOST_BLOCKS, LONGEST_S = 1 << 50, 100.0
"""Blocks of a tier without limit, and the longest transfer of one: integers overflow beyond."""

ROUTED_LAYERS = 0.5
"""Share of layers that route tokens in a mixture of depths: every other layer."""

CONVERTED = (
    "blocks",
    "block_size",
    "watermark",
    "max_model_len",
    "reserves",
    "move_s",
    "acceptance",
    "draft_max_running",
    "accept_cycle",
    "drafts_beyond_end",
    "schedule_conservativeness",
    "tiers",
    "write_policy",
    "eviction",
    "view_refresh_s",
)
"""Fields of `ReplicaLimits` that kernels read in another form; others are columns of that name."""


@dataclass(frozen=True, kw_only=True)
class ReplicaLimits:
    """The limits of a replica, equal for all replicas of a pool."""

    blocks: int  # of the KV cache
    block_size: int
    watermark: float  # share of the blocks kept free at admission
    max_num_seqs: int  # running requests over all stages
    max_prefill_tokens: int  # prompt tokens in a batch of whole prompts
    token_budget: int  # tokens in a batch with chunked prefill
    max_model_len: int  # longest prompt and output together
    stages: int = 1
    reserves: bool = False
    reserves_output: bool = False
    overlap_schedule: bool = False
    swap_capacity: int = 0  # host blocks for preempted requests; 0: recompute
    move_s: float = 0.0  # to move a block to or from the host
    prefix_caching: bool = False
    caches_at_end: bool = False  # other requests find a prompt's blocks when its batch has ended
    tiers: tuple[KVTier, ...] = ()  # of the KV cache behind GPU memory
    inline_tiers: int = 0  # first tiers whose loads are moves before the batch, in `move_s`
    loads_request: bool = False  # a load delays its request, not the batch
    write_policy: str = THROUGH
    eviction: str = LRU
    page_blocks: int = 0  # tiers are looked up in whole pages of so many blocks
    view_refresh_s: float = 0.0  # age at which the router's view of prefix caches is renewed
    ranks: int = 1  # synchronous ranks with a queue each; the other limits are per rank
    num_draft_tokens: int = 0  # of each decode
    acceptance: tuple[float, ...] = ()  # shares of iterations that accept at least 1, 2 ... drafts
    draft_max_running: tuple[int, ...] = ()  # running requests up to which 1, 2 ... are drafted
    draft_counts_waiting: bool = False  # waiting requests count as running
    accept_cycle: tuple[int, ...] = ()  # accepted tokens of a request's iterations; (): drawn
    num_lookahead_tokens: int = 0  # slots for a drafter after the scheduled tokens
    drops_cached_block: bool = False  # a drafter computes the last cached block again
    drafts_beyond_end: bool = False  # all drafts allocate blocks, also those after the last token
    async_scheduling: bool = False  # the next batch is formed when one is launched
    reserve_full_isl: bool = False  # a prompt is admitted only if all of it fits
    long_prefill_token_threshold: int = 0  # prompt tokens of a request in one batch; 0: no limit
    ignore_eos: bool = False  # answers have their longest length, which admission knows
    schedule_conservativeness: float = 1.0  # factor of the output expected at admission
    seed: int = 0
    poll_interval: int = 10  # decode iterations between polls of the queue (LightLLM's default)

    def vector(self) -> Ints:
        """Return the limits as the array that kernels read.

        Schedulers that reserve memory run at most the requests that fit at the longest length.
        """
        limits = np.zeros(at.LIMITS, np.int64)
        for name in (one.name for one in fields(self) if one.name not in CONVERTED):
            limits[getattr(at, name.upper())] = getattr(self, name)
        limits[at.MAX_CONCURRENT_BATCHES] = self.max_concurrent_batches
        limits[at.BLOCK], limits[at.WATERMARK] = self.block_size, self.watermark_blocks
        limits[at.SLOTS_BEYOND_END] = self.drafts_beyond_end * at.ALL_DECODES
        limits[at.CONSERVATIVENESS] = round(self.schedule_conservativeness * 1e6)
        limits[at.MOVE_NS] = round(self.move_s * 1e9)
        limits[at.RESERVED] = reserved = self.max_model_len // self.block_size
        fit = self.blocks // max(1, reserved)
        limits[at.MAX_BATCH_SEQS] = max(1, self.max_num_seqs // self.stages)
        if self.reserves:
            limits[at.MAX_BATCH_SEQS] = min(self.max_num_seqs, fit)
        depth = limits[at.DRAFT_DEPTH] = len(self.acceptance)
        cycle = limits[at.ACCEPT_CYCLE] = len(self.accept_cycle)
        shares = np.rint(at.CERTAIN * np.array(self.acceptance))
        limits[at.ACCEPTANCE : at.ACCEPTANCE + depth] = shares
        limits[at.ACCEPTANCE : at.ACCEPTANCE + cycle] = self.accept_cycle
        running = self.draft_max_running or at.ALL_DECODES
        limits[at.DRAFT_MAX_RUNNING : at.DRAFT_MAX_RUNNING + depth] = running
        self._write_tiers(limits)
        return limits

    def _write_tiers(self, limits: Ints) -> None:
        limits[at.NUM_TIERS] = len(self.tiers)
        limits[at.WRITE_POLICY] = WRITE_POLICIES.index(self.write_policy)
        limits[at.EVICTION] = EVICTIONS.index(self.eviction)
        limits[at.VIEW_REFRESH_NS] = round(self.view_refresh_s * 1e9)
        for place, tier in enumerate(self.tiers):
            limits[at.TIER_KIND + place] = TIERS.index(tier.name)
            limits[at.TIER_CAPACITY + place] = min(tier.capacity, MOST_BLOCKS)
            limits[at.TIER_READ_PS + place] = round(min(tier.read_s, LONGEST_S) * 1e12)
            limits[at.TIER_WRITE_PS + place] = round(min(tier.write_s, LONGEST_S) * 1e12)
            limits[at.TIER_STORE_PS + place] = round(min(tier.store_s, LONGEST_S) * 1e12)
            limits[at.TIER_LATENCY_NS + place] = round(tier.latency_s * 1e9)

    @property
    def max_concurrent_batches(self) -> int:
        """Return the number of batches in flight."""
        return 2 if self.async_scheduling else self.stages

    @property
    def watermark_blocks(self) -> int:
        """Return the number of blocks kept free at admission."""
        return int(self.watermark * self.blocks)

    def admits(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        """Return the indices of the requests that fit on an otherwise empty replica."""
        kv_tokens = (self.blocks - max(1, self.watermark_blocks)) * self.block_size
        kv_tokens -= self.num_draft_tokens + self.num_lookahead_tokens
        return np.flatnonzero(prompt_tokens + output_tokens <= min(self.max_model_len, kv_tokens))


def limits_of(
    point: ServingPoint,
    hardware: Hardware,
    scheduler: Scheduler,
    lengths: tuple[Ints, Ints],
    drafter: Drafter | None = None,
) -> ReplicaLimits:
    """Return the limits of a point's replicas; `lengths` are the prompt and output tokens.

    Memory is reserved for the activations of the largest batch.

    Raises:
        Infeasible: the model does not fit, or the scheduler lacks a requested feature.
        UserError: the GPU's data sheet lacks the bandwidth of the link to the host.
    """
    _check_features(point, scheduler)
    context = point.max_context or hardware.replica.model.max_context
    ranks = ranks_of(point, scheduler)
    groups = point.attention_dp // ranks  # ranks that share a queue
    watermark = point.cache.watermark
    reserve_full_isl = point.scheduling.scheduler_reserve_full_isl
    blocks = _kv_blocks_of(
        point,
        hardware,
        scheduler,
        drafter,
        tokens=_largest_batch_tokens(point, scheduler, lengths, context),
        sequences=point.max_num_seqs * point.attention_dp,
        mean_tokens=mean_tokens(lengths, context),
    )
    return ReplicaLimits(
        blocks=max(1, blocks // ranks),
        block_size=point.block_size,
        watermark=scheduler.watermark if watermark is None else watermark,
        max_num_seqs=point.max_num_seqs * groups,
        max_prefill_tokens=point.scheduling.max_batch_tokens * groups,
        token_budget=point.token_budget * groups,
        max_model_len=context,
        stages=point.pp,
        ranks=ranks,
        reserves=scheduler.reserves,
        reserves_output=scheduler.reserves_output,
        overlap_schedule=scheduler.overlap_schedule and point.pp == 1,
        prefix_caching=_caches_prefixes(point),
        caches_at_end=scheduler.caches_at_end,
        poll_interval=max(1, point.scheduling.poll_interval or scheduler.poll_interval),
        async_scheduling=_is_async(point, ranks),
        reserve_full_isl=_follows(
            point.scheduler, point.runtime, reserve_full_isl, "scheduler_reserve_full_isl"
        ),
        long_prefill_token_threshold=point.scheduling.long_prefill_token_threshold,
        ignore_eos=point.client.ignore_eos,
        schedule_conservativeness=point.scheduling.schedule_conservativeness,
        seed=point.seed,
        **_offloading_limits(point, hardware, ranks),
        **_speculation_limits(point, scheduler, drafter),
    )


def _largest_batch_tokens(
    point: ServingPoint, scheduler: Scheduler, lengths: tuple[Ints, Ints], context: int
) -> int:
    """Return the tokens of the largest batch: a chunk, or whole prompts with the longest one."""
    if scheduler.chunked:
        return point.token_budget
    prompt, output = lengths
    fitting = prompt[prompt + output <= context]
    return max(point.scheduling.max_batch_tokens, int(fitting.max(initial=1)))


def _offloading_limits(point: ServingPoint, hardware: Hardware, ranks: int) -> dict[str, Any]:
    """Return the limits of swapping and of the KV cache's tiers."""
    swap_blocks, move_s = 0, 0.0
    if point.cache.preemption == SWAP:
        swap_blocks, move_s = swap_space(
            hardware.replica, point.cache.offload_to, point.cache.swap_bytes, point.block_size
        )
    tiers = tuple(
        replace(tier, capacity=tier.capacity if tier.is_shared else tier.capacity // ranks)
        for tier in tiers_of(point, hardware.replica)
    )
    if tiers and is_inline(point, tiers):
        move_s = tiers[0].read_s
    return {
        "tiers": tiers,
        "inline_tiers": int(is_inline(point, tiers)),
        "loads_request": bool(tiers) and point.kv_tiers.load == OF_REQUEST,
        "write_policy": point.kv_tiers.write_policy,
        "eviction": point.kv_tiers.eviction,
        "page_blocks": point.kv_tiers.page_tokens // point.block_size,
        "view_refresh_s": point.cache.view_refresh_s,
        "swap_capacity": swap_blocks,
        "move_s": move_s,
    }


def _speculation_limits(
    point: ServingPoint, scheduler: Scheduler, drafter: Drafter | None
) -> dict[str, Any]:
    """Return the limits of speculative decoding."""
    method = point.speculation.method
    limits: dict[str, Any] = {
        "draft_counts_waiting": point.speculation.rule == ADAPTIVE,
        "drafts_beyond_end": scheduler.drafts_beyond_end,
        "drops_cached_block": method in scheduler.block_drop_methods,
    }
    if drafter is None:
        return limits
    has_lookahead = method in scheduler.lookahead_methods
    return limits | {
        "num_draft_tokens": drafter.drafted,
        "acceptance": drafter.survival,
        "draft_max_running": drafter.up_to,
        "num_lookahead_tokens": drafter.drafted if has_lookahead else 0,
    }


def longest_request(point: ServingPoint, hardware: Hardware, drafter: Drafter | None) -> int:
    """Return the tokens of prompt and output of the longest request that fits a replica's memory.

    Raises:
        Infeasible: the model does not fit.
    """
    scheduler = load_scheduler(point.scheduler)
    tokens = point.token_budget if scheduler.chunked else point.scheduling.max_batch_tokens
    blocks = _kv_blocks_of(
        point, hardware, scheduler, drafter, tokens=tokens, sequences=1, mean_tokens=0.0
    )
    return blocks // point.attention_dp * point.block_size


def _kv_blocks_of(
    point: ServingPoint,
    hardware: Hardware,
    scheduler: Scheduler,
    drafter: Drafter | None,
    *,
    tokens: int,
    sequences: int,
    mean_tokens: float,
) -> int:
    adapters = fleet_of(point, hardware)
    return kv_blocks(
        hardware,
        memory_fraction=point.gpu_memory_utilization,
        block_size=point.block_size,
        tokens=tokens,
        rows=point.max_num_seqs,
        fraction_of_free=scheduler.fraction_of_free,
        drafter=drafter,
        adapter_bytes=adapters.bytes_per_gpu if adapters else 0.0,
        kept_keys=kept_keys(point),
        sequences=sequences,
        mean_tokens=mean_tokens,
    )


def _caches_prefixes(point: ServingPoint) -> bool:
    return point.is_prefix_caching or point.cache.preemption == CACHED


def _is_async(point: ServingPoint, ranks: int) -> bool:
    """Return whether the next batch is formed when one is launched.

    Raises:
        Infeasible: it is requested, and another option excludes it.
    """
    requested = point.scheduling.async_scheduling
    is_alone = point.pp * ranks == 1
    method = point.speculation.method if point.speculation.num_draft_tokens else NOTHING
    options = (point.scheduler, point.runtime, requested, method)
    is_async = is_alone and schedules_async(*options, point.cache.preemption)
    if requested == ON and not is_async:
        raise Infeasible(
            f"{point.scheduler}_has_no_async_scheduling",
            "or not with this method of speculation, pipeline stages, ranks or swapping",
        )
    return is_async


def schedules_async(
    scheduler: str, runtime: str, requested: str, method: str, preemption: str
) -> bool:
    """Return whether a replica of one queue and stage forms a batch when one is launched.

    With speculation only if the draft tokens stay on the GPU.
    """
    is_possible = method in load_scheduler(scheduler).async_methods and preemption != SWAP
    return is_possible and _follows(scheduler, runtime, requested, "async_scheduling")


def _follows(scheduler: str, runtime: str, requested: str, option: str) -> bool:
    """Return whether a scheduler follows a rule: as requested, or as its release does."""
    if requested != AUTO:
        return requested == ON
    return _rules(scheduler, runtime).get(option, False)


@functools.cache
def _rules(scheduler: str, runtime: str) -> Mapping[str, bool]:
    """Return whether each option of a scheduler is on by default in a runtime."""
    return engine_of(scheduler).scheduling_rules(scheduler, runtime=runtime)


def _check_features(point: ServingPoint, scheduler: Scheduler) -> None:
    """Raise Infeasible if the scheduler lacks a requested feature, or two features conflict."""
    for name, needed in scheduler.requires.items():
        if attrgetter(name)(point) != needed:
            option = name.rpartition(".")[2]
            raise Infeasible(f"{point.scheduler}_needs_{option}_{needed}")
    if point.scheduling.poll_interval and not scheduler.poll_interval:
        raise Infeasible(
            f"{point.scheduler}_has_no_poll_interval", "the queue is polled in every iteration"
        )
    for option, value in (
        ("scheduler_reserve_full_isl", point.scheduling.scheduler_reserve_full_isl == ON),
        ("long_prefill_token_threshold", point.scheduling.long_prefill_token_threshold > 0),
        ("schedule_conservativeness", point.scheduling.schedule_conservativeness != 1.0),
    ):
        if value and option not in scheduler.options:
            raise Infeasible(f"{point.scheduler}_has_no_{option}")
    if _caches_prefixes(point) and not scheduler.caches_prefixes:
        raise Infeasible(f"{point.scheduler}_has_no_prefix_cache")
    if point.cache.preemption == SWAP:
        if point.is_prefix_caching:
            raise Infeasible("swap_has_no_prefix_cache", "swapped blocks belong to one request")
        if point.cache.offload_to == SSD:
            raise Infeasible("swap_goes_to_memory", "engines write no running request to a drive")
    for option in ("cache.prefix_host_bytes", "kv_tiers.nvme_bytes", "kv_tiers.remote_bytes"):
        if attrgetter(option)(point) and not point.is_prefix_caching:
            raise Infeasible(f"{option.rpartition('.')[2]}_needs_prefix_cache")
    page = point.kv_tiers.page_tokens
    if page % point.block_size:
        raise Infeasible("page_of_no_whole_blocks", f"{page} tokens, blocks of {point.block_size}")


def kept_keys(point: ServingPoint) -> float:
    """Return the share of KV cache entries that remain under a mixture of depths."""
    return 1.0 - ROUTED_LAYERS * (1.0 - point.dynamic.mod_capacity)


def ranks_of(point: ServingPoint, scheduler: Scheduler) -> int:
    """Return the number of request queues of a replica; their batches are synchronous.

    Each rank of data-parallel attention has a queue, unless the scheduler distributes one queue
    over the ranks, or there is a pipeline.
    """
    return 1 if scheduler.shared_rank_queue or point.pp > 1 else point.attention_dp


@functools.lru_cache(maxsize=1024)
def kv_blocks(
    hardware: Hardware,
    *,
    memory_fraction: float,
    block_size: int,
    tokens: int,
    rows: int,
    fraction_of_free: bool = False,
    drafter: Drafter | None = None,
    adapter_bytes: float = 0.0,
    kept_keys: float = 1.0,
    sequences: int = 0,
    mean_tokens: float = 0.0,
) -> int:
    """Return the given number of KV blocks, or as many as fit on the fullest GPU.

    The rest of the memory holds weights, adapters, the drafter, activations of `tokens` tokens,
    and the runtime's sampling buffers for `rows` rows of logits; and windows and states of as many
    of `sequences` as fit with blocks for `mean_tokens` each. With `fraction_of_free`, the
    memory fraction refers to the memory beside the weights. `kept_keys` is the share of KV cache
    entries that are stored.

    Raises:
        Infeasible: the weights do not fit, or no KV block fits beside them.
    """
    if hardware.kv_blocks:
        return hardware.kv_blocks
    replica = hardware.replica
    model, layout = replica.model, replica.layout
    usable = replica.gpu.hbm_bytes * memory_fraction
    weights = weight_bytes(model, layout, replica.dtype) + (
        drafter.weight_bytes if drafter else 0.0
    )
    beside = weights + adapter_bytes
    if fraction_of_free:
        usable += (1.0 - memory_fraction) * beside
    if beside > usable:
        what = "weights" if weights > usable or not adapter_bytes else "adapters"
        raise Infeasible(f"{what}_exceed_hbm", _missing(beside, usable))
    weights = beside
    working = float(activation_bytes(model, layout, replica.dtype, float(tokens), float(rows)))
    working += rows * model.vocab * replica.runtime.decoder_numbers * BYTES["fp32"]
    token_bytes = kept_keys * replica.kv_token_bytes
    token_bytes += drafter.kv_bytes_per_token if drafter else 0.0
    block_bytes = block_size * token_bytes
    free = usable - weights - working
    grown = mean_tokens * token_bytes
    free -= float(fixed_bytes(free, replica.fixed_sequence_bytes, grown, float(sequences)))
    blocks = int(free // block_bytes)
    if blocks < 1:
        raise Infeasible("no_kv_memory", _missing(weights + working + block_bytes, usable))
    return blocks


def fixed_bytes(free: Column, fixed: Column, grown: Column, sequences: Column) -> Column:
    """Return the bytes of windows and states of as many sequences as fit, `sequences` at most.

    Engines take them from the memory of KV blocks (vLLM's hybrid KV cache groups).

    Args:
        free: bytes for all sequences.
        fixed: bytes of a sequence that do not grow with its tokens.
        grown: bytes of the blocks of a sequence.
        sequences: largest number of sequences that run.
    """
    fit = np.maximum(free, 0.0) / np.maximum(fixed + grown, 1.0)
    return fixed * np.minimum(sequences, fit)


def mean_tokens(lengths: tuple[Ints, Ints], context: int) -> float:
    """Return the mean prompt and output together of the requests that fit the context."""
    both = lengths[0] + lengths[1]
    fits = both <= context
    return float(both[fits].mean()) if fits.any() else float(context)


def _missing(needed: float, usable: float) -> str:
    return f"needs {needed / GB:.1f} GB, has {usable / GB:.1f} GB"
