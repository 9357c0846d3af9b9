"""Programs on chips: Qualcomm AI Hub's models on phones and cars, MLPerf Tiny's on devices.

Each table becomes one matrix of log seconds (or joules), a row per chip and a column per program,
whose name includes its runtime. Of Tiny, where submitters bring runtimes to four fixed models, a
row is a device under one submitter's runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.tables.rows import Floats, read_records
from simulators.core.folder import read_toml

AI_HUB, TINY = "edge/qualcomm_aihub_perf.parquet", "edge/mlperf_tiny.parquet"
NAMES = read_toml(Path(__file__).with_name("edge.toml"))


@dataclass(frozen=True)
class Matrix:
    """Log seconds, or joules, of programs on chips; NaN where nothing was measured."""

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
    """Return devices, and `latency_s` or `energy_J_per_inference` of four models on them."""
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
    """Return the device that a folder of results is named after.

    >>> device_of("NUCLEO-L4R5ZI_X-CUBE-AI-7.3"), device_of("zc706")
    ('L4R5ZI', 'ZC706')
    """
    plain = folder.upper().replace("-", "").replace("_", "")
    return next((device for device in NAMES["devices"]["names"] if device in plain), plain)


def _matrix(found: Mapping[tuple[str, tuple[str, ...]], float]) -> Matrix:
    chips = sorted({chip for chip, _ in found})
    programs = sorted({program for _, program in found})
    log = np.full((len(chips), len(programs)), np.nan)
    for (chip, program), value in found.items():
        log[chips.index(chip), programs.index(program)] = np.log(value)
    return Matrix(chips, programs, log)
