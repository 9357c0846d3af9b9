"""The link by which KV caches move between pools: as fast as the GPUs' links, less what is lost.

The GPUs of a replica send their shares of a cache at once, each over its own link; of two replicas
that are cut otherwise the narrower one's links and shares count. What of a link's rate is kept, and
what preparing each layer takes, was fitted to published transfers over RDMA, by framework; no
transfer over NVLink was found, so that the same share is taken of it.
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
"""The entry of frameworks whose transfers nobody has published: between those that were."""


@dataclass(frozen=True, kw_only=True)
class KVLink:
    """How long a KV cache is on its way from one replica to another."""

    setup_s: float
    token_s: float
    parts: int = 1  # that are sent while the prompt is still read; 1: all afterwards

    def vector(self) -> Floats:
        """Return what the event loop reads."""
        numbers = np.zeros(3)
        numbers[at.SETUP_S], numbers[at.TOKEN_S] = self.setup_s, self.token_s
        numbers[at.LAYERS] = self.parts
        return numbers


NO_WAY = KVLink(setup_s=0.0, token_s=0.0)
"""Between replicas that do both, or over a link of infinite rate."""


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """What the transfers of a framework's connector take."""

    share: float  # of a link's rate that is kept
    layer_s: float  # to prepare a layer


def link_of(point: ServingPoint, reader: Replica, decoder: Replica) -> KVLink:
    """Return the link between a replica that reads prompts and one that decodes.

    Raises:
        Infeasible: the pools have no such link.
        UserError: nobody has said how fast it is.
    """
    if point.pools.kv_link == INFINITE:
        return NO_WAY
    model = reader.model
    narrow = min(reader, decoder, key=lambda replica: replica.cut.tp)
    shared_bytes = kv_bytes_per_token(model, narrow.cut, narrow.kv_dtype)
    known = transfers_of(reader.runtime.framework)
    wire = wire_of(point, reader, decoder)
    rate = point.pools.kv_link_bytes_per_s or known.share * wire.bytes_per_s
    return KVLink(
        setup_s=wire.latency_s + known.layer_s * model.layers,
        token_s=shared_bytes / rate,
        parts=model.layers if point.pools.kv_transfer == BY_LAYER else 1,
    )


def wire_of(point: ServingPoint, reader: Replica, decoder: Replica) -> Wire:
    """Return the link of one GPU to one of the other pool, by data sheets: the slower end's.

    Raises:
        Infeasible: NVLink is asked for between pools that share no node.
        UserError: Ethernet is, at a rate that nobody has said.
    """
    ends = (reader, decoder)
    node, size = (
        reader.cluster,
        point.replicas * (point.pools.prefill_gpus + point.pools.decode_gpus),
    )
    one_node = decoder.cluster == node and size <= node.gpus_per_node
    if point.pools.kv_link == NVLINK and not one_node:
        raise Infeasible("no_nvlink_between_pools", f"{size} GPUs, {node.gpus_per_node} a node")
    if point.pools.kv_link == NVLINK or (point.pools.kv_link == AUTO and one_node):
        return min((end.cluster.link(2, end.gpu) for end in ends), key=attrgetter("bytes_per_s"))
    if point.pools.kv_link == ETHERNET and point.pools.kv_link_bytes_per_s is None:
        raise UserError(
            "pools.kv_link ethernet needs pools.kv_link_bytes_per_s: what of it a GPU has"
        )
    return min((end.cluster.inter for end in ends), key=attrgetter("bytes_per_s"))


def transfers_of(framework: str) -> Transfers:
    """Return what the transfers of a framework take."""
    known = once(read_calibration, CALIBRATION)["transfer"]
    return Transfers(**known.get(framework, known[OTHER]))
