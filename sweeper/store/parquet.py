"""Atomic writes and reads of parts: one Parquet file each, on a disk or in an object store.

On a disk a write is a temporary file, an fsync and a rename; in an object store one PUT.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from simulators.core.errors import UserError
from sweeper.store.checksums import BLANK, KEY, answered, filesystem, with_checksum

_META = b"sweeper"
_SMALL = 20_000
"""Rows below which lz4 compresses: the setup of zstd per page dominates small parts."""
_WRITING_S = 60.0
"""Age of a temporary file from which no other machine is still writing it."""


def put(folder: str, name: str, table: pa.Table, meta: str) -> None:
    """Write a table and its metadata."""
    fs, path = filesystem(folder)
    content = _content(table, meta)
    try:
        if not isinstance(fs, pafs.LocalFileSystem):
            with fs.open_output_stream(f"{path}/{name}") as sink:
                sink.write(b"".join(content))  # in one write: an aborted stream keeps what it has
            return
        fs.create_dir(path, recursive=True)
        temporary = Path(path) / f".{name}.{os.getpid()}.tmp"
        try:
            with new_file(temporary) as stream:
                stream.writelines(content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.rename(Path(path) / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise explained(error, folder) from error


def new_file(file: Path) -> BinaryIO:
    """Open a new file; an existing file or link in its place is deleted."""
    try:
        return file.open("xb")
    except FileExistsError:  # left by a writer that died
        file.unlink()
        return file.open("xb")


def read(folder: str, name: str, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a part."""
    fs, path = filesystem(folder)
    try:
        return pq.read_table(
            f"{path}/{name}",
            columns=columns,
            filesystem=fs,
            partitioning=None,
            page_checksum_verification=True,
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{folder}/{name} cannot be read: {error}") from error


def read_frame(folder: str, name: str, columns: list[str] | None = None) -> pl.DataFrame:
    """Return the rows of a part as a data frame."""
    return pl.DataFrame(pl.from_arrow(read(folder, name, columns)))


def read_frames(
    folder: str, names: Sequence[str], columns: list[str] | None = None
) -> pl.DataFrame:
    """Return the rows of small parts with the same columns, one after the other.

    Page checksums are not verified: callers have verified those of the parts.
    """
    fs, path = filesystem(folder)
    if len(names) == 1 or not isinstance(fs, pafs.LocalFileSystem):
        return pl.concat([read_frame(folder, name, columns) for name in names])
    try:
        # Read whole: polars would map each of thousands of small files.
        rows = pl.scan_parquet([Path(path, name).read_bytes() for name in names])
        if columns is not None:
            known = set(rows.collect_schema().names())
            rows = rows.select(name for name in columns if name in known)
        return rows.collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{folder} cannot be read: {error}") from error


def metadata(folder: str, name: str) -> dict[str, Any]:
    """Return the metadata of a part."""
    fs, path = filesystem(folder)
    try:
        with fs.open_input_file(f"{path}/{name}") as stream:
            written = pq.read_metadata(stream).metadata
        meta: dict[str, Any] = json.loads(written[_META])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{folder}/{name} is not a part of a sweep ({error}); move it out of the folder"
        ) from error
    return meta


def check_writable(folder: str) -> None:
    """Check that a folder is writable, and delete temporary files of dead writers."""
    fs, path = filesystem(folder)
    try:
        if not isinstance(fs, pafs.LocalFileSystem):
            answered(folder, lambda: _try_object(fs, f"{path}/.probe-{secrets.token_hex(8)}"))
            return
        fs.create_dir(path, recursive=True)
        probe = Path(path) / f".probe.{os.getpid()}"
        new_file(probe).close()
        probe.unlink()
        for leftover in Path(path).glob(".*.tmp"):
            if not _is_being_written(leftover):
                leftover.unlink(missing_ok=True)
    except OSError as error:
        raise explained(error, folder) from error


def _try_object(fs: pafs.FileSystem, name: str) -> None:
    """Write an object and delete it."""
    with fs.open_output_stream(name) as sink:
        sink.write(name.encode())
    fs.delete_file(name)


def explained(error: OSError, folder: str) -> UserError:
    """Return an operating system's error as a message about a folder of results."""
    if error.errno == errno.ENOSPC or "No space left" in str(error):
        return UserError(
            f"the disk under {folder} is full. Everything written so far is kept: free space, or "
            "set outputs=/another/folder, and run the same command again to continue"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(
            f"{folder} may not be written ({os.strerror(error.errno)}); choose another folder with "
            "outputs=/another/folder"
        )
    if "://" in folder:
        said = " ".join(str(error).split())[:300]
        return UserError(
            f"{folder}: the store of objects failed ({said}). What it has stored is kept, and the "
            "same command continues"
        )
    return UserError(f"{folder}: {error}")


def _content(table: pa.Table, meta: str) -> list[pa.Buffer | bytes]:
    """Return a file of one row group; dictionaries are an encoding in it, not a type."""
    content = pa.BufferOutputStream()
    codec, level = ("lz4", None) if len(table) < _SMALL else ("zstd", 1)
    with pq.ParquetWriter(
        content,
        table.schema,
        compression=codec,
        compression_level=level,
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=max(len(table), 1))
        writer.add_key_value_metadata({_META.decode(): meta, KEY: BLANK})
    return list(with_checksum(content.getvalue()))


def _is_being_written(temporary: Path) -> bool:
    """Return whether the writer of a temporary file is alive."""
    pid = temporary.name.rsplit(".", 2)[-2]
    try:
        if time.time() - temporary.stat().st_mtime < _WRITING_S:
            return True  # possibly by another machine
        os.kill(int(pid), 0)
    except PermissionError:
        return True  # another user's process
    except (OSError, ValueError):
        return False
    return True
