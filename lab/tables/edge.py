"""Measured latencies and energies on edge devices: HELP, Qualcomm AI Hub and MLPerf Tiny.

HELP's networks of three search spaces were timed on up to 27 devices each. AI Hub's models on chips
and MLPerf Tiny's on devices become matrices of log seconds or joules, a row per chip and a column
per program. A row of Tiny is a device under one submitter's runtime. `edge.toml` holds splits and
names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from lab.tables.rows import Floats, Record, read_records
from simulators.core.folder import read_toml
from simulators.edge.simulator import features

NAMES = read_toml(Path(__file__).with_suffix(".toml"))
SPLITS = {space: Record(split) for space, split in NAMES["spaces"].items()}


@dataclass(frozen=True)
class Latencies:
    """Networks of one search space and their latencies on devices."""

    features: Floats  # a row per network
    seconds: Mapping[str, Floats]  # by device
    degenerate: float = 0.0  # share of the fastest networks, which relative errors leave out


def table_of(space: str) -> str:
    """Return the table of a search space, below the reference folder."""
    return f"edge/{SPLITS[space].file}"


def latencies(reference: Path, space: str) -> Latencies:
    """Return the measured latencies of a search space."""
    table = pq.read_table(reference / table_of(space))
    texts = table[SPLITS[space].text].to_pylist()
    devices = [n for n in table.column_names if not n.startswith(("arch_", "op_"))]
    seconds = {n: table[n].to_numpy().astype(np.float64) * 1e-3 for n in devices}
    return Latencies(features(space, texts), seconds, SPLITS[space].degenerate)


def family(device: str) -> str:
    """Return the common name of the versions of a device.

    >>> family("1080ti_256"), family("silver_4210r"), family("samsung_s7")
    ('1080ti', 'silver', 'samsung_s7')
    """
    name, _, last = device.rpartition("_")
    return name if last.isdigit() or name in ("silver", "gold") else device


AI_HUB, TINY = "edge/qualcomm_aihub_perf.parquet", "edge/mlperf_tiny.parquet"


@dataclass(frozen=True)
class Matrix:
    """Log seconds or joules of programs on chips; NaN where not measured."""

    chips: Sequence[str]
    programs: Sequence[tuple[str, ...]]
    log: Floats


@dataclass(frozen=True)
class System:
    """A device under a submitter's runtime."""

    device: str
    submitter: str
    round: str
    name: str


def ai_hub(reference: Path) -> Matrix:
    """Return latencies of (model, component, precision, runtime) on chips."""
    keys = ("model", "component", "precision", "runtime")
    return _matrix(
        {
            (row.device, tuple(str(row[key]) for key in keys)): float(row.latency_s)
            for row in read_records(reference / AI_HUB)
            if row.latency_s
        }
    )


def tiny(reference: Path, quantity: str) -> tuple[Sequence[System], Matrix]:
    """Return systems, and `latency_s` or `energy_J_per_inference` of four models on each."""
    systems: dict[str, System] = {}
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for row in read_records(reference / TINY):
        benchmark, value = NAMES["benchmarks"].get(row.benchmark), row[quantity]
        if benchmark is None or not value:
            continue
        folder = row.path.split("/")[-4]
        name = "/".join((row.round, row.submitter, row.system, folder))
        systems[name] = System(device_of(folder), row.submitter, row.round, row.system)
        key = (name, (benchmark,))
        found[key] = min(float(value), found.get(key, np.inf))
    matrix = _matrix(found)
    return [systems[chip] for chip in matrix.chips], matrix


def device_of(folder: str) -> str:
    """Return the device in the name of a folder of results.

    >>> device_of("NUCLEO-L4R5ZI_X-CUBE-AI-7.3"), device_of("zc706")
    ('L4R5ZI', 'ZC706')
    """
    plain = folder.upper().replace("-", "").replace("_", "")
    return next((device for device in NAMES["devices"]["names"] if device in plain), plain)


def _matrix(found: Mapping[tuple[str, tuple[str, ...]], float]) -> Matrix:
    chips = sorted({chip for chip, _ in found})
    programs = sorted({program for _, program in found})
    values = [[found.get((chip, program), np.nan) for program in programs] for chip in chips]
    return Matrix(chips, programs, np.log(values))
