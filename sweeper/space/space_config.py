"""The parser of a space: what a file, an override or a caller wrote, as typed values.

Hydra composes the text. `parse_space` turns it into a `SpaceConfig`; nothing after it checks types.
An axis keeps its own notation, which `notation` reads in the type of the simulator's field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from simulators.core.errors import UserError, unknown
from sweeper.typed import MistypedError, typed

Sql = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class SpaceConfig:
    """A space as written; axes of grouped options have dotted names."""

    simulator: str = ""
    axes: dict[str, Any] = field(default_factory=dict)
    zip: list[str | list[str]] = field(default_factory=list)
    union: list[dict[str, Any]] = field(default_factory=list)
    derived: dict[str, Sql] = field(default_factory=dict)
    constraints: str | list[Sql] = field(default_factory=list)
    when: dict[str, Sql] = field(default_factory=dict)
    slo: str | None = None
    where: str | None = None
    objectives: dict[str, Literal["min", "max"]] = field(default_factory=dict)
    given: list[str] | None = None
    scenario: dict[str, Any] = field(default_factory=dict)


KEYS = tuple(SpaceConfig.__dataclass_fields__)
_AXES = ("axes", "union", "when", "objectives")
"""The keys that hold mappings from axes, in which axes of grouped options may be nested."""
_MEANT = {
    "simulator": "the name of a simulator",
    "axes": "a mapping from names to values",
    "zip": "a list of lists of axes that move together, as in [[tp, pp]]",
    "union": "a list of small grids, as in [{x: 1, y: [4, 8]}]",
    "derived": "a mapping from names to SQL",
    "constraints": "a list of SQL conditions",
    "when": "a mapping from axes to the SQL condition under which they count",
    "slo": "one SQL condition over the results",
    "where": "one SQL condition over the results",
    "objectives": "a mapping from metrics to min or max",
    "given": "a list of axes that are not chosen, as in [model, qps]",
    "scenario": "a mapping with `targets:`",
}


def parse_space(
    written: Mapping[str, Any], file: str = "", lines: Mapping[str, int] | None = None
) -> SpaceConfig:
    """Return a space as typed values.

    Args:
        written: plain values, as YAML or JSON holds them.
        file: where they were written, for messages.
        lines: the line of each key in that file, as far as known.

    Raises:
        UserError: a key is unknown, or holds another type of value than it must.
    """
    place = f"{file}: " if file else ""
    for key in written:
        if key not in KEYS:
            raise unknown(f"{place}a space has no key '{key}'", str(key), KEYS)
    stated = {
        key: flat(value) if key in _AXES else value
        for key, value in written.items()
        if value is not None
    }
    try:
        return typed(stated, SpaceConfig)
    except MistypedError as error:
        key = re.split(r"\W", error.path)[0]
        shown = repr(written.get(key))
        shown = shown if len(shown) < 80 else f"{shown[:77]}..."
        place = f"{file}, line {lines[key]}: " if lines and key in lines else place
        raise UserError(f"{place}`{key}` is {_MEANT.get(key, error)}, not {shown}") from error


def flat(written: Any) -> Any:
    """Return a mapping with the entries of mappings inside it under dotted names; a list of each.

    >>> flat({"tp": 1, "speculation": {"method": ["eagle", "mtp"]}})
    {'tp': 1, 'speculation.method': ['eagle', 'mtp']}
    """
    if isinstance(written, list | tuple):
        return [flat(item) if isinstance(item, Mapping) else item for item in written]
    if not isinstance(written, Mapping):
        return written
    found: dict[Any, Any] = {}
    for name, value in written.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{option}": inner for option, inner in flat(value).items()}
        else:
            found[name] = value
    return found


def nested(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return axes with those of each group in a mapping of its own, as Hydra addresses them."""
    found: dict[str, Any] = {}
    for name, value in flat(axes).items():
        *groups, option = str(name).split(".")
        home = found
        for group in groups:
            home = home.setdefault(group, {})
        home[option] = value
    return found
