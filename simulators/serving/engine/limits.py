"""What a replica may hold and batch: seats, tokens of an iteration, and the KV blocks that fit."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from simulators.composition.price import iteration
from simulators.composition.replica import Replica
from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Ints
from simulators.serving.adapters.fleet import fleet_of
from simulators.serving.deployment import Hardware
from simulators.serving.engine import replica as at
from simulators.serving.engine.policies import Scheduler
from simulators.serving.point import (
    ADAPTIVE,
    CACHED,
    PEER,
    SSD,
    SWAP,
    ServingPoint,
)
from simulators.serving.prices.skipped_layers import kept_keys
from simulators.serving.speculation.drafter import Drafter
from simulators.workload.llm.memory import activation_bytes, weight_bytes
from simulators.workload.llm.step import prefill_step
from simulators.workload.precision import BYTES

GB = 1e9

SSD_BYTES_PER_S = 6.9e9
"""That one drive is read at (Samsung PM9A3, PCIe 4.0 x4, data sheet); a node of eight GPUs has as
many for data (NVIDIA DGX H100 data sheet)."""


@dataclass(frozen=True, kw_only=True)
class ReplicaLimits:
    """What the operator of the service sets; equal for all replicas."""

    blocks: int
    block_size: int
    watermark: float  # share of the blocks kept free when a request is admitted
    seats: int  # requests that run at a time, over all stages
    batch_tokens: int  # prompt tokens in a batch of whole prompts
    chunk: int  # tokens in a batch of chunks
    most_tokens: int  # a request's longest possible life
    stages: int = 1
    reserves: bool = False
    lifelong: bool = False
    overlaps: bool = False
    host_blocks: int = 0  # that the host holds for preempted requests; 0: these are recomputed
    move_s: float = 0.0  # to move a block there or back
    caches: bool = False  # blocks that nobody holds are found again until others take them
    host_keeps: int = 0  # blocks of prefixes that the host has room for
    ranks: int = 1  # with queues of their own that step together; the limits are those of one
    drafted: int = 0  # tokens of each decode that its pass checks beside its own
    survival: tuple[float, ...] = ()  # shares of iterations that accept at least 1, 2 ... of them
    draft_up_to: tuple[int, ...] = ()  # running requests while at least 1, 2 ... are drafted
    draft_load: bool = False  # those that wait count as well
    seed: int = 0
    patience: int = 10  # decode iterations between looks at the queue (LightLLM's default)

    def vector(self) -> Ints:
        """Return the limits as the kernels read them.

        A policy that reserves fills its batch with as many requests as memory holds.
        """
        limits = np.zeros(at.LIMITS, np.int64)
        limits[at.BLOCK] = self.block_size
        limits[at.WATERMARK] = self.kept_free
        limits[at.SEATS] = self.seats
        limits[at.BATCH_SEATS] = self.batch_seats
        limits[at.RESERVED] = self.most_tokens // self.block_size
        if self.reserves:
            limits[at.BATCH_SEATS] = min(self.seats, self.blocks // max(1, limits[at.RESERVED]))
        limits[at.BATCH_TOKENS], limits[at.CHUNK] = self.batch_tokens, self.chunk
        limits[at.HOST], limits[at.MOVE_NS] = self.host_blocks, round(self.move_s * 1e9)
        limits[at.STAGES], limits[at.PATIENCE] = self.stages, self.patience
        limits[at.CACHES] = self.caches
        limits[at.RANKS], limits[at.HOST_KEEPS] = self.ranks, self.host_keeps
        limits[at.LIFELONG], limits[at.OVERLAPS] = self.lifelong, self.overlaps
        limits[at.DRAFTED], limits[at.SEED] = self.drafted, self.seed
        depth = limits[at.DEPTH] = len(self.survival)
        limits[at.DRAFT_LOAD] = self.draft_load
        limits[at.SURVIVE : at.SURVIVE + depth] = np.rint(at.CERTAIN * np.array(self.survival))
        limits[at.DRAFT_UP_TO : at.DRAFT_UP_TO + depth] = self.draft_up_to or at.ALL_DECODES
        return limits

    @property
    def batch_seats(self) -> int:
        """Requests in one batch."""
        return max(1, self.seats // self.stages)

    @property
    def kept_free(self) -> int:
        """Blocks kept free when a request is admitted."""
        return int(self.watermark * self.blocks)

    def admits(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        """Return which requests could ever run to their end, alone on a replica."""
        room = (self.blocks - max(1, self.kept_free)) * self.block_size
        return np.flatnonzero(prompt_tokens + output_tokens <= min(self.most_tokens, room))


def limits_of(
    point: ServingPoint,
    hardware: Hardware,
    scheduler: Scheduler,
    lengths: tuple[Ints, Ints],
    drafter: Drafter | None = None,
) -> ReplicaLimits:
    """Return the limits of a point's replicas, which serve prompts and outputs of some lengths.

    Room is kept for the activations of the largest batch: a chunk, or a batch of whole prompts, of
    which the longest may be alone.

    Raises:
        Infeasible: the model does not fit, or the scheduler cannot do what is asked of it.
        UserError: nobody has said how fast the GPU's link to its host is.
    """
    for name, needed in scheduler.requires.items():
        if attrgetter(name)(point) != needed:
            option = name.rpartition(".")[2]
            raise Infeasible(f"{point.scheduler}_needs_{option}_{needed}")
    if point.scheduling.poll_interval and not scheduler.poll_interval:
        raise Infeasible(f"{point.scheduler}_has_no_poll_interval", "it looks in every iteration")
    caches = point.cache.prefix_caching or point.cache.preemption == CACHED
    if caches and not scheduler.caches_prefixes:
        raise Infeasible(f"{point.scheduler}_has_no_prefix_cache")
    if point.cache.prefix_caching and point.cache.preemption == SWAP:
        raise Infeasible("swap_has_no_prefix_cache", "blocks on the host are one request's own")
    context = point.max_context or hardware.replica.model.max_context
    tokens = point.chunk_size
    if not scheduler.chunked:
        prompt, output = lengths
        short = prompt[prompt + output <= context]
        tokens = max(point.scheduling.max_batch_tokens, int(short.max(initial=1)))
    host_blocks, move_s = 0, 0.0
    if point.cache.preemption == SWAP:
        if point.cache.offload_to == SSD:
            raise Infeasible("swap_goes_to_memory", "engines write no running request to a drive")
        host_blocks, move_s = swap_space(
            hardware.replica, point.cache.offload_to, point.cache.swap_bytes, point.cache.block_size
        )
    host_keeps = 0
    if point.cache.prefix_host_bytes:
        if not point.cache.prefix_caching:
            raise Infeasible("prefix_host_bytes_needs_prefix_cache")
        host_keeps, move_s = host_tier(point, hardware.replica)
    ranks = ranks_of(point, scheduler)
    groups = point.attention_dp // ranks  # that share a queue; each has seats and a budget
    fleet = fleet_of(point, hardware)
    blocks = kv_blocks(
        hardware,
        memory_fraction=point.memory_fraction,
        block_size=point.cache.block_size,
        tokens=tokens,
        rows=point.max_batch,
        of_rest=scheduler.of_rest,
        drafter=drafter,
        adapter_bytes=fleet.bytes_per_gpu if fleet else 0.0,
        kept_keys=kept_keys(point),
    )
    return ReplicaLimits(
        blocks=max(1, blocks // ranks),
        block_size=point.cache.block_size,
        watermark=point.cache.watermark,
        seats=point.max_batch * groups,
        batch_tokens=point.scheduling.max_batch_tokens * groups,
        chunk=point.chunk_size * groups,
        most_tokens=context,
        stages=point.pp,
        ranks=ranks,
        reserves=scheduler.reserves,
        lifelong=scheduler.lifelong,
        overlaps=scheduler.overlaps and point.pp == 1,
        caches=caches,
        host_keeps=host_keeps // ranks,
        host_blocks=host_blocks,
        move_s=move_s,
        patience=max(1, point.scheduling.poll_interval or scheduler.poll_interval),
        drafted=drafter.drafted if drafter else 0,
        survival=drafter.survival if drafter else (),
        draft_up_to=drafter.up_to if drafter else (),
        draft_load=point.speculation.rule == ADAPTIVE,
        seed=point.seed,
    )


def ranks_of(point: ServingPoint, scheduler: Scheduler) -> int:
    """Return the number of queues of a replica whose batches step together.

    Each rank of data-parallel attention has a queue, unless the scheduler distributes one queue
    over the ranks, or there is a pipeline.
    """
    return 1 if scheduler.deals_out or point.pp > 1 else point.attention_dp


@functools.lru_cache(maxsize=1024)
def kv_blocks(
    hardware: Hardware,
    *,
    memory_fraction: float,
    block_size: int,
    tokens: int,
    rows: int,
    of_rest: bool = False,
    drafter: Drafter | None = None,
    adapter_bytes: float = 0.0,
    kept_keys: float = 1.0,
) -> int:
    """Return the KV blocks that fit beside weights and activations on the fullest GPU.

    An iteration has at most so many tokens and rows of logits; what drafts and adapters are there
    too, and what the runtime sets aside to draw tokens, of all logits on each GPU.
    The memory fraction may be one `of` the `rest` that the weights leave.

    Raises:
        Infeasible: the weights do not fit, or nothing is left.
    """
    replica = hardware.replica
    model, cut = replica.model, replica.cut
    usable = replica.gpu.hbm_bytes * memory_fraction
    weights = weight_bytes(model, cut, replica.dtype) + (drafter.weight_bytes if drafter else 0.0)
    beside = weights + adapter_bytes
    if of_rest:
        usable += (1.0 - memory_fraction) * beside
    if beside > usable:
        what = "weights" if weights > usable or not adapter_bytes else "adapters"
        raise Infeasible(f"{what}_exceed_hbm", _missing(beside, usable))
    weights = beside
    working = float(activation_bytes(model, cut, replica.dtype, float(tokens), float(rows)))
    working += rows * model.vocab * replica.runtime.decoder_numbers * BYTES["fp32"]
    token_bytes = kept_keys * replica.kv_token_bytes
    block_bytes = block_size * (token_bytes + (drafter.kv_bytes_per_token if drafter else 0.0))
    blocks = int((usable - weights - working) // block_bytes)
    if blocks < 1:
        raise Infeasible("no_kv_memory", _missing(weights + working + block_bytes, usable))
    return blocks


def _missing(needed: float, usable: float) -> str:
    return f"needs {needed / GB:.1f} GB, has {usable / GB:.1f} GB"


def swap_space(
    replica: Replica, offload_to: str, swap_bytes: float, block_size: int
) -> tuple[int, float]:
    """Return the blocks held elsewhere for a GPU, and the seconds to move one there or back.

    A peer is a GPU with memory to spare, reached by the links between GPUs (Vijaya Kumar et al.,
    "Aqua", ASPLOS 2025); a drive is read over the GPU's link to its host.

    Raises:
        UserError: nobody has said how fast that link of the GPU is.
    """
    link = "link_bytes_per_s" if offload_to == PEER else "pcie_bytes_per_s"
    bytes_per_s = getattr(replica.gpu, link)
    if bytes_per_s <= 0.0:
        raise UserError(
            f"gpu '{replica.gpu.name}' has no {link}, which moving KV caches to the {offload_to} "
            "needs"
        )
    if offload_to == SSD:
        bytes_per_s = min(SSD_BYTES_PER_S, bytes_per_s)
    block_bytes = block_size * replica.kv_token_bytes
    return int(swap_bytes // block_bytes), block_bytes / bytes_per_s


def host_tier(point: ServingPoint, replica: Replica) -> tuple[int, float]:
    """Return the blocks of prefixes that host, peer or drive keep, and the seconds to fetch one.

    They keep none where a block is computed sooner, in a prompt as long as an iteration takes.

    Raises:
        UserError: nobody has said how fast the GPU's link to its host is.
    """
    blocks, move_s = swap_space(
        replica, point.cache.offload_to, point.cache.prefix_host_bytes, point.cache.block_size
    )
    whole_s = float(iteration(replica, prefill_step(1.0, float(point.chunk_size))).latency_s)
    return (
        (blocks, move_s)
        if move_s < point.cache.block_size * whole_s / point.chunk_size
        else (0, 0.0)
    )
