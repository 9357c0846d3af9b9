"""Lengths drawn from fitted workloads against rows of their traces that nobody fitted to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, at_most
from lab.fits.request_lengths import TRACES, held_out, held_out_error, read_lengths
from simulators.core.contract import Check
from simulators.serving.demand.workloads import load_workload

LIMIT = 0.06
"""The raw rows that were fitted to differ by 4 to 5 % from those held out."""


def checks(reference: Path, rows: str) -> Iterator[Check]:
    """Yield the error of each fitted workload."""
    for name, measured in TRACES.items():
        file = reference / measured
        if not file.is_file():
            yield absent(f"workload {name}", f"absent: {measured}")
            continue
        prompt, output = read_lengths(reference, name)
        count = prompt.size
        which = held_out(count) if rows == "test" else np.arange(count)
        error = held_out_error(load_workload(name), prompt[which], output[which])
        note = "mean relative error of prompt, output and total tokens"
        yield at_most(f"workload {name} deciles", error, LIMIT, which.size, note, unit="")
