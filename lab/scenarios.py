"""Scenarios: questions that practitioners ask, and the bands in which plausible answers lie.

    sweeper-lab scenarios                   all scenarios
    sweeper-lab scenarios T1.1 I2.4 --json  some of them

A scenario is a space file with one more key, `scenario:`. `cases` select single rows of the
results, `targets` are SQL over the columns `CASE_COLUMN` of these rows. A band is a sanity interval
with a basis and a reason, no accuracy target; a figure outside it needs an explanation (`miss`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from simulators.core.errors import UserError, suggestion, unknown
from sweeper.report.evidence import by_measurements, shares_of_row
from sweeper.report.tables import print_table, print_words
from sweeper.space.design_space import DesignSpace, space_of
from sweeper.space.shipped_files import scenarios as scenario_files
from sweeper.space.space_file import about, read_space
from sweeper.space.sql import computed, condition, names_in, parsed
from sweeper.sweep import Sweep
from sweeper.text import digits
from sweeper.typed import MistypedError, typed

REFERENCE = "reference:"
"""Prefix of a file of the measured tables, which are not shipped."""
SETS = {"survey": " of the survey", "today": " of today"}
BASIS = "^(measured(-nearby|-trace)?|derived|published(-formula)?|claimed|survey-simulated)$"


class ScenarioCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the results: the unique row with `where`, or the extreme of a column."""

    of: str = ""  # a space under `beside`; empty: the file's own
    where: str | None = None
    max: str | None = None
    min: str | None = None

    def row(self, name: str, results: pl.DataFrame) -> dict[str, Any]:
        """Return the row by column. Raises UserError unless exactly one meets the condition."""
        what = f"case '{name}'" if name else "the scenario"
        found = results.filter(condition(self.where, results.schema)) if self.where else results
        found = found.filter(pl.col("status") == "ok")
        if found.is_empty():
            reasons = results["reason"].drop_nulls().unique().sort().to_list()
            raise UserError(f"{what} has no answer{': ' if reasons else ''}{'; '.join(reasons)}")
        if by := self.max or self.min:
            found = found.sort(by, descending=self.max is not None, nulls_last=True).head(1)
        if len(found) > 1:
            raise UserError(f"{what} is one row, and {len(found)} meet its condition")
        return found.to_dicts()[0]


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure of a scenario.

    `error` names a column with an interval to which the figure is proportional, or `1/COLUMN`.
    """

    sql: str | float
    band: tuple[float, float] | None = None
    basis: Annotated[str, msgspec.Meta(pattern=BASIS)] | None = None
    why: str = ""
    unit: str = ""
    error: str = ""
    miss: str = ""


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `scenario:`."""

    targets: dict[str, Target] = {}
    id: str = ""
    set: str = "own"
    beside: dict[str, dict[str, Any]] = {}
    cases: dict[str, str | ScenarioCase] = {}
    missing: str = ""  # what is lacking to answer it


@dataclass(frozen=True)
class Figure:
    """The value of a target, and its 90 % interval where one is stated."""

    name: str
    target: Target
    value: float
    interval: tuple[float, float] | None = None

    @property
    def in_band(self) -> bool:
        """Whether the value is plausible; true without a band."""
        band = self.target.band
        return band is None or band[0] <= self.value <= band[1]

    @property
    def basis(self) -> str:
        """Evidence for the band."""
        target = self.target
        return f"{target.basis}: {target.why}" if target.band else "no evidence for a band"

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Name with unit, value, interval and band, as text."""
        name = f"{self.name} {self.target.unit}".rstrip()
        return name, digits(self.value), _span(self.interval), _span(self.target.band)


@dataclass(frozen=True)
class Outcome:
    """The answer to a scenario: its figures, or the reason why there are none."""

    scenario: Scenario
    figures: tuple[Figure, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    reason: str = ""

    @property
    def supported(self) -> bool:
        """Whether the simulators answer the scenario."""
        return not self.reason

    @property
    def in_band(self) -> bool:
        """Whether every figure is plausible."""
        return self.supported and all(figure.in_band for figure in self.figures)

    @property
    def is_judged(self) -> bool:
        """Whether a figure has a band, or there is no answer."""
        return not self.supported or any(figure.target.band for figure in self.figures)

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if not self.supported:
            return "not supported"
        if not self.is_judged:
            return "answered"
        return "in band" if self.in_band else "outside of its band"

    @property
    def misses(self) -> list[str]:
        """A sentence for each thing that is not supported or not plausible."""
        if not self.supported:
            return [f"is not supported: {self.reason}"]
        return [
            f"{f.name} lies outside of its band ({f.basis})"
            + (f". {f.target.miss}" if f.target.miss else "")
            for f in self.figures
            if not f.in_band
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        metrics = {
            f.name: {"value": f.value, "interval": f.interval, "in_band": f.in_band}
            | {name: getattr(f.target, name) for name in ("unit", "band", "basis", "why", "miss")}
            for f in self.figures
        }
        return {
            **{name: getattr(self.scenario, name) for name in ("id", "name", "title", "set")},
            **{"supported": self.supported, "reason": self.reason or None, "metrics": metrics},
            "in_band": self.in_band if self.is_judged else None,
            "shares": shares_of_row(self.rows[0]) if self.rows else {},
        }


class Scenario(Written, frozen=True, kw_only=True):
    """A file of `spaces/scenarios/`, with the spaces of its cases."""

    name: str
    title: str
    spaces: dict[str, DesignSpace]
    cases: dict[str, ScenarioCase]  # type: ignore[assignment]  # conditions are cases

    def answer(self, outputs: Path) -> Outcome:
        """Evaluate the points without an answer, in this process, and return the figures."""
        if self.missing:
            return Outcome(self, reason=self.missing)
        try:
            tables = {}
            for name, space in self.spaces.items():
                folder = str(outputs / self.name / (name or "own"))
                tables[name] = Sweep.of(space, engine="inline", outputs=folder).run().collect()
            rows = {n: case.row(n, tables[case.of]) for n, case in self.cases.items()}
            named = {
                f"{case}_{column}" if case else column: value
                for case, row in rows.items()
                for column, value in row.items()
            }
            table = pl.DataFrame([named], infer_schema_length=None)
            figures = tuple(_figure(n, target, table) for n, target in self.targets.items())
        except UserError as error:
            return Outcome(self, reason=" ".join(str(error).split()))
        return Outcome(self, figures, tuple(rows.values()))


def read_scenario(file: Path) -> Scenario:
    """Return the scenario of a file. Raises UserError if it is no valid scenario."""
    space = read_space(file)
    if not space.get("scenario"):
        raise UserError(f"{file} is no scenario: it has no `scenario:`")
    try:
        written = typed(space.pop("scenario"), Written)
    except MistypedError as error:
        raise UserError(f"{file}: `scenario:` {error}") from error
    for name, target in written.targets.items():
        what = f"{file}: target '{name}'"
        if target.band and not (target.why and target.basis):
            raise UserError(f"{what} has a band, so it needs `basis:` and `why:`")
        if target.band and target.band[0] > target.band[1]:
            raise UserError(f"{what}: `band` is two numbers, the lower first")
    lacking: list[str] = []
    placed = ({"": space} if "simulator" in space else {}) | written.beside
    placed = {name: _with_tables(one, lacking) for name, one in placed.items()}
    cases = {
        n: ScenarioCase(where=c) if isinstance(c, str) else c for n, c in written.cases.items()
    }
    for case in cases.values():
        if case.of not in placed:
            message = f"{file}: there is no space '{case.of}' beside"
            raise unknown(message, case.of, list(placed))
    fields = msgspec.structs.asdict(written) | {
        "id": written.id or file.stem,
        "cases": cases or {"": ScenarioCase()},
        "missing": "; ".join(dict.fromkeys(lacking)) or written.missing,
    }
    spaces = {} if lacking else {name: space_of(one) for name, one in placed.items()}
    return Scenario(name=file.stem, title=about(file), spaces=spaces, **fields)


def _with_tables(value: Any, lacking: list[str]) -> Any:
    """Replace `reference:FILE` by the path of the table; add missing tables to `lacking`."""
    if isinstance(value, Mapping):
        return {key: _with_tables(one, lacking) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_tables(one, lacking) for one in value]
    if not isinstance(value, str) or not value.startswith(REFERENCE):
        return value
    folder, name = os.environ.get("SWEEPER_REFERENCE", ""), value.removeprefix(REFERENCE)
    file = Path(folder, name)
    if not folder or not file.is_file():
        lacking.append(f"{name} is not here; $SWEEPER_REFERENCE names the folder of such tables")
    return str(file.resolve())


def _figure(name: str, target: Target, table: pl.DataFrame) -> Figure:
    def value_of(sql: str) -> float | None:
        what = f"target '{name}'"
        for column in names_in(sql, what):
            if column not in table.columns:
                near = suggestion(column, table.columns)
                raise UserError(f"{what}: there is no column '{column}'{near}; write CASE_COLUMN")
        with computed(what):
            found = table.select(parsed(sql, what).cast(pl.Float64)).item()
        return None if found is None else float(found)

    value = value_of(str(target.sql))
    if value is None:
        raise UserError(f"target '{name}' has no value here")
    if not target.error:
        return Figure(name, target, value)
    column = target.error.removeprefix("1/")
    middle, low, high = (value_of(f"{column}{end}") for end in ("", "_lo", "_hi"))
    if not (middle and low and high):
        return Figure(name, target, value)
    ends = (middle / high, middle / low) if "/" in target.error else (low / middle, high / middle)
    return Figure(name, target, value, (value * ends[0], value * ends[1]))


def shipped() -> list[Scenario]:
    """Return all shipped scenarios by set and number."""

    def place(one: Scenario) -> tuple[Any, ...]:
        numbers = tuple(map(int, re.findall(r"\d+", one.id)))
        return one.set != "survey", not one.id.startswith("T"), one.id[:1], numbers

    return sorted(map(read_scenario, scenario_files().values()), key=place)


def in_short(outcomes: Sequence[Outcome]) -> str:
    """Return how many scenarios of each set are supported and plausible."""
    said = []
    for name in dict.fromkeys(outcome.scenario.set for outcome in outcomes):
        mine = [o for o in outcomes if o.scenario.set == name]
        count = f"{sum(o.supported for o in mine)} of {len(mine)} scenarios{SETS.get(name, '')}"
        figures = [f for o in mine for f in o.figures if f.target.band]
        judged = [o for o in mine if o.is_judged]
        of = "" if len(judged) == len(mine) else f" of {len(judged)}"
        bands = (
            f", {sum(o.in_band for o in judged)}{of} in band: "
            f"{sum(f.in_band for f in figures)} of {len(figures)} figures."
        )
        said.append(f"{count} are supported{bands if figures else '; no band has evidence.'}")
    return " ".join(said)


def _print_outcomes(outcomes: Sequence[Outcome]) -> None:
    for o in outcomes:
        sure = [by_measurements(row) for row in o.rows]
        share = f" · {min(sure):.0%} by measurements" if sure else ""
        print_words(f"{o.scenario.id} {o.scenario.title} · {o.verdict}{share}")
        lines = [["" if f.in_band else "!", *f.cells] for f in o.figures]
        if lines:
            print_table("", ["", "figure", "value", "90 %", "plausible"], lines)
    print()
    for o in outcomes:
        for said in o.misses:
            print_words(f"{o.scenario.id} {said}")
    print_words(in_short(outcomes))


def main(words: Sequence[str] | None = None) -> int:
    """Answer scenarios and print them."""
    parser = argparse.ArgumentParser(prog="sweeper-lab scenarios", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ID", help="as in T1.1; a file; all if none")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/scenarios"))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    outcomes = [one.answer(chosen.outputs) for one in find(chosen.names)]
    if chosen.json:
        print(json.dumps([outcome.to_dict() for outcome in outcomes], indent=1))
    else:
        _print_outcomes(outcomes)
    return 0


def find(names: Sequence[str]) -> list[Scenario]:
    """Return scenarios by number, name or file; all shipped ones without names."""
    if not names:
        return shipped()
    files = [name for name in names if name.endswith((".yaml", ".yml"))]
    found = {name.lower(): read_scenario(Path(name)) for name in files}
    if len(files) < len(names):
        found |= {key: one for one in shipped() for key in (one.id.lower(), one.name)}
    for name in names:
        if name.lower() not in found:
            raise unknown(f"there is no scenario '{name}'", name, list(found), "Scenarios")
    return [found[name.lower()] for name in names]


def _span(ends: tuple[float, float] | None) -> str:
    return f"{digits(ends[0])} to {digits(ends[1])}" if ends else "-"
