"""The results of a command: the last run of a space, in price lists and scenarios."""

from __future__ import annotations

import argparse
import sys

from sweeper.commands.flags import Flags
from sweeper.report.answers import Answers, latest
from sweeper.report.tables import print_words

_DIGITS, _MOST = 6, 4
"""Digits of a definition that are printed, and definitions that are named."""


def add_scenarios(parser: Flags) -> None:
    """Add the options that select scenarios."""
    parser.add_argument("--prices", metavar="LIST", help="price lists, as in owned,public_cloud")
    parser.add_argument("--at", metavar="AXIS=VALUE", help="the scenario, as in qps=4,model=gpt2")
    parser.add_argument(
        "--across",
        nargs="?",
        const="worst",
        metavar="HOW",
        help="one design for all scenarios, by the worst over them (or: mean)",
    )


def opened(chosen: argparse.Namespace) -> Answers:
    """Return the results that options select, and print the progress of an unfinished run."""
    last = latest(chosen.name, chosen.outputs)
    warn_of_version(last)
    tell_progress(last, quiet=getattr(chosen, "json", False))
    if last.others and "@" not in chosen.name:
        others = ", ".join(f"{last.name}@{digits[:_DIGITS]}" for digits in last.others[:_MOST])
        print(
            f"Showing the latest run of {last.name}; earlier ones with other axes are {others}",
            file=sys.stderr,
        )
    return last.in_prices(chosen.prices).at(chosen.at)


def tell_progress(last: Answers, *, quiet: bool = False) -> None:
    """Print how far an unfinished run is; on standard error for programs."""
    if progress := last.unfinished:
        text = f"{progress}: this run of {last.name} has not ended."
        print(text, file=sys.stderr) if quiet else print_words(text)


def warn_of_version(last: Answers) -> None:
    """Print a warning if the rows are of an older version of the simulator."""
    then, now = last.store.definition.version, last.simulator.version
    if then != now:
        name = last.space.simulator
        print(
            f"Rows of {last.name} are of version {then} of '{name}', today's is {now}: "
            f"python -m sweeper +space={last.name} computes them again",
            file=sys.stderr,
        )
