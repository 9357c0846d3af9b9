"""What calibration files say about the tables they were fitted to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from simulators.core.calibration import read_calibration


def fitted_tables(files: Iterable[Path]) -> set[tuple[str, str]]:
    """Return name and sha256 of every table that some calibrations were fitted to."""
    found: set[tuple[str, str]] = set()
    for file in files:
        block = read_calibration(file)["provenance"]
        names, digests = (
            entry if isinstance(entry, list) else [entry]
            for entry in (block["measured"], block["sha256"])
        )
        found.update(zip(map(str, names), map(str, digests), strict=True))
    return found
