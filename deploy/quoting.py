"""Quote text for shells, comments and YAML.

A model or a GPU may be a path with line breaks, quotes and `$(...)`. YAML text is quoted as JSON,
a subset of YAML.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

CONTROLS = "[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]+"
"""Characters that end a comment line, or control a terminal."""
_END = "YAML"
_LABEL = 50
"""Longest label; Kubernetes allows 63 characters including suffixes."""


def comment(text: str) -> str:
    r"""Return text as one comment line of a shell script or YAML.

    >>> comment("a model\nrm -rf x")
    '# a model rm -rf x\n'
    """
    return f"# {re.sub(CONTROLS, ' ', text)}\n"


def command(words: Sequence[str], expanded: Collection[str] = ()) -> str:
    r"""Return words as one shell command, one option per line; some words are not quoted.

    >>> command(["serve", "a model", "--port", "1"])
    "serve 'a model' \\\n    --port 1\n"
    """
    text = ""
    for word in words:
        gap = "" if not text else " \\\n    " if word.startswith("--") else " "
        text += gap + (word if word in expanded else shlex.quote(word))
    return f"{text}\n"


Options = Sequence[tuple[object, str]]
"""Words of a command, each with a condition."""


def chosen(options: Options) -> list[str]:
    """Return the words whose condition is true; no word may hold a space.

    >>> chosen([(True, "--tp 4"), (0, "--pp 1")])
    ['--tp', '4']
    """
    return [word for condition, words in options if condition for word in words.split()]


def written(file: str, text: str) -> str:
    """Return shell lines that write text to a file."""
    end = _END
    while end in text.splitlines():
        end += "_"
    return f"cat > {shlex.quote(file)} <<'{end}'\n{text}{end}\n"


def label(name: str) -> str:
    """Return a valid Kubernetes name that starts with a letter and is no YAML keyword.

    >>> label("llama3_1_70b"), label("3b.toml"), label("true")
    ('llama3-1-70b', 'model-3b', 'model-true')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", Path(name).stem.lower()).strip("-")[:_LABEL].strip("-")
    if re.fullmatch(r"(?![0-9])(?!(?:true|false|null|yes|no|on|off|y|n)$).+", plain):
        return plain
    return f"model-{plain}".rstrip("-")
