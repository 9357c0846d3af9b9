"""How the zeros of a tensor are distributed, and what it costs to tell where they are.

Wu et al., "Sparseloop" (MICRO 2022): density models and formats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulators.core.errors import UnknownNameError, UserError

FORMATS = ("none", "bitmask", "coordinate", "run_length", "uncompressed_offset")
UNIFORM, STRUCTURED, BANDED, DENSE = "uniform", "structured", "banded", "dense"
DENSITIES = (UNIFORM, STRUCTURED, BANDED, DENSE)


@dataclass(frozen=True)
class Density:
    """Which of a tensor's words are non-zero.

    `uniform`: any, at random; `structured`: exactly `n` of every `m` neighbours; `banded`: those
    within a band, which a tile meets wholly or not at all; `dense`: all.
    """

    kind: str = DENSE
    share: float = 1.0
    n: int = 0
    m: int = 0

    def __post_init__(self) -> None:
        if self.kind not in DENSITIES:
            raise UnknownNameError("density", self.kind, DENSITIES)
        if not 0.0 <= self.share <= 1.0:
            raise UserError(f"a density is between 0 and 1, not {self.share}")
        if self.kind == STRUCTURED and not 0 < self.n <= self.m:
            raise UserError(f"structured density is n of m, not {self.n} of {self.m}")

    @property
    def mean(self) -> float:
        """Return the share of non-zeros.

        >>> Density("structured", n=2, m=4).mean
        0.5
        """
        if self.kind == DENSE:
            return 1.0
        return self.n / self.m if self.kind == STRUCTURED else self.share


def density_named(text: str) -> Density:
    """Return a density written as a share, as n:m, or as `banded` and a share.

    >>> density_named("2:4").mean, density_named("banded 0.1").kind, density_named("1").kind
    (0.5, 'banded', 'dense')

    Raises:
        UserError: it is none of them.
    """
    words = text.split()
    try:
        if len(words) == 1 and ":" in text:
            n, m = (int(part) for part in text.split(":"))
            return Density(STRUCTURED, n=n, m=m)
        if len(words) == 2 and words[0] == BANDED:
            return Density(BANDED, float(words[1]))
        share = float(text)
    except ValueError as error:
        raise UserError(f"density '{text}' is not like 0.3, 2:4 or banded 0.1") from error
    return Density() if share == 1.0 else Density(UNIFORM, share)


def empty_chance(density: Density, tile: int, whole: int) -> float:
    """Return the probability that a tile holds nothing and can be skipped."""
    if density.kind == UNIFORM and 0 < tile <= whole:
        return hypergeometric(0, tile, round(density.share * whole), whole)
    if density.kind == BANDED:
        return 1.0 - density.share
    return max(0.0, 1.0 - tile * density.mean)


def metadata_bits(layout: str, tile: int, filled: float) -> float:
    """Return the expected bits that say where a tile's non-zeros are.

    A `bitmask` has a bit per word; `coordinate` an index per non-zero; `run_length` the zeros
    before it; `uncompressed_offset` begin and end. The words of a tile count zeros.
    """
    if layout not in FORMATS:
        raise UnknownNameError("format", layout, FORMATS)
    index_bits = max(1, math.ceil(math.log2(max(2, tile))))
    return {
        "none": 0.0,
        "bitmask": float(tile),
        "coordinate": filled * index_bits,
        "run_length": filled * index_bits,
        "uncompressed_offset": 2.0 * max(1, math.ceil(math.log2(tile + 1))),
    }[layout]


def hypergeometric(k: int, tile: int, filled: int, whole: int) -> float:
    """Return the chance of `k` non-zeros in a tile of a tensor with so many in the whole."""
    if k > filled or tile - k > whole - filled:
        return 0.0
    log = _log_choose(filled, k) + _log_choose(whole - filled, tile - k) - _log_choose(whole, tile)
    return math.exp(log)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
