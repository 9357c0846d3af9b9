"""Errors of kernel times that are transferred from another GPU, library or precision.

Every measured kernel was predicted by every other kernel that could substitute for it
(`lab.fits transferred_kernels`). By family of kernels and kind of transfer the calibration holds
the mean absolute error, the 90 % interval of measured over predicted, and whether trees and grids
are transferred too. `lines.toml` has the order of architectures.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simulators.catalog.engine import kernel_choices
from simulators.core.calibration import read_calibration
from simulators.core.folder import read_toml
from simulators.evidence.intervals import Band

CALIBRATION = Path(__file__).parent / "calibration" / "transferred_kernels.toml"
LINES = Path(__file__).with_name("lines.toml")

OWN, ARCHITECTURE, GENERATION, VENDOR, OTHER = "own", "architecture", "generation", "vendor", "any"
INSTRUCTIONS = "instructions"
RELATIONS = (OWN, ARCHITECTURE, GENERATION, INSTRUCTIONS, VENDOR, OTHER)
"""Relations of a source GPU to a GPU, nearest first: the GPU itself, the same architecture, the
generation before or after, tensor cores with the same instructions, the same vendor, any other. A
GPU may have two relations; whether generation or instructions are nearer differs by kernel."""

SHEET = "sheet"
"""The kind of transfer that uses no other GPU: the formula with the data sheet alone."""

ALL = "all"
"""The family of all kernels, for kernels without errors of their own."""

LIBRARY_ALONE = "triton"
"""Library whose times substitute only for engines that run its kernels. Its kernels are timed
through engines, whose other kernels for the same work are different."""

Place = tuple[str, str, int]  # vendor, line and position in the line


@dataclass(frozen=True)
class TransferKind:
    """Differences between a measured kernel and the kernel that is predicted by it."""

    relation: str
    same_framework: bool = True
    same_precision: bool = True

    @functools.cached_property
    def name(self) -> str:
        """The key in the calibration.

        >>> TransferKind("generation", same_framework=False).name
        'generation_framework'
        """
        framework = "" if self.same_framework else "_framework"
        return f"{self.relation}{framework}{'' if self.same_precision else '_precision'}"


@dataclass(frozen=True)
class TransferError:
    """Error of one kind of transfer."""

    error: float  # mean |log(measured / predicted)|
    lo: float  # ends of the 90 % interval of measured / predicted
    hi: float
    whole: bool = True  # trees and grids are transferred too

    def widened(self, band: Band) -> Band:
        """Return a band as wide as the source's band and the transfer error together."""
        return Band(
            tuple(min(self.lo, end) for end in band.lo), tuple(max(self.hi, end) for end in band.hi)
        )


Errors = Mapping[str, Mapping[str, TransferError]]
"""Errors by family of kernels, then by the name of the kind of transfer."""


def error_of(family: str, kind: str, errors: Errors | None = None) -> TransferError:
    """Return the error of a kind of transfer in a family such as "experts.fp8_block".

    A family without errors has the errors of its kernel in other formats, else of all kernels. A
    kind without errors has the widest interval of its family and an infinite error.
    """
    if kind == OWN:
        return TransferError(error=0.0, lo=1.0, hi=1.0)
    table = shipped_errors() if errors is None else errors
    known = table.get(family) or table.get(family.partition(".")[0]) or table[ALL]
    common = [error for name, error in known.items() if not name.startswith(INSTRUCTIONS)]
    return known.get(kind) or replace(max(common, key=lambda one: one.error), error=math.inf)


def least_error(
    family: str, kinds: Sequence[TransferKind], errors: Errors | None = None
) -> tuple[TransferError, TransferKind]:
    """Return the kind of transfer with the least error among several that all apply.

    The vendor's error is ignored if the error of a nearer relation is known.
    """
    each = [(error_of(family, kind.name, errors), kind) for kind in kinds]
    seen = [pair for pair in each if pair[1].relation != VENDOR and pair[0].error < math.inf]
    return min(seen or each, key=lambda pair: pair[0].error)


def rank(error: TransferError, kind: TransferKind) -> tuple[float, bool]:
    """Return the sort key of sources: error, then kernels of the same library first."""
    return error.error, not kind.same_framework


@functools.cache
def shipped_errors() -> Errors:
    """Return the calibrated errors."""
    families = read_calibration(CALIBRATION)["family"]
    return {
        family: {kind: TransferError(**error) for kind, error in kinds.items()}
        for family, kinds in families.items()
    }


@functools.cache
def substitutes() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the nearest libraries on the same GPU, in order, by family and library."""
    table: Mapping[str, Mapping[str, Sequence[str]]] = read_calibration(CALIBRATION)["substitutes"]
    return table


def relation_of(architecture: str, source: str) -> tuple[str, int]:
    """Return the relation of a source's architecture, and by how many generations it is newer.

    >>> relation_of("hopper", "blackwell"), relation_of("ada", "hopper")
    (('generation', 1), ('vendor', 0))
    """
    if architecture == source:
        return ARCHITECTURE, 0
    here, there = succession().get(architecture), succession().get(source)
    if here is None or there is None or here[0] != there[0]:
        return OTHER, 0
    if here[1] != there[1]:
        return VENDOR, 0
    newer = there[2] - here[2]
    return (GENERATION if abs(newer) == 1 else VENDOR), newer


def transfer_kinds(
    relation: str, family: str, wanted: tuple[str, str], source: tuple[str, str], same: bool
) -> tuple[TransferKind, ...]:
    """Return the kinds of transfer from a source kernel to the requested kernel.

    Two engines that run one library's kernel count as the same library, except on the GPU itself,
    where each was timed. `LIBRARY_ALONE` uses the same instructions on every architecture.

    Args:
        relation: relation of the source GPU, one of `RELATIONS`.
        family: family of kernels.
        wanted: library and architecture of the requested kernel.
        source: library and architecture of the source.
        same: whether the source has the requested precision.
    """
    (framework, here), (whose, there) = wanted, source
    kernel, _, _ = family.partition(".")
    library = library_of(whose, kernel, there)
    same_library = library_of(framework, kernel, here) == library
    same_library = same_library and (relation != OWN or framework == whose)
    same_instructions = any({here, there} <= set(some) for some in instructions().values())
    same_instructions |= same_library and library == LIBRARY_ALONE
    relations = (relation, INSTRUCTIONS) if same_instructions and here != there else (relation,)
    return tuple(TransferKind(one, same_library, same) for one in relations)


def library_of(framework: str, kernel: str, architecture: str) -> str:
    """Return the library whose kernel an engine runs on an architecture.

    >>> library_of("sglang", "mla_decode", "blackwell"), library_of("vllm", "decode", "hopper")
    ('trtllm', 'vllm')
    """
    libraries = kernel_choices(framework).libraries.get(kernel, {})
    return next((name for name, some in libraries.items() if architecture in some), framework)


def can_substitute(whose: str, framework: str, family: str, architecture: str) -> bool:
    """Return whether times of one library may substitute for times of another library.

    >>> can_substitute("triton", "sglang", "mla_prefill", "ada")
    True
    >>> can_substitute("triton", "vllm", "bf16", "")
    False
    """
    kernel, _, _ = family.partition(".")
    return whose != LIBRARY_ALONE or library_of(framework, kernel, architecture) == whose


@functools.cache
def succession() -> Mapping[str, Place]:
    """Return vendor, line and position in the line of each architecture."""
    return {
        architecture: (vendor, line, position)
        for vendor, lines in read_toml(LINES).items()
        if vendor != INSTRUCTIONS
        for line, architectures in lines.items()
        for position, architecture in enumerate(architectures)
    }


@functools.cache
def instructions() -> Mapping[str, Sequence[str]]:
    """Return the architectures whose tensor cores take the same instructions, by group."""
    found: Mapping[str, Sequence[str]] = read_toml(LINES)[INSTRUCTIONS]
    return found
