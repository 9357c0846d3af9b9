"""An axis is a value, a list, or a string in one small notation, the same in files and overrides.

`1..8`, `0..1 lin 11`, `0.5..32 log 13`, `pow2 1..64`; `capacity 0.1..64` asks for the largest value
that still meets the space's `slo:`, `first analytic then event` the second value only for designs
on the front of the first. Never a mapping, which Hydra could not override with a list, and never a
call, which reads as an unknown Hydra function.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.core.errors import UserError

Scalar = str | int | float | bool | None

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(
    rf"^\s*(?:(?P<pow>pow2)\s+)?(?P<lo>{_NUMBER})\s*\.\.\s*(?P<hi>{_NUMBER})"
    rf"(?:\s+(?P<how>lin|log)\s+(?P<count>\d+))?\s*$"
)
_LIKE_A_RANGE = re.compile(rf"{_NUMBER}\s*\.\.|^\s*(pow2|capacity)\b")
_CAPACITY = re.compile(rf"^\s*capacity\s+(?P<lo>{_NUMBER})\s*\.\.\s*(?P<hi>{_NUMBER})\s*$")
_REFINED = re.compile(r"^\s*first\s+(\S+)\s+then\s+(\S+)\s*$")
CAPACITY_STEP = 1.025
"""Values of a capacity axis are 2.5 % apart: as fine as the answer is meant to be."""
EXPECTED = "write 1..8, 0..1 lin 11, 0.5..32 log 13, pow2 1..64, a value or a list"
_LARGEST = 10_000_000
_WIDEST = 2**63 - 1


def values_of(name: str, written: Any, kind: pa.DataType, *, nullable: bool) -> tuple[Scalar, ...]:
    """Return the values of one axis, cast to the type of the simulator's field.

    >>> values_of("n", "pow2 1..8", pa.int64(), nullable=False)
    (1, 2, 4, 8)
    >>> values_of("rate", "1..4 log 3", pa.float64(), nullable=False)
    (1.0, 2.0, 4.0)
    """
    if isinstance(written, dict):
        raise UserError(f"axis '{name}' is a mapping; {EXPECTED}")
    if isinstance(written, str) and not pa.types.is_string(kind) and _LIKE_A_RANGE.search(written):
        items = _range(name, written, whole=pa.types.is_integer(kind))
    else:
        several: Any = refined_values(written) or written
        items = list(several) if isinstance(several, list | tuple) else [written]
    if not items:
        raise UserError(f"axis '{name}' has no values; {EXPECTED}")
    values = tuple(cast(name, item, kind, nullable=nullable) for item in items)
    if len(set(values)) < len(values):
        twice = next(v for i, v in enumerate(values) if v in values[:i])
        raise UserError(f"axis '{name}' has the value {twice!r} twice")
    return values


def cast(name: str, item: Any, kind: pa.DataType, *, nullable: bool) -> Scalar:
    """Return a value converted to the type of its field, or raise UserError."""
    if item is None or (item == "null" and nullable):
        if not nullable:
            raise UserError(f"axis '{name}' cannot be null; {_kind_name(kind)} is wanted")
        return None
    value = _typed(item, kind)
    if value is None:
        raise UserError(f"axis '{name}': {item!r} is not {_kind_name(kind)}")
    return value


def _typed(item: Any, kind: pa.DataType) -> Scalar:
    """Return a value as a type; None if it is none of that type."""
    if pa.types.is_boolean(kind):
        return item if isinstance(item, bool) else None
    if isinstance(item, list | dict):
        return None
    if pa.types.is_string(kind):
        return str(item)
    whole = pa.types.is_integer(kind)
    try:
        # As a float a large whole number would lose its last digits.
        number = item if whole and isinstance(item, int) else float(item)
    except (TypeError, ValueError, OverflowError):
        return None
    if isinstance(item, bool) or not -math.inf < number < math.inf:
        return None
    if whole:
        return int(number) if number == int(number) and abs(number) <= _WIDEST else None
    return number + 0.0  # there is one zero: -0.0 would be a second value with the same answers


def is_capacity(written: Any) -> bool:
    """Return whether an axis asks for the largest value that still meets the `slo:`."""
    return isinstance(written, str) and written.split()[:1] == ["capacity"]


def refined_values(written: Any) -> tuple[str, ...]:
    """Return the two values of an axis whose second is for the front of the first; else nothing.

    >>> refined_values("first analytic then event")
    ('analytic', 'event')
    """
    match = _REFINED.match(written) if isinstance(written, str) else None
    return match.groups() if match else ()


def _range(name: str, text: str, *, whole: bool) -> list[float]:
    """Return the values of a range in words."""

    def refused(why: str) -> UserError:
        return UserError(f"axis '{name}': '{text}' {why}")

    if is_capacity(text):
        match = _CAPACITY.match(text)
        if match is None:
            raise UserError(f"axis '{name}': cannot read '{text}'; write capacity 0.1..64")
        low, high = float(match["lo"]), float(match["hi"])
        if not 0 < low < high:
            raise refused("must run upwards from above 0")
        if not math.isfinite(high / low):
            raise refused("spans more than a number can hold")
        count = math.ceil(math.log(high / low) / math.log(CAPACITY_STEP)) + 1
        return _spaced("log", low, high, max(count, 2), whole=whole)
    match = _RANGE.match(text)
    if match is None:
        raise UserError(f"axis '{name}': cannot read '{text}'; {EXPECTED}")
    low, high = float(match["lo"]), float(match["hi"])
    if not math.isfinite(high - low):
        raise refused("spans more than a number can hold")
    if high < low:
        raise refused(f"runs backwards; write {match['hi']}..{match['lo']}")
    if match["pow"]:
        if low <= 0:
            raise refused("must start above 0")
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        if not powers:
            raise UserError(f"axis '{name}': there is no power of two in '{text}'")
        return [2.0**e for e in powers]
    if match["how"] is None:
        if low != int(low) or high != int(high):
            raise refused(f"needs a count, as in '{text} lin 11'")
        if high - low >= _LARGEST:
            raise refused(f"has more than {_LARGEST:,} values")
        return [float(v) for v in range(int(low), int(high) + 1)]
    count = int(match["count"])
    if not 2 <= count <= _LARGEST:
        raise refused(f"needs 2 to {_LARGEST:,} values")
    if match["how"] == "log" and low <= 0:
        raise refused("is logarithmic and must start above 0")
    return _spaced(match["how"], low, high, count, whole=whole)


def _spaced(how: str, low: float, high: float, count: int, *, whole: bool) -> list[float]:
    """Return numbers at equal distances or ratios; ten digits, so that 0.5..32 log 13 holds 1."""
    spaced = (np.linspace if how == "lin" else np.geomspace)(low, high, count)
    spaced[0], spaced[-1] = low, high
    numbers = [float(f"{v:.10g}") for v in spaced]
    return list(dict.fromkeys(float(round(v)) for v in numbers)) if whole else numbers


def _kind_name(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "a whole number"
    if pa.types.is_floating(kind):
        return "a number"
    return "true or false" if pa.types.is_boolean(kind) else "a name"
