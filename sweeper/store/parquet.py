"""Files of parts: atomic writes, reads and checksums, on a disk or in an object store.

On a disk a write is a temporary file, an fsync and a rename; in an object store one PUT. The footer
of a part holds its file name, which says which points of which definition it holds, and the CRC-32
of all its bytes, computed with zeros in its place. A part is checked before anything in it is
decoded, since a decoder may crash on damaged input.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import secrets
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from simulators.core.errors import UserError

T = TypeVar("T")

KEY, BLANK = "crc32 of all bytes with zeros here", "00000000"
"""The footer's key of the checksum, and the placeholder of its eight digits."""
_BEFORE = KEY.encode() + b"\x18\x08"
"""Bytes before the digits in the footer: the key and the Thrift header of a string."""
_NAMED = b"name of this part\x18"
"""Bytes before the length of the part's name in the footer."""
_MAGIC = b"PAR1"
_ANSWER_S = 8.0  # time within which an object store answers


class DamagedPart(UserError):  # noqa: N818 - names the object, not the failure
    """A part fails its checksum; its points are evaluated again."""


def filesystem(folder: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a folder or URL, and the path in it.

    Raises:
        UserError: the file system of the URL does not answer within seconds.
    """
    return _connected(folder) if "://" in folder else (pafs.LocalFileSystem(), folder)


@functools.lru_cache(maxsize=1024)
def _connected(url: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URL, after a first request."""

    def connect() -> tuple[pafs.FileSystem, str]:
        fs, path = pafs.FileSystem.from_uri(url)
        fs.get_file_info(path)
        return fs, path

    return answered(url, connect)


def answered(url: str, ask: Callable[[], T]) -> T:
    """Return the result of a request to an object store, whose client would retry for minutes.

    Raises:
        UserError: the request fails or takes too long.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except (OSError, ValueError) as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(timeout=_ANSWER_S)
    except TimeoutError:
        reason = f"no answer within {_ANSWER_S:g} s"
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
    raise UserError(f"outputs: {url} cannot be reached: {reason}")


def with_checksum(content: pa.Buffer) -> Iterator[pa.Buffer | bytes]:
    """Yield the pieces of a file with its checksum in the place of `BLANK` in the footer."""
    footer = min(_footer(content[-8:].to_pybytes()), content.size)
    at = content.size - footer + content[-footer:].to_pybytes().rindex(_BEFORE) + len(_BEFORE)
    yield content[:at]
    yield f"{zlib.crc32(content):08x}".encode()
    yield content[at + len(BLANK) :]


def check(folder: str, name: str, seen: pafs.FileInfo | None = None) -> None:
    """Raise `DamagedPart` unless a part matches its checksum and has its own name.

    Unchanged parts are read once. A part without a checksum only has to end as Parquet does. `seen`
    is the entry of the part in a listing of the folder.
    """
    if seen is None:
        fs, path = filesystem(folder)
        seen = fs.get_file_info(f"{path}/{name}")
    if wrong := _wrong(folder, name, seen.size, seen.mtime_ns):
        raise DamagedPart(
            f"{folder}/{name} is damaged: {wrong}. Delete it and run the sweep again; only its "
            "points will be evaluated"
        )


def warn(error: DamagedPart) -> None:
    """Warn about a damaged part that is left out."""
    warnings.warn(f"left out: {error}", stacklevel=2)


@functools.lru_cache(maxsize=1 << 17)
def _wrong(folder: str, name: str, size: int | None, _mtime_ns: int | None) -> str:
    """Return the damage of a file as text; empty for a whole file."""
    if not size:
        return "it is empty" if size == 0 else "it is gone"
    fs, path = filesystem(folder)
    try:
        with fs.open_input_file(f"{path}/{name}") as stream:
            content = memoryview(stream.read())
    except OSError as error:
        return f"it cannot be read ({error})"
    if len(content) < 8 or content[-4:] != _MAGIC or _footer(content[-8:]) > len(content):
        return "it does not end as Parquet does"
    footer = bytes(content[-_footer(content[-8:]) :])
    before = footer.rfind(_BEFORE)
    if before < 0:
        return (
            "its checksum has changed"
            if KEY[:12].encode() in footer or KEY[-12:].encode() in footer
            else ""
        )
    at = len(content) - len(footer) + before + len(_BEFORE)
    end = at + len(BLANK)
    crc32 = zlib.crc32(content[end:], zlib.crc32(BLANK.encode(), zlib.crc32(content[:at])))
    if bytes(content[at:end]) != f"{crc32:08x}".encode():
        return "its bytes are not those that were written"
    named = footer.rfind(_NAMED) + len(_NAMED)
    if named < len(_NAMED):
        return ""  # written before parts held their names
    written = footer[named + 1 : named + 1 + footer[named]].decode(errors="replace")
    return "" if written == name else f"it is a copy of the part {written}"


def _footer(tail: bytes | memoryview) -> int:
    """Return the size of the footer in bytes, from the last eight bytes of a file."""
    return int.from_bytes(tail[:4], "little") + 8


_META = b"sweeper"
_PAGE = 8 << 20  # bytes of a page; smaller pages only cost time, since parts are read whole
_WRITING_S = 3600.0  # age of a temporary file from which its writer must be dead
_LAG_S, _STEP_S = 5.0, 0.1  # time in which a file appears on other machines; interval of checks


def put(folder: str, name: str, table: pa.Table, meta: str) -> None:
    """Write a table and its metadata."""
    fs, path = filesystem(folder)
    content = _content(name, table, meta)
    try:
        if not isinstance(fs, pafs.LocalFileSystem):
            with fs.open_output_stream(f"{path}/{name}") as sink:
                sink.write(b"".join(content))  # in one write: an aborted stream keeps what it has
            return
        fs.create_dir(path, recursive=True)
        write_atomically(Path(path) / name, content)
    except OSError as error:
        raise explained(error, folder) from error


def write_atomically(file: Path, content: Iterable[pa.Buffer | bytes]) -> None:
    """Write a file under a temporary name, and rename it once it is on the disk."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with new_file(temporary) as stream:
            stream.writelines(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


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
    """Return the rows of small parts with the same columns, in order.

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
            if time.time() - leftover.stat().st_mtime > _WRITING_S:
                leftover.unlink(missing_ok=True)
    except OSError as error:
        raise explained(error, folder) from error


def _try_object(fs: pafs.FileSystem, name: str) -> None:
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


def _content(name: str, table: pa.Table, meta: str) -> list[pa.Buffer | bytes]:
    """Return a file of one row group; dictionaries are an encoding, not a type."""
    content = pa.BufferOutputStream()
    with pq.ParquetWriter(
        content,
        table.schema,
        compression="lz4",  # a fifth faster than zstd, and a tenth larger
        data_page_size=_PAGE,
        write_batch_size=max(len(table), 1),
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=max(len(table), 1))
        own = {_META.decode(): meta, _NAMED[:-1].decode(): name, KEY: BLANK}
        writer.add_key_value_metadata(own)
    return list(with_checksum(content.getvalue()))


def write_token(folder: str, name: str) -> None:
    """Write a small file into a folder of results, which another process looks for.

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
