"""A file that a command writes is there, or the user is told why not."""

from __future__ import annotations

from pathlib import Path

from simulators.core.errors import UserError


def write_text(file: Path, text: str) -> None:
    """Write a file, and the folder it is in.

    Raises:
        UserError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error
