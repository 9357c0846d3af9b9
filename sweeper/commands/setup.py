"""The commands `completion`, `schema` and `trust`: set up a shell, an editor, and own code."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from simulators.core.columns import SHARES, STATUSES, schema_of
from simulators.core.contract import load_simulator, objectives_of
from simulators.core.errors import UserError, unknown
from simulators.core.fields import Column, columns_of
from simulators.core.folder import FOLDERS, SIMULATORS, is_trusted, runnable, trust_file, trusted
from sweeper import engines, samplers
from sweeper.commands import COMMANDS
from sweeper.commands.flags import CommandParser, complete, parse, values_of
from sweeper.report.tables import print_words, write_text
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import KEYS, SpaceConfig, flat, read_space

SHELLS = values_of("completion", "shell")
_NOTATION = "a value, a list, or a range: 1..8, 0.5..32 log 13, pow2 1..64, capacity 0.1..64"
_SETTINGS = ("outputs=", "output=json", "output=text", "plot=false", "failures.retry=true")


def completion(words: list[str]) -> int:
    """Print the completion script of a shell."""
    from argcomplete.shell_integration import shellcode

    shell = parse("completion", words).shell
    if shell not in SHELLS:
        raise unknown(f"there is no completion for '{shell}'", shell, SHELLS)
    print(shellcode(["sweeper"], shell=shell))
    return 0


def complete_line() -> list[str]:
    """Return the words of the command line up to the cursor.

    This function completes the first word and overrides of a sweep; the parser of a command
    completes the command's options.
    """
    line = os.environ["COMP_LINE"][: int(os.environ.get("COMP_POINT", 0))]
    *words, _ = shlex.split(f"{line}_")
    if len(words) > 1 and words[1] in COMMANDS and words[1] != "plan":
        os.environ["_ARGCOMPLETE"] = str(int(os.environ["_ARGCOMPLETE"]) + 1)
        return words[1:]
    parser = CommandParser()
    known = [*COMMANDS, *_overrides(words)]
    complete(parser.add_argument("words", nargs="*"), known)
    parser.parse_args([])
    raise AssertionError("argcomplete ends the process")


def _overrides(words: list[str]) -> list[str]:
    found = [f"+space={name}" for name in spaces()]
    for group, names, known, options in (
        ("sampler", samplers.names(), runnable(samplers.SAMPLERS), samplers.options_of),
        ("engine", engines.ENGINES, engines.ENGINES, engines.options_of),
    ):
        found += [f"{group}={name}" for name in names]
        found += [f"{group}.{f.name}=" for n in known for f in dataclasses.fields(options(n))]
    for name in (word.removeprefix("+space=") for word in words if word.startswith("+space=")):
        if name in spaces():
            axes = read_space(spaces()[name], complete=True)["axes"]
            found += [f"space.axes.{axis}=" for axis in flat(axes)]
    return [*found, "space.where=", "space.objectives=", "space.constraints=", *_SETTINGS]


def schema(words: list[str]) -> int:
    """Print the JSON Schema of space files or of result rows, or write it."""
    given = parse("schema", words)
    file = given.write
    text = json.dumps(row_schema(given.rows) if given.rows else space_schema(), indent=1) + "\n"
    if not file:
        print(text, end="")
        return 0
    write_text(file, text)
    if given.rows:
        print(f"written to {file}")
        return 0
    print(f"written to {file}; write this first line into space files:")
    print(f"# yaml-language-server: $schema={file}")
    return 0


def row_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one result row of a simulator: axes, metrics and outcome.

    `version` is the simulator's: it changes whenever columns or values of stored rows change.

    Raises:
        UserError: there is no such simulator.
    """
    simulator = load_simulator(name)
    columns = [c for part in (simulator.point, simulator.metrics) for c in columns_of(part)]
    shares = {key: {"type": ["number", "null"], "minimum": 0, "maximum": 1} for key in SHARES}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A result row of the simulator {name}",
        "version": simulator.version,
        "type": "object",
        "properties": {
            **{column.name: _cell(column) for column in columns},
            "status": {"enum": list(STATUSES)},
            "reason": {"type": ["string", "null"]},
            **shares,
        },
        "required": ["status"],
    }


def _cell(column: Column) -> dict[str, Any]:
    """Return the schema of a column's values, with its description and unit."""
    doc, unit = column.metadata.get("doc", ""), column.metadata.get("unit", "")
    kind = msgspec.json.schema(column.hint)
    found: dict[str, Any] = {"description": doc, "anyOf": [kind, {"type": "null"}]}
    return {**found, "unit": unit} if unit else found


def space_schema() -> dict[str, Any]:
    """Return the JSON Schema of space files, with one case per simulator."""
    (kinds,) = (d["properties"] for d in msgspec.json.schema(SpaceConfig)["$defs"].values())
    about = COMMANDS["schema"]["keys"]
    kinds["simulator"]["examples"] = list(runnable(SIMULATORS))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A design space of sweeper",
        "type": "object",
        "required": ["simulator"],
        "additionalProperties": False,
        "properties": {key: {"description": about[key], **kinds[key]} for key in KEYS},
        "allOf": [_case(name) for name in runnable(SIMULATORS)],
    }


def _case(name: str) -> dict[str, Any]:
    simulator = load_simulator(name)
    axes = {column.name: _axis(column) for column in columns_of(simulator.point)}
    union = {n: {"description": axis["description"]} for n, axis in axes.items()}
    names = [*objectives_of(simulator), *schema_of(simulator.metrics).names, *axes]
    return {
        "if": {"properties": {"simulator": {"const": name}}},
        "then": {
            "properties": {
                "axes": _object(axes | grouped(axes)),
                "union": {"items": _object(union | grouped(union))},
                "objectives": {"propertyNames": {"examples": names}},
            }
        },
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def grouped(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return one schema per group of options."""
    groups: dict[str, Any] = {}
    for name, axis in axes.items():
        group, _, option = name.rpartition(".")
        if group:
            groups.setdefault(group, _object({}))["properties"][option] = axis
    return groups


def _axis(column: Column) -> dict[str, Any]:
    """Return the schema of one axis: a value of its type, a list of values, or a range as text."""
    unit = column.metadata.get("unit", "")
    about = f"{column.metadata.get('doc', '')}{f' [{unit}]' if unit else ''}"
    one = msgspec.json.schema(column.hint)
    if (folder := FOLDERS.get(column.metadata.get("names", ""))) is not None:
        one["examples"] = list(folder.names())
    found: dict[str, Any] = {
        "description": f"{about}; {_NOTATION}",
        "anyOf": [one, {"type": "string"}, {"type": "array", "items": one}],
    }
    is_needed = column.default is dataclasses.MISSING
    return found if is_needed else {**found, "default": column.default}


def trust(words: list[str]) -> int:
    """Trust folders, or print the trusted folders."""
    folders = parse("trust", words).folders
    file = trust_file().resolve()
    for folder in map(Path, folders):
        home = folder.resolve()
        if not home.is_dir() or not str(home).isprintable():
            raise UserError(f"{folder} is not a folder, or its name has unprintable characters")
        if not is_trusted(home):
            before = file.read_text(encoding="utf-8") if file.is_file() else ""
            write_text(file, f"{before.rstrip()}\n{home}\n".lstrip())
            file.chmod(0o600)  # ignored if other users may write
        print_words(f"sweeper may now run code in {home}; the list of trusted folders is {file}")
    if not folders:
        for folder in trusted():
            print_words(str(folder))
    return 0
