"""A service is replicas of one engine, the memory each has for KV blocks, and two policies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.composition.replica import Replica
from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Floats, Ints, Kernel
from simulators.serving.demand.arrivals import Requests
from simulators.serving.demand.sessions import successors
from simulators.serving.engine.batch import DECODE_KV, DECODES, PREFILL_TOKENS, PREFILLS, TOKENS
from simulators.serving.engine.loop import run
from simulators.serving.engine.policies import Scheduler
from simulators.serving.engine.replica import (
    BATCH_SEATS,
    BATCH_TOKENS,
    BLOCK,
    CHUNK,
    HOST,
    KEEPS,
    LIMITS,
    MOVE_NS,
    NEXT,
    NOBODY,
    PARITY,
    PATIENCE,
    RESERVED,
    SEATS,
    STAGES,
    WATERMARK,
)
from simulators.serving.engine.state import World, new_world
from simulators.workload.llm.memory import activation_bytes, kv_bytes_per_token, weight_bytes

GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Limits:
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
    parity: bool = False
    host_blocks: int = 0  # that the host holds for preempted requests; 0: these are recomputed
    move_s: float = 0.0  # to move a block there or back
    keeps: bool = False  # what a preempted request had computed stays until its blocks are taken
    patience: int = 10  # decode iterations between looks at the queue (LightLLM's default)

    def vector(self) -> Ints:
        """Return the limits as the kernels read them.

        A policy that reserves fills its batch with as many requests as memory holds.
        """
        limits = np.zeros(LIMITS, np.int64)
        limits[BLOCK] = self.block_size
        limits[WATERMARK] = self.kept_free
        limits[SEATS] = self.seats
        limits[BATCH_SEATS] = max(1, self.seats // self.stages)
        limits[RESERVED] = self.most_tokens // self.block_size
        if self.reserves:
            limits[BATCH_SEATS] = min(self.seats, self.blocks // max(1, limits[RESERVED]))
        limits[BATCH_TOKENS], limits[CHUNK] = self.batch_tokens, self.chunk
        limits[HOST], limits[MOVE_NS] = self.host_blocks, round(self.move_s * 1e9)
        limits[STAGES], limits[PARITY], limits[PATIENCE] = self.stages, self.parity, self.patience
        limits[KEEPS] = self.keeps
        return limits

    @property
    def kept_free(self) -> int:
        """Blocks kept free when a request is admitted."""
        return int(self.watermark * self.blocks)

    def admits(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        """Return which requests could ever run to their end, alone on a replica."""
        room = (self.blocks - max(1, self.kept_free)) * self.block_size
        return np.flatnonzero(prompt_tokens + output_tokens <= min(self.most_tokens, room))


@dataclass(frozen=True)
class Engine:
    """The compiled policies and prices a run goes by."""

    scheduler: Scheduler
    route: Kernel[..., int]
    price: Kernel[..., float]


def kv_blocks(
    replica: Replica,
    *,
    memory_fraction: float,
    block_size: int,
    tokens: int,
    rows: int,
    of_rest: bool = False,
) -> int:
    """Return the KV blocks that fit beside weights and activations on the fullest GPU.

    Args:
        replica: the model on its GPUs.
        memory_fraction: share of the memory the engine may use.
        block_size: tokens per block.
        tokens: most tokens of an iteration.
        rows: most rows of logits.
        of_rest: the share is one of what the weights leave.

    Raises:
        Infeasible: the weights do not fit, or nothing is left.
    """
    usable = replica.gpu.hbm_bytes * memory_fraction
    weights = weight_bytes(replica.model, replica.cut, replica.dtype)
    if of_rest:
        usable += (1.0 - memory_fraction) * weights
    if weights > usable:
        raise Infeasible(
            "weights_exceed_hbm", f"needs {weights / GB:.1f} GB, has {usable / GB:.1f} GB"
        )
    working = activation_bytes(
        replica.model, replica.cut, replica.dtype, float(tokens), float(rows)
    )
    block_bytes = block_size * kv_bytes_per_token(replica.model, replica.cut, replica.kv_dtype)
    blocks = int((usable - weights - float(working)) // block_bytes)
    if blocks < 1:
        needed = weights + float(working) + block_bytes
        raise Infeasible("no_kv_memory", f"needs {needed / GB:.1f} GB, has {usable / GB:.1f} GB")
    return blocks


def swap_space(replica: Replica, *, swap_bytes: float, block_size: int) -> tuple[int, float]:
    """Return the blocks that the host holds for a GPU, and the seconds to move one there or back.

    Raises:
        UserError: nobody has said how fast the GPU's link to its host is.
    """
    if replica.gpu.pcie_bytes_per_s <= 0.0:
        raise UserError(f"gpu '{replica.gpu.name}' has no pcie_bytes_per_s, which swapping needs")
    block_bytes = block_size * kv_bytes_per_token(replica.model, replica.cut, replica.kv_dtype)
    return int(swap_bytes // block_bytes), block_bytes / replica.gpu.pcie_bytes_per_s


def serve(
    engine: Engine,
    limits: Limits,
    requests: Requests,
    *,
    replicas: int,
    shape: Ints,
    table: Floats,
    log_rows: int = 0,
) -> World:
    """Return the state after the last request has left.

    Args:
        engine: policies and prices.
        limits: of each replica.
        requests: all of which a replica admits.
        replicas: how many there are.
        shape: of the price table.
        table: what the price kernel reads.
        log_rows: batches to log.

    Raises:
        UserError: a request never ends, for want of a batch or of a batch's price.
    """
    count = requests.arrival_s.size
    follower, unborn = _followers(requests)
    world = new_world(
        limits=limits.vector(),
        blocks=limits.blocks,
        replicas=replicas,
        arrival_s=requests.arrival_s,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        successor=follower,
        unborn=unborn,
        draws=requests.draws,
        shape=shape,
        table=table,
        patience_s=requests.patience_s,
        log_rows=log_rows,
    )
    schedule, route, price = engine.scheduler.schedule, engine.route, engine.price
    left = run(schedule.compiled, route.compiled, price.compiled, world)
    if left:
        raise UserError(f"{left} of {count} requests never end: {_why(world, engine)}")
    return world


def _followers(requests: Requests) -> tuple[Ints, NDArray[np.bool_]]:
    """Return whom each request's end releases, and who waits to be released."""
    count = requests.arrival_s.size
    if requests.session is not None:
        session = requests.session
        return successors(session), np.diff(session, prepend=-1) == 0
    unborn = np.arange(count) >= (requests.clients or count)
    return np.full(count, NEXT if requests.clients else NOBODY), unborn


def _why(world: World, engine: Engine) -> str:
    """Say what stopped a run before its end."""
    unpriced = np.flatnonzero(np.isnan(world.ends).ravel())
    if unpriced.size == 0:
        return f"scheduler '{engine.scheduler.schedule.__module__}' forms no batch while they wait"
    step = world.step[unpriced[0]]
    mean = step[DECODE_KV] / max(step[DECODES], 1.0)
    return (
        f"no time is known for a batch of {step[TOKENS]:.0f} tokens with {step[DECODES]:.0f} "
        f"decodes of {mean:.0f} keys on average and {step[PREFILLS]:.0f} prefills of "
        f"{step[PREFILL_TOKENS]:.0f} tokens"
    )
