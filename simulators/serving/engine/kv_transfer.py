"""KV transfer between separate prefill and decode replicas (disaggregated serving).

Zhong et al., "DistServe" (2024); Patel et al., "Splitwise" (2024); Qin et al., "Mooncake" (2024).
After the prefill, a router chooses the decode replica. The request waits there for a slot and free
blocks; then its KV cache is sent, and the first token is emitted with its arrival. The prefill
replica keeps the blocks until then, so a full decode pool blocks prefills. A link sends one cache
after another. With transfer by layer (Splitwise), layers are sent during the prefill: the rest, at
least the last layer, is sent afterwards. A request that has to wait for blocks sends its whole
cache afterwards.

The GPUs of a replica send their shares of a KV cache in parallel, each over its own link; the
pool whose GPUs hold larger shares sets the rate. The efficiency of a link and the
set-up time per layer are fitted to published transfers over RDMA, by framework. No measured
transfer over NVLink was found, so NVLink has the same efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from simulators.catalog.cluster import Link as Wire
from simulators.composition.replica import Replica
from simulators.core.calibration import read_calibration
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import once
from simulators.core.jit import Floats, f8, i8, pointer
from simulators.serving.engine import replica as at
from simulators.serving.engine.arrivals import (
    push_release,
)
from simulators.serving.engine.kv_cache import blocks_for, has_free_blocks, release_path
from simulators.serving.engine.replica import (
    ROUTE,
    STATE,
    ReplicaState,
    kernel,
    snapshot_sums,
    update_integrals,
)
from simulators.serving.options import AUTO, BY_LAYER, ETHERNET, INFINITE, NVLINK
from simulators.serving.point import ServingPoint
from simulators.workload.llm.memory import kv_bytes_per_token

CALIBRATION = Path(__file__).parents[1] / "calibration" / "kv_transfer.toml"

OTHER = "other"
"""Entry of frameworks without published transfers: between the published entries."""


@dataclass(frozen=True, kw_only=True)
class KVLink:
    """Set-up time and time per token of a KV transfer between two replicas."""

    setup_s: float
    token_s: float
    parts: int = 1  # parts sent during the prefill; 1: the whole cache is sent afterwards

    def vector(self) -> Floats:
        """Return the link as the array that kernels read."""
        numbers = np.zeros(3)
        numbers[at.SETUP_S], numbers[at.TOKEN_S] = self.setup_s, self.token_s
        numbers[at.LAYERS] = self.parts
        return numbers


INSTANT_LINK = KVLink(setup_s=0.0, token_s=0.0)
"""The link without separate pools, or with infinite bandwidth."""


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """Efficiency and set-up time of a framework's KV connector."""

    share: float  # of a link's rate that is kept
    layer_s: float  # to prepare a layer


def link_of(point: ServingPoint, ends: Sequence[tuple[Replica, int]]) -> KVLink:
    """Return the link between a prefill replica and a decode replica, each with its ranks.

    A rank with a queue of its own keeps whole requests: its GPUs alone send or receive them.

    Raises:
        Infeasible: the requested link does not exist between the pools.
        UserError: the bandwidth of the link is unknown.
    """
    if point.pools.kv_link == INFINITE:
        return INSTANT_LINK
    (prefill, _), (decode, _) = ends
    model = prefill.model
    token_bytes = max(
        ranks * kv_bytes_per_token(model, replica.layout, replica.kv_dtype)
        for replica, ranks in ends
    )
    known = transfers_of(prefill.runtime.framework)
    wire = wire_of(point, prefill, decode)
    rate = point.pools.kv_link_bytes_per_s or known.share * wire.bytes_per_s
    return KVLink(
        setup_s=wire.latency_s + known.layer_s * model.layers,
        token_s=token_bytes / rate,
        parts=model.layers if point.pools.kv_transfer == BY_LAYER else 1,
    )


def wire_of(point: ServingPoint, prefill: Replica, decode: Replica) -> Wire:
    """Return the link from a GPU to the other pool by the data sheet: the slower of both ends.

    Raises:
        Infeasible: NVLink is requested between pools on different nodes.
        UserError: Ethernet is requested without a bandwidth.
    """
    ends, node = (prefill, decode), prefill.cluster
    size = point.replicas * (point.pools.prefill_gpus + point.pools.decode_gpus)
    one_node = decode.cluster == node and size <= node.gpus_per_node
    if point.pools.kv_link == NVLINK and not one_node:
        raise Infeasible("no_nvlink_between_pools", f"{size} GPUs, {node.gpus_per_node} a node")
    if point.pools.kv_link == NVLINK or (point.pools.kv_link == AUTO and one_node):
        return min((end.cluster.link(2, end.gpu) for end in ends), key=attrgetter("bytes_per_s"))
    if point.pools.kv_link == ETHERNET and point.pools.kv_link_bytes_per_s is None:
        raise UserError(
            "pools.kv_link ethernet needs pools.kv_link_bytes_per_s: the bandwidth of one GPU"
        )
    return min((end.cluster.inter for end in ends), key=attrgetter("bytes_per_s"))


def transfers_of(framework: str) -> Transfers:
    """Return the fitted transfer constants of a framework."""
    known = once(read_calibration, CALIBRATION)["transfer"]
    return Transfers(**known.get(framework, known[OTHER]))


@kernel(i8(STATE, i8, i8, f8))
def start_kv_transfer(state: ReplicaState, prefill_replica: int, req: int, now: float) -> int:
    """End the prefill of a request and queue it for its decode replica; return the request."""
    state.pool[prefill_replica, at.NUM_RUNNING] -= 1
    state.times[req, at.PREFILL_END] = now
    snapshot_sums(state, prefill_replica, req, at.PREFILL_SUMS, 0.0)
    push_release(state, now, req)
    return req


@kernel(i8(pointer(ROUTE), STATE, i8, f8))
def advance_kv_transfer(route: Any, state: ReplicaState, req: int, now: float) -> int:
    """Process an event of a prefilled request; return its replica.

    The request joins the queue of a decode replica, or its KV cache has arrived there.
    """
    if state.times[req, at.TRANSFER_START] >= 0.0:
        return receive(state, req, now)
    return forward_request(route, state, req, now)


@kernel(i8(pointer(ROUTE), STATE, i8, f8))
def forward_request(route: Any, state: ReplicaState, req: int, now: float) -> int:
    """Route a prefilled request to the queue of a decode replica; return the replica.

    Routers see the waiting and running requests of decode replicas, and no cached prefixes.
    """
    load, request, prefill_replicas = state.load, state.request, state.limits[at.PREFILL_REPLICAS]
    replica = prefill_replicas + route(
        state.clock[at.FORWARDED],
        load[at.LOAD_WAITING][prefill_replicas:],
        load[at.LOAD_RUNNING][prefill_replicas:],
        load[at.LOAD_CACHED][prefill_replicas:],
        state.draws[req],
    )
    state.clock[at.FORWARDED] += 1
    request[req, at.PREFILL_REPLICA], request[req, at.REPLICA] = request[req, at.REPLICA], replica
    pool, ring = state.pool[replica], state.waiting_kv[replica]
    update_integrals(pool, state.gauge[replica], now)
    ring[(pool[at.WAITING_KV_HEAD] + pool[at.WAITING_KV]) & (ring.size - 1)] = req
    pool[at.WAITING_KV] += 1
    send_waiting(state, replica, now)
    load[at.LOAD_WAITING, replica] = pool[at.WAITING] + pool[at.NUM_SWAPPED] + pool[at.WAITING_KV]
    load[at.LOAD_RUNNING, replica] = pool[at.NUM_RUNNING]
    return replica  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def send_waiting(state: ReplicaState, replica: int, now: float) -> int:
    """Start KV transfers to a replica, in order, while slots and blocks are free; return how many.

    Preempted requests of the replica come first.
    """
    pool = state.pool[replica]
    ring = state.waiting_kv[replica]
    request = state.request
    limits = state.own[1]
    sent = 0
    while pool[at.WAITING_KV] > 0:
        req = ring[pool[at.WAITING_KV_HEAD]]
        prompt = blocks_for(request[req, at.PROMPT], limits[at.BLOCK])
        reserved = limits[at.RESERVES_OUTPUT] * request[req, at.OUTPUT]
        blocks = blocks_for(request[req, at.PROMPT] + reserved, limits[at.BLOCK])
        free = (
            pool[at.NUM_RUNNING] < limits[at.MAX_NUM_SEQS]
            and pool[at.WAITING] + pool[at.NUM_SWAPPED] == 0
        )
        if not (free and has_free_blocks(limits, pool, blocks)):
            break
        pool[at.WAITING_KV_HEAD] = (pool[at.WAITING_KV_HEAD] + 1) & (ring.size - 1)
        pool[at.WAITING_KV] -= 1
        request[req, at.DECODE_BLOCKS] = blocks
        pool[at.FREE_BLOCKS] -= blocks
        pool[at.NUM_RUNNING] += 1
        push_release(state, transfer_end_s(state, req, prompt * limits[at.BLOCK], now), req)
        sent += 1
    return sent


@kernel(f8(STATE, i8, i8, f8))
def transfer_end_s(state: ReplicaState, req: int, tokens: int, now: float) -> float:
    """Return the end of the KV transfer of some tokens whose blocks are allocated now."""
    times, gauge, request = state.times[req], state.gauge, state.request[req]
    prefill_replica, replica = request[at.PREFILL_REPLICA], request[at.REPLICA]
    times[at.TRANSFER_START] = now
    whole_s, parts = state.link[at.TOKEN_S] * tokens, 1.0
    if now == times[at.PREFILL_END]:
        parts = state.link[at.LAYERS]
    prefill_s = times[at.PREFILL_END] - times[at.SCHEDULED]
    start_s = now - prefill_s * (parts - 1.0) / parts
    start_s = max(start_s, gauge[prefill_replica, at.LINK_FREE_S], gauge[replica, at.LINK_FREE_S])
    sent = max(start_s + whole_s, now + whole_s / parts)
    gauge[prefill_replica, at.LINK_FREE_S] = gauge[replica, at.LINK_FREE_S] = sent
    return sent + state.link[at.SETUP_S]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def receive(state: ReplicaState, req: int, now: float) -> int:
    """Start to decode a request whose KV cache has arrived; return its replica."""
    request, times, replica = state.request, state.times, state.request[req, at.REPLICA]
    free_prefill_blocks(state, req, now)
    pool = state.pool[replica]
    update_integrals(pool, state.gauge[replica], now)
    request[req, at.BLOCKS] = request[req, at.DECODE_BLOCKS]
    times[req, at.FIRST_TOKEN] = times[req, at.LAST_TOKEN] = times[req, at.LAST_END] = now
    state.running[replica, pool[at.RUNNING]] = req
    pool[at.RUNNING] += 1
    state.load[at.LOAD_CHANGED, replica] = 1
    return replica  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def free_prefill_blocks(state: ReplicaState, req: int, now: float) -> int:
    """Free the blocks of a request on its prefill replica; return that replica."""
    prefill_replica = state.request[req, at.PREFILL_REPLICA]
    pool = state.pool[prefill_replica]
    update_integrals(pool, state.gauge[prefill_replica], now)
    pool[at.FREE_BLOCKS] += release_path(state.own[0], pool, state.request, state.tree, req)
    state.load[at.LOAD_CHANGED, prefill_replica] = 1
    return prefill_replica  # type: ignore[no-any-return]
