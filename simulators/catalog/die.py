"""Dies as described by their makers: all units on the die, node, transistors and area."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulators.core.folder import read_toml

FACTS = Path(__file__).with_name("dies.toml")


@dataclass(frozen=True, kw_only=True)
class Die:
    """A die; products enable a part of the SMs and of the L2."""

    name: str
    node: str
    mm2: float
    transistors: float
    sms: float
    fp32: float  # lanes of an SM
    fp64: float
    products: float  # of 16-bit numbers that the matrix units of an SM add in a clock
    l2_mib: float
    hbm: float  # stacks
    gddr: float  # channels of 32 bits
    gpus: tuple[str, ...]


def dies() -> tuple[Die, ...]:
    """Return all dies whose area was stated, in the order of the file."""
    table = read_toml(FACTS)["dies"]
    return tuple(
        Die(name=name, **{**facts, "gpus": tuple(facts["gpus"])}) for name, facts in table.items()
    )


def die_of(gpu: str) -> Die | None:
    """Return the die of a GPU, by the name of the GPU; None if its area is unknown.

    >>> die_of("h200_sxm").name, die_of("b200_sxm")
    ('gh100', None)
    """
    return next((die for die in dies() if gpu in die.gpus), None)


def cell_um2(node: str) -> float:
    """Return the area of a memory cell of a node."""
    return float(read_toml(FACTS)["cell_um2"][node])
