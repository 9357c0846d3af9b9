"""Latencies of networks on phones, processors, GPUs and chips, as one matrix a search space.

HELP's tables: cells of NAS-Bench-201, FBNet and Once-for-all networks, each on up to 27 devices, in
milliseconds; which devices stand for what is known and which for new ones is HELP's own split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow.parquet as pq

from lab.tables.rows import Floats
from simulators.edge.architectures import features

FOLDER = "edge"


@dataclass(frozen=True)
class Split:
    """A table, and HELP's split of its devices; of OFA ours: GPUs of two generations are new."""

    file: str
    text: str  # the column that spells a network
    known: tuple[str, ...]
    valid: tuple[str, ...]
    new: tuple[str, ...]
    degenerate: float = 0.0  # share of the quickest networks that relative errors leave out


def _cells_and_fbnet(largest: str, middle: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return HELP's known and validation devices, at the batches of a table."""
    known = (
        "1080ti_1",
        f"1080ti_{middle}",
        f"1080ti_{largest}",
        "silver_4114",
        "silver_4210r",
        "samsung_a50",
        "pixel3",
        "essential_ph_1",
        "samsung_s7",
    )
    return known, ("titanx_1", f"titanx_{middle}", f"titanx_{largest}", "gold_6240")


SPLITS: Mapping[str, Split] = MappingProxyType(
    {
        "nb201": Split(
            "help_nb201_latency_ms.parquet",
            "arch_str",
            *_cells_and_fbnet("256", "32"),
            ("titan_rtx_256", "gold_6226", "fpga", "pixel2", "raspi4", "eyeriss"),
            degenerate=0.1,  # cells through which no path leads: hardly anything is left to time
        ),
        "fbnet": Split(
            "help_fbnet_latency_ms.parquet",
            "arch_str",
            *_cells_and_fbnet("64", "32"),
            ("titan_rtx_64", "gold_6226", "fpga", "pixel2", "raspi4", "eyeriss"),
        ),
        "ofa": Split(
            "help_ofa_latency_ms.parquet",
            "arch_json",
            ("2080ti_1", "2080ti_32", "2080ti_64", "titan_xp_1", "titan_xp_32", "titan_xp_64"),
            (),
            ("titan_rtx_1", "titan_rtx_32", "titan_rtx_64", "v100_1", "v100_32", "v100_64"),
        ),
    }
)


@dataclass(frozen=True)
class Latencies:
    """Networks of one search space and how long they take on devices."""

    texts: Sequence[str]
    features: Floats  # a row per network
    seconds: Mapping[str, Floats]  # by device
    degenerate: float = 0.0


def table_of(space: str) -> str:
    """Return the table of a search space, below the reference folder."""
    return f"{FOLDER}/{SPLITS[space].file}"


def latencies(reference: Path, space: str) -> Latencies:
    """Return the measured latencies of a search space."""
    table = pq.read_table(reference / table_of(space))
    texts = table[SPLITS[space].text].to_pylist()
    kept = [n for n in table.column_names if not n.startswith(("arch_", "op_"))]
    seconds = {n: table[n].to_numpy().astype(np.float64) * 1e-3 for n in kept}
    return Latencies(texts, features(space, texts), seconds, SPLITS[space].degenerate)


def family(device: str) -> str:
    """Return what devices that are versions of each other have in common.

    >>> family("1080ti_256"), family("silver_4210r"), family("samsung_s7")
    ('1080ti', 'silver', 'samsung_s7')
    """
    name, _, last = device.rpartition("_")
    return name if last.isdigit() or name in ("silver", "gold") else device
