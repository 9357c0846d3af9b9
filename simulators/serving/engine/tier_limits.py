"""Capacity and transfer times of the tiers of a replica's KV cache, in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulators.composition.price import iteration
from simulators.composition.replica import Replica
from simulators.core.errors import UserError
from simulators.serving.options import (
    HOST_MEMORY,
    NOT_SHARED,
    NVME,
    OF_BATCH,
    PEER,
    REMOTE,
    SSD,
    TIERS,
)
from simulators.serving.point import ServingPoint
from simulators.workload.llm.memory import kv_bytes_per_token
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import prefill_step

SSD_BYTES_PER_S = 6.9e9
"""Read rate of one drive per GPU (Samsung PM9A3, PCIe 4.0 x4, data sheet); a node of eight GPUs has
eight data drives (NVIDIA DGX H100 data sheet)."""

SSD_WRITE_BYTES_PER_S = 4.1e9
"""Write rate of that drive (data sheet, 3.84 TB)."""


@dataclass(frozen=True, kw_only=True)
class KVTier:
    """A tier of the KV cache behind GPU memory, of one replica or of all."""

    name: str
    capacity: int  # blocks: of one replica, or of all if shared
    read_s: float  # to load a block
    write_s: float = 0.0
    latency_s: float = 0.0
    store_s: float = 0.0  # for the tier itself to transfer a block; 0: no limit
    is_shared: bool = False


def tiers_of(point: ServingPoint, replica: Replica) -> tuple[KVTier, ...]:
    """Return the tiers of a point's KV cache, the nearest first.

    A tier is left out if computing a block, in a prompt of `chunk_size` tokens, is faster than
    loading it.

    Raises:
        UserError: the bandwidth of a link is unknown, or host and NVMe name one drive twice.
    """
    found = tuple(_tiers(point, replica))
    if not found:
        return ()
    chunk_s = float(iteration(replica, prefill_step(1.0, float(point.token_budget))).latency_s)
    compute_s = point.block_size * chunk_s / point.token_budget
    return tuple(tier for tier in found if tier.read_s < compute_s)


def _tiers(point: ServingPoint, replica: Replica) -> Iterator[KVTier]:
    tiers, block_bytes = point.kv_tiers, point.block_size * replica.kv_token_bytes
    if point.cache.prefix_host_bytes:
        blocks, move_s = swap_space(
            replica, point.cache.offload_to, point.cache.prefix_host_bytes, point.block_size
        )
        yield _shared(
            point,
            replica,
            KVTier(name=HOST_MEMORY, capacity=blocks, read_s=move_s, write_s=move_s),
        )
    if tiers.nvme_bytes:
        if point.cache.prefix_host_bytes and point.cache.offload_to == SSD:
            raise UserError(
                "cache.offload_to ssd and kv_tiers.nvme_bytes name the same drives twice; write "
                "cache.offload_to host"
            )
        pcie = link_bytes_per_s(replica, SSD)
        read = min(tiers.nvme_read_bytes_per_s or SSD_BYTES_PER_S, pcie)
        write = min(tiers.nvme_write_bytes_per_s or SSD_WRITE_BYTES_PER_S, pcie)
        yield _shared(
            point,
            replica,
            KVTier(
                name=NVME,
                capacity=int(tiers.nvme_bytes // block_bytes),
                read_s=block_bytes / read,
                write_s=block_bytes / write,
                latency_s=tiers.nvme_latency_s,
            ),
        )
    if tiers.remote_bytes:
        network = replica.cluster.inter.bytes_per_s
        whole = kv_bytes_per_token(
            replica.model,
            Parallelism(),
            replica.kv_dtype,
            whole_windows=replica.keeps_whole_windows,
        )
        total = tiers.remote_total_bytes_per_s
        copies = point.replicas if tiers.shared == NOT_SHARED else 1
        yield KVTier(
            name=REMOTE,
            capacity=int(tiers.remote_bytes // (copies * point.block_size * whole)),
            read_s=block_bytes / (tiers.remote_read_bytes_per_s or network),
            write_s=block_bytes / (tiers.remote_write_bytes_per_s or network),
            latency_s=tiers.remote_latency_s,
            store_s=0.0 if total is None else point.block_size * whole / total,
            is_shared=tiers.shared != NOT_SHARED,
        )


def _shared(point: ServingPoint, replica: Replica, tier: KVTier) -> KVTier:
    """Return a tier of one replica, or the tier of all replicas if these share the tier."""
    first = point.kv_tiers.shared
    if first == NOT_SHARED or TIERS.index(tier.name) < TIERS.index(first):
        return tier
    network_s = point.block_size * replica.kv_token_bytes / replica.cluster.inter.bytes_per_s
    return replace(
        tier,
        capacity=tier.capacity * point.replicas,
        read_s=max(tier.read_s, network_s),
        write_s=max(tier.write_s, network_s),
        is_shared=True,
    )


def is_inline(point: ServingPoint, tiers: tuple[KVTier, ...]) -> bool:
    """Return whether loads from the first tier are moves before the batch, without a queue."""
    first_is_host = bool(tiers) and tiers[0].name == HOST_MEMORY and not tiers[0].is_shared
    return first_is_host and point.kv_tiers.load == OF_BATCH


def swap_space(
    replica: Replica, offload_to: str, swap_bytes: float, block_size: int
) -> tuple[int, float]:
    """Return the number of offloaded blocks per GPU, and the seconds to move one block.

    A peer is another GPU with free memory, connected by the links between GPUs (Vijaya Kumar et
    al., "Aqua", ASPLOS 2025); a drive is read over the GPU's link to its host.

    Raises:
        UserError: the GPU's data sheet lacks the bandwidth of this link.
    """
    bytes_per_s = link_bytes_per_s(replica, offload_to)
    if offload_to == SSD:
        bytes_per_s = min(SSD_BYTES_PER_S, bytes_per_s)
    block_bytes = block_size * replica.kv_token_bytes
    return int(swap_bytes // block_bytes), block_bytes / bytes_per_s


def link_bytes_per_s(replica: Replica, offload_to: str) -> float:
    """Return the bandwidth of a GPU's link over which KV caches are offloaded.

    Raises:
        UserError: the GPU's data sheet lacks it.
    """
    link = "link_bytes_per_s" if offload_to == PEER else "pcie_bytes_per_s"
    bytes_per_s = float(getattr(replica.gpu, link))
    if bytes_per_s <= 0.0:
        raise UserError(
            f"gpu '{replica.gpu.name}' has no {link}, which moving KV caches to the {offload_to} "
            "needs"
        )
    return bytes_per_s
