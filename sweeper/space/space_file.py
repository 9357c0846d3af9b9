"""Reading a space file: YAML that opens with the question it asks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from simulators.core.contract import default_of, load_simulator
from simulators.core.errors import UserError


def read_space(file: Path, *, complete: bool = False) -> dict[str, Any]:
    """Return what a space file says.

    `complete` adds the axes it leaves out at their defaults, so that each can be overridden.
    """
    import yaml  # type: ignore[import-untyped]  # comes with omegaconf, without stubs
    from omegaconf import OmegaConf

    try:
        # OmegaConf's loader reads 1e9 as a number; plain YAML 1.1 reads it as a string.
        written = OmegaConf.to_container(OmegaConf.load(file))
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(written, dict):
        raise UserError(f"{file} is not a space: it holds no `simulator:` and `axes:`")
    space = {str(k): v for k, v in written.items()}
    if complete and isinstance(space.get("simulator"), str):
        axes = dict(space.get("axes") or {})
        elsewhere = {n for grid in space.get("union") or [] for n in grid}
        for f in dataclasses.fields(load_simulator(space["simulator"]).point):
            value = default_of(f)
            if f.name not in axes and f.name not in elsewhere and value is not dataclasses.MISSING:
                axes[f.name] = value
        rest: dict[str, Any] = {
            "derived": {},
            "constraints": [],
            "objectives": {},
            "where": None,
            "slo": None,
        }
        space |= {"axes": axes} | {k: v for k, v in rest.items() if k not in space}
    return space


def about(file: Path) -> str:
    """Return the question a space file opens with: its first comment."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return " ".join(lines)
