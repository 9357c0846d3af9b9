"""The generated list of calibration files, from their provenance.

Each row is a file: the command that fits it, the number of measured rows,
the number of parameters (of trees, all splits and leaves) and the error on held-out rows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from docs.reference import table
from lab.fits.driver import count_parameters, fits

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

COLUMNS = ("file", "fit", "rows", "parameters", "held-out error", "held out")


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
            provenance["split"],
        )


def page() -> str:
    """Return the page."""
    return "\n\n".join(["# Calibration files", table(COLUMNS, rows())]) + "\n"
