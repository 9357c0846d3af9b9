"""Space files: YAML, parsed into a `SpaceConfig` of typed values; nothing after that checks types.

Hydra composes the text. An axis keeps its own notation, which `axes` reads in the type of the
simulator's field.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError, unknown
from simulators.core.fields import columns_of
from sweeper.space.sql import shown
from sweeper.text import TEXTS
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
"""Keys with mappings from axes, in which axes of grouped options may be nested."""


def parse_space(
    written: Mapping[str, Any], file: str = "", lines: Mapping[str, int] | None = None
) -> SpaceConfig:
    """Return a space as typed values.

    Args:
        written: plain values, as YAML or JSON holds them.
        file: the source, for messages.
        lines: the line of each key in the file, where it is known.

    Raises:
        UserError: a key is unknown, or its value has the wrong type.
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
        raise UserError(
            f"{place}`{key}` is {TEXTS['keys'].get(key, error)}, not {shown}"
        ) from error


def flat(written: Any) -> Any:
    """Return a mapping, or a list of mappings, with nested entries under dotted names.

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
    """Return axes with one nested mapping per group, as Hydra addresses them."""
    found: dict[str, Any] = {}
    for name, value in flat(axes).items():
        *groups, option = str(name).split(".")
        home = found
        for group in groups:
            home = home.setdefault(group, {})
        home[option] = value
    return found


_DEEPEST, _LARGEST, _LONGEST = 12, 1_000_000, 10_000_000
"""Largest nesting depth, number of values and number of bytes of a space file."""
_LONGEST_SITE = 10_000
_LONGEST_NAME = 200  # largest length of a reference to another key


def read_space(file: Path, *, complete: bool = False) -> dict[str, Any]:
    """Return the content of a space file as plain values.

    `complete` adds omitted axes at their defaults, so that each axis can be overridden.
    """
    import yaml  # type: ignore[import-untyped]  # comes with omegaconf, without stubs
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        if (size := file.stat().st_size) > _LONGEST:
            raise UserError(f"{file} has {size:,} bytes; a space has {_LONGEST:,} at most")
        root = yaml.compose(file.read_text(encoding="utf-8"), yaml.SafeLoader)
        _check_size(root, file)
        # OmegaConf's loader reads 1e9 as a number; plain YAML 1.1 reads it as a string.
        written = OmegaConf.to_container(OmegaConf.load(file))
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    except (OSError, ValueError, RecursionError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{file} cannot be read: {reason}") from error
    if not isinstance(written, dict):
        raise UserError(f"{file} is not a space: it holds no `simulator:` and `axes:`")
    space = {str(k): v for k, v in written.items()}
    keys = [key for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
    lines = {str(key.value): key.start_mark.line + 1 for key in keys}
    config = parse_space(space, str(file), lines)
    return completed(space, config) if complete else space


def completed(space: Mapping[str, Any], config: SpaceConfig) -> dict[str, Any]:
    """Return a space, plain and typed, with omitted axes at their defaults."""
    if not config.simulator:
        return dict(space)
    stated = {*config.axes, *(name for grid in config.union for name in grid)}
    axes = config.axes | {
        c.name: c.default
        for c in columns_of(load_simulator(config.simulator).point)
        if c.name not in stated and c.default is not dataclasses.MISSING
    }
    names = ("derived", "constraints", "when", "objectives", "given", "where", "slo")
    rest = {name: getattr(config, name) for name in names}
    return {**rest, **space, "axes": nested(axes), "when": nested(config.when)}


def read_site(file: Path) -> dict[str, str]:
    """Return the overrides of a site configuration: a flat mapping.

    Raises:
        UserError: the file holds something else, or an override of a space.
    """
    import yaml

    try:
        if file.stat().st_size > _LONGEST_SITE:
            raise UserError(f"{file} has more than {_LONGEST_SITE:,} bytes")
        written = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{file} cannot be read: {' '.join(str(error).split())[:300]}") from error
    flat = isinstance(written, dict) and not any(
        isinstance(v, (dict, list)) for v in written.values()
    )
    if not flat or any(not isinstance(key, str) or key.startswith("space") for key in written):
        raise UserError(f"{file} is no site: write overrides, a line each, as in `engine: ray`")
    return {key: "null" if value is None else str(value) for key, value in written.items()}


def _check_size(root: Any, file: Path) -> None:
    """Raise `UserError` for a document that is deep, endless, or large with expanded aliases."""
    sizes: dict[int, int] = {}

    def size(node: Any, depth: int) -> int:
        if depth > _DEEPEST:
            raise UserError(f"{file} nests deeper than {_DEEPEST}, or an anchor refers to itself")
        called = node.value.partition("${")[2] if isinstance(node.value, str) else ""
        if ":" in called or len(called) > _LONGEST_NAME:
            # OmegaConf would call a function, as `oc.env` for an environment variable.
            raise UserError(
                f"{file}, line {node.start_mark.line + 1}: '{shown(node.value)}' would be computed "
                "from what is outside of this file; write the value itself"
            )
        if id(node) not in sizes:
            inside = node.value if isinstance(node.value, list) else []
            pairs = [item for item in inside if isinstance(item, tuple)]
            if nameless := [key for key, _ in pairs if key.tag.endswith(":null")]:
                line = nameless[0].start_mark.line + 1
                raise UserError(f"{file}, line {line}: a key has no name")
            parts = (
                part for item in inside for part in (item if isinstance(item, tuple) else [item])
            )
            sizes[id(node)] = 1 + sum(size(part, depth + 1) for part in parts)
        return sizes[id(node)]

    if root is not None and size(root, 0) > _LARGEST:
        raise UserError(
            f"{file} holds more than {_LARGEST:,} values once its aliases are filled in"
        )


def about(file: Path) -> str:
    """Return the question of a space file: its first comment."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return " ".join(lines)
