"""How far off the kernels of another board, framework or precision are, by the kind of borrowing.

Whoever lends is as near as its error was where the answer is known: every measured kernel was
priced by everybody who could have lent to it (`python -m lab.fits borrowed_kernels`), and for each
family of kernels and each kind of borrowing the file holds the mean absolute error, the 90 %
interval of what was measured over what was said, and whether trees and grids are worth taking.
`lines.toml` says which architectures follow which.
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
from simulators.evidence.intervals import REGIMES_S, Band

COSTS = Path(__file__).parent / "calibration" / "borrowed_kernels.toml"
LINES = Path(__file__).with_name("lines.toml")

OWN, ARCHITECTURE, GENERATION, VENDOR, OTHER = "own", "architecture", "generation", "vendor", "any"
INSTRUCTIONS = "instructions"
RELATIONS = (OWN, ARCHITECTURE, GENERATION, INSTRUCTIONS, VENDOR, OTHER)
"""How a board that lends is related to a GPU: itself, of its architecture, of the one before or
after it, with tensor cores of the same instructions, of its vendor, or any other. One may be so in
two ways; whether its generation or its instructions are nearer differs by kernel."""

SHEET = "sheet"
"""The kind of borrowing that takes nothing from anybody: form and data sheet alone."""

ALL = "all"
"""The family of all together, for those that were never priced by others."""

LIBRARY_ALONE = "triton"
"""Numbers under this name speak for those alone who run the library's kernel (engines' files): it
is timed through frameworks, and another's kernel for the same work may be of another kind."""

Place = tuple[str, str, int]  # vendor, line and position in it


@dataclass(frozen=True)
class Loan:
    """One kind of borrowing."""

    relation: str
    same_framework: bool = True
    same_precision: bool = True

    @functools.cached_property
    def name(self) -> str:
        """What the calibration calls it.

        >>> Loan("generation", same_framework=False).name
        'generation_framework'
        """
        words = (
            self.relation,
            "framework" * (not self.same_framework),
            "precision" * (not self.same_precision),
        )
        return "_".join(word for word in words if word)


@dataclass(frozen=True)
class Cost:
    """What borrowing of one kind costs."""

    error: float  # typical |log(measured / predicted)|
    lo: float  # ends of the 90 % interval of measured / predicted
    hi: float
    whole: bool = True  # numbers with what corrects them: trees, grids

    def widened(self, band: Band) -> Band:
        """Return the band of what is borrowed: at least as wide as the lender's own."""
        regimes = range(len(REGIMES_S) + 1)
        return Band(
            tuple(min(self.lo, band.lo[i]) for i in regimes),
            tuple(max(self.hi, band.hi[i]) for i in regimes),
        )


Costs = Mapping[str, Mapping[str, Cost]]
"""By family of kernels, then by the name of a loan."""

NOTHING = Cost(error=0.0, lo=1.0, hi=1.0)
"""What a board's own numbers cost."""


def family_of(kernel: str, dtype: str) -> str:
    """Return the family of a kernel that has a fit of its own in each format.

    >>> family_of("experts", "fp8_block")
    'experts.fp8_block'
    """
    return f"{kernel}.{dtype}"


def cost_of(family: str, loan: str, costs: Costs | None = None) -> Cost:
    """Return what a kind of borrowing costs in a family.

    A format that was never priced by others is like its kernel's others, such a kernel like all
    together. A kind that was never seen anywhere has the interval of the worst that was,
    instructions aside, and comes after all others.
    """
    if loan == OWN:
        return NOTHING
    table = shipped_costs() if costs is None else costs
    kernel, _, _ = family.partition(".")
    known = table.get(family) or table.get(kernel) or table[ALL]
    common = [cost for name, cost in known.items() if not name.startswith(INSTRUCTIONS)]
    return known.get(loan) or replace(max(common, key=lambda cost: cost.error), error=math.inf)


def cheapest(family: str, loans: Sequence[Loan], costs: Costs | None = None) -> tuple[Cost, Loan]:
    """Return what borrowing costs that is of several kinds, and the kind: the cheapest of them.

    A board's vendor says nothing where a nearer kind was seen in the family.
    """
    each = [(cost_of(family, loan.name, costs), loan) for loan in loans]
    seen = [pair for pair in each if pair[1].relation != VENDOR and pair[0].error < math.inf]
    return min(seen or each, key=lambda pair: pair[0].error)


def nearness(cost: Cost, loan: Loan) -> tuple[float, bool]:
    """Return what the least of is borrowed: the error, then whether it is another's kernel."""
    return cost.error, not loan.same_framework


def sheet_cost(family: str) -> Cost | None:
    """Return what doing without any lender costs; nothing is known of most families."""
    return shipped_costs().get(family, {}).get(SHEET)


@functools.cache
def shipped_costs() -> Costs:
    """Return what each kind of borrowing costs in each family."""
    families = read_calibration(COSTS)["family"]
    return {
        family: {loan: Cost(**cost) for loan, cost in loans.items()}
        for family, loans in families.items()
    }


@functools.cache
def stand_ins() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return by family and framework whose kernels on the same board are nearest, in order."""
    table: Mapping[str, Mapping[str, Sequence[str]]] = read_calibration(COSTS)["stands_in"]
    return table


def relation_of(architecture: str, lender: str) -> tuple[str, int]:
    """Return how a lender's architecture is related to one, and how many generations newer it is.

    >>> relation_of("hopper", "blackwell"), relation_of("ada", "hopper")
    (('generation', 1), ('vendor', 0))
    """
    if architecture == lender:
        return ARCHITECTURE, 0
    here, there = succession().get(architecture), succession().get(lender)
    if here is None or there is None or here[0] != there[0]:
        return OTHER, 0
    if here[1] != there[1]:
        return VENDOR, 0
    newer = there[2] - here[2]
    return (GENERATION if abs(newer) == 1 else VENDOR), newer


def loans_of(
    relation: str, family: str, wanted: tuple[str, str], lent: tuple[str, str], same_precision: bool
) -> tuple[Loan, ...]:
    """Return the kinds of borrowing between two frameworks, each with its architecture.

    Two that run one library's kernel are the same, but on the GPU itself, where it was timed. A
    library alone is one whose tiles are too low for warp groups: warps multiply wherever it runs.
    """
    (framework, here), (whose, there) = wanted, lent
    kernel, _, _ = family.partition(".")
    library = library_of(whose, kernel, there)
    same = library_of(framework, kernel, here) == library
    same = same and (relation != OWN or framework == whose)
    alike = any({here, there} <= set(some) for some in instructions().values())
    alike |= same and library == LIBRARY_ALONE
    ways = (relation, INSTRUCTIONS) if alike and here != there else (relation,)
    return tuple(Loan(way, same, same_precision) for way in ways)


def library_of(framework: str, kernel: str, architecture: str) -> str:
    """Return whose kernel a framework runs on an architecture: a library's, or its own.

    >>> library_of("sglang", "mla_decode", "blackwell"), library_of("vllm", "decode", "hopper")
    ('trtllm', 'vllm')
    """
    libraries = kernel_choices(framework).libraries.get(kernel, {})
    return next((name for name, some in libraries.items() if architecture in some), framework)


def may_speak(whose: str, framework: str, family: str, architecture: str) -> bool:
    """Say whether numbers of one framework may stand in for another's on an architecture.

    >>> may_speak("triton", "sglang", "mla_prefill", "ada"), may_speak("triton", "vllm", "bf16", "")
    (True, False)
    """
    kernel, _, _ = family.partition(".")
    return whose != LIBRARY_ALONE or library_of(framework, kernel, architecture) == whose


@functools.cache
def succession() -> Mapping[str, Place]:
    """Return vendor, line and position of each architecture in it."""
    return {
        architecture: (vendor, line, position)
        for vendor, lines in read_toml(LINES).items()
        if vendor != INSTRUCTIONS
        for line, architectures in lines.items()
        for position, architecture in enumerate(architectures)
    }


@functools.cache
def instructions() -> Mapping[str, Sequence[str]]:
    """Return the architectures whose tensor cores take the same instructions, by their name."""
    found: Mapping[str, Sequence[str]] = read_toml(LINES)[INSTRUCTIONS]
    return found
