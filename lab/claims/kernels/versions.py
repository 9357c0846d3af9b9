"""Kernels of other versions of a framework than those that were fitted to.

Watts were metered with earlier versions than the times that fits rest on, so the same shapes were
timed twice, months apart: the drift between both is what a new version costs a prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.kernels.frames import as_shipped
from lab.claims.predictions import columns, together
from lab.tables.kernels.power import read_power_rows, read_times
from lab.tables.rows import Groups, Rows, group_of, is_host_timed

LEAST_SHARED = 30
"""Shapes in both versions below which nothing is said of their drift."""


def errors(reference: Path) -> pl.DataFrame:
    """Return each version's held-out kernels beside what is predicted."""
    parts = {
        (_title(p), p.version): p for pair in _pairs(reference) for p in pair if p.held_out.any()
    }
    return together(
        as_shipped(part.where(part.held_out), title=title, version=version)
        for (title, version), part in parts.items()
    )


def drift(reference: Path) -> pl.DataFrame:
    """Return the same shapes in two versions, the later as `predicted`."""
    frames = []
    for old, new in _pairs(reference):
        _, i, j = np.intersect1d(_shape(old), _shape(new), return_indices=True)
        if i.size >= LEAST_SHARED:
            seconds = {"predicted": new.seconds[j], "measured": old.seconds[i]}
            versions = f"{old.version} to {new.version}"
            frames.append(columns(**seconds, title=_title(old), versions=versions))
    return together(frames)


def _pairs(reference: Path) -> Iterator[tuple[Rows, Rows]]:
    """Yield metered kernels with the same kernels of a later version."""
    for old in read_power_rows(reference):
        if not is_host_timed(old):
            for new in read_times(reference, old.kernel, old.gpu, old.framework):
                if new.dtype == old.dtype:
                    yield old, new


def _shape(part: Rows) -> Groups:
    """Return a number per row that all sizes decide; nothing metered is batched."""
    return group_of(size for name, size in part.sizes.items() if name != "batch")


def _title(part: Rows) -> str:
    return f"{part.gpu} {part.framework} {part.kernel} {part.dtype}"
