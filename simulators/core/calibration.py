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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import read_toml

SEAL = "# sha256 of all above: "
REQUIRED = ("measured", "sha256", "rows", "split", "held_out_mape")


@dataclass(frozen=True)
class Provenance:
    """Which measurements a calibration rests on."""

    measured: tuple[str, ...]  # tables, relative to the reference folder
    sha256: tuple[str, ...]  # of each
    rows: int
    split: str
    held_out_mape: float
    versions: Mapping[str, str]


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
    provenance_of(content, path)
    return content


def read_choice(path: Path) -> dict[str, Any]:
    """Return the content of a file that a fit has written, or its user by hand.

    Raises:
        UserError: it is missing or unreadable, or a calibration that was changed by hand.
    """
    content = read_toml(path)
    is_fitted = "provenance" in content or SEAL in path.read_text(encoding="utf-8")
    return read_calibration(path) if is_fitted else content


def provenance_of(content: Mapping[str, Any], path: Path) -> Provenance:
    """Return the provenance of a calibration that was read from `path`.

    Raises:
        UserError: the block or one of its entries is missing.
    """
    block = content.get("provenance", {})
    if missing := [name for name in REQUIRED if name not in block]:
        raise UserError(f"{path}: [provenance] lacks {', '.join(missing)}")
    return Provenance(
        measured=_listed(block["measured"]),
        sha256=_listed(block["sha256"]),
        rows=int(block["rows"]),
        split=str(block["split"]),
        held_out_mape=float(block["held_out_mape"]),
        versions=dict(block.get("versions", {})),
    )


def write_calibration(path: Path, body: str) -> None:
    """Write the text of a calibration and seal it; the file is whole or absent."""
    body = body.rstrip("\n") + "\n"
    seal = hashlib.sha256(body.encode()).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".partial")
    draft.write_text(f"{body}{SEAL}{seal}\n", encoding="utf-8")
    draft.replace(path)


def verify_measured(provenance: Provenance, reference: Path) -> bool:
    """Say whether the measured tables beside us are those that were fitted to.

    Raises:
        UserError: a table is there, but with other content.
    """
    found = True
    for name, digest in zip(provenance.measured, provenance.sha256, strict=True):
        table = reference / name
        if not table.is_file():
            found = False
        elif sha256_of(table) != digest:
            raise UserError(
                f"{table} is not the table the calibration was fitted to: its sha256 is not "
                f"{digest[:12]}…. Fit again, or fetch the table that belongs to it"
            )
    return found


def fitted_digests(files: Iterable[Path]) -> set[str]:
    """Return the hashes of all tables that some calibrations were fitted to.

    Raises:
        UserError: a calibration is unreadable or was changed by hand.
    """
    return {
        digest for file in files for digest in provenance_of(read_calibration(file), file).sha256
    }


def sha256_of(path: Path) -> str:
    """Return the hash of a file's content.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _listed(entry: object) -> tuple[str, ...]:
    return tuple(map(str, entry)) if isinstance(entry, list) else (str(entry),)
