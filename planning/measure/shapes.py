"""Shapes of the calls to time: a quasi-random sequence over the logarithms of the sizes.

The first points of a Kronecker sequence fill a box more evenly than random ones, for any count
(Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018). Sizes are rounded to
multiples that libraries are tuned for. Calls that need too much memory or arithmetic are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from planning.calibrate.measurements import CLASS_OF, SIZES
from simulators.core.errors import UserError
from simulators.core.folder import read_toml

MAX_NUMBERS = 2.0**29
"""Largest number of elements of all operands together: 2 GiB in fp32."""

MAX_FLOPS = 2.0**41
"""Largest number of FLOPs of a call: a thirtieth of a second at 67 TFLOP/s."""

MAX_SKIPPED = 64
"""Consecutive calls that are too large after which a family ends."""


@dataclass(frozen=True)
class SizeRange:
    """Sizes from `least` to `most` in steps of `step`, spread by their logarithms."""

    least: int
    most: int
    step: int = 1


@dataclass(frozen=True)
class CallFamily:
    """Family of calls: operators (used in turn), precision, and ranges or lists of sizes."""

    ops: tuple[str, ...]
    sizes: dict[str, SizeRange | tuple[int, ...]]
    dtype: str = "fp32"
    looped: bool = False  # timed in a loop on the device, like the tables of engines' kernels


@dataclass(frozen=True)
class Call:
    """One call to time."""

    op: str
    dtype: str
    sizes: Mapping[str, int]
    looped: bool


TABLES: Mapping[str, Any] = read_toml(Path(__file__).with_name("measure.toml"))
FAMILIES = msgspec.convert(TABLES["families"], dict[str, tuple[CallFamily, ...]])
"""Families of calls by the name used in `--ops`."""

DTYPES = tuple(dict.fromkeys(d.dtype for families in FAMILIES.values() for d in families))


def calls(families: tuple[CallFamily, ...], largest: int) -> Iterator[Call]:
    """Yield calls without end, one of each family in turn; no size is above `largest`."""
    for turn in zip_longest(*(_calls(family, largest) for family in families)):
        yield from (call for call in turn if call is not None)


def calls_of(table: pa.Table, file: Path) -> Iterator[Call]:
    """Return the fp32 calls that the rows of a file describe.

    Raises:
        UserError: the file has no fp32 operator, or a row lacks a size.
    """
    rows = [row for row in table.to_pylist() if row["op"] in CLASS_OF]
    if not rows:
        raise UserError(f"{file}: no fp32 operators; write operator names in the column `op`")
    found = []
    for row in rows:
        names = SIZES.get(row["op"], ("rows", "cols"))
        sizes = {name: 1 if name == "batch" else None for name in names}
        sizes |= {name: row[name] for name in names if row.get(name) is not None}
        if None in sizes.values():
            raise UserError(f"{file}: a row of {row['op']} lacks one of {', '.join(names)}")
        whole = {name: int(size) for name, size in sizes.items() if size is not None}
        found.append(Call(row["op"], "fp32", whole, looped=False))
    return iter(found)


def _calls(family: CallFamily, largest: int) -> Iterator[Call]:
    step = _steps(len(family.sizes))
    yielded, skipped = 0, 0
    for i in count(1):
        point = np.modf(0.5 + i * step)[0].tolist()
        sizes = {
            name: _size(span, fraction, largest)
            for (name, span), fraction in zip(family.sizes.items(), point, strict=True)
        }
        sizes = _completed(family.ops[0], sizes)
        numbers, flops = weight_of(family.ops[0], sizes)
        if numbers > MAX_NUMBERS or flops > MAX_FLOPS:
            skipped += 1
            if skipped >= MAX_SKIPPED:
                return
            continue
        yield Call(family.ops[yielded % len(family.ops)], family.dtype, sizes, family.looped)
        yielded, skipped = yielded + 1, 0


def _size(span: SizeRange | tuple[int, ...], fraction: float, largest: int) -> int:
    """Return the size at a fraction of a list or a range; ranges end at `largest`."""
    if isinstance(span, tuple):
        return span[int(fraction * len(span))]
    most = max(min(span.most, largest), span.least)
    size = float(span.least * (most / span.least) ** fraction)
    return max(round(size / span.step), 1) * span.step


def _completed(op: str, sizes: dict[str, int]) -> dict[str, int]:
    """Return the sizes and those derived from them, under the names of the reference tables.

    >>> _completed("decode", {"step": 63, "num_key_value_heads": 2, "group": 4})["num_heads"]
    8
    """
    if op == "conv":
        return {**sizes, "padding": sizes["kernel_size"] // 2}
    if "group" not in sizes:
        return {"batch": 1, **sizes} if op == "linear" else sizes
    heads = sizes["num_key_value_heads"] * sizes.pop("group")
    # A decode step sees isl + step keys; PyTorch's causal mask knows no prefix before a prompt.
    return {"isl": 1, "step": 0, **sizes, "num_heads": heads, "window_size": 0}


def weight_of(op: str, sizes: Mapping[str, int]) -> tuple[float, float]:
    """Return the elements that an operator reads and writes, and its FLOPs.

    >>> weight_of("gemm", {"m": 2, "n": 3, "k": 4})
    (26.0, 48.0)
    """
    if op in ("gemm", "linear", "bmm"):
        batch, m, n, k = (float(sizes.get(name, 1)) for name in ("batch", "m", "n", "k"))
        return batch * (m * k + k * n + m * n), 2.0 * batch * m * n * k
    if op in ("prefill", "decode"):
        keys = float(sizes["isl"] + sizes["step"])
        queries = float(sizes["batch_size"] * sizes["isl"] * sizes["num_heads"])
        cache = sizes["batch_size"] * sizes["num_key_value_heads"] * keys
        return (queries + cache) * 2.0 * sizes["head_dim"], 4.0 * queries * keys * sizes["head_dim"]
    if op == "conv":
        pixels = sizes["batch"] * float(sizes["input_size"]) ** 2
        outputs = pixels / sizes["stride"] ** 2 * sizes["out_channels"]
        taps = float(sizes["kernel_size"]) ** 2 * sizes["in_channels"]
        weights = taps * sizes["out_channels"]
        return pixels * sizes["in_channels"] + weights + outputs, 2.0 * outputs * taps
    numbers = float(sizes["rows"] * sizes["cols"])
    return 3.0 * numbers, numbers


def _steps(dimensions: int) -> NDArray[np.float64]:
    """Return the step of the sequence in each dimension.

    The steps are powers of 1 / phi, where phi ** (dimensions + 1) = phi + 1.
    """
    phi = 2.0
    for _ in range(64):
        phi = (1.0 + phi) ** (1.0 / (dimensions + 1))
    return phi ** -np.arange(1.0, dimensions + 1)
