"""Checks that a folder of results is shared: files that another process wrote must appear here."""

from __future__ import annotations

import contextlib
import time

import pyarrow.fs as pafs

from sweeper.store.checksums import filesystem
from sweeper.store.parquet import explained

_LAG_S, _STEP_S = 5.0, 0.1
"""Time within which a file appears on other machines, and interval between looks."""


def write_token(folder: str, name: str) -> None:
    """Write a small file into a folder of results, for another process to find.

    Raises:
        UserError: the folder may not be written here, or its disk is full.
    """
    fs, path = filesystem(folder)
    try:
        if isinstance(fs, pafs.LocalFileSystem):
            fs.create_dir(path, recursive=True)
        with fs.open_output_stream(f"{path}/{name}") as stream:
            stream.write(name.encode())
    except OSError as error:
        raise explained(error, folder) from error


def appears(folder: str, name: str, *, within_s: float = _LAG_S) -> bool:
    """Return whether a file is in a folder, now or soon."""
    fs, path = filesystem(folder)
    end = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError):
            if fs.get_file_info(f"{path}/{name}").type == pafs.FileType.File:
                return True
        if time.monotonic() >= end:
            return False
        time.sleep(_STEP_S)


def remove(folder: str, name: str) -> None:
    """Delete a file if it exists."""
    fs, path = filesystem(folder)
    with contextlib.suppress(OSError):
        fs.delete_file(f"{path}/{name}")
