"""Whether what one process wrote is seen by another: a shared folder is shown to be one."""

from __future__ import annotations

import contextlib
import time

import pyarrow.fs as pafs

from sweeper.store.parquet import explained
from sweeper.store.seals import filesystem

_LAG_S, _STEP_S = 5.0, 0.1
"""Within which a file appears on other machines, and how often one looks: shared folders lag."""


def leave(folder: str, name: str) -> None:
    """Write a small file into a folder of results.

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
    """Take a file away, if it is there."""
    fs, path = filesystem(folder)
    with contextlib.suppress(OSError):
        fs.delete_file(f"{path}/{name}")
