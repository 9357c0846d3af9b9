"""What stands in a design is text to a shell and to YAML, whatever it holds: one rule a target.

A model or a GPU may be a path with line breaks, quotes and `$(...)` in it. YAML that is written
here quotes text as JSON, which is part of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

CONTROLS = "[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]+"
"""What could end a comment's line, or speak to a terminal."""
_END = "YAML"
_LABEL = 50
"""Letters of a label; Kubernetes takes 63 with what is put behind."""


def comment(text: str) -> str:
    r"""Return text as one line of a comment in a shell script or YAML, whatever the text holds.

    >>> comment("a model\nrm -rf x")
    '# a model rm -rf x\n'
    """
    return f"# {re.sub(CONTROLS, ' ', text)}\n"


def command(words: Sequence[str], expanded: Collection[str] = ()) -> str:
    r"""Return words as one command of a shell, an option a line; some are left for it to expand.

    >>> command(["serve", "a model", "--port", "1"])
    "serve 'a model' \\\n    --port 1\n"
    """
    text = ""
    for word in words:
        gap = "" if not text else " \\\n    " if word.startswith("--") else " "
        text += gap + (word if word in expanded else shlex.quote(word))
    return f"{text}\n"


Options = Sequence[tuple[object, str]]
"""Words of a command, each with the condition under which they are written."""


def chosen(options: Options) -> list[str]:
    """Return the words whose condition is true; no word may hold a space.

    >>> chosen([(True, "--tp 4"), (0, "--pp 1")])
    ['--tp', '4']
    """
    return [word for condition, words in options if condition for word in words.split()]


def written(file: str, text: str) -> str:
    """Return the lines of a shell that write a text of whole lines into a file."""
    end = _END
    while end in text.splitlines():
        end += "_"
    return f"cat > {shlex.quote(file)} <<'{end}'\n{text}{end}\n"


def label(name: str) -> str:
    """Return a name as Kubernetes allows it, beginning with a letter and no word of YAML.

    >>> label("llama3_1_70b"), label("3b.toml"), label("true")
    ('llama3-1-70b', 'model-3b', 'model-true')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", Path(name).stem.lower()).strip("-")[:_LABEL].strip("-")
    if re.fullmatch(r"(?![0-9])(?!(?:true|false|null|yes|no|on|off|y|n)$).+", plain):
        return plain
    return f"model-{plain}".rstrip("-")
