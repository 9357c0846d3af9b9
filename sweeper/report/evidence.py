"""The evidence behind a design: stored accuracy checks, main figures, and shares of its time.

`sweeper-lab validate` writes the checks. `headlines.toml` names those of the accuracy table. The
shares say which part of a design's time is measured, fitted, transferred or from data sheets.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.core.checks import COVERAGE, ERROR, Check
from simulators.core.columns import LEVELS, SHARES
from simulators.core.contract import NamesWeakest, Simulator, StatesBasis, load_simulator
from simulators.core.fields import columns_of
from simulators.core.folder import FOLDERS, PACKAGE
from sweeper.report.answers import point_of

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
        """Return at most `most` errors of the simulator whose names contain `names`."""
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
    """Return the checks that name some of `names`, best matches first; all if `names` is empty."""
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
    return [
        folder.find(name).stem for folder, name in asked if folder and name and folder.has(name)
    ]


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


_HEADLINES = Path(__file__).with_name("headlines.toml")
HEADLINE_TITLES = ("predicted", "mean error", "rows", "baseline")

Known = Mapping[str, Sequence[Check]]
"""Checks by group."""


@dataclass(frozen=True)
class Headline:
    """One row of the accuracy table: `lines` are a label and the name of a check each."""

    group: str
    what: str
    lines: Sequence[tuple[str, str]]
    baseline: str = ""

    def found(self, known: Known) -> list[tuple[str, Check]]:
        """Return the checks that have a value, with their labels."""
        by_name = {c.name: c for c in known.get(self.group, ()) if c.value is not None}
        return [(label, by_name[name]) for label, name in self.lines if name in by_name]

    def cells(self, known: Known) -> tuple[str, str, str, str]:
        """Return the subject, our errors, the number of rows and the baseline's errors."""
        found = self.found(known)
        ours = [f"{label} {_rounded(c.value, c.unit)}".strip() for label, c in found]
        theirs = [_rounded(c.peer, c.unit) for _, c in found if c.peer is not None]
        rows = dict.fromkeys(f"{c.rows:,}" for _, c in found)
        baseline = f"{self.baseline} {', '.join(theirs)}" if theirs else "-"
        return f"{self.group}: {self.what}", ", ".join(ours) or "-", ", ".join(rows), baseline


def headlines() -> list[Headline]:
    """Return the rows of the accuracy table, the most important first."""
    with _HEADLINES.open("rb") as stream:
        return [Headline(**one) for one in tomllib.load(stream)["headlines"]]


def main_errors(simulator: str) -> str:
    """Return the main errors of a simulator as text, for designs that no check names."""
    mine = [(one.what, *one.cells(stored())[1:3]) for one in headlines() if one.group == simulator]
    if not mine:
        return "Accuracy: the errors of this simulator have not been measured."
    errors = "; ".join(f"{what}: {error} ({rows} rows)" for what, error, rows in mine)
    return f"Errors on measured rows, of all models and GPUs: {errors}. More: sweeper accuracy"


def _rounded(value: float | None, unit: str) -> str:
    """Return a value with one decimal, without decimals from 100 on.

    >>> _rounded(9.96, "%"), _rounded(100.0, "%")
    ('10.0 %', '100 %')
    """
    if value is None:
        return "-"
    return f"{value:.{0 if abs(value) >= 99.95 else 1}f} {unit}".strip()


LEAST = 0.005
"""Smallest share of the time that is printed."""
_SPOKEN = {"datasheet": "data sheet"}


def spoken(level: str) -> str:
    """Return the printed name of an evidence level."""
    return _SPOKEN.get(level, level)


def shares_of_row(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of each evidence level in a design's time; empty if not stated."""
    found = {level: row.get(share) for level, share in zip(LEVELS, SHARES, strict=True)}
    return {level: share for level, share in found.items() if share is not None}


def by_measurements(row: Mapping[str, Any]) -> float:
    """Return the share of the time from measured or fitted kernels."""
    shares = shares_of_row(row)
    return shares.get("measured", 0.0) + shares.get("fitted", 0.0)


def shares_in_words(shares: Mapping[str, float]) -> str:
    """Return the shares of at least 0.5 % as text.

    >>> shares_in_words({"measured": 0.25, "fitted": 0.748, "datasheet": 0.002})
    '25 % measured, 75 % fitted'
    """
    return ", ".join(
        f"{100 * share:.0f} % {spoken(level)}" for level, share in shares.items() if share >= LEAST
    )


def basis_in_words(simulator: Simulator, row: Mapping[str, Any]) -> str:
    """Return the age of the constants and the basis of intervals as text; may be empty."""
    if not isinstance(simulator, StatesBasis):
        return ""
    return simulator.rests_on(point_of(simulator, row))


def weakest_in_words(simulator: Simulator, row: Mapping[str, Any]) -> str:
    """Return the operator with the weakest evidence and its device as text; may be empty."""
    if not isinstance(simulator, NamesWeakest):
        return ""
    weakest = simulator.weakest(point_of(simulator, row))
    if weakest is None:
        return ""
    where = f" on {weakest.on}" if weakest.on else ""
    return f" (weakest: {weakest.name}{where})"
