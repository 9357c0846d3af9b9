"""The flags of commands: an argument parser that names the nearest flag to a mistyped one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from simulators.core.errors import UserError, suggestion

_LINES = 4
"""Lines of a usage that stand below a mistake; `--help` has all."""


class Flags(argparse.ArgumentParser):
    """An argument parser that fails like everything else here: in one paragraph."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how the command is used."""
        known = [s for action in self._actions for s in action.option_strings]
        wrong = message.rpartition(": ")[2].split()[0] if "unrecognized" in message else ""
        usage = self.format_usage().strip().splitlines()
        usage = [*usage[:_LINES], "..."] if len(usage) > _LINES else usage
        raise UserError("\n".join([f"{message}{suggestion(wrong, known)}", *usage]))


def flags(command: str, about: str) -> Flags:
    """Return a parser for `python -m sweeper COMMAND`."""
    return Flags(prog=f"python -m sweeper {command}", description=about, allow_abbrev=False)


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a whole number, the `type` of an argument; fewer are refused."""

    def read(text: str) -> int:
        if (number := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{number}: write at least {least}")
        return number

    read.__name__ = int.__name__  # what argparse calls a number it cannot read
    return read
