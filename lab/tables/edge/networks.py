"""Latencies of networks on phones, processors, GPUs and chips, as one matrix per search space.

HELP's tables: cells of NAS-Bench-201, FBNet and Once-for-all networks, each on up to 27 devices;
`edge.toml` has the split of devices into known and new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from lab.tables.rows import Floats, Record
from simulators.core.folder import read_toml
from simulators.edge.architectures import features

SPLITS = {
    space: Record(split)
    for space, split in read_toml(Path(__file__).with_name("edge.toml"))["spaces"].items()
}


@dataclass(frozen=True)
class Latencies:
    """Networks of one search space and their latencies on devices."""

    texts: Sequence[str]
    features: Floats  # a row per network
    seconds: Mapping[str, Floats]  # by device
    degenerate: float = 0.0  # share of the quickest networks that relative errors leave out


def table_of(space: str) -> str:
    """Return the table of a search space, below the reference folder."""
    return f"edge/{SPLITS[space].file}"


def latencies(reference: Path, space: str) -> Latencies:
    """Return the measured latencies of a search space."""
    table = pq.read_table(reference / table_of(space))
    texts = table[SPLITS[space].text].to_pylist()
    devices = [n for n in table.column_names if not n.startswith(("arch_", "op_"))]
    seconds = {n: table[n].to_numpy().astype(np.float64) * 1e-3 for n in devices}
    return Latencies(texts, features(space, texts), seconds, SPLITS[space].degenerate)


def family(device: str) -> str:
    """Return the name that versions of a device have in common.

    >>> family("1080ti_256"), family("silver_4210r"), family("samsung_s7")
    ('1080ti', 'silver', 'samsung_s7')
    """
    name, _, last = device.rpartition("_")
    return name if last.isdigit() or name in ("silver", "gold") else device
