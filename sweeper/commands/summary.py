"""What a person reads when a sweep has ended: the front, its knee, and what to type next."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from simulators.core.columns import schema_of
from simulators.core.contract import Direction, Notes, load_simulator
from sweeper.keys import SHOWN, Definition, keys
from sweeper.query import knee, pareto_front, unstated
from sweeper.space import DesignSpace
from sweeper.units import duration, human

_ROWS = 20


@dataclass(frozen=True)
class Answers:
    """The results of a sweep and how they came about."""

    name: str
    space: DesignSpace
    definition: Definition
    objectives: Mapping[str, Direction]
    where: str | None
    results: pl.LazyFrame
    folder: str
    removed: Mapping[str, int]
    evaluated: int
    rows: Mapping[str, int]
    seconds: float
    said: tuple[str, ...]

    @functools.cached_property
    def front(self) -> pl.DataFrame:
        """The Pareto front with the designs' keys."""
        front = pareto_front(self.results, self.objectives, where=self.where)
        return front.insert_column(0, keys(self.definition, front))

    @functools.cached_property
    def status(self) -> dict[str, int]:
        """Rows by status, over all runs."""
        counted = self.results.group_by(pl.col("status").cast(pl.String)).len().collect()
        return dict(sorted(counted.rows()))

    @functools.cached_property
    def reasons(self) -> dict[str, int]:
        """Rows that are not `ok` by the word their reason begins with."""
        word = pl.col("reason").cast(pl.String).str.split(":").list.first()
        counted = self.results.filter(pl.col("reason").is_not_null()).group_by(word).len().collect()
        return dict(sorted(counted.rows(), key=lambda row: -row[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return everything a program would want to know."""
        best = knee(self.front, self.objectives) if len(self.front) else None
        return {
            "space": self.name,
            "simulator": self.space.simulator,
            "definition": self.definition.id,
            "points": self.space.size,
            "removed": dict(self.removed),
            "rows": self.status,
            "reasons": self.reasons,
            "evaluated": self.evaluated,
            "seconds": round(self.seconds, 3),
            "engine": list(self.said),
            "objectives": dict(self.objectives),
            "where": self.where,
            "front": self.front.to_dicts(),
            "knee": None if best is None else self.front.row(best, named=True),
            "files": f"{self.folder}/*.parquet",
        }


def print_answers(answers: Answers, run_folder: Path) -> None:
    """Print the front as a table, the knee in words, and where everything is."""
    print()
    if answers.front.is_empty():
        _print_nothing(answers)
        return
    print_front(answers.front, answers.space, answers.objectives, where=answers.where)
    print(_knee_sentence(answers))
    unmoved = _settled_axes(answers)
    if unmoved:
        print(f"Same on the whole front: {unmoved}")
    print()
    status = ", ".join(f"{n:,} {word}" for word, n in answers.status.items())
    rate = answers.evaluated / max(answers.seconds, 1e-9)
    print(
        f"{sum(answers.status.values()):,} rows ({status}); {answers.evaluated:,} of them new, "
        f"in {duration(answers.seconds)}" + (f" ({rate:,.0f}/s)" if answers.evaluated else "")
    )
    for reason, count in list(answers.reasons.items())[:5]:
        print(f"  {count:,} {reason}")
    if "calibrated" in answers.front.columns and not answers.front["calibrated"].any():
        print(
            "Not all of it is calibrated: some figure behind every design comes from a data sheet, "
            "not a measurement; `explain` says which."
        )
    for note in notes_of(answers.space):
        print(note)
    print(f"Rows   {answers.folder}/*.parquet   (polars.scan_parquet reads them)")
    print(
        f"Run    {run_folder}" + ("  with front.png" if (run_folder / "front.png").exists() else "")
    )
    best = answers.front.row(knee(answers.front, answers.objectives), named=True)
    print(f"Next   python -m sweeper show {answers.name} {best['key'][:SHOWN]}")
    print(f'       python -m sweeper pareto {answers.name} --where "{_example(answers)}"')


def print_front(
    front: pl.DataFrame,
    space: DesignSpace,
    objectives: Mapping[str, Direction],
    *,
    where: str | None = None,
    rows: int = _ROWS,
) -> None:
    """Print a front: what each design chooses and what it achieves, in human units."""
    shown, marked = _thinned(front, objectives, rows)
    chosen = [
        c
        for c in (*space.varied, *space.derived)
        if c in front and c not in objectives and front[c].n_unique() > 1
    ]
    chosen = chosen or [c for c in space.varied if c in front][:6]
    units = units_of(space)
    header = ["", "design", *chosen, *objectives, "equal"]
    lines = [
        [
            "*" if i == marked else "",
            row["key"][:SHOWN],
            *(human(row[c], units.get(c, "")) for c in chosen),
            *(human(_float(row[c]), units.get(c, "")) for c in objectives),
            str(row["equivalents"]) if row["equivalents"] > 1 else "",
        ]
        for i, row in enumerate(shown.to_dicts())
    ]
    words = ", ".join(f"{n} {d}" for n, d in objectives.items())
    words += f", where {where}" if where else ""
    more = f", {len(shown)} shown" if len(shown) < len(front) else ""
    designs = "1 design" if len(front) == 1 else f"{len(front)} designs"
    print_table(f"Pareto front: {words} ({designs}{more}; * knee)", header, lines)


def print_table(title: str, header: list[str], lines: list[list[str]]) -> None:
    """Print a table; on a terminal in colour, piped as plain columns."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for name in header:
            table.add_column(
                name, justify="left" if name in ("", "design") else "right", no_wrap=True
            )
        for line in lines:
            table.add_row(*line, style="bold" if line[0] == "*" else None)
        Console().print(table)
        return
    widths = [max(len(x) for x in column) for column in zip(header, *lines, strict=True)]
    if title:
        print(title)
    for line in (header, *lines):
        print(
            "  ".join(
                x.ljust(w) if i < 2 else x.rjust(w)
                for i, (x, w) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
        )


def units_of(space: DesignSpace) -> dict[str, str]:
    """Return the unit of each axis and metric."""
    simulator = load_simulator(space.simulator)
    fields = [*schema_of(simulator.point), *schema_of(simulator.metrics)]
    return {f.name: f.metadata[b"unit"].decode() for f in fields}


def notes_of(space: DesignSpace) -> Sequence[str]:
    """Return what the simulator adds below a table of its results."""
    simulator = load_simulator(space.simulator)
    return simulator.notes(space.axes) if isinstance(simulator, Notes) else ()


def _thinned(
    front: pl.DataFrame, objectives: Mapping[str, Direction], rows: int
) -> tuple[pl.DataFrame, int]:
    """Return at most `rows` designs spread over the front, and where the knee is among them."""
    best = knee(front, objectives)
    last = len(front) - 1
    if last < rows:
        return front, best
    spread = [round(i * last / max(rows - 1, 1)) for i in range(1, rows - 1)]
    picked = sorted([*dict.fromkeys((best, 0, last, *spread[: max(rows - 3, 0)]))][:rows])
    return front[picked], picked.index(best)


def _knee_sentence(answers: Answers) -> str:
    units = units_of(answers.space)
    best = answers.front.row(knee(answers.front, answers.objectives), named=True)
    how = " ".join(f"{a}={human(best[a], units.get(a, ''))}" for a in answers.space.varied)
    what = ", ".join(f"{o} {human(_float(best[o]), units.get(o, ''))}" for o in answers.objectives)
    ties = int(answers.front["equivalents"].sum()) - len(answers.front)
    equal = f" {ties:,} further designs equal one of the front exactly." if ties else ""
    return f"Knee {best['key'][:SHOWN]}: {how} → {what}.{equal}"


def _settled_axes(answers: Answers) -> str:
    units = units_of(answers.space)
    same = [a for a in answers.space.varied if answers.front[a].n_unique() == 1]
    return ", ".join(f"{a}={human(answers.front[a][0], units.get(a, ''))}" for a in same)


def _example(answers: Answers) -> str:
    """Return a condition that makes sense for this sweep."""
    first = next(iter(answers.objectives))
    middle = float(np.median(answers.front[first].cast(pl.Float64).to_numpy()))
    sign = "<=" if answers.objectives[first] == "min" else ">="
    return f"{first} {sign} {middle:.3g}"


def _print_nothing(answers: Answers) -> None:
    feasible = answers.status.get("ok", 0)
    silent = unstated(answers.results, answers.objectives, where=answers.where)
    if silent:
        print(f"No feasible design states {', '.join(silent)}, so there is no front.")
        print("Choose `objectives` that this simulator states here; the rows show which do.")
    elif feasible:
        print(f"None of {feasible:,} feasible designs meets {answers.where}, so there is no front.")
    else:
        print("No design is feasible, so there is no front.")
    for reason, count in answers.reasons.items():
        print(f"  {count:,} {reason}")
    if not answers.status:
        for text, count in answers.removed.items():
            print(f"  {count:,} removed by {text}")
    print(f"Rows   {answers.folder}/*.parquet")


def _float(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
