"""A scenario: a space with the few points that a question needs, and what its answer should be.

Its file is a space with one more key, `scenario:`. There, `cases` name single rows of the results,
`targets` are SQL over the columns of these rows, and each has a band in which a plausible answer
lies: a sanity interval with its basis and its reason, no accuracy target.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import polars as pl

from simulators.core.errors import UserError, suggestion, unknown
from sweeper.space.design_space import DesignSpace, space_of
from sweeper.space.factors import mapping
from sweeper.space.space_file import about, read_space
from sweeper.space.sql import computed, condition, names_in, parsed
from sweeper.space.written import Space
from sweeper.sweep import Sweep
from sweeper.typed import MistypedError, typed

BASES = (
    "measured",
    "measured-nearby",
    "measured-trace",
    "derived",
    "published",
    "published-formula",
    "claimed",
    "survey-simulated",
)
"""What a band may rest on, the strongest first."""


class Written(TypedDict, total=False):
    """What stands under `scenario:`."""

    id: str
    set: str
    beside: dict[str, Space]
    cases: dict[str, str | dict[str, str]]
    targets: dict[str, dict[str, Any]]
    missing: str


REFERENCE = "reference:"
"""Before a file of the measured tables, which are not shipped."""
KEYS = tuple(Written.__annotations__)
_ID = re.compile(r"(\D+)(\d+)\.(\d+)")


@dataclass(frozen=True)
class Case:
    """One row of the results: the only one that meets a condition, or the extreme among them."""

    name: str
    of: str = ""  # a space beside, by name; empty: the file's own
    where: str | None = None
    max: str | None = None
    min: str | None = None

    def row(self, results: pl.DataFrame) -> dict[str, Any]:
        """Return it, its columns by name."""
        said = f"case '{self.name}'" if self.name else "the scenario"
        found = results.filter(condition(self.where, results.schema)) if self.where else results
        found = found.filter(pl.col("status") == "ok")
        if found.is_empty():
            reasons = results["reason"].drop_nulls().unique().sort().to_list()
            raise UserError(f"{said} has no answer{': ' if reasons else ''}{'; '.join(reasons)}")
        by = self.max or self.min
        if by:
            found = found.sort(by, descending=self.max is not None, nulls_last=True).head(1)
        if len(found) > 1:
            raise UserError(f"{said} is one row, and {len(found)} meet its condition")
        return found.to_dicts()[0]


@dataclass(frozen=True)
class Target:
    """A figure that a scenario asks for.

    Args:
        name: what it is called.
        sql: an expression over the columns of the scenario's cases, `CASE_COLUMN`.
        band: between what it plausibly lies, in its unit; None where no evidence says.
        basis: what the band rests on, one of `BASES`; needed with a band, as is the next.
        why: the reason for the band.
        unit: of the figure.
        error: a column with an interval to which the figure is proportional, or `1/COLUMN`;
            empty where none is stated, as of ratios in which errors cancel.
        miss: why it lies outside of its band, where it does.
    """

    name: str
    sql: str
    band: tuple[float, float] | None = None
    basis: str = ""
    why: str = ""
    unit: str = ""
    error: str = ""
    miss: str = ""


@dataclass(frozen=True)
class Figure:
    """What a target came to, and its 90 % interval where one is stated."""

    target: Target
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def in_band(self) -> bool:
        """Say whether it is plausible, as far as evidence says."""
        band = self.target.band
        return band is None or band[0] <= self.value <= band[1]


@dataclass(frozen=True)
class Outcome:
    """The answer to a scenario: its figures, or the reason why there are none."""

    scenario: Scenario
    figures: tuple[Figure, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    reason: str = ""

    @property
    def supported(self) -> bool:
        """Say whether the simulators answer it at all."""
        return not self.reason

    @property
    def in_band(self) -> bool:
        """Say whether every figure is plausible."""
        return self.supported and all(figure.in_band for figure in self.figures)

    @property
    def is_judged(self) -> bool:
        """Say whether any figure has a band, or there is no answer to judge."""
        return not self.supported or any(figure.target.band for figure in self.figures)


@dataclass(frozen=True)
class Scenario:
    """What a file of `spaces/scenarios/` asks."""

    name: str
    id: str
    title: str
    set: str
    spaces: Mapping[str, DesignSpace]
    targets: tuple[Target, ...]
    cases: tuple[Case, ...]
    missing: str = ""  # what simulators lack to answer it

    def answer(self, outputs: Path) -> Outcome:
        """Evaluate what is not answered yet, in this process, and return the figures."""
        if self.missing:
            return Outcome(self, reason=self.missing)
        try:
            tables = {
                name: Sweep.of(
                    space, engine="inline", outputs=str(outputs / self.name / (name or "own"))
                )
                .run()
                .collect()
                for name, space in self.spaces.items()
            }
            rows = {case.name: case.row(tables[case.of]) for case in self.cases}
            table = pl.DataFrame([_named(rows)], infer_schema_length=None)
            figures = tuple(_figure(target, table) for target in self.targets)
        except UserError as error:
            return Outcome(self, reason=" ".join(str(error).split()))
        return Outcome(self, figures, tuple(rows.values()))


Made = TypeVar("Made", Case, Target)


def read_scenario(file: Path) -> Scenario:
    """Return the scenario of a file."""
    written = read_space(file)
    said = mapping(written, "scenario")
    if not said:
        raise UserError(f"{file} is no scenario: it has no `scenario:`")
    try:
        return _scenario(written, said, file)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _scenario(written: Mapping[str, Any], said: Mapping[str, Any], file: Path) -> Scenario:
    for key in said:
        if key not in KEYS:
            raise unknown(f"a scenario has no key '{key}'", key, KEYS)
    try:
        typed(said, Written)
    except MistypedError as error:
        raise UserError(f"`scenario:` {error}") from error
    lacking: list[str] = []
    own = _placed({key: value for key, value in written.items() if key != "scenario"}, lacking)
    beside = _placed(mapping(said, "beside"), lacking)
    described = ({"": own} if "simulator" in own else {}) | beside
    cases = [_case(name, one) for name, one in mapping(said, "cases").items()]
    for case in cases:
        if case.of not in described:
            raise unknown(f"there is no space '{case.of}' beside", case.of, list(described))
    return Scenario(
        name=file.stem,
        id=str(said.get("id", file.stem)),
        title=about(file),
        set=str(said.get("set", "own")),
        spaces={} if lacking else {name: space_of(one) for name, one in described.items()},
        targets=tuple(_target(name, one) for name, one in mapping(said, "targets").items()),
        cases=tuple(cases) or (Case(""),),
        missing="; ".join(dict.fromkeys(lacking)) or str(said.get("missing", "")),
    )


def _placed(value: Any, lacking: list[str]) -> Any:
    """Return what is written with the files of measured tables in place of `reference:FILE`.

    Those that are not here are added to what is lacking.
    """
    if isinstance(value, Mapping):
        return {key: _placed(one, lacking) for key, one in value.items()}
    if isinstance(value, list):
        return [_placed(one, lacking) for one in value]
    if not isinstance(value, str) or not value.startswith(REFERENCE):
        return value
    folder, name = os.environ.get("SWEEPER_REFERENCE", ""), value.removeprefix(REFERENCE)
    file = Path(folder, name)
    if not folder or not file.is_file():
        lacking.append(f"{name} is not here; $SWEEPER_REFERENCE names the folder of such tables")
    return str(file.resolve())


def in_order(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Return scenarios in the order of their sets and numbers."""

    def place(one: Scenario) -> tuple[Any, ...]:
        found = _ID.fullmatch(one.id)
        parts = (found[1], int(found[2]), int(found[3])) if found else (one.id, 0, 0)
        return (one.set != "survey", not one.id.startswith("T"), *parts)

    return sorted(scenarios, key=place)


def _case(name: str, written: Any) -> Case:
    """Return a case, written as a condition or as a mapping."""
    said = {"where": written} if isinstance(written, str) else written
    return _made(Case, {"name": name, **dict(said or {})}, f"case '{name}'")


def _target(name: str, written: Any) -> Target:
    what = f"target '{name}'"
    target = _made(Target, {"name": name, **dict(written)}, what)
    if target.band is None:
        return dataclasses.replace(target, sql=str(target.sql))
    if not target.why:
        raise UserError(f"{what} has a band, so it needs `why:`")
    if target.basis not in BASES:
        raise unknown(f"{what} rests on '{target.basis}'", target.basis, BASES)
    try:
        low, high = map(float, target.band)
    except (TypeError, ValueError):
        low, high = 1.0, 0.0
    if not low <= high:
        raise UserError(f"{what}: `band` is two numbers, the lower first, not {target.band}")
    return dataclasses.replace(target, band=(low, high), sql=str(target.sql))


def _made(kind: type[Made], written: Mapping[str, Any], what: str) -> Made:
    """Return a record of what is written, or say which of its keys is strange or missing."""
    fields = {f.name: f.default for f in dataclasses.fields(kind)}
    for key in written:
        if key not in fields:
            raise unknown(f"{what} has no key '{key}'", key, list(fields))
    for key, default in fields.items():
        if default is dataclasses.MISSING and key not in written:
            raise UserError(f"{what} needs `{key}:`")
    return kind(**written)


def _named(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of all cases, each with its case before it."""
    return {
        f"{case}_{column}" if case else column: value
        for case, row in rows.items()
        for column, value in row.items()
    }


def _figure(target: Target, table: pl.DataFrame) -> Figure:
    """Return what a target comes to."""
    value = _value(target.sql, table, target.name)
    if value is None:
        raise UserError(f"target '{target.name}' has no value here")
    if not target.error:
        return Figure(target, value)
    column = target.error.removeprefix("1/")
    middle, low, high = (_value(f"{column}{end}", table, target.name) for end in ("", "_lo", "_hi"))
    if not (middle and low and high):
        return Figure(target, value)
    ends = (middle / high, middle / low) if "/" in target.error else (low / middle, high / middle)
    return Figure(target, value, value * ends[0], value * ends[1])


def _value(sql: str, table: pl.DataFrame, name: str) -> float | None:
    what = f"target '{name}'"
    for column in names_in(sql, what):
        if column not in table.columns:
            near = suggestion(column, table.columns)
            raise UserError(f"{what}: there is no column '{column}'{near}; write CASE_COLUMN")
    with computed(what):
        found = table.select(parsed(sql, what).cast(pl.Float64)).item()
    return None if found is None else float(found)
