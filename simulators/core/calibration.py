"""A calibration is fitted to measurements, and says which: no number in it is anybody's guess.

Each file opens with `[provenance]`: the measured tables, their hashes, the number of rows, the
rule that split them, the error on rows that were held out, and the versions of driver and
framework. The last line of the file is a hash of everything above it, so that a number changed by
hand is noticed: to change a number, change the fit.

Measured tables are other people's data and live outside the repository, in a reference folder.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import read_toml

SEAL = "# sha256 of all above: "
REQUIRED = ("measured", "sha256", "rows", "split", "held_out_mape")


def reference_folder() -> Path | None:
    """Return the folder of measured tables: $SWEEPER_REFERENCE, else ../shared/reference."""
    if named := os.environ.get("SWEEPER_REFERENCE"):
        return Path(named) if Path(named).is_dir() else None
    checkout = Path(__file__).resolve().parents[2]
    for place in (Path.cwd(), checkout):
        if (folder := place.parent / "shared" / "reference").is_dir():
            return folder
    return None


def read_calibration(path: Path) -> dict[str, Any]:
    """Return a calibration's content, `provenance` included.

    Raises:
        UserError: it is missing, unreadable, without provenance, or was changed by hand.
    """
    content = read_toml(path)
    text = path.read_text(encoding="utf-8")
    body, found, seal = text.rpartition(SEAL)
    again = f"To change a number, change the fit that wrote {path.name} and run it again"
    if not found:
        raise UserError(f"{path}: the line '{SEAL.strip()}' is missing. {again}")
    if hashlib.sha256(body.encode()).hexdigest() != seal.strip():
        raise UserError(f"{path}: its content does not match its hash. {again}")
    if missing := [name for name in REQUIRED if name not in content.get("provenance", {})]:
        raise UserError(f"{path}: [provenance] lacks {', '.join(missing)}")
    return content


def read_choice(path: Path) -> dict[str, Any]:
    """Return the content of a file that a fit has written, or its user by hand.

    Raises:
        UserError: it is missing or unreadable, or a calibration that was changed by hand.
    """
    content = read_toml(path)
    is_fitted = "provenance" in content or SEAL in path.read_text(encoding="utf-8")
    return read_calibration(path) if is_fitted else content
