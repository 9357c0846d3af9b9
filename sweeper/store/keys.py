"""Keys of points and names of parts.

The key of a point is a hash of its values and of the contents of every file that the values name.
An edited data sheet or trace changes exactly the keys of the points that read it, and a point has
the same key in every space. A definition fixes the meaning of a space's point numbers. The name of
a part gives its definition and the point numbers it settles, and is also stored inside the part.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from simulators.core.contract import Reads, load_simulator
from simulators.core.errors import UserError
from sweeper.space.axes import Factor, Scalar
from sweeper.space.design_space import DesignSpace, completed
from sweeper.space.points import Batch, Index, Span
from sweeper.typed import from_json

_NAME = re.compile(
    r"^(?P<definition>[0-9a-f]{12})-"
    r"(?:(?P<lo>\d+)-(?P<hi>\d+)(?P<without>-w[0-9a-f]+)?|x[0-9a-f]+)\.parquet$"
)

_MOST = 1 << 28  # largest number of unpacked bytes: compressed text may expand to any size


def name_of(definition: str, where: Batch) -> str:
    """Return the name of the part with the rows of a batch under a definition."""
    if not isinstance(where, Span):
        return f"{definition}-x{_digest_numbers(where)}.parquet"
    mark = f"-w{_digest_numbers(where.without)}" if len(where.without) else ""
    return f"{definition}-{where.lo:012d}-{where.hi:012d}{mark}.parquet"


def is_part(name: str) -> bool:
    """Return whether a file is a part."""
    return _NAME.match(name) is not None


def definition_in(name: str) -> str:
    """Return the identifier of the definition of a part."""
    return name[:12]


def range_in(name: str) -> tuple[int, int, bool] | None:
    """Return the range of a part and whether numbers are left out; None for a list of numbers."""
    match = _NAME.match(name)
    assert match
    return (int(match["lo"]), int(match["hi"]), bool(match["without"])) if match["lo"] else None


def packed(numbers: Index) -> str:
    """Return sorted numbers as text, by their compressed differences."""
    steps = np.diff(numbers, prepend=0).astype(np.int64)
    return base64.b64encode(zlib.compress(steps.tobytes())).decode() if len(numbers) else ""


def unpacked(text: str) -> Index:
    """Return the numbers that `packed` wrote. Raises ValueError for more than 256 MiB."""
    unpacking = zlib.decompressobj()
    steps = unpacking.decompress(base64.b64decode(text), _MOST)
    if unpacking.unconsumed_tail:
        raise ValueError(f"more than {_MOST:,} bytes of numbers")
    return np.cumsum(np.frombuffer(steps, np.int64))


def _digest_numbers(numbers: Index) -> str:
    return hashlib.blake2b(np.ascontiguousarray(numbers).tobytes(), digest_size=8).hexdigest()


SHOWN = 10  # hexadecimal digits of a key that are printed; commands accept any unique prefix
_AT_ONCE = 1 << 18  # rows whose keys are computed at a time


@dataclass(frozen=True)
class Definition:
    """The meaning of a space's point numbers, with digests of the files that its values name."""

    simulator: str
    version: int
    factors: tuple[Mapping[str, tuple[Scalar, ...]], ...]
    derived: Mapping[str, str]
    constraints: tuple[str, ...]
    contents: Mapping[str, Mapping[str, str]]  # field -> value as JSON -> digest of its files

    @functools.cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits that name this definition in file names."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=6).hexdigest()

    @property
    def kind(self) -> str:
        """The folder of parts of this version of the simulator; a path never leads upwards."""
        return f"{self.simulator.replace('..', '__')}-v{self.version}"

    def to_json(self) -> str:
        """Return the definition as canonical JSON, for the metadata of every part."""
        return json.dumps({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def from_json(cls, text: str) -> Definition:
        """Return the definition that `to_json` wrote; raise `ValueError` for other text."""
        return from_json(text, cls)

    def space(self) -> DesignSpace:
        """Return the space that the definition describes."""
        factors = tuple(Factor(f) for f in self.factors)
        return DesignSpace(self.simulator, factors, self.derived, self.constraints)

    @functools.cached_property
    def as_defined_now(self) -> DesignSpace:
        """The space with defaults for fields that its simulator has gained since."""
        return completed(self.space())

    def digest(self, name: str, value: Scalar) -> str:
        """Return the digest of the files that a value names; empty if it names none."""
        return self.contents.get(name, {}).get(json.dumps(value), "")

    def shared(self) -> str:
        """Return the digest of the files that every point reads."""
        return self.digest("", None)

    def may_overlap(self, other: Definition) -> bool:
        """Return whether a point can be in both definitions and read the same contents in both."""
        if (self.simulator, self.version) != (other.simulator, other.version):
            return False
        if self.shared() != other.shared():
            return False
        nothing: frozenset[Any] = frozenset()
        theirs = other._readings
        return not any(
            values.isdisjoint(theirs.get(name, nothing)) for name, values in self._readings.items()
        )

    @functools.cached_property
    def _readings(self) -> Mapping[str, frozenset[Any]]:
        """The values of each axis; values that name files are paired with a digest."""
        return {
            name: frozenset((v, d) if (d := self.digest(name, v)) else v for v in values)
            if name in self.contents
            else frozenset(values)
            for factor in self.factors
            for name, values in factor.items()
        }


def define(space: DesignSpace) -> Definition:
    """Return the definition of a space with the current contents of its files."""
    simulator = load_simulator(space.simulator)
    contents: dict[str, dict[str, str]] = {}
    if isinstance(simulator, Reads):
        fields: dict[str, tuple[Scalar, ...]] = {"": (None,), **space.axes}
        for name, values in fields.items():
            digests = {json.dumps(v): _digest(simulator.reads(name, v)) for v in set(values)}
            if read := {value: digest for value, digest in sorted(digests.items()) if digest}:
                contents[name] = read
    return Definition(
        simulator=space.simulator,
        version=simulator.version,
        factors=tuple(f.columns for f in space.factors),
        derived=space.derived,
        constraints=space.constraints,
        contents=contents,
    )


def keys(definition: Definition, points: pl.DataFrame) -> pl.Series:
    """Return the key of each point of a definition as 32 hexadecimal digits."""
    digits = np.stack(_halves(definition, points), axis=1).astype(">u8").tobytes().hex()
    each = [digits[start : start + 32] for start in range(0, len(digits), 32)]
    return pl.Series("key", each, dtype=pl.String)


def begin_with(definition: Definition, rows: pl.LazyFrame, prefix: str) -> pl.DataFrame:
    """Return `__row` and `key` of the rows whose keys begin with hexadecimal digits."""
    axes_of, found = rows.select(name for factor in definition.factors for name in factor), []
    for start in range(0, int(rows.select(pl.len()).collect().item()) or 1, _AT_ONCE):
        some = axes_of.slice(start, _AT_ONCE).with_row_index("__row", offset=start).collect()
        keyed = some.select("__row").with_columns(keys(definition, some))
        found.append(keyed.filter(pl.col("key").str.starts_with(prefix.lower()) & (prefix != "")))
    return pl.concat(found)


def _halves(definition: Definition, points: pl.DataFrame) -> list[Any]:
    start = _hash("", None, definition.shared())
    totals = [np.full(len(points), half, np.uint64) for half in start]
    for factor in definition.factors:
        for name in factor:
            column = points[name].to_arrow().dictionary_encode(null_encoding="encode")
            values = column.dictionary.to_pylist()
            hashes = [_hash(name, v, definition.digest(name, v)) for v in values]
            halves = np.array(hashes, dtype=np.uint64).reshape(len(hashes), 2)
            position = column.indices.to_numpy(zero_copy_only=False)
            for half in (0, 1):
                totals[half] += halves[position, half]  # wraps around: addition modulo 2**64
    return totals


def _hash(name: str, value: Any, digest: str) -> tuple[int, int]:
    text = json.dumps([name, value, digest])
    raw = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")


def _digest(files: tuple[Path, ...]) -> str:
    if not files:
        return ""
    joined = "".join(f"{file.name}:{_file_digest(file)};" for file in sorted(files))
    return hashlib.blake2b(joined.encode(), digest_size=8).hexdigest()


def _file_digest(file: Path) -> str:
    try:
        stat = file.stat()
        return _read_digest(file, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error


@functools.lru_cache(maxsize=4096)
def _read_digest(file: Path, _mtime_ns: int, _size: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
