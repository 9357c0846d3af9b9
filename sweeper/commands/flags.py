"""Argument parsers of the commands, built from `commands.toml`, with shell completion."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

from simulators.core.errors import UserError, our_names, suggestion
from sweeper.commands import COMMANDS, SHARED
from sweeper.space.shipped_files import spaces
from sweeper.text import number_in

_PLAIN = re.compile(r"[\w.+=:/@-]+", re.ASCII)
"""A word without shell syntax; only such names are completed."""
_LINES = 3
"""Lines of usage below an error; `--help` prints all."""


_SEARCHED = (
    "; `ask` searches parallelism, batch sizes and chunk sizes itself, and a space states them: "
    "+space=quickstart space.axes.tp=2"
)
"""What an option of an engine means for `ask`."""


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

    def given_besides(self, chosen: argparse.Namespace, own: Collection[str]) -> list[str]:
        """Return the options with another value than the default, except those named in `own`."""
        return [
            action.option_strings[0]
            for action in self._actions
            if action.option_strings
            and action.dest not in own
            and getattr(chosen, action.dest, action.default) != action.default
        ]

    def error(self, message: str) -> NoReturn:
        """Raise `UserError` with the problem, the usage and an example."""
        known = [s for action in self._actions for s in action.option_strings]
        wrong = message.rpartition(": ")[2].split()[0] if "unrecognized" in message else ""
        usage = self.format_usage().strip().splitlines()
        usage = [*usage[:_LINES], "..."] if len(usage) > _LINES else usage
        example = " ".join((self.epilog or "").split("\n")[:2]).split()
        hint = suggestion(wrong, known)
        if not hint and self.prog.endswith(" ask") and our_names(wrong):
            hint = _SEARCHED
        lines = [f"{message}{hint}", *usage, " ".join(example)]
        raise UserError("\n".join(filter(None, lines)))


def parse(command: str, words: Sequence[str], **values: Iterable[str]) -> Any:
    """Return the arguments of a command.

    `values` are values that a shell completes, by name of the argument, besides those in
    `commands.toml`.
    """
    return parser_of(command, **values).parse_args(words)


def values_of(command: str, name: str) -> tuple[str, ...]:
    """Return the known values of an argument of a command.

    >>> values_of("completion", "shell")
    ('bash', 'zsh', 'fish')
    """
    arguments = (a for a in COMMANDS[command]["arguments"] if not isinstance(a, str))
    return tuple(next(a["values"] for a in arguments if a["name"] == name))


def parser_of(command: str, **values: Iterable[str]) -> CommandParser:
    """Return the parser of `python -m sweeper COMMAND`."""
    kinds = COMMANDS[command].get("kinds", {})
    listed = [f"  {kind:12} {about}" for kind, about in kinds.items()]
    values |= {"kind": kinds} if kinds else {}
    ending = "\n".join([*(["Kinds:", *listed, ""] if kinds else []), "For example:"])
    parser = CommandParser(
        prog=f"python -m sweeper {command}",
        description=COMMANDS[command]["about"],
        epilog=f"{ending}\n{examples(command)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for entry in COMMANDS[command]["arguments"]:
        for argument in SHARED[entry] if isinstance(entry, str) else [entry]:
            title = argument.get("group")
            if title and title not in groups:
                groups[title] = parser.add_argument_group(title)
            _add(groups[title] if title else parser, argument, values)
    return parser


def help_parser(command: str, words: Sequence[str]) -> CommandParser | None:
    """Return the parser with the help of a command, or None if only a simulator knows the flags.

    The flags of `ask` are in a file with the simulator's name, in `planning/flags/`.
    """
    if command == "ask":
        from simulators.core.folder import load_from
        from sweeper.questions import FLAGS, QUESTIONS

        name, words = simulator_asked(words, QUESTIONS.names())
        return question_parser(load_from(FLAGS, name, "FLAGS")) if name in FLAGS.names() else None
    return parser_of(command)


def simulator_asked(words: Sequence[str], names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the simulator of a question, the first of `names` unless stated, and its flags.

    >>> simulator_asked(["--train", "llama3_1_8b"], ["serving", "training"])
    ('training', ['--model', 'llama3_1_8b'])
    """
    verbs = {f"--{name.removesuffix('ing')}": name for name in names}
    if words and words[0] in verbs:
        return verbs[words[0]], ["--model", *words[1:]]
    if words and not words[0].startswith("-"):
        return words[0], [*words[1:]]
    return names[0], [*words]


def question_parser(flags: type) -> CommandParser:
    """Return the parser of `ask` for a dataclass of flags, made by `sweeper.questions.flag`."""
    from simulators.core.fields import columns_of

    parser = parser_of("ask")
    for f in columns_of(flags):
        required = f.default is dataclasses.MISSING
        spelt = dict.fromkeys((f"--{f.name.replace('_', '-')}", f"--{f.name}"))
        parser.add_argument(
            *spelt,
            type=number_of(f.hint, *(f.metadata[key] for key in ("unit", "least", "bare"))),
            help=f.metadata["doc"],
            choices=f.metadata["choices"] or None,
            required=required,
            default=None if required else f.default,
        )
    return parser


def _add(
    parser: argparse._ActionsContainer,
    argument: Mapping[str, Any],
    values: Mapping[str, Iterable[str]],
) -> None:
    own = ("name", "group", "least", "values")
    options = {k: v for k, v in argument.items() if k not in own}
    name = argument["name"]
    known = argument.get("values") or values.get(name.lstrip("-"), ())
    known = spaces() if known == "spaces" else known
    if "least" in argument:
        options["type"] = number_of(int, least=argument["least"])
    elif "type" in argument:
        options["type"] = _TYPES[argument["type"]]
    if "help" in argument:
        options["help"] = argument["help"].replace("{values}", ", ".join(known))
    complete(parser.add_argument(name, **options), known)


def complete(action: argparse.Action, known: Iterable[str]) -> None:
    """Let shells complete known values of an argument; other values are accepted, too."""
    action.completer = lambda **_: list(filter(_PLAIN.fullmatch, known))  # type: ignore[attr-defined]


def examples(command: str) -> str:
    """Return examples, one per line."""
    return "\n".join(f"  python -m sweeper {line}" for line in COMMANDS[command]["examples"])


def number_of(
    kind: Any, unit: str = "", least: int | None = None, bare: float | None = None
) -> Callable[[str], Any]:
    """Return the reader of an argument of type `kind`; text stays text.

    A number may have a suffix of the unit, as in 800ms or 10k. Whole numbers are at least `least`,
    and times above `bare` seconds and sizes in bytes need a unit.
    """
    kinds = {kind, *get_args(kind)}  # `float | None` has two

    def read(text: str) -> float:
        number = number_in(text, unit)
        is_whole = int in kinds
        if number is None or (is_whole and number != int(number)):
            example = {"s": "800ms or 1.5s", "1/s": "20 or 1.5k", "$": "40", "B": "128GiB"}.get(
                unit, "64 or 10k"
            )
            what = "a whole number" if is_whole else "a number"
            raise argparse.ArgumentTypeError(f"'{text}' is not {what}; write {example}")
        if least is not None and number < least:
            raise argparse.ArgumentTypeError(f"{number:.0f}: write at least {least}")
        if bare is not None and number > bare and text.strip()[-1].isdigit():
            raise argparse.ArgumentTypeError(
                f"'{text}' would be {text} seconds; write {text}ms, or {text}s"
            )
        if unit == "B" and number and text.strip()[-1].isdigit():
            raise argparse.ArgumentTypeError(f"'{text}' has no unit; write {text}GiB")
        return int(number) if is_whole else number

    return read if kinds & {int, float} else str


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


_TYPES: Mapping[str, Callable[[str], Any]] = {"float": float, "path": Path, "share": share}
"""Readers of values by the name of their type in `commands.toml`."""
