"""Read the stored accuracy checks of simulators, which `sweeper-lab validate` writes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulators.core.checks import COVERAGE, ERROR, Check
from simulators.core.contract import Simulator, load_simulator
from simulators.core.fields import columns_of
from simulators.core.folder import FOLDERS, PACKAGE

FILE = PACKAGE / "accuracy.json"
_IMPORTED = re.compile(r"^\s*(?:from|import) simulators\.(\w+)", re.M)


@dataclass(frozen=True)
class Evidence:
    """Accuracy checks of a simulator's package and of imported packages, own package first."""

    groups: tuple[str, ...]
    by_group: Mapping[str, Sequence[Check]]

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks, the simulator's own first."""
        return tuple(check for group in self.groups for check in self.by_group[group])

    def errors_naming(self, names: Collection[str], most: int = 5) -> list[Check]:
        """Return errors of the simulator whose names contain `names`, best matches first."""
        own = self.by_group[self.groups[0]] if self.groups else ()
        errors = [check for check in own if check.kind == ERROR and check.value is not None]
        return naming(errors, names)[:most] if names else []

    def in_short(self) -> str:
        """Return the number of passed checks and of well-calibrated interval types."""
        errors = [c for c in self.checks if c.kind == ERROR and c.ok is not None]
        if not errors:
            return "The accuracy of this simulator has not been measured."
        passed = f"{sum(bool(c.ok) for c in errors)} of {len(errors)} accuracy checks pass"
        verdicts = Counter(
            c.verdict for c in self.checks if c.kind == COVERAGE and c.ok is not None
        )
        if verdicts:
            wrong = [f"{verdicts[v]} {v}" for v in ("too wide", "too narrow") if verdicts[v]]
            passed += f"; {verdicts['ok']} of {verdicts.total()} interval types are well calibrated"
            passed += f" ({', '.join(wrong)})" if wrong else ""
        return f"{passed}."


def naming(checks: Sequence[Check], names: Collection[str]) -> list[Check]:
    """Return the checks whose names contain most of these names; all checks without any."""
    words = [re.compile(rf"(?<![a-z0-9]){re.escape(n)}(?![a-z0-9]|_\d|_pcie)") for n in names]
    counts = [sum(bool(word.search(check.name)) for word in words) for check in checks]
    most = max(counts, default=0)
    ranked = sorted(zip(counts, checks, strict=True), key=lambda one: -one[0])
    return [check for count, check in ranked if count or not words] if most or not words else []


def evidence(simulator: str) -> Evidence:
    """Return the stored checks of every package that a simulator imports."""
    module = type(load_simulator(simulator)).__module__
    own, by_group = module.split(".")[1] if module.startswith("simulators.") else "", stored()
    return Evidence(tuple(group for group in _imports(own) if group in by_group), by_group)


def named_facts(simulator: Simulator, row: Mapping[str, Any]) -> list[str]:
    """Return the catalog entries that a design uses, such as the model and the GPU."""
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


def stored() -> dict[str, list[Check]]:
    """Return the checks shipped with the package, by group."""
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    return {group: [Check(**check) for check in checks] for group, checks in found.items()}


def _imports(package: str) -> list[str]:
    """Return a package of `simulators` and all packages imported directly or indirectly."""
    found: list[str] = []
    waiting = [package] if package else []
    while waiting:
        name = waiting.pop(0)
        if name in found:
            continue
        found.append(name)
        for file in sorted((PACKAGE / name).rglob("*.py")):
            waiting += _IMPORTED.findall(file.read_text(encoding="utf-8"))
    return found
