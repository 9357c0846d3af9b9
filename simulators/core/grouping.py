"""Grouped options: fields of a point type that are frozen dataclasses themselves, as in vLLM.

Columns are flat: an option of a group has a dotted name, `speculation.method`.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import Any, TypeVar

P = TypeVar("P")


@dataclass(frozen=True)
class Column:
    """One column of a point, facts or metrics type; that of a grouped option has a dotted name."""

    name: str
    hint: Any  # its annotation
    default: Any  # `dataclasses.MISSING` where there is none
    metadata: Mapping[str, Any]

    @property
    def is_nullable(self) -> bool:
        """Whether the column may be null: its annotation is `X | None`."""
        return type(None) in typing.get_args(self.hint)

    @property
    def group(self) -> str:
        """The name of the group of options that the column belongs to; empty if to none."""
        return self.name.rpartition(".")[0]


@functools.cache
def columns_of(kind: Any) -> tuple[Column, ...]:
    """Return the columns of a dataclass, those of a group of options in its place."""
    hints, found = typing.get_type_hints(kind), []
    for f in fields(kind):
        if dataclasses.is_dataclass(hints[f.name]):
            inner = columns_of(hints[f.name])
            found += [dataclasses.replace(c, name=f"{f.name}.{c.name}") for c in inner]
        else:
            default = f.default if f.default_factory is MISSING else f.default_factory()
            found.append(Column(f.name, hints[f.name], default, f.metadata))
    return tuple(found)


def option_groups(kind: Any) -> dict[str, str]:
    """Return the groups of options of a point type, each with its documentation."""
    hints = typing.get_type_hints(kind)
    grouped = (f for f in fields(kind) if dataclasses.is_dataclass(hints[f.name]))
    return {f.name: f.metadata["doc"] for f in grouped}


def point_from(kind: type[P], values: Mapping[str, Any]) -> P:
    """Return the point that has these values by column name, and defaults elsewhere."""
    hints = typing.get_type_hints(kind)
    own, groups = _by_group(values)
    made = {name: point_from(hints[name], options) for name, options in groups.items()}
    return kind(**own, **made)


def updated(point: P, values: Mapping[str, Any]) -> P:
    """Return a point with other values of some columns, given by name."""
    own, groups = _by_group(values)
    for name, options in groups.items():
        own[name] = updated(own.get(name, getattr(point, name)), options)
    return dataclasses.replace(point, **own)  # type: ignore[type-var]


def _by_group(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the values of columns outside of groups, and of each group: dotted names or nested."""
    own: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        group, _, option = name.partition(".")
        if isinstance(value, Mapping):
            groups.setdefault(name, {}).update(value)
        elif option:
            groups.setdefault(group, {})[option] = value
        else:
            own[name] = value
    return own, groups


def values_of(point: Any) -> dict[str, Any]:
    """Return the values of a point by column name."""
    kind: Any = type(point)
    return {c.name: attrgetter(c.name)(point) for c in columns_of(kind)}
