"""Argument parser of the commands, with error messages, examples and shell completion."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from simulators.core.errors import UserError, suggestion
from sweeper.commands import COMMANDS
from sweeper.space.shipped_files import spaces
from sweeper.words import number_in

_PLAIN = re.compile(r"[\w.+=:/@-]+", re.ASCII)
"""A word without shell syntax; only such names are completed."""
_LINES = 3
"""Lines of usage below an error; `--help` prints all."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are one paragraph with a suggestion and an example."""

    def parse_args(  # type: ignore[override]
        self, words: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Return the options; while a shell completes, print the possible words and exit."""
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            argcomplete.autocomplete(self, always_complete_options=False)
        return super().parse_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise `UserError` with the problem, the usage and an example."""
        known = [s for action in self._actions for s in action.option_strings]
        wrong = message.rpartition(": ")[2].split()[0] if "unrecognized" in message else ""
        usage = self.format_usage().strip().splitlines()
        usage = [*usage[:_LINES], "..."] if len(usage) > _LINES else usage
        example = " ".join((self.epilog or "").split("\n")[:2]).split()
        lines = [f"{message}{suggestion(wrong, known)}", *usage, " ".join(example)]
        raise UserError("\n".join(filter(None, lines)))


def flags(command: str) -> CommandParser:
    """Return a parser for `python -m sweeper COMMAND`."""
    return CommandParser(
        prog=f"python -m sweeper {command}",
        description=COMMANDS[command]["about"],
        epilog=f"For example:\n{examples(command)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def results_flags(command: str, nargs: str | None = None) -> CommandParser:
    """Return a parser with the name of a space and the folder of its results."""
    parser = flags(command)
    add_words(parser, "name", spaces(), nargs=nargs, help="a space that has been run")
    parser.add_argument("--outputs", default="outputs", help="the folder or URL of results")
    return parser


def add_words(
    parser: argparse._ActionsContainer, name: str, known: Iterable[str], **more: Any
) -> None:
    """Add an argument with shell completion of known values; other values are accepted."""
    action = parser.add_argument(name, **more)
    action.completer = lambda **_: list(filter(_PLAIN.fullmatch, known))  # type: ignore[attr-defined]


def examples(command: str) -> str:
    """Return examples, one per line."""
    return "\n".join(f"  python -m sweeper {line}" for line in COMMANDS[command]["examples"])


def at_least(least: int) -> Callable[[str], int]:
    """Return an argparse type: a whole number of at least `least`."""

    def read(text: str) -> int:
        number = number_in(text)
        if number is None or number != int(number):
            raise ValueError(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{int(number)}: write at least {least}")
        return int(number)

    read.__name__ = int.__name__  # argparse names the type in its message
    return read
