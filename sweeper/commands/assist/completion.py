"""Completion of the command line by a shell: a script that knows commands, flags, names and axes.

    python -m sweeper completion bash > ~/.local/share/bash-completion/completions/sweeper
    python -m sweeper completion zsh > ~/.zfunc/_sweeper          with ~/.zfunc in fpath
    python -m sweeper completion fish > ~/.config/fish/completions/sweeper.fish

Everything is written into the script, so that completing starts no Python; write it again when
spaces or files of one's own were added.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulators.core.contract import load_simulator
from simulators.core.errors import unknown
from simulators.core.folder import SIMULATORS
from simulators.core.grouping import columns_of
from simulators.core.modules import runnable
from sweeper import engines, samplers
from sweeper.commands import COMMANDS
from sweeper.commands.flags import flags
from sweeper.commands.query import KINDS
from sweeper.commands.show import kinds
from sweeper.space.shipped_files import spaces

_FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_PLAIN = re.compile(r"[\w.+=:/@-]+", re.ASCII)
"""A word that no shell reads as anything else; others, such as names of files, are not offered."""
_SETTINGS = ("outputs=", "output=json", "output=text", "plot=false", "failures.retry=true")
_OF_A_SWEEP = (
    "pareto",
    "query",
    "show",
    "explain",
    "compare",
    "export",
    "report",
    "plot",
    "verify",
)
"""Commands whose first word is the name of a space."""


@dataclass(frozen=True)
class Known:
    """The words that a command line may hold."""

    commands: Mapping[str, Sequence[str]]  # to the words that may follow
    overrides: Sequence[str]  # of a sweep


def main(words: list[str]) -> int:
    """Print the script of a shell."""
    parser = flags("completion", "a script by which a shell completes commands, flags and names")
    parser.add_argument("shell", help=f"one of: {', '.join(SHELLS)}")
    shell = parser.parse_args(words).shell
    if shell not in SHELLS:
        raise unknown(f"there is no completion for '{shell}'", shell, SHELLS)
    print(SHELLS[shell](known()), end="")
    return 0


def known() -> Known:
    """Return every word there is now: of commands, flags, spaces, axes, samplers and engines."""
    names = list(spaces())
    firsts: dict[str, list[str]] = dict.fromkeys(_OF_A_SWEEP, names)
    firsts |= {"list": list(kinds()), "validate": list(SIMULATORS.names())}
    firsts |= {"completion": list(SHELLS), "query": [*names, *KINDS]}
    overrides = [f"+space={name}" for name in names]
    overrides += [f"sampler={name}" for name in samplers.names()]
    overrides += [f"engine={name}" for name in engines.ENGINES]
    for room, found, options in (
        ("sampler", runnable(samplers.SAMPLERS), samplers.options_of),
        ("engine", engines.ENGINES, engines.options_of),
    ):
        overrides += [f"{room}.{f.name}=" for n in found for f in dataclasses.fields(options(n))]
    points = [load_simulator(name).point for name in runnable(SIMULATORS)]
    overrides += [f"space.axes.{f.name}=" for point in points for f in columns_of(point)]
    overrides += ["space.where=", "space.objectives=", "space.constraints=", *_SETTINGS]
    overrides = sorted(filter(_PLAIN.fullmatch, dict.fromkeys(overrides)))
    after = {
        name: [
            *filter(_PLAIN.fullmatch, firsts.get(name, ())),
            *(overrides if name == "plan" else _flags_of(target)),
        ]
        for name, target in COMMANDS.items()
    }
    return Known(after, overrides)


def _flags_of(target: str) -> list[str]:
    """Return the flags that the help of a command names."""
    module, _, function = target.rpartition(".")
    call = getattr(importlib.import_module(f"sweeper.commands.{module}"), function)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        call(["--help"])
    return sorted({*_FLAG.findall(said.getvalue()), "--help"})


def bash(found: Known) -> str:
    """Return the script for bash; a word is whole up to its end, `=` and `:` included."""
    cases = "\n".join(
        f'    {name}) words="{" ".join(words)}" ;;' for name, words in found.commands.items()
    )
    return f"""\
# completion of sweeper for bash, written by `python -m sweeper completion bash`
_sweeper() {{
  local line=${{COMP_LINE:0:COMP_POINT}} current words whole
  current=${{line##*[[:space:]]}}
  whole=${{COMP_WORDS[COMP_CWORD]}}
  if ((COMP_CWORD == 1)) && [[ $current != *=* ]]; then
    words="{" ".join(found.commands)} {" ".join(found.overrides)}"
  else
    case ${{COMP_WORDS[1]}} in
{cases}
    *) words="{" ".join(found.overrides)}" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  local cut=${{current%"$whole"}} i  # what bash takes for words before, ending in = or :
  [[ $whole == "=" || $whole == ":" ]] && cut=$current
  for i in "${{!COMPREPLY[@]}}"; do COMPREPLY[i]=${{COMPREPLY[i]#"$cut"}}; done
  [[ ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace 2> /dev/null
}}
complete -o default -F _sweeper sweeper
"""


def zsh(found: Known) -> str:
    """Return the script for zsh."""
    cases = "\n".join(
        f"    {name}) compadd -- {' '.join(map(_quoted, words))} ;;"
        for name, words in found.commands.items()
    )
    overrides = " ".join(map(_quoted, found.overrides))
    return f"""\
#compdef sweeper
# completion of sweeper for zsh, written by `python -m sweeper completion zsh`
_sweeper() {{
  if (( CURRENT == 2 )); then
    compadd -- {" ".join(found.commands)}
    compadd -S '' -- {overrides}
    return
  fi
  case $words[2] in
{cases}
    *) compadd -S '' -- {overrides} ;;
  esac
  _files
}}
_sweeper "$@"
"""


def fish(found: Known) -> str:
    """Return the script for fish."""
    lines = ["# completion of sweeper for fish, written by `python -m sweeper completion fish`"]
    first = "__fish_use_subcommand"
    lines.append(f"complete -c sweeper -n {first} -f -a {_quoted(' '.join(found.commands))}")
    lines.append(
        f"complete -c sweeper -n 'not __fish_seen_subcommand_from {' '.join(found.commands)}' "
        f"-a {_quoted(' '.join(found.overrides))}"
    )
    lines += [
        f"complete -c sweeper -n '__fish_seen_subcommand_from {name}' -a {_quoted(' '.join(words))}"
        for name, words in found.commands.items()
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return f"'{text}'"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
"""What writes the script of each shell."""
