"""Layers as loop nests, for accelerators: dimensions with bounds, and tensors that project on them.

Seven loops make a convolution: N images, M filters, C channels, R x S taps, P x Q outputs. Each
rank of a tensor is a sum of dimensions with coefficients (stride, dilation), so products, batched
products and depthwise layers are the same thing with fewer loops. Chen et al., "Eyeriss" (ISCA
2016); Parashar et al., "Timeloop" (ISPASS 2019).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from simulators.core.errors import UserError, suggestion

MAX_DIMS = 8
MAX_RANKS = 4
COUNT_BITS = 62
"""Access counts are signed 64-bit; a layer whose largest count could not fit is refused."""

Rank = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Tensor:
    """An operand: each rank is a sum of `dimension * coefficient`, at most two of them."""

    name: str
    ranks: tuple[Rank, ...]
    output: bool = False

    @property
    def dims(self) -> frozenset[str]:
        """Dimensions that index the tensor; loops over other dimensions reuse the tensor."""
        return frozenset(dim for rank in self.ranks for dim, _ in rank)

    def words(self, extents: Mapping[str, int]) -> int:
        """Return the words of a tile: the bounding box, gaps of a stride included.

        >>> conv("c", m=1, c=1, r=3, s=3, p=4, q=4, stride=2).tensors[1].words(
        ...     {"N": 1, "C": 1, "R": 3, "S": 3, "P": 4, "Q": 4})
        81
        """
        return math.prod(
            1 + sum((extents.get(dim, 1) - 1) * coef for dim, coef in rank) for rank in self.ranks
        )


@dataclass(frozen=True)
class Layer:
    """One loop nest; exactly one tensor is the output.

    `padding` zeros are charged as if they were read: the nest has the outputs' extents.
    """

    name: str
    dims: tuple[str, ...]
    bounds: tuple[int, ...]
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        where = f"layer '{self.name}'"
        if not 0 < len(self.dims) <= MAX_DIMS or len(self.dims) != len(self.bounds):
            raise UserError(
                f"{where} has {len(self.dims)} dimensions; 1 to {MAX_DIMS} are possible"
            )
        for dim, bound in zip(self.dims, self.bounds, strict=True):
            if bound < 1:
                raise UserError(f"{where}: the bound of {dim} is {bound}; it must be positive")
        if len(self.tensors) != 3 or sum(t.output for t in self.tensors) != 1:
            raise UserError(f"{where} needs two operands and one output")
        for tensor in self.tensors:
            _check(tensor, self.dims, where)
        if math.log2(self._largest_count()) > COUNT_BITS:
            raise UserError(f"{where} is too large: its access counts overflow {COUNT_BITS} bits")

    @property
    def extents(self) -> dict[str, int]:
        """Bound by dimension."""
        return dict(zip(self.dims, self.bounds, strict=True))

    @property
    def macs(self) -> int:
        """Multiply-accumulates: the product of all bounds."""
        return math.prod(self.bounds)

    @property
    def output(self) -> Tensor:
        """The tensor that is written."""
        return next(t for t in self.tensors if t.output)

    def words(self, tensor: str) -> int:
        """Return the words of a whole tensor."""
        return next(t for t in self.tensors if t.name == tensor).words(self.extents)

    def _largest_count(self) -> int:
        gaps = [math.prod(sum(c for _, c in rank) for rank in t.ranks) for t in self.tensors]
        return self.macs * max(gaps)


def conv(
    name: str,
    *,
    m: int,
    c: int,
    r: int,
    s: int,
    p: int,
    q: int,
    n: int = 1,
    stride: int = 1,
    dilation: int = 1,
) -> Layer:
    """Return a dense convolution.

    >>> conv("conv1", m=64, c=3, r=7, s=7, p=112, q=112, stride=2).macs
    118013952
    """
    bounds = {"N": n, "C": c, "M": m, "R": r, "S": s, "P": p, "Q": q}
    return _layer(name, bounds, "CMRS", _window("NC", stride, dilation), "NMPQ")


def dwconv(
    name: str,
    *,
    c: int,
    r: int,
    s: int,
    p: int,
    q: int,
    n: int = 1,
    stride: int = 1,
    dilation: int = 1,
) -> Layer:
    """Return a depthwise convolution: one filter per channel, so no M."""
    bounds = {"N": n, "C": c, "R": r, "S": s, "P": p, "Q": q}
    return _layer(name, bounds, "CRS", _window("NC", stride, dilation), "NCPQ")


def matmul(name: str, *, n: int, c: int, m: int) -> Layer:
    """Return a product of N rows of length C with a C x M matrix.

    >>> matmul("fc", n=1, c=2048, m=1000).words("Weights")
    2048000
    """
    return _layer(name, {"N": n, "C": c, "M": m}, "CM", _ranks("NC"), "NM")


def bmm(name: str, *, b: int, n: int, c: int, m: int) -> Layer:
    """Return B independent products; attention is two of them, chained."""
    return _layer(name, {"B": b, "N": n, "C": c, "M": m}, "BCM", _ranks("BNC"), "BNM")


def einsum(name: str, projection: str, **bounds: int) -> Layer:
    """Return a layer written as `Outputs[n,m,p] += Inputs[n,c,2*p+r] * Weights[c,m,r]`.

    Dimensions are single words; a rank is a sum of them, each with an optional coefficient.

    >>> einsum("c", "O[m,p] += I[c,2*p+r] * W[c,m,r]", m=4, p=6, c=2, r=3).macs
    144
    """
    found = re.findall(r"(\w+)\s*\[([^\]]*)\]", projection)
    if len(found) != 3 or "+=" not in projection:
        raise UserError(
            f"layer '{name}': '{projection}' is not of the form "
            "'Outputs[m,p] += Inputs[c,p+r] * Weights[c,m,r]'"
        )
    tensors = [
        Tensor(label, tuple(_rank(name, rank) for rank in inside.split(",")), output=place == 0)
        for place, (label, inside) in enumerate(found)
    ]
    return Layer(name, tuple(bounds), tuple(bounds.values()), tuple(reversed(tensors)))


def _rank(name: str, text: str) -> Rank:
    terms = []
    for term in text.split("+"):
        parts = re.fullmatch(r"\s*(?:(\d+)\s*\*)?\s*([A-Za-z]\w*)\s*", term)
        if parts is None:
            raise UserError(f"layer '{name}': '{text.strip()}' is not a sum such as 2*p+r")
        terms.append((parts[2], int(parts[1] or 1)))
    return tuple(terms)


def _layer(
    name: str, bounds: Mapping[str, int], weights: str, inputs: tuple[Rank, ...], outputs: str
) -> Layer:
    """Return a layer whose weights and outputs have one dimension in each rank."""
    tensors = (
        Tensor("Weights", _ranks(weights)),
        Tensor("Inputs", inputs),
        Tensor("Outputs", _ranks(outputs), output=True),
    )
    return Layer(name, tuple(bounds), tuple(bounds.values()), tensors)


def _ranks(dims: str) -> tuple[Rank, ...]:
    return tuple(((dim, 1),) for dim in dims)


def _window(dims: str, stride: int, dilation: int) -> tuple[Rank, ...]:
    """Return ranks with the rows and columns that taps slide over as the last two."""
    return (*_ranks(dims), (("R", dilation), ("P", stride)), (("S", dilation), ("Q", stride)))


def _check(tensor: Tensor, dims: tuple[str, ...], where: str) -> None:
    if len(tensor.ranks) > MAX_RANKS:
        raise UserError(f"{where}: {tensor.name} has more than {MAX_RANKS} ranks")
    seen: set[str] = set()
    for rank in tensor.ranks:
        if not 1 <= len(rank) <= 2:
            raise UserError(f"{where}: a rank of {tensor.name} has {len(rank)} terms, not 1 or 2")
        for dim, coef in rank:
            if dim not in dims:
                raise UserError(f"{where}: {tensor.name} uses '{dim}'{suggestion(dim, dims)}")
            if dim in seen or coef < 1:
                raise UserError(f"{where}: {tensor.name} uses '{dim}' twice, or not positively")
            seen.add(dim)
