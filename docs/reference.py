"""Reference pages generated from the fields of the simulators and the commands.

One page per simulator in `docs/reference/`, with its inputs, metrics and facts as their fields
declare them, and one page for the command line. `docs/build_pages.py` writes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulators.core.contract import Describes, load_simulator
from simulators.core.fields import Column, columns_of
from simulators.core.folder import SIMULATORS
from sweeper.__main__ import USAGE
from sweeper.commands import COMMANDS
from sweeper.commands.flags import examples

FOLDER = Path(__file__).resolve().parent / "reference"
WRITTEN = "Generated"


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the file and the text of every reference page."""
    for name in SIMULATORS.names():
        yield FOLDER / f"{name}.md", simulator_page(name)
    yield FOLDER / "commands.md", commands_page()


def simulator_page(name: str) -> str:
    """Return the inputs, metrics and facts of a simulator as tables."""
    simulator = load_simulator(name)
    inputs, metrics = columns_of(simulator.point), columns_of(simulator.metrics)
    parts = [
        f"# `{name}`: inputs and metrics",
        f"{WRITTEN} from the fields of `simulators/{name}/`; "
        f"[model and equations](../explanation/{name}.md).",
        "## Inputs",
        "Every input is an axis of a space; an omitted input has its default.",
        table(("input", "unit", "default", "meaning"), map(_input, inputs)),
        "## Metrics",
        table(("metric", "unit", "better", "definition"), map(_metric, metrics)),
    ]
    if isinstance(simulator, Describes):
        facts = (
            (f.name, f.metadata.get("unit", ""), f.metadata["doc"])
            for f in columns_of(simulator.facts)
        )
        parts += [
            "## Facts",
            "Known before a point is simulated: constraints and derived columns may name them.",
            table(("fact", "unit", "definition"), facts),
        ]
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Return the usage of the command line, and examples of each command."""
    parts = [
        "# Commands",
        f"{WRITTEN}; `python -m sweeper COMMAND --help` prints the options of a command.",
        f"```text\n{USAGE}```",
    ]
    parts += [f"## `{command}`\n\n{_indented(examples(command))}" for command in COMMANDS]
    return "\n\n".join(parts) + "\n"


def table(head: tuple[str, ...], rows: Any) -> str:
    """Return rows as a table of Markdown, the first cell as code."""
    lines = [head, ("---",) * len(head)]
    lines += [(f"`{first}`", *map(_cell, others)) for first, *others in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _input(f: Column) -> tuple[str, ...]:
    said = "required" if f.default is dataclasses.MISSING else f"`{f.default!r}`"
    return f.name, f.metadata.get("unit", ""), said, f.metadata.get("doc", "")


def _metric(f: Column) -> tuple[str, ...]:
    better = {"min": "lower", "max": "higher"}.get(f.metadata.get("better") or "", "")
    doc, page = f.metadata.get("doc", ""), f.metadata.get("page", "")
    return (
        f.name,
        f.metadata.get("unit", ""),
        better,
        f"[{doc}](../explanation/{page})" if page else doc,
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _indented(text: str) -> str:
    return "\n".join(f"    {line.strip()}" for line in text.splitlines())


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages():
        file.write_text(text, encoding="utf-8")
        print(file.relative_to(FOLDER.parents[1]))
