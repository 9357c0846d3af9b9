"""Reading a space file: YAML that opens with the question it asks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from simulators.core.fields import columns_of
from sweeper.space.space_config import nested, parse_space
from sweeper.space.sql import shown

_DEEPEST, _LARGEST, _LONGEST = 12, 1_000_000, 10_000_000
"""Levels of a space file, values in it, and its bytes."""
_LONGEST_SITE = 10_000
_LONGEST_NAME = 200
"""Letters of a reference to another key."""


def read_space(file: Path, *, complete: bool = False) -> dict[str, Any]:
    """Return what a space file says.

    `complete` adds the axes it leaves out at their defaults, so that each can be overridden.
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
    if complete and config.simulator:
        stated = {*config.axes, *(name for grid in config.union for name in grid)}
        axes = config.axes | {
            c.name: c.default
            for c in columns_of(load_simulator(config.simulator).point)
            if c.name not in stated and c.default is not dataclasses.MISSING
        }
        names = ("derived", "constraints", "when", "objectives", "given", "where", "slo")
        rest = {name: getattr(config, name) for name in names}
        space = rest | space | {"axes": nested(axes), "when": nested(config.when)}
    return space


def read_site(file: Path) -> dict[str, str]:
    """Return the overrides of a site configuration: a flat mapping.

    Raises:
        UserError: it is something else, or an override of a space.
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
    """Raise `UserError` if a document is deep, large once its aliases are filled in, or endless."""
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
    """Return the question a space file opens with: its first comment."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return " ".join(lines)
