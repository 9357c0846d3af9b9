"""How accurate the simulators behind a result are: the checks that travel with the package.

`python -m sweeper validate --write docs/accuracy.md` writes them beside the table, since the
measured data that they were read on do not travel.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulators.core.contract import Check, load_simulator
from simulators.core.folder import PACKAGE

FILE = PACKAGE / "accuracy.json"


@dataclass(frozen=True)
class Evidence:
    """The checks of the rooms that a simulator stands on, its own first."""

    rooms: tuple[str, ...]
    checks: tuple[Check, ...]

    def in_short(self) -> str:
        """Return one sentence: how many checks on measured data stand, and how many miss."""
        limited = [c for c in self.checks if c.ok is not None]
        if not limited:
            return "Its accuracy has not been measured."
        met = sum(bool(c.ok) for c in limited)
        return (
            f"{met} of {len(limited)} accuracy checks of {', '.join(self.rooms)} are within their "
            "limits, on rows outside every fit."
        )


def evidence(simulator: str) -> Evidence:
    """Return the checks of every room that a simulator imports."""
    module = type(load_simulator(simulator)).__module__
    own = module.split(".")[1] if module.startswith("simulators.") else ""
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    rooms = [r for r in _below(own) if r in stored]
    checks = tuple(Check(**c) for room in rooms for c in stored[room])
    return Evidence(tuple(rooms), checks)


def write(by_room: Mapping[str, Sequence[Check]]) -> Path:
    """Keep the checks of some rooms with the package, and return the file."""
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    stored |= {room: [dataclasses.asdict(c) for c in found] for room, found in by_room.items()}
    lines = ",\n".join(
        f'"{room}": [\n' + ",\n".join(json.dumps(c) for c in found) + "\n]"
        for room, found in sorted(stored.items())
    )
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return FILE


def _below(room: str) -> list[str]:
    """Return a room and those whose modules its own import, directly or through others."""
    found: list[str] = []
    waiting = [room] if room else []
    while waiting:
        name = waiting.pop(0)
        if name in found:
            continue
        found.append(name)
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith(f"simulators.{name}."):
                for value in vars(module).values():
                    origin = getattr(value, "__module__", None) or getattr(value, "__name__", "")
                    parts = str(origin).split(".")
                    if len(parts) > 2 and parts[0] == "simulators" and parts[1] not in found:
                        waiting.append(parts[1])
    return found
