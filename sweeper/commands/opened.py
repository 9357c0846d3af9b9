"""The results that a command asks about: of the last run, in price lists and scenarios."""

from __future__ import annotations

import argparse
import sys

from sweeper.commands.flags import Flags
from sweeper.report.answers import Answers, latest
from sweeper.report.tables import print_words

_DIGITS, _MOST = 6, 4
"""Digits of a definition that are printed, and definitions that are named."""


def add_scenarios(parser: Flags) -> None:
    """Add the flags that say which scenarios are asked about; one at a time unless said."""
    parser.add_argument("--prices", metavar="LIST", help="price lists, as in owned,public_cloud")
    parser.add_argument("--at", metavar="AXIS=VALUE", help="the scenario, as in qps=4,model=gpt2")
    parser.add_argument(
        "--across",
        nargs="?",
        const="worst",
        metavar="HOW",
        help="designs that do for all scenarios, by the worst over them (or: mean)",
    )


def opened(chosen: argparse.Namespace) -> Answers:
    """Return the answers that flags ask for; say how far a run has come that has not ended."""
    last = latest(chosen.name, chosen.outputs)
    tell_progress(last, quiet=getattr(chosen, "json", False))
    if last.others and "@" not in chosen.name:
        others = ", ".join(f"{last.name}@{digits[:_DIGITS]}" for digits in last.others[:_MOST])
        print(
            f"The last run of {last.name}; with other axes it was run as {others}", file=sys.stderr
        )
    return last.in_prices(chosen.prices).at(chosen.at)


def tell_progress(last: Answers, *, quiet: bool = False) -> None:
    """Say how far a run has come that has not ended; on standard error where programs read."""
    tell_age(last)
    if said := last.unfinished:
        text = f"{said}: this run of {last.name} has not ended."
        print(text, file=sys.stderr) if quiet else print_words(text)


def tell_age(last: Answers) -> None:
    """Say on standard error that rows are of another version than what would answer today."""
    then, now = last.store.definition.version, last.simulator.version
    if then != now:
        name = last.space.simulator
        print(
            f"Rows of {last.name} are of version {then} of '{name}'; what is computed today is of "
            f"version {now}: python -m sweeper +space={last.name} answers anew",
            file=sys.stderr,
        )
