"""The JSON Schema of space files, so that an editor completes and checks them as they are typed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from simulators.core.columns import schema_of
from simulators.core.contract import load_simulator, objectives_of
from simulators.core.folder import FOLDERS, SIMULATORS
from simulators.core.grouping import Column, columns_of
from simulators.core.modules import runnable
from sweeper.commands.flags import flags
from sweeper.report.tables import write_text
from sweeper.space.space_config import KEYS, SpaceConfig

_NOTATION = "a value, a list, or a range: 1..8, 0.5..32 log 13, pow2 1..64, capacity 0.1..64"
_SQL = "polars SQL over axes, derived columns and facts"
_ABOUT = {
    "simulator": "the model that answers the points",
    "axes": "what is varied or fixed; what is left out has its default",
    "zip": "lists of axes that move together",
    "union": "alternatives, each with axes of its own",
    "derived": f"columns computed beforehand: name to {_SQL}",
    "constraints": f"conditions points must meet before they are simulated: {_SQL}",
    "when": f"axes that count under a condition only, else at their first value: {_SQL}",
    "slo": "what a capacity axis is pushed up to: a condition on metrics",
    "where": "a condition on results that designs on the front must meet",
    "objectives": "metrics to make small or large: name to min or max",
    "given": "axes that a design does not choose: each of their values has an answer of its own",
    "scenario": "figures the space must answer, each an SQL expression with a plausible band",
}


def main(words: list[str]) -> int:
    """Print the schema, or write it."""
    parser = flags("schema", "JSON Schema of space files")
    parser.add_argument("--write", metavar="FILE")
    chosen = parser.parse_args(words)
    text = json.dumps(space_schema(), indent=1) + "\n"
    if chosen.write:
        write_text(Path(chosen.write), text)
        print(f"written to {chosen.write}; name it in a space file's first line:")
        print(f"# yaml-language-server: $schema={chosen.write}")
    else:
        print(text, end="")
    return 0


def space_schema() -> dict[str, Any]:
    """Return the schema, one case per simulator, generated from their point and metrics types."""
    (kinds,) = (d["properties"] for d in msgspec.json.schema(SpaceConfig)["$defs"].values())
    kinds["simulator"]["examples"] = list(runnable(SIMULATORS))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A design space of sweeper",
        "type": "object",
        "required": ["simulator"],
        "additionalProperties": False,
        "properties": {key: {"description": _ABOUT[key], **kinds[key]} for key in KEYS},
        "allOf": [_case(name) for name in runnable(SIMULATORS)],
    }


def _case(name: str) -> dict[str, Any]:
    """Return what a space of one simulator may say."""
    simulator = load_simulator(name)
    arrow = schema_of(simulator.point)
    axes = {c.name: _axis(c, arrow.field(c.name).type) for c in columns_of(simulator.point)}
    said = {n: {"description": axis["description"]} for n, axis in axes.items()}
    metrics = [*schema_of(simulator.metrics).names, *axes]
    objectives = {"propertyNames": {"examples": [*objectives_of(simulator), *metrics]}}
    return {
        "if": {"properties": {"simulator": {"const": name}}},
        "then": {
            "properties": {
                "axes": {"properties": axes | grouped(axes), "additionalProperties": False},
                "union": {
                    "items": {"properties": said | grouped(said), "additionalProperties": False}
                },
                "objectives": objectives,
            }
        },
    }


def grouped(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of each group of options as a mapping of its own."""
    groups: dict[str, Any] = {}
    for name, axis in axes.items():
        group, _, option = name.rpartition(".")
        if group:
            usual = {"type": "object", "properties": {}, "additionalProperties": False}
            groups.setdefault(group, usual)["properties"][option] = axis
    return groups


def _axis(column: Column, kind: pa.DataType) -> dict[str, Any]:
    """Return the schema of one axis: a value of its type, a list of them, or a range in words."""
    unit = column.metadata.get("unit", "")
    about = f"{column.metadata.get('doc', '')}{f' [{unit}]' if unit else ''}"
    value: dict[str, Any]
    if pa.types.is_boolean(kind):
        value = {"type": "boolean"}
    elif pa.types.is_string(kind):
        value = {"type": "string"}
        if (folder := FOLDERS.get(column.metadata.get("names", ""))) is not None:
            value["examples"] = list(folder.names())
    else:
        value = {"type": "integer" if pa.types.is_integer(kind) else "number"}
    one = {"anyOf": [value, {"type": "null"}]} if column.is_nullable else value
    schema: dict[str, Any] = {
        "description": f"{about}; {_NOTATION}",
        "anyOf": [one, {"type": "string"}, {"type": "array", "items": one}],
    }
    if column.default is not dataclasses.MISSING:
        schema["default"] = column.default
    return schema
