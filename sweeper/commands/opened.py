"""Open the results of a command: the last run of a space, by price list and scenario."""

from __future__ import annotations

import argparse
import sys

from sweeper.report.answers import Answers, latest
from sweeper.report.tables import print_words

_DIGITS, _MOST = 6, 4
"""Printed digits of a definition, and number of definitions printed."""


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
    """Print the progress of an unfinished run; `quiet` prints on standard error."""
    if progress := last.unfinished:
        text = f"This run of {last.name} has not finished: {progress}."
        print(text, file=sys.stderr) if quiet else print_words(text)


def warn_of_version(last: Answers) -> None:
    """Print a warning if the rows are of an older version of the simulator."""
    then, now = last.store.definition.version, last.simulator.version
    if then != now:
        name = last.space.simulator
        print(
            f"The rows of {last.name} come from version {then} of '{name}'; the installed version "
            f"is {now}. To simulate again: python -m sweeper +space={last.name}",
            file=sys.stderr,
        )
