"""How accurate the simulators behind a result are: the checks that travel with the package.

`python -m sweeper validate --write docs/accuracy.md` writes them beside the table, since the
measured data that they were read on do not travel.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulators.core.contract import COVERAGE, ERROR, Check, load_simulator
from simulators.core.folder import PACKAGE

FILE = PACKAGE / "accuracy.json"


@dataclass(frozen=True)
class Evidence:
    """The checks of the rooms that a simulator stands on, its own first."""

    rooms: tuple[str, ...]
    checks: tuple[Check, ...]

    def in_short(self) -> str:
        """Return how many errors against measurements stand, and how many intervals hold.

        Counts that equal another program's are not in it, nor what has no limit.
        """
        errors = [c for c in self.checks if c.kind == ERROR and c.ok is not None]
        if not errors:
            return "Its accuracy has not been measured."
        met = sum(bool(c.ok) for c in errors)
        said = (
            f"{met} of {len(errors)} errors against measurements of {', '.join(self.rooms)} are "
            "within their limits, on rows outside every fit"
        )
        spans = Counter(c.verdict for c in self.checks if c.kind == COVERAGE and c.ok is not None)
        if spans:
            wrong = [f"{spans[how]} {how}" for how in ("too wide", "too narrow") if spans[how]]
            said += f"; {spans['ok']} of {spans.total()} kinds of 90 % intervals hold what they say"
            said += f" ({', '.join(wrong)})" if wrong else ""
        return f"{said}."


def evidence(simulator: str) -> Evidence:
    """Return the checks of every room that a simulator imports."""
    module = type(load_simulator(simulator)).__module__
    own = module.split(".")[1] if module.startswith("simulators.") else ""
    known = stored()
    rooms = [r for r in _below(own) if r in known]
    return Evidence(tuple(rooms), tuple(check for room in rooms for check in known[room]))


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
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith(f"simulators.{name}."):
                for value in vars(module).values():
                    origin = getattr(value, "__module__", None) or getattr(value, "__name__", "")
                    parts = str(origin).split(".")
                    if len(parts) > 2 and parts[0] == "simulators" and parts[1] not in found:
                        waiting.append(parts[1])
    return found
