"""The benchmark of predictors: list tasks and entries, score an entry, or print its rows.

sweeper-lab benchmark list
sweeper-lab benchmark rows > rows.csv       the configurations to predict, without measurements
sweeper-lab benchmark score mine.toml       beside the entries that come with the laboratory
sweeper-lab benchmark predict               this project's own entries, written anew
sweeper-lab benchmark rebuild CHECKOUTS     measured tables from public commits
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import polars as pl

from lab.benchmark import own, rebuild
from lab.benchmark.entries import read_entry, shipped_entries
from lab.benchmark.operator_tasks import READERS as OPERATOR_READERS
from lab.benchmark.protocol import (
    PROTOCOL,
    SPLITS,
    BenchmarkSubject,
    drawn,
    row_set_hash,
    rows_of,
)
from lab.benchmark.scoring import BenchmarkScore, scores
from lab.benchmark.system_tasks import READERS as SYSTEM_READERS
from lab.claims.claim import measured_tables
from lab.tables.records import warn_once
from simulators.core.errors import UserError

READERS = {**OPERATOR_READERS, **SYSTEM_READERS}
ACTIONS = ("list", "rows", "score", "predict", "rebuild")


def main(words: list[str]) -> int:
    """Run one action of the benchmark."""
    parser = argparse.ArgumentParser(
        "sweeper-lab benchmark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("names", nargs="*", help="entries or declarations; tables to rebuild")
    parser.add_argument("--task", action="append", choices=list(PROTOCOL.tasks), default=[])
    parser.add_argument("--split", choices=SPLITS, help="score one split alone")
    parser.add_argument("--reference", type=Path, help="folder of measured tables")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    asked = parser.parse_args(words)
    tasks = asked.task or list(PROTOCOL.tasks)
    if asked.action == "rebuild":
        return rebuild.main(asked.names, asked.reference)
    if asked.action == "list" and asked.reference is None:
        print(listed(tasks))
        return 0
    subjects = subjects_of(measured_tables(asked.reference), tasks)
    rows = pl.concat([rows_of(task, mine) for task, mine in subjects.items()])
    if asked.action == "predict":
        own.write(subjects)
    elif asked.action == "rows":
        sys.stdout.write(rows.drop("measured", "lower_bound").write_csv())
    elif asked.action == "list":
        print(listed(tasks, rows))
    else:
        names = list(dict.fromkeys([*asked.names, *shipped_entries()]))
        entries = [read_entry(name, subjects, rows) for name in names]
        found = list(scores(rows, entries))
        found = [one for one in found if asked.split in (None, one.split)]
        if asked.json:
            print("\n".join(json.dumps(asdict(one)) for one in found))
        else:
            print(f"row set {row_set_hash(rows)}, protocol {PROTOCOL.version}")
            print("\n".join(table_of(found)))
    return 0


def subjects_of(reference: Path, tasks: Sequence[str]) -> dict[str, list[BenchmarkSubject]]:
    """Return the scored configurations of each task whose tables exist.

    Raises UserError if no task has its tables.
    """
    found = {}
    for task in tasks:
        absent = [one for one in PROTOCOL.tasks[task].tables if not (reference / one).is_file()]
        if absent:
            warn_once(f"the task {task} is left out: there is no {absent[0]}")
        else:
            found[task] = drawn(task, READERS[task](reference))
    if not found:
        raise UserError(f"{reference} has the tables of none of {', '.join(tasks)}")
    return found


def listed(tasks: Sequence[str], rows: pl.DataFrame | None = None) -> str:
    """Return tasks, splits and entries as text, with numbers of rows and hashes if known."""
    lines = [f"protocol {PROTOCOL.version}; rows of {PROTOCOL.cut} and later are new", ""]
    for task in tasks:
        facts = PROTOCOL.tasks[task]
        lines.append(f"{task}: {facts.about}")
        lines.append(f"    {', '.join(f'{n} ({unit})' for n, unit in facts.figures.items())}")
        mine = None if rows is None else rows.filter(pl.col("task") == task)
        if mine is not None and mine.height:
            counts = ", ".join(f"{split} {mine[split].sum()}" for split in SPLITS)
            first, *_, last = sorted([*mine["date"], *mine["date"]])
            days = f"{first} to {last}"
            lines.append(f"    rows: {counts}; {days}; {row_set_hash(mine)}")
        lines.append(f"    {'; '.join(facts.source)} ({facts.licence})")
    return "\n".join([*lines, "", f"entries: {', '.join(shipped_entries())}"])


TITLES = ("entry", "rows", "median", "mean", "bias", "coverage", "width", "score", "rank", "common")


def table_of(found: Sequence[BenchmarkScore]) -> list[str]:
    """Return scores as lines of text, a table for each task, split and figure.

    An asterisk marks an entry that was fitted to rows of the split; it has no rank.
    """
    lines: list[str] = []
    places = dict.fromkeys((one.task, one.split, one.figure) for one in found)
    for place in places:
        mine = [one for one in found if (one.task, one.split, one.figure) == place]
        mine.sort(key=lambda one: (one.rank or 99, one.log_error or 99.0))
        lines += ["", f"{place[0]}, {place[2]}, {place[1]}: {mine[0].rows} rows"]
        lines.append("  " + " ".join(f"{title:>8}" for title in TITLES))
        lines += [_line(one) for one in mine]
    return lines


def _line(one: BenchmarkScore) -> str:
    def number(value: float | None, form: str = ".1f") -> str:
        return "-" if value is None else f"{value:{form}}"

    cells = [
        f"{one.answered}",
        *(number(value) for value in (one.median, one.mean, one.bias, one.coverage)),
        number(one.log_width, ".2f"),
        number(one.interval_score, ".2f"),
        "seen" if one.has_seen else ("-" if one.rank is None else str(one.rank)),
        "-" if one.common_rows is None else f"{one.common_rows}",
    ]
    name = one.entry + ("*" if one.has_seen else "")
    warning = f"  SUSPICIOUS: {one.suspicion}" if one.suspicion else ""
    return f"  {name:>16} " + " ".join(f"{cell:>8}" for cell in cells) + warning
