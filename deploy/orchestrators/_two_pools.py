"""Checks and comments for separate prefill and decode pools in Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploy.launch import EngineCommand
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.serving.point import AUTO, BY_LAYER, INFINITE, NVLINK, ServingPoint

ROLES = ("prefill", "decode")
"""Names of the pools: prefill first."""


def check(
    parts: Sequence[tuple[EngineCommand, ServingPoint]], point: ServingPoint, who: str
) -> None:
    """Refuse pools that an orchestrator's guides to disaggregated serving exclude.

    Raises:
        UserError: unsupported KV transfer or engine, or a replica spans nodes.
    """
    if point.pools.kv_link == INFINITE:
        raise UserError(
            "pools.kv_link infinite: a hypothetical link cannot be deployed; choose rdma"
        )
    if point.pools.kv_link == NVLINK:
        raise UserError(
            "pools.kv_link nvlink: workers in separate pods share no NVLink; choose rdma"
        )
    if point.pools.kv_transfer == BY_LAYER:
        raise UserError(
            f"pools.kv_transfer by_layer: {who} transfers a KV cache after prefill; choose serial"
        )
    for role, (launch, _) in zip(ROLES, parts, strict=True):
        engine = launch.engine
        if not engine.kv_connector:
            raise UserError(
                f"pools.prefill_gpus, pools.decode_gpus: separate pools of "
                f"{engine.title or engine.name} workers are not written here, only those of vLLM"
            )
        if launch.nodes > 1:
            raise UserError(
                f"pools.prefill_gpus, pools.decode_gpus: a replica that does {role} spans "
                f"{launch.nodes} nodes; {who}'s separate pools are written here for "
                "replicas within a node"
            )


def remarks(point: ServingPoint) -> Iterator[str]:
    """Yield comments about KV transfer: requirements, and differences from the simulation."""
    yield "KV transfer uses RDMA only if pods request the cluster's RDMA devices (as rdma/ib)"
    gpus = point.replicas * (point.pools.prefill_gpus + point.pools.decode_gpus)
    if (
        point.pools.kv_link == AUTO
        and gpus <= cluster_for(point.cluster, load_gpu(point.gpu)).gpus_per_node
    ):
        yield (
            "priced with NVLink between the pools, which pods do not share: see pools.kv_link rdma"
        )
