"""Parse the flags of `ask`: common flags, and flags that the simulator's question declares."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any

from simulators.core.fields import columns_of
from sweeper.commands.flags import at_least, flags
from sweeper.questions import Asks, Question
from sweeper.words import number_in


def parsed(asks: Asks, words: list[str]) -> tuple[argparse.Namespace, Question]:
    """Return the parsed flags and the question built from them."""
    parser = flags("ask")
    fields = columns_of(asks.flags)
    for f in fields:
        required = f.default is dataclasses.MISSING
        spelt = dict.fromkeys((f"--{f.name}", f"--{f.name.replace('_', '-')}"))
        parser.add_argument(
            *spelt,
            type=_reader(f.hint, f.metadata),
            help=f.metadata["doc"],
            choices=f.metadata["choices"] or None,
            required=required,
            default=None if required else f.default,
        )
    parser.add_argument(
        "--sure",
        type=share,
        default=0.8,
        help="minimum probability of meeting the SLO, as in 0.9 or 90 (0.8)",
    )
    parser.add_argument(
        "--band",
        type=float,
        default=0.2,
        help="half-width of the 90 %% prediction interval if none is stated (0.2)",
    )
    parser.add_argument("--outputs", default="outputs", help="the folder or URL of results")
    parser.add_argument(
        "--run-with",
        dest="engine_",
        metavar="HOW",
        default="auto",
        help="engine of the sweep: inline, ray or auto",
    )
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    asked = asks.flags(**{f.name: getattr(chosen, f.name) for f in fields})
    return chosen, asks.question(asked)


def _reader(kind: Any, metadata: typing.Mapping[str, Any]) -> Callable[[str], Any]:
    """Return the parser of a flag's value for the type of its field."""
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if kind is int:
        return at_least(metadata["least"]) if metadata["least"] is not None else whole
    return numbers_in(metadata["unit"]) if kind is float else str


def numbers_in(unit: str) -> Callable[[str], float]:
    """Return a parser of numbers with an optional unit."""

    def read(text: str) -> float:
        number = number_in(text, unit)
        if number is None:
            example = {"s": "800ms or 1.5s", "1/s": "20 or 1.5k", "$": "40"}.get(unit, "64 or 10k")
            raise argparse.ArgumentTypeError(f"'{text}' is not a number; write {example}")
        return number

    return read


def whole(text: str) -> int:
    """Return a whole number, which may be written as 10k."""
    number = number_in(text)
    if number is None or number != int(number):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number; write 64 or 10k")
    return int(number)


def share(word: str) -> float:
    """Return a probability given as a fraction or in percent.

    >>> share("0.9"), share("90"), share("90%")
    (0.9, 0.9, 0.9)
    """
    try:
        number = float(word.removesuffix("%"))
    except ValueError:
        number = -1.0
    found = number / 100.0 if number > 1.0 or word.endswith("%") else number
    if not 0.0 <= found < 1.0:
        raise argparse.ArgumentTypeError(f"'{word}' is not a probability; write 0.9 or 90")
    return found
