"""Programs on chips: Qualcomm AI Hub's models on phones and cars, MLPerf Tiny's on boards.

Each table becomes one matrix of log seconds (or joules), a row per chip and a column per program. A
device with another runtime is another program, so a program's name has its runtime; of Tiny, where
everybody brings a runtime to four fixed models, a row is a board under one submitter's runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from lab.tables.rows import Floats, read_records

AI_HUB, TINY = "edge/qualcomm_aihub_perf.parquet", "edge/mlperf_tiny.parquet"

BENCHMARKS = MappingProxyType(
    {
        "ad": "ad",
        "anomaly_detection": "ad",
        "ic": "ic",
        "image_classification": "ic",
        "kws": "kws",
        "keyword_spotting": "kws",
        "vww": "vww",
        "visual_wake_words": "vww",
    }
)
"""Names submitters gave the four models; `sww` streams, and has no latency of one inference."""

BOARDS = (
    "L4R5ZI",
    "H7A3ZI",
    "U575ZI",
    "U385RG",
    "U3C5",
    "F746NG",
    "CY8CPROTO062",
    "NRF5340",
    "G0B1RE",
    "U585I",
    "SYNTIANT9120",
    "GAP9",
    "RH850",
    "K1BOARD",
    "VCU128",
)
"""What folders of results with different names have in common where they are of one board."""


@dataclass(frozen=True)
class Matrix:
    """Log seconds, or joules, of programs on chips; not a number where nothing was measured."""

    chips: Sequence[str]
    programs: Sequence[tuple[str, ...]]
    log: Floats


@dataclass(frozen=True)
class System:
    """A board under somebody's runtime."""

    board: str
    submitter: str
    round: str
    name: str


def ai_hub(reference: Path) -> Matrix:
    """Return latencies of (model, component, precision, runtime) on chips."""
    rows = [row for row in read_records(reference / AI_HUB) if row["latency_s"]]
    keys = ("model", "component", "precision", "runtime")
    return _matrix(
        (row["device"], tuple(str(row[key]) for key in keys), float(row["latency_s"]))
        for row in rows
    )


def tiny(reference: Path, quantity: str) -> tuple[Sequence[System], Matrix]:
    """Return `latency_s` or `energy_J_per_inference` of four models on boards, and these."""
    systems: dict[str, System] = {}
    found: dict[tuple[str, str], float] = {}
    for row in read_records(reference / TINY):
        benchmark, value = BENCHMARKS.get(row["benchmark"]), row[quantity]
        if benchmark is None or not value:
            continue
        folder = row["path"].split("/")[-4]
        system = System(board_of(folder), row["submitter"], row["round"], row["system"])
        name = "/".join((system.round, system.submitter, system.name, folder))
        systems[name] = system
        found[name, benchmark] = min(float(value), found.get((name, benchmark), np.inf))
    matrix = _matrix((name, (benchmark,), value) for (name, benchmark), value in found.items())
    return [systems[chip] for chip in matrix.chips], matrix


def board_of(folder: str) -> str:
    """Return the board behind the name of a folder of results.

    >>> board_of("NUCLEO-L4R5ZI_X-CUBE-AI-7.3"), board_of("zc706")
    ('L4R5ZI', 'ZC706')
    """
    plain = folder.upper().replace("-", "").replace("_", "")
    return next((board for board in BOARDS if board in plain), plain)


def _matrix(found: Iterable[tuple[str, tuple[str, ...], float]]) -> Matrix:
    entries = list(found)
    chips = sorted({chip for chip, _, _ in entries})
    programs = sorted({program for _, program, _ in entries})
    log = np.full((len(chips), len(programs)), np.nan)
    for chip, program, value in entries:
        log[chips.index(chip), programs.index(program)] = np.log(value)
    return Matrix(chips, programs, log)
