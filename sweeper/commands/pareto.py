"""The front of results that are there: any objectives, any condition, per group, in an instant.

Each scenario has its own: where axes are given, a front is of designs for one of their values.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulators.core.contract import Direction
from simulators.core.errors import UserError
from sweeper.commands.flags import at_least, results_flags
from sweeper.commands.opened import add_scenarios, opened
from sweeper.query.pareto import knee, pareto_front, unstated
from sweeper.report.summary import at_example, print_front, print_knees
from sweeper.report.tables import as_json, print_words, write_table
from sweeper.space.sql import joined
from sweeper.store.keys import SHOWN


def main(words: list[str]) -> int:
    """Print the front."""
    parser = results_flags("pareto", "the Pareto front of a sweep's results")
    parser.add_argument("--min", action="append", default=[], metavar="COLUMN")
    parser.add_argument("--max", action="append", default=[], metavar="COLUMN")
    parser.add_argument("--where", metavar="SQL")
    parser.add_argument("--every", action="store_true", help="ignore the space's own `where`")
    parser.add_argument("--per", action="append", default=[], metavar="COLUMN")
    add_scenarios(parser)
    parser.add_argument("--rows", type=at_least(1), default=20, help="designs to print at most")
    parser.add_argument("--csv", metavar="FILE", help=argparse.SUPPRESS)  # as --write
    parser.add_argument("--write", metavar="FILE", help=".csv, .parquet, .md or .json")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    last = opened(chosen)
    asked: dict[str, Direction] = dict.fromkeys(chosen.min, "min") | dict.fromkeys(
        chosen.max, "max"
    )
    where = joined(None if chosen.every else last.where, chosen.where)
    last = last.asking(asked or last.objectives, where)
    objectives = last.wanted
    if chosen.across:
        last = last.across(chosen.across)
    per = list(dict.fromkeys([*last.given, *chosen.per]))
    front = pareto_front(last.results, objectives, where=last.where, per=per)
    if front.is_empty():
        if silent := unstated(last.results, objectives, where=where):
            raise UserError(
                f"no feasible design of '{chosen.name}' states {', '.join(silent)}; "
                "choose other objectives by --min and --max"
            )
        raise UserError(
            f"no feasible design of '{chosen.name}'"
            + (f" meets {where}" if where else "")
            + (" in every scenario" if last.how else "")
        )
    front = last.named(front)
    for file in filter(None, (chosen.csv, chosen.write)):
        write_table(front, Path(file))
        print(f"{len(front)} designs written to {file}", file=sys.stderr)
    if chosen.json:
        print(as_json(front))
        return 0
    if last.asked:
        print(f"For {last.asked}")
    if chosen.prices:
        for note in last.notes:
            print_words(note)
    groups = front.partition_by(per, maintain_order=True) if per else [front]
    if not chosen.per and len(groups) > 1 and len(front) > chosen.rows:
        print_knees(last, rows=chosen.rows)
        print_words(
            f"The front of one: --at {at_example(last)}; one design for all of them: --across"
        )
        return 0
    for group in groups:
        if per:
            print_words(", ".join(f"{c}={last.human(c, group[c][0])}" for c in per))
        print_front(group, last, objectives, where=where, rows=chosen.rows)
        print(f"Knee {group['key'][knee(group, objectives)][:SHOWN]}\n")
    return 0
