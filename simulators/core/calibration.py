"""Calibration files: fitted numbers with provenance, and a hash against changes by hand.

Each file opens with `[provenance]`: measured tables with hashes, number of rows, split, held-out
error, versions of driver and framework. Its last line is a hash of everything above. Measured
tables live outside the repository, in a reference folder.

Parsed files are cached by hash as JSON in the user's cache folder: parsing the TOML files of one
answer takes .25 s per process, reading the JSON a fortieth of that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import folder_of_user, is_ours, read_toml

SEAL = "# sha256 of all above: "
REQUIRED = ("measured", "sha256", "rows", "split", "held_out_mape")
_MOST = 500
"""Most files in the cache; a full cache is emptied."""


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
    """Return the content of a calibration file, `provenance` included.

    Raises:
        UserError: the file is missing, unreadable, without provenance, or was changed by hand.
    """
    text = _text(path)
    body, found, seal = text.rpartition(SEAL)
    again = f"To change a number, change the fit that wrote {path.name} and run it again"
    if not found:
        raise UserError(f"{path}: the line '{SEAL.strip()}' is missing. {again}")
    if hashlib.sha256(body.encode()).hexdigest() != seal.strip():
        raise UserError(f"{path}: its content does not match its hash. {again}")
    content = _parsed(path, seal.strip())
    if missing := [name for name in REQUIRED if name not in content.get("provenance", {})]:
        raise UserError(f"{path}: [provenance] lacks {', '.join(missing)}")
    return content


def read_choice(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file that a fit or the user has written.

    Raises:
        UserError: the file is missing or unreadable, or is a calibration that was changed by hand.
    """
    if SEAL in _text(path) or "provenance" in read_toml(path):
        return read_calibration(path)
    return read_toml(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        read_toml(path)  # raises a UserError with the reason
        raise


@functools.lru_cache(maxsize=1024)
def _parsed(path: Path, seal: str) -> dict[str, Any]:
    folder = _kept_in()
    with contextlib.suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads((folder / f"{seal}.json").read_bytes())
        return content
    content = read_toml(path, finite=False)  # a fitted tree may split at infinity
    with contextlib.suppress(OSError, TypeError):  # JSON has no dates
        _keep(folder / f"{seal}.json", json.dumps(content))
    return content


def _kept_in() -> Path:
    """Return the cache folder of parsed files, or the null device if others can write to it."""
    folder = folder_of_user("XDG_CACHE_HOME", "~/.cache") / "sweeper" / "calibrations"
    with contextlib.suppress(OSError):
        for place in (folder.parent, folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder if is_ours(folder.parent) and is_ours(folder) else Path(os.devnull)


def _keep(file: Path, text: str) -> None:
    """Write a file atomically; empty the folder first if it is full."""
    if len(others := list(file.parent.iterdir())) >= _MOST:
        for other in others:
            other.unlink(missing_ok=True)
    number, name = tempfile.mkstemp(dir=file.parent)
    os.close(number)
    Path(name).write_text(text, encoding="utf-8")
    Path(name).replace(file)
