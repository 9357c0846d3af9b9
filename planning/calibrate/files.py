"""Calibration files: TOML with provenance of the fitted rows, closed by a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulators.core.calibration import SEAL
from simulators.core.errors import UserError


def write_calibration(
    file: Path, content: Mapping[str, Any], measured: Path, rows: int, split: str, error: float
) -> None:
    """Write a calibration with its provenance; the file is whole or absent.

    Args:
        file: TOML file.
        content: numbers, by table.
        measured: the user's file.
        rows: how many of its rows were fitted.
        split: how rows were held out, in a sentence.
        error: mean absolute relative error of held-out rows.
    """
    provenance = {
        "measured": measured.name,
        "sha256": hashlib.sha256(measured.read_bytes()).hexdigest(),
        "rows": rows,
        "split": split,
        "held_out_mape": error,
        **content.get("provenance", {}),
    }
    lines = toml_lines({**content, "provenance": provenance})
    body = "\n".join(["# Written by `sweeper calibrate`", *lines]) + "\n"
    seal = hashlib.sha256(body.encode()).hexdigest()
    draft = file.with_suffix(".partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(f"{body}{SEAL}{seal}\n", encoding="utf-8")
        draft.replace(file)
    except OSError as problem:
        raise UserError(f"{file}: {problem.strerror}") from problem


def toml_lines(content: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield a mapping as TOML: plain values first, then tables and arrays of tables."""
    tables = {k: v for k, v in content.items() if isinstance(v, Mapping) or _is_rows(v)}
    for name, value in content.items():
        if name not in tables:
            yield f"{_key(name)} = {_value(value)}"
    for name, value in tables.items():
        inner = f"{path}.{_key(name)}".lstrip(".")
        for one in [value] if isinstance(value, Mapping) else value:
            yield ""
            yield f"[{inner}]" if isinstance(value, Mapping) else f"[[{inner}]]"
            yield from toml_lines(one, inner)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) and value % 1 else json.dumps(value)
