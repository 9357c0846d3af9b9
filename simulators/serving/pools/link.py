"""The link for KV transfer between pools: bandwidth of the GPUs' links times a fitted efficiency.

The GPUs of a replica send their shares of a KV cache in parallel, each over its own link; if `tp`
differs between pools, the replica with fewer GPUs sets the rate. The efficiency and the set-up time
per layer are fitted to published transfers over RDMA, by framework. No measured transfer over
NVLink was found, so NVLink has the same efficiency.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np

from simulators.catalog.cluster import Link as Wire
from simulators.composition.replica import Replica
from simulators.core.calibration import read_calibration
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.serving.engine import replica as at
from simulators.serving.point import AUTO, BY_LAYER, ETHERNET, INFINITE, NVLINK, ServingPoint
from simulators.workload.llm.memory import kv_bytes_per_token

CALIBRATION = Path(__file__).parents[1] / "calibration" / "kv_transfer.toml"

OTHER = "other"
"""The entry of frameworks without published transfers: between the published ones."""


@dataclass(frozen=True, kw_only=True)
class KVLink:
    """Set-up time and time per token of a KV transfer between two replicas."""

    setup_s: float
    token_s: float
    parts: int = 1  # sent during the prefill; 1: all afterwards

    def vector(self) -> Floats:
        """Return the numbers of the link as the event loop's array."""
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


def link_of(point: ServingPoint, prefill: Replica, decode: Replica) -> KVLink:
    """Return the link between a prefill replica and a decode replica.

    Raises:
        Infeasible: the pools have no such link.
        UserError: the bandwidth of the link is unknown.
    """
    if point.pools.kv_link == INFINITE:
        return INSTANT_LINK
    model = prefill.model
    narrow = min(prefill, decode, key=lambda replica: replica.cut.tp)
    shared_bytes = kv_bytes_per_token(model, narrow.cut, narrow.kv_dtype)
    known = transfers_of(prefill.runtime.framework)
    wire = wire_of(point, prefill, decode)
    rate = point.pools.kv_link_bytes_per_s or known.share * wire.bytes_per_s
    return KVLink(
        setup_s=wire.latency_s + known.layer_s * model.layers,
        token_s=shared_bytes / rate,
        parts=model.layers if point.pools.kv_transfer == BY_LAYER else 1,
    )


def wire_of(point: ServingPoint, prefill: Replica, decode: Replica) -> Wire:
    """Return the data sheet's link from a GPU to the other pool: the slower of both ends.

    Raises:
        Infeasible: NVLink is asked for between pools that share no node.
        UserError: Ethernet without a bandwidth.
    """
    ends = (prefill, decode)
    node, size = (
        prefill.cluster,
        point.replicas * (point.pools.prefill_gpus + point.pools.decode_gpus),
    )
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
