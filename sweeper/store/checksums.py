"""Whether a part still holds what was written: disks forget bits, and copies end half-way.

A part bears in its footer the checksum of all its bytes, taken with zeros in the checksum's place.
Checking reads the file once, at the speed of a checksum and before anything in it is decoded, since
a decoder may not survive what it is given.
"""

from __future__ import annotations

import functools
import io
import queue
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from simulators.core.errors import UserError

T = TypeVar("T")

KEY, BLANK = "crc32 of all bytes with zeros here", "00000000"
"""The footer's key of the checksum, and what stands there while it is taken: eight digits."""
_BEFORE = KEY.encode() + b"\x18\x08"
"""What precedes the digits: the key and, in the footer's own coding, "text of eight bytes"."""
_SHREDS = tuple(KEY[i : i + 6].encode() for i in range(len(KEY) - 5))
"""Any of them in a footer tells that there was a seal, whatever has become of it."""
_MAGIC = b"PAR1"
_BLOCK = 1 << 20
_ANSWER_S = 8.0
"""Within which a store of objects answers."""


class DamagedPart(UserError):  # noqa: N818 - what is there, rather than what went wrong
    """A part that does not hold what was written; its points are asked again."""


def filesystem(folder: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system a folder is on and its path there; a URL names another than this.

    Raises:
        UserError: no file system answers to the URL within seconds.
    """
    return _connected(folder) if "://" in folder else (pafs.LocalFileSystem(), folder)


@functools.lru_cache(maxsize=1024)
def _connected(url: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URL that has answered once."""

    def connect() -> tuple[pafs.FileSystem, str]:
        fs, path = pafs.FileSystem.from_uri(url)
        fs.get_file_info(path)
        return fs, path

    return answered(url, connect)


def answered(url: str, ask: Callable[[], T]) -> T:
    """Return what an object store answers; its own client would try for minutes.

    Raises:
        UserError: it answers nothing within seconds, or that it cannot.
    """
    answers: queue.SimpleQueue[T | OSError | ValueError] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(ask())
        except (OSError, ValueError) as error:  # which those of Arrow are as well
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        found = answers.get(timeout=_ANSWER_S)
    except queue.Empty:
        raise UserError(
            f"outputs: {url} cannot be reached: nobody answers within {_ANSWER_S:g} s"
        ) from None
    if isinstance(found, (OSError, ValueError)):
        said = " ".join(str(found).split())[:200]
        raise UserError(f"outputs: {url} cannot be reached: {said}") from found
    return found


def sealed(content: pa.Buffer) -> Iterator[pa.Buffer | bytes]:
    """Yield a file whose footer has `KEY: BLANK`, with its checksum in place of the blank."""
    footer = min(_footer(content[-8:].to_pybytes()), content.size)
    at = content.size - footer + content[-footer:].to_pybytes().rindex(_BEFORE) + len(_BEFORE)
    yield content[:at]
    yield f"{zlib.crc32(content):08x}".encode()
    yield content[at + len(BLANK) :]


def check(folder: str, name: str, seen: pafs.FileInfo | None = None) -> None:
    """Raise `DamagedPart` unless a part is whole; it is read again only once it has changed.

    A part that was written before there were seals has only to end as Parquet does. `seen` is what
    a listing of the folder said of the part.
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
    """Say once what is left out."""
    warnings.warn(f"left out: {error}", stacklevel=2)


@functools.lru_cache(maxsize=1 << 17)
def _wrong(folder: str, name: str, size: int | None, _mtime_ns: int | None) -> str:
    """Return what is wrong with a file, or nothing."""
    if not size:
        return "it is empty" if size == 0 else "it is gone"
    try:
        with _opened(folder, name, size) as stream:
            stream.seek(max(size - 8, 0))
            tail = stream.read()
            if len(tail) < 8 or tail[4:] != _MAGIC or _footer(tail) > size:
                return "it does not end as Parquet does"
            stream.seek(size - _footer(tail))
            footer = stream.read()
            before = footer.rfind(_BEFORE)
            if before < 0:
                return "its seal has changed" if any(s in footer for s in _SHREDS) else ""
            at = size - len(footer) + before + len(_BEFORE)
            stream.seek(at)
            stated = stream.read(len(BLANK))
            stream.seek(0)
            crc32 = _crc32(stream, at, 0)
            stream.seek(at + len(BLANK))
            crc32 = _crc32(stream, size, zlib.crc32(BLANK.encode(), crc32))
    except OSError as error:
        return f"it cannot be read ({error})"
    return "" if stated == f"{crc32:08x}".encode() else "its bytes are not those that were written"


def _opened(folder: str, name: str, size: int) -> BinaryIO | pa.NativeFile:
    """Open a part to read its bytes; a small one is read at once, as there may be thousands."""
    fs, path = filesystem(folder)
    if size <= _BLOCK and isinstance(fs, pafs.LocalFileSystem):
        return io.BytesIO(Path(path, name).read_bytes())
    found = fs.open_input_file(f"{path}/{name}")
    return io.BytesIO(found.read()) if size <= _BLOCK else found


def _footer(tail: bytes) -> int:
    """Return the bytes of the footer with its length and the magic word, from the last eight."""
    return int.from_bytes(tail[:4], "little") + 8


def _crc32(stream: BinaryIO | pa.NativeFile, count: int, crc32: int) -> int:
    """Return the checksum going on from `crc32` over so many bytes, fewer where the file ends."""
    while count > 0 and (block := stream.read(min(count, _BLOCK))):
        crc32 = zlib.crc32(block, crc32)
        count -= len(block)
    return crc32
