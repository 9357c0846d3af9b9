"""Checksums of parts: detects flipped bits and incomplete copies.

The footer of a part holds the CRC-32 of all its bytes, computed with zeros in its place. A part is
checked before anything in it is decoded, since a decoder may crash on damaged input.
"""

from __future__ import annotations

import functools
import queue
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from simulators.core.errors import UserError

T = TypeVar("T")

KEY, BLANK = "crc32 of all bytes with zeros here", "00000000"
"""The footer's key of the checksum, and the placeholder of its eight digits."""
_BEFORE = KEY.encode() + b"\x18\x08"
"""What precedes the digits in the footer: the key and the Thrift header of an eight-byte string."""
_SHREDS = tuple(KEY[i : i + 6].encode() for i in range(len(KEY) - 5))
"""Pieces of the key: a footer with any of them had a checksum."""
_MAGIC = b"PAR1"
_ANSWER_S = 8.0
"""Time within which an object store answers."""


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
    """Return the file system of a URL, after one request to it."""

    def connect() -> tuple[pafs.FileSystem, str]:
        fs, path = pafs.FileSystem.from_uri(url)
        fs.get_file_info(path)
        return fs, path

    return answered(url, connect)


def answered(url: str, ask: Callable[[], T]) -> T:
    """Return the result of a request to an object store; its own client would retry for minutes.

    Raises:
        UserError: the request fails or takes too long.
    """
    answers: queue.SimpleQueue[T | OSError | ValueError] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(ask())
        except (OSError, ValueError) as error:
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        found = answers.get(timeout=_ANSWER_S)
    except queue.Empty:
        raise UserError(
            f"outputs: {url} cannot be reached: no answer within {_ANSWER_S:g} s"
        ) from None
    if isinstance(found, (OSError, ValueError)):
        said = " ".join(str(found).split())[:200]
        raise UserError(f"outputs: {url} cannot be reached: {said}") from found
    return found


def with_checksum(content: pa.Buffer) -> Iterator[pa.Buffer | bytes]:
    """Yield the pieces of a file whose footer has `KEY: BLANK`, with the checksum filled in."""
    footer = min(_footer(content[-8:].to_pybytes()), content.size)
    at = content.size - footer + content[-footer:].to_pybytes().rindex(_BEFORE) + len(_BEFORE)
    yield content[:at]
    yield f"{zlib.crc32(content):08x}".encode()
    yield content[at + len(BLANK) :]


def check(folder: str, name: str, seen: pafs.FileInfo | None = None) -> None:
    """Raise `DamagedPart` unless a part matches its checksum; unchanged parts are read once.

    A part without a checksum only has to end as Parquet does. `seen` is the entry of the part in a
    listing of the folder.
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
    """Warn about a part that is left out."""
    warnings.warn(f"left out: {error}", stacklevel=2)


@functools.lru_cache(maxsize=1 << 17)
def _wrong(folder: str, name: str, size: int | None, _mtime_ns: int | None) -> str:
    """Return what is wrong with a file; empty if nothing is."""
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
        return "its checksum has changed" if any(s in footer for s in _SHREDS) else ""
    at = len(content) - len(footer) + before + len(_BEFORE)
    end = at + len(BLANK)
    crc32 = zlib.crc32(content[end:], zlib.crc32(BLANK.encode(), zlib.crc32(content[:at])))
    is_whole = bytes(content[at:end]) == f"{crc32:08x}".encode()
    return "" if is_whole else "its bytes are not those that were written"


def _footer(tail: bytes | memoryview) -> int:
    """Return the size of the footer with its length and magic word, from the last eight bytes."""
    return int.from_bytes(tail[:4], "little") + 8
