"""How accurate the simulators behind a result are: the checks that travel with the package.

`python -m sweeper validate --write docs/accuracy.md` writes them beside the table, since the
measured data that they were read on do not travel.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulators.core.contract import COVERAGE, ERROR, Check, Simulator, load_simulator
from simulators.core.folder import FOLDERS, PACKAGE
from simulators.core.grouping import columns_of

FILE = PACKAGE / "accuracy.json"
_NAMED = 3
"""Errors that a sentence names."""
_IMPORTED = re.compile(r"^\s*(?:from|import) simulators\.(\w+)", re.M)


@dataclass(frozen=True)
class Evidence:
    """The checks of the rooms that a simulator stands on, its own first."""

    rooms: tuple[str, ...]
    by_room: Mapping[str, Sequence[Check]]

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks, the simulator's own first."""
        return tuple(check for room in self.rooms for check in self.by_room[room])

    def naming(self, names: Collection[str], most: int = 5) -> list[Check]:
        """Return the simulator's own errors against measurements that name what is asked about.

        Args:
            names: of a model and a device, say; the lines that name most of them come first.
            most: how many lines.
        """
        spelt = [re.compile(rf"(?<![a-z0-9]){re.escape(n)}(?![a-z0-9]|_\d|_pcie)") for n in names]
        own = self.by_room[self.rooms[0]] if self.rooms else ()
        ranked = sorted(
            (check for check in own if check.kind == ERROR and check.value is not None),
            key=lambda check: -sum(bool(word.search(check.name)) for word in spelt),
        )
        return [check for check in ranked if any(w.search(check.name) for w in spelt)][:most]

    def in_short(self) -> str:
        """Return how many errors against measurements stand, and how many intervals hold.

        Counts that equal another program's are not in it, nor what has no limit.
        """
        errors = [c for c in self.checks if c.kind == ERROR and c.ok is not None]
        if not errors:
            return "Its accuracy has not been measured."
        met = sum(bool(c.ok) for c in errors)
        judged = [r for r in self.rooms if any(c in errors for c in self.by_room[r])]
        said = (
            f"{met} of {len(errors)} errors against measurements of {', '.join(judged)} are "
            "within their limits, on rows outside every fit"
        )
        spans = Counter(c.verdict for c in self.checks if c.kind == COVERAGE and c.ok is not None)
        if spans:
            wrong = [f"{spans[how]} {how}" for how in ("too wide", "too narrow") if spans[how]]
            said += f"; {spans['ok']} of {spans.total()} kinds of 90 % intervals hold what they say"
            said += f" ({', '.join(wrong)})" if wrong else ""
        return f"{said}."


def evidence(simulator: str, known: Mapping[str, Sequence[Check]] | None = None) -> Evidence:
    """Return the checks of every room that a simulator imports.

    Args:
        simulator: its name.
        known: checks by room; without them, those that travel with the package.
    """
    module = type(load_simulator(simulator)).__module__
    own = module.split(".")[1] if module.startswith("simulators.") else ""
    by_room = stored() if known is None else known
    return Evidence(tuple(room for room in _below(own) if room in by_room), by_room)


def named_facts(simulator: Simulator, row: Mapping[str, Any]) -> list[str]:
    """Return the facts that a design names, such as a model and a GPU."""
    kinds = {
        kind: folder
        for kind, folder in FOLDERS.items()
        if folder.path.startswith("catalog/") and kind not in ("price", "cluster")
    }
    asked = [
        (kinds.get(str(f.metadata.get("names"))), row.get(f.name))
        for f in columns_of(simulator.point)
    ]
    return [name for folder, name in asked if folder and name and folder.has(name)]


def named_errors(known: Evidence, simulator: Simulator, row: Mapping[str, Any]) -> str:
    """Return in a sentence how far the simulator was off for what a design names."""
    names = named_facts(simulator, row)
    lines = known.naming(names, _NAMED) if names else []
    if not lines:
        return ""
    said = (f"{c.name} {c.value:.3g} {c.unit}".strip() + f" (rows: {c.rows:,})" for c in lines)
    return f"Errors against measurements that name {' or '.join(names)}: {'; '.join(said)}."


def stored() -> dict[str, list[Check]]:
    """Return the checks that travel with the package, by room."""
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    return {room: [Check(**check) for check in checks] for room, checks in found.items()}


def write(by_room: Mapping[str, Sequence[Check]]) -> dict[str, list[Check]]:
    """Keep the checks of some rooms with the package, and return all that it now has."""
    known = stored() | {room: list(found) for room, found in by_room.items()}
    known = dict(sorted(known.items()))
    lines = ",\n".join(
        f'"{room}": [\n' + ",\n".join(json.dumps(_fields(check)) for check in found) + "\n]"
        for room, found in known.items()
    )
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return known


def _fields(check: Check) -> dict[str, object]:
    """Return the fields of a check; of its kind and its peer, what is not usual."""
    fields = dataclasses.asdict(check)
    unusual = {name: fields.pop(name) for name in ("kind", "peer")}
    return fields | {n: v for n, v in unusual.items() if v not in (ERROR, None)}


def _below(room: str) -> list[str]:
    """Return a room and those whose modules its own import, directly or through others."""
    found: list[str] = []
    waiting = [room] if room else []
    while waiting:
        name = waiting.pop(0)
        if name in found:
            continue
        found.append(name)
        for file in sorted((PACKAGE / name).rglob("*.py")):
            waiting += _IMPORTED.findall(file.read_text(encoding="utf-8"))
    return found
