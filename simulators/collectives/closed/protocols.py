"""Time of an unmeasured ring by NCCL's protocols: start-up steps, and bytes on a link.

A ring all-reduce moves 2(n-1)/n of the data over every link in 2(n-1) steps (Patarasuk and Yuan,
2009). Libraries send small messages with a protocol of short hops that wastes most of the link, and
large ones with a protocol of longer hops that fills it; they estimate both and take the faster, as
here (NCCL 2.19, src/graph/tuning.cc: latencies and shares of the link). How much of its data sheet
a link sustains is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.catalog.cluster import THROUGH_HOST, Cluster, Link
from simulators.catalog.gpu import Gpu
from simulators.collectives.measured import busbw_factor
from simulators.core.calibration import read_calibration
from simulators.core.folder import PACKAGE
from simulators.core.jit import Floats

CALIBRATION = PACKAGE / "collectives" / "calibration" / "sustained.toml"


@dataclass(frozen=True)
class Protocol:
    """How a message is cut and acknowledged: a start, hops of a link, and a share of it."""

    start_s: float
    is_bulk: bool
    share: float
    hop: float = 1.0  # a multiple of one of the link's


PROTOCOLS = (
    Protocol(start_s=6.6e-6, is_bulk=False, share=0.25),  # 4 of 8 bytes are flags, both ways
    Protocol(start_s=14.0e-6, is_bulk=True, share=0.92),  # 120 of 128 bytes are data
)
"""NCCL's ring protocols LL and LL128."""


def ring_s(kind: str, size_bytes: Floats, ranks: int, link: Link, fraction: float) -> Floats:
    """Return the seconds of a collective, alone on links of which `fraction` is sustained.

    >>> link = Link(bytes_per_s=100e9, latency_s=1e-6, bulk_latency_s=2e-6)
    >>> ring_s("send_recv", np.array([1e9]), 2, link, fraction=1.0).round(5).tolist()
    [0.01089]
    """
    around = 1 if kind == "send_recv" else ranks - 1
    steps = 2 * around if kind == "all_reduce" else around
    moved = size_bytes * busbw_factor(kind, ranks)
    times = [
        protocol.start_s
        + steps * (link.bulk_latency_s if protocol.is_bulk else link.latency_s)
        + moved / (link.bytes_per_s * fraction * protocol.share)
        for protocol in PROTOCOLS
    ]
    return np.minimum(*times)


def sustained_between() -> float:
    """Return what large messages sustain of a link between nodes: the mean of measured fabrics."""
    return float(read_calibration(CALIBRATION)["sustained"]["other"])


def sustained(cluster: Cluster, gpu: Gpu, ranks: int) -> tuple[float, bool]:
    """Return what large messages sustain of a link inside a node, and whether it was measured.

    All GPUs of a host share its memory, and so its share of a link's rate. Fabrics without
    measurements get the mean of the measured ones.
    """
    fitted = read_calibration(CALIBRATION)["sustained"]
    fabric = cluster.fabric_of(gpu)
    sharing = ranks if fabric == THROUGH_HOST else 1
    return (fitted[fabric] / sharing, True) if fabric in fitted else (sustained_between(), False)
