"""The names of parts: the definition a part was written under, and the points it settles.

A part settles a range of point numbers, or just the rows that it holds. The folder is the manifest.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib

import numpy as np

from sweeper.space.points import Batch, Index, Span

_NAME = re.compile(
    r"^(?P<definition>[0-9a-f]{12})-"
    r"(?:(?P<lo>\d+)-(?P<hi>\d+)(?P<without>-w[0-9a-f]+)?|x[0-9a-f]+)\.parquet$"
)

_MOST = 1 << 28
"""Most bytes of unpacked numbers: compressed text may expand to any size."""


def name_of(definition: str, where: Batch) -> str:
    """Return the name of the part that answers a batch under a definition."""
    if not isinstance(where, Span):
        return f"{definition}-x{_digest(where)}.parquet"
    mark = f"-w{_digest(where.without)}" if len(where.without) else ""
    return f"{definition}-{where.lo:012d}-{where.hi:012d}{mark}.parquet"


def is_part(name: str) -> bool:
    """Return whether a file is a part."""
    return _NAME.match(name) is not None


def definition_in(name: str) -> str:
    """Return the definition a part was written under."""
    return name[:12]


def range_in(name: str) -> tuple[int, int, bool] | None:
    """Return the range that a part settles, and whether it leaves numbers out."""
    match = _NAME.match(name)
    assert match
    return (int(match["lo"]), int(match["hi"]), bool(match["without"])) if match["lo"] else None


def packed(numbers: Index) -> str:
    """Return sorted numbers as text: compressed differences."""
    steps = np.diff(numbers, prepend=0).astype(np.int64)
    return base64.b64encode(zlib.compress(steps.tobytes())).decode() if len(numbers) else ""


def unpacked(text: str) -> Index:
    """Return the numbers that `packed` wrote."""
    unpacking = zlib.decompressobj()
    steps = unpacking.decompress(base64.b64decode(text), _MOST)
    if unpacking.unconsumed_tail:
        raise ValueError(f"more than {_MOST:,} bytes of numbers")
    return np.cumsum(np.frombuffer(steps, np.int64))


def _digest(numbers: Index) -> str:
    return hashlib.blake2b(np.ascontiguousarray(numbers).tobytes(), digest_size=8).hexdigest()
