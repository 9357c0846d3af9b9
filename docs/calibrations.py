"""The generated list of calibration files, from their provenance.

Each row is a file: the command that fits it, the number of measured rows,
the number of parameters (of trees, all splits and leaves), the error on held-out rows, and where
it was measured the error of a form with fewer parameters on the same rows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from docs.reference import table
from lab.fits.driver import count_parameters, fits, is_number, leaves

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("simulators", "lab/calibration")
FORMER = {
    "simulators.collectives.fit": "collectives",
    "simulators.composition.fit_graphs": "graphs",
    "simulators.kernels.fit": "fp32_kernels",
    "simulators.kernels.resident_fit": "auxiliary_kernels",
    "simulators.kernels.side_fit": "auxiliary_kernels",
    "simulators.kernels.tensor_fit": "tensor_cores",
    "simulators.serving.fit": "request_lengths",
}
"""Fits by the names in files that were not written again since they moved."""

COLUMNS = (
    "file",
    "fit",
    "rows",
    "parameters",
    "held-out error",
    "error of a simpler form",
    "held out",
)


ENGINES, TRAINING, NETWORKS = "engines and API servers", "training steps", "networks"
KINDS = {
    ENGINES: ".*/calibration/(runtimes/(vllm|trtllm|sglang)|frontends|in_process)",
    TRAINING: "training/",
    NETWORKS: "collectives/",
    "intervals of deployments": "serving/calibration/(deployment_bands|differences)",
    "kernels": "(kernels|graphs)/",
    "transfer between GPUs": "evidence/",
    "edge devices": "edge/",
}
"""Patterns of the names of calibration files, by kind."""

SPLIT = "split_"
"""Tables of numbers that were fitted without a part of the rows, for the strict figures."""


NOT_COUNTED = {"ranks", "first_octave", "measured_from", "measured_to", "rows", "weight", "band"}
"""Numbers that say where a curve was measured, and ends of intervals."""

NOTHING = 0.0, 1.0
"""Times and factors that change no prediction: they were held there."""


class Kind(NamedTuple):
    """Calibration files of one kind."""

    what: str
    files: int
    numbers: int  # fitted; a number that several files share counts once
    rows: int  # measured; those of one fit count once

    @property
    def rows_per_number(self) -> float:
        """Return the measured rows that speak for one number."""
        return self.rows / self.numbers


def kinds() -> list[Kind]:
    """Return the fitted numbers and the measured rows of every kind of calibration."""
    return [Kind(what, *_counts(re.compile(pattern))) for what, pattern in KINDS.items()]


def _counts(pattern: re.Pattern[str]) -> tuple[int, int, int]:
    files, numbers, rows = 0, set(), set()
    for file in sorted((ROOT / "simulators").rglob("*.toml")):
        name = str(file.relative_to(ROOT / "simulators"))
        content = tomllib.loads(file.read_text(encoding="utf-8")) if pattern.match(name) else {}
        if provenance := content.pop("provenance", None):
            files += 1
            own = {key: one for key, one in content.items() if not key.startswith(SPLIT)}
            own.get("runtime", {}).pop("decoder_numbers", None)  # a fact of the source
            is_shared = "/runtimes/" in name  # by files, and by architectures
            numbers |= {
                (path[0], path[-1], one) if is_shared else (name, *path, one)
                for path, one in leaves(own)
                if is_number(one) and one not in NOTHING and not NOT_COUNTED & {*path}
            }
            rows.add((provenance["rows"], provenance["held_out_mape"], *provenance["sha256"]))
    return files, len(numbers), sum(one[0] for one in rows)


def summary() -> str:
    """Return the numbers, without ends of intervals, and the rows of every kind as a table."""
    cells = (
        (
            one.what,
            f"{one.files}",
            f"{one.numbers:,}",
            f"{one.rows:,}",
            f"{one.rows_per_number:,.1f}",
        )
        for one in kinds()
    )
    return table(("calibrations", "files", "numbers", "rows", "rows per number"), cells)


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the cells of every calibration file."""
    known = fits()
    for file in sorted(f for folder in FOLDERS for f in (ROOT / folder).rglob("*.toml")):
        text = file.read_text(encoding="utf-8")
        if "\n[provenance]\n" not in text:
            continue
        content = tomllib.loads(text)
        provenance = content.pop("provenance")
        words = re.match(
            r"# Written by `(?:python -m |lab.fits |sweeper-lab fit )*(\S+?)[ `]", text
        )
        written = words[1] if words else ""
        fit = FORMER.get(written, written)
        yield (
            str(file.relative_to(ROOT)),
            f"`sweeper-lab fit {fit}`" if fit in known else "data",
            f"{provenance['rows']:,}",
            f"{count_parameters(content):,}",
            f"{100.0 * provenance['held_out_mape']:.1f} %",
            _simpler(provenance),
            provenance["split"],
        )


def _simpler(provenance: dict[str, Any]) -> str:
    if "simpler" not in provenance:
        return ""
    return f"{100.0 * provenance['simpler_mape']:.1f} % ({provenance['simpler']})"


def page() -> str:
    """Return the page."""
    return "\n\n".join(["# Calibration files", table(COLUMNS, rows())]) + "\n"
