"""Fill the templates of commands and manifests, and quote text for shells, comments and YAML.

A template is jinja2 text in a sandbox: it reads the design and calls the functions that it is
given, and `refuse(message)` raises `UserError`. A model or a GPU may be a path with line breaks,
quotes and `$(...)`. YAML text is quoted as JSON, a subset of YAML.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import FileSystemLoader, StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.core.folder import once

SHARED = Path(__file__).with_name("orchestrators")
"""Folder of the templates that another template may import."""

CONTROLS = "[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]+"
"""Characters that end a comment line, or control a terminal."""
_END = "YAML"
_LABEL = 50
"""Longest label; Kubernetes allows 63 characters including suffixes."""


def filled(file: Path, **values: object) -> str:
    """Return a template with its values, without blank lines.

    Raises:
        UserError: the template refuses the design, or is wrong.
    """
    try:
        text = once(_template, file).render(values)
    except TemplateError as error:
        raise UserError(f"{file}: {error}") from error
    return "".join(line for line in text.splitlines(keepends=True) if line.strip())


def _template(file: Path) -> Template:
    return _environment().from_string(file.read_text(encoding="utf-8"))


@functools.cache
def _environment() -> SandboxedEnvironment:
    found = SandboxedEnvironment(
        loader=FileSystemLoader(SHARED),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.globals["refuse"] = _refuse
    found.filters |= {
        "command": command,
        "comment": lambda text: comment(text).rstrip(),
        "heredoc": lambda text, file: written(file, text),
        "json": json.dumps,
        "nonzero": _nonzero,
        "quoted": shlex.quote,
        "vendor": lambda gpu: load_gpu(gpu).vendor,
        "without": without,
    }
    return found


def _refuse(message: str) -> NoReturn:
    raise UserError(message)


def _nonzero(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def without(words: Sequence[str], *options: str) -> list[str]:
    """Return the words of a command without some options and their values.

    >>> without(["--a", "1", "--b", "2"], "--a")
    ['--b', '2']
    """
    values = {i + 1 for i, word in enumerate(words) if word in options}
    return [w for i, w in enumerate(words) if w not in options and i not in values]


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
