"""What a name stands for: a space, a fact, a simulator; or one design of a sweep."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulators.core.columns import schema_of
from simulators.core.contract import Describes, Records, default_of, load_simulator
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import FOLDERS, SIMULATORS
from sweeper import config, places
from sweeper.commands.flags import flags
from sweeper.commands.spaces import about, read_space
from sweeper.space import DesignSpace
from sweeper.units import human


def main(words: list[str]) -> int:
    """Print it."""
    parser = flags("show", "what a name stands for, or one design of a sweep")
    parser.add_argument("name")
    parser.add_argument("key", nargs="?", help="the first digits of a design's key")
    parser.add_argument("--outputs", default="outputs")
    parser.add_argument(
        "--records", metavar="FOLDER", help="write every event of the design's run as Parquet"
    )
    chosen = parser.parse_args(words)
    if chosen.key:
        return _design(chosen.name, chosen.key, chosen.outputs, chosen.records)
    found = [
        *([_space] if chosen.name in places.spaces() else []),
        *([_simulator] if chosen.name in SIMULATORS.names() else []),
    ]
    for show in found:
        show(chosen.name)
    for kind, folder in FOLDERS.items():
        if kind != "simulator" and chosen.name in folder.names():
            _file(kind, folder.find(chosen.name))
            found.append(_space)
    if not found:
        aliases = [_alias(kind, chosen.name) for kind in FOLDERS if _alias(kind, chosen.name)]
        for kind, file in filter(None, aliases):
            _file(kind, file)
        if not aliases:
            known = [n for folder in FOLDERS.values() for n in folder.names()]
            raise UnknownNameError("name", chosen.name, [*places.spaces(), *known])
    return 0


def _alias(kind: str, name: str) -> tuple[str, Path] | None:
    try:
        return kind, FOLDERS[kind].find(name)
    except UserError:
        return None


def _file(kind: str, file: Path) -> None:
    print(f"{kind} {file.stem}  ({file})")
    text = file.read_text(encoding="utf-8").rstrip()
    if file.suffix == ".py":  # what a scheduler or router does, not how
        text = ast.get_docstring(ast.parse(text)) or text
    if kind == "runtime":  # the same again follows, fitted without each group in turn
        text = text.partition("\n[without.")[0]
    print(text)


def _space(name: str) -> None:
    file = places.spaces()[name]
    written = read_space(file)
    space = config.space_of(written)
    print(f"space {name}  ({file})")
    print(about(file))
    print(f"{space.size:,} points for the simulator '{space.simulator}'")
    units = {
        f.name: f.metadata[b"unit"].decode()
        for f in schema_of(load_simulator(space.simulator).point)
    }
    for axis in space.varied:
        values = tuple(dict.fromkeys(space.axes[axis]))
        listed = [human(v, units[axis]) for v in values[:12]]
        print(
            f"  {axis:16} × {len(values):<5} {', '.join(listed)}{' …' if len(values) > 12 else ''}"
        )
    fixed = [
        f"{n}={human(v[0], units[n])}"
        for n, v in space.axes.items()
        if n in (written.get("axes") or {}) and len(v) == 1
    ]
    if fixed:
        print(f"  fixed: {', '.join(fixed)}")
    for name_, sql in space.derived.items():
        print(f"  {name_} = {sql}")
    for text, count in space.removed().items():
        print(f"  {count:,} removed by {text}")
    wanted = config.objectives(written, space)
    if condition := config.where(written, space):
        print(f"  where {condition}")
    print(f"  wanted: {', '.join(f'{n} {d}' for n, d in wanted.items())}")


def _simulator(name: str) -> None:
    simulator = load_simulator(name)
    print(f"simulator {name}, version {simulator.version}")
    for title, kind in (("inputs", simulator.point), ("metrics", simulator.metrics)):
        print(title)
        _fields(kind)
    if isinstance(simulator, Describes):
        print("facts, for constraints and derived columns")
        _fields(simulator.facts)


def _fields(kind: type) -> None:
    for f in dataclasses.fields(kind):
        default = default_of(f)
        notes = [f.metadata.get("unit", ""), f.metadata.get("better") or ""]
        if default is not dataclasses.MISSING:
            notes.append(f"default {default}")
        note = ", ".join(n for n in notes if n)
        print(f"  {f.name:24} {f.metadata.get('doc', '')}{f' [{note}]' if note else ''}")


def _design(name: str, prefix: str, outputs: str, folder: str | None) -> int:
    from sweeper.commands.designs import design
    from sweeper.commands.record import latest

    last = latest(name, outputs)
    _, row = design(last, prefix)
    _print_design(row, last.space, last.objectives)
    simulator = load_simulator(last.space.simulator)
    if isinstance(simulator, Records):
        point = {f.name: row[f.name] for f in dataclasses.fields(simulator.point) if f.name in row}
        if row["status"] == "ok" and (text := simulator.report(point)):
            print(f"\n{text}")
        if folder is not None:
            _write(simulator.records(point), Path(folder))
    elif folder is not None:
        raise UserError(f"the simulator '{last.space.simulator}' keeps no records of events")
    return 0


def _write(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write each table to a file of its name."""
    import pyarrow.parquet as pq

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            pq.write_table(table, folder / f"{name}.parquet")
            print(f"{folder / name}.parquet: {table.num_rows:,} rows")
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}") from error


def _print_design(row: dict[str, Any], space: DesignSpace, objectives: object) -> None:
    from sweeper.commands.summary import units_of

    units = units_of(space)
    for title, names in (
        ("design", [*space.varied, *space.derived]),
        ("fixed", [n for n in space.axes if n not in space.varied]),
        ("outcome", [n for n in row if n not in space.axes and n not in space.derived]),
    ):
        print(title)
        for name in names:
            if row.get(name) is not None:
                mark = " *" if isinstance(objectives, dict) and name in objectives else ""
                print(f"  {name:24} {human(row[name], units.get(name, ''))}{mark}")
