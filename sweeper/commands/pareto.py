"""The front of results that are there: any objectives, any condition, per group, in an instant."""

from __future__ import annotations

import sys
from pathlib import Path

from simulators.core.contract import Direction
from simulators.core.errors import UserError
from sweeper.commands.flags import at_least, flags
from sweeper.query.pareto import knee, pareto_front, unstated
from sweeper.report.answers import latest
from sweeper.report.summary import print_front
from sweeper.report.tables import as_json, write_table
from sweeper.space.sql import joined
from sweeper.store.keys import SHOWN


def main(words: list[str]) -> int:
    """Print the front."""
    parser = flags("pareto", "the Pareto front of a sweep's results")
    parser.add_argument("name", help="a space that has been run")
    parser.add_argument("--min", action="append", default=[], metavar="COLUMN")
    parser.add_argument("--max", action="append", default=[], metavar="COLUMN")
    parser.add_argument("--where", metavar="SQL")
    parser.add_argument("--every", action="store_true", help="ignore the space's own `where`")
    parser.add_argument("--per", action="append", default=[], metavar="COLUMN")
    parser.add_argument("--outputs", default="outputs")
    parser.add_argument("--rows", type=at_least(1), default=20, help="designs to print at most")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--write", metavar="FILE", help=".csv, .parquet, .md or .json")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    last = latest(chosen.name, chosen.outputs)
    asked: dict[str, Direction] = dict.fromkeys(chosen.min, "min") | dict.fromkeys(
        chosen.max, "max"
    )
    objectives = asked or last.objectives
    where = joined(None if chosen.every else last.where, chosen.where)
    front = pareto_front(last.results, objectives, where=where, per=chosen.per)
    if front.is_empty():
        if silent := unstated(last.results, objectives, where=where):
            raise UserError(
                f"no feasible design of '{chosen.name}' states {', '.join(silent)}; "
                "choose other objectives by --min and --max"
            )
        raise UserError(
            f"no feasible design of '{chosen.name}'" + (f" meets {where}" if where else "")
        )
    front = last.named(front)
    for file in filter(None, (chosen.csv, chosen.write)):
        write_table(front, Path(file))
        print(f"{len(front)} designs written to {file}", file=sys.stderr)
    if chosen.json:
        print(as_json(front))
        return 0
    groups = front.partition_by(chosen.per, maintain_order=True) if chosen.per else [front]
    for group in groups:
        if chosen.per:
            print(", ".join(f"{c}={group[c][0]}" for c in chosen.per))
        print_front(group, last, objectives, where=where, rows=chosen.rows)
        print(f"Knee {group['key'][knee(group, objectives)][:SHOWN]}\n")
    return 0
