"""The summary of a finished sweep: the front, its knee, and the next commands."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from simulators.core.contract import Explains
from sweeper.query.pareto import knee, unstated
from sweeper.report.answers import Answers, real
from sweeper.report.evidence import shares_in_words, shares_of_row, weakest_in_words
from sweeper.report.run_folder import is_demoted
from sweeper.report.tables import print_table, print_words
from sweeper.space.design_space import Objectives
from sweeper.store.keys import SHOWN
from sweeper.text import counted, duration, human

_ROWS, _REASONS = 20, 5
_INDENT = " " * 7  # width of the first word of the last lines


@dataclass(frozen=True)
class Ended:
    """Results and run statistics of a finished sweep."""

    answers: Answers  # including earlier runs
    evaluated: int  # new rows
    failed: int  # new rows with status error, timeout or crash
    seconds: float
    said: tuple[str, ...]  # lines printed by the engine

    @property
    def is_feasible(self) -> bool:
        """Whether some design is feasible."""
        return self.answers.status.get("ok", 0) > 0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-compatible values."""
        found = self.answers
        return {
            "space": found.name,
            "simulator": found.space.simulator,
            "definition": found.store.definition.id,
            "points": found.space.size,
            "removed": dict(found.space.removed()),
            "rows": found.status,
            "reasons": found.reasons,
            "evaluated": self.evaluated,
            "seconds": round(self.seconds, 3),
            "engine": list(self.said),
            "objectives": dict(found.objectives),
            "where": found.where,
            "given": list(found.given),
            "front": found.front.to_dicts(),
            "knee": found.usual.best if len(found.front) else None,
            "knees": found.knees.to_dicts() if found.given else [],
            "files": f"{found.store.results}/*.parquet",
        }


def print_ended(ended: Ended) -> None:
    """Print the front, the knee, statistics, files and the next commands."""
    found = ended.answers
    print()
    if found.front.is_empty():
        _print_nothing(found)
        return
    if found.given:
        print_knees(found)
    else:
        print_front(found.front, found, found.objectives, where=found.where)
        print_words(_knee_sentence(found))
    print()
    status = ", ".join(f"{n:,} {word}" for word, n in found.status.items())
    rows = counted(sum(found.status.values()), "row")
    rate = human(ended.evaluated / max(ended.seconds, 1e-9), "1/s")
    print_words(
        f"{rows} ({status}); {ended.evaluated:,} simulated in "
        f"{duration(ended.seconds)}" + (f" ({rate})" if ended.evaluated else "")
    )
    _print_reasons(found)
    if evidence := _evidence_sentence(found.usual):
        print_words(evidence)
    if silent := [n for n in found.wanted if n not in found.objectives]:
        print_words(
            f"No design has a value for {', '.join(silent)}; the front uses the other objectives."
        )
    for note in found.notes:
        print_words(note)
    print_words(
        f"Rows   {found.store.results}/*.parquet   (read with polars.scan_parquet)", _INDENT
    )
    picture = "  with front.png" if (found.folder / "front.png").exists() else ""
    print(f"Run    {found.folder}{picture}")
    where = elsewhere(found.folder.parents[2])
    if found.given:
        print(f"Next   python -m sweeper pareto {found.name} --at {at_example(found)}{where}")
        words = f"{found.name} --across{where}   # one design for all scenarios"
        print(f"       python -m sweeper pareto {words}")
        return
    print(f"Next   python -m sweeper show {found.name} {found.best['key'][:SHOWN]}{where}")
    print(f'       python -m sweeper pareto {found.name} --where "{_example(found)}"{where}')


def elsewhere(outputs: Path | str) -> str:
    """Return the flag `--outputs` for results that are not in the default folder.

    >>> elsewhere("outputs"), elsewhere("/data/sweeps")
    ('', ' --outputs /data/sweeps')
    """
    return "" if str(outputs) == "outputs" else f" --outputs {shlex.quote(str(outputs))}"


def at_example(found: Answers) -> str:
    """Return the default scenario as the value of `--at`, as in `qps=4,model=gpt2`."""
    return ",".join(
        f"{n}={v:g}" if isinstance(v, float) else f"{n}={v}"
        for n, v in found.usual.scenario.items()
    )


def print_knees(answers: Answers, *, rows: int = _ROWS) -> None:
    """Print the knee of each scenario's front: scenario, design choices and objectives."""
    knees = answers.knees
    shown = knees[_spread(len(knees), 0, rows)]
    chosen = [
        c
        for c in (*answers.space.varied, *answers.space.derived)
        if c not in answers.given and c in knees and c not in answers.objectives
    ]
    columns = [*answers.given, *chosen, *answers.objectives]
    lines = [
        [
            "",
            row["key"][:SHOWN],
            *(answers.scaled(c, row[c]) for c in columns),
            f"{row['designs']:,}",
        ]
        for row in shown.to_dicts()
    ]
    words = ", ".join(f"{n} {d}" for n, d in answers.objectives.items())
    words += f", where {answers.where}" if answers.where else ""
    more = f", {len(shown)} shown" if len(shown) < len(knees) else ""
    without = len(answers.scenarios) - len(knees)
    print_table(
        f"Best compromise (knee of the Pareto front) per scenario: {words} "
        f"({counted(len(knees), 'scenario')}{more})",
        ["", "design", *columns, "front"],
        lines,
        differing=True,
    )
    if without:
        print(f"{without:,} further scenarios have no qualifying design.")


def print_front(
    front: pl.DataFrame,
    answers: Answers,
    objectives: Objectives,
    *,
    where: str | None = None,
    rows: int = _ROWS,
) -> None:
    """Print a front: design choices and objectives with units."""
    space, best = answers.space, knee(front, objectives)
    places = _spread(len(front), best, rows)
    shown = front[places]
    chosen = [
        c
        for c in (*space.varied, *space.derived)
        if c in front and c not in objectives and c not in answers.given
    ]
    header = ["", "design", *chosen, *objectives, "identical designs"]
    lines = [
        [
            "*" if place == best else "",
            row["key"][:SHOWN],
            *(answers.human(c, row[c]) for c in chosen),
            *(answers.human(c, real(row[c])) for c in objectives),
            f"+{row['equivalents'] - 1}" if row["equivalents"] > 1 else "",
        ]
        for place, row in zip(places, shown.to_dicts(), strict=True)
    ]
    words = ", ".join(f"{n} {d}" for n, d in objectives.items())
    words += f", where {where}" if where else ""
    more = f", {len(shown)} shown" if len(shown) < len(front) else ""
    print_table(
        f"Pareto front: {words} ({counted(len(front), 'design')}{more}; * knee)",
        header,
        lines,
        differing=True,
    )


def _spread(count: int, best: int, rows: int) -> list[int]:
    """Return at most `rows` of `count` indices, spread evenly, including `best`."""
    last = count - 1
    if last < rows:
        return list(range(count))
    spread = [round(i * last / max(rows - 1, 1)) for i in range(1, rows - 1)]
    return sorted([*dict.fromkeys((best, 0, last, *spread[: max(rows - 3, 0)]))][:rows])


def _knee_sentence(found: Answers) -> str:
    best = found.best
    how = " ".join(found.choices(best))
    what = ", ".join(f"{o} {found.scaled(o, best[o])}" for o in found.objectives)
    ties = int(best["equivalents"]) - 1
    verb = "performs" if ties == 1 else "perform"
    equal = f" {counted(ties, 'other design')} {verb} identically." if ties else ""
    return f"Knee {best['key'][:SHOWN]}: {how} → {what}.{equal}"


def _evidence_sentence(found: Answers) -> str:
    said = shares_in_words(shares_of_row(found.best))
    if not said:
        return ""
    weakest = weakest_in_words(found.simulator, found.best)
    more = " Details: `explain`." if isinstance(found.simulator, Explains) else ""
    return f"Knee's time by evidence: {said}{weakest}.{more}"


def _example(found: Answers) -> str:
    """Return an example of a condition: the median of the first objective on the front."""
    first, direction = next(iter(found.objectives.items()))
    middle = float(np.median(found.front[first].cast(pl.Float64).to_numpy()))
    return f"{first} {'<=' if direction == 'min' else '>='} {middle:.3g}"


def _print_reasons(found: Answers) -> None:
    said = found.reasons_in_words
    for sentence in said[:_REASONS]:
        print_words(f"  {sentence}", "    ")
    if left := list(found.reasons.values())[_REASONS:]:
        print_words(f"  {sum(left):,} points: {len(left)} further reasons.", "    ")


def _print_nothing(found: Answers) -> None:
    if silent := unstated(found.results, found.objectives, where=found.where):
        print(f"No feasible design has a value for {', '.join(silent)}, so there is no front.")
        print("Choose other `objectives`: columns that have values in the rows below.")
    elif feasible := found.status.get("ok", 0):
        print(
            f"No design of {feasible:,} feasible designs meets {found.where}, so there is no front."
        )
    else:
        print("No design is feasible, so there is no front.")
        if is_demoted(found.folder):
            print("This run does not replace the last run with results.")
    _print_reasons(found)
    if not found.status:
        for line in found.space.counts.in_words:
            print(f"  {line}")
    print(f"Rows   {found.store.results}/*.parquet")
