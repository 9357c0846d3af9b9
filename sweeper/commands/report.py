"""One HTML page of a sweep that opens anywhere: the answer, the front, and what lies behind it."""

from __future__ import annotations

import json
from pathlib import Path

from simulators.core.errors import UserError
from sweeper import places
from sweeper.commands.flags import at_least, flags
from sweeper.commands.record import Answered, latest
from sweeper.commands.spaces import about
from sweeper.commands.written import write_text
from sweeper.evidence import evidence
from sweeper.keys import keys
from sweeper.query import pareto_front
from sweeper.report import MOST, page
from sweeper.report.content import Content


def main(words: list[str]) -> int:
    """Write the page."""
    parser = flags("report", "one self-contained HTML page of a sweep's results")
    parser.add_argument("name", help="a space that has been run")
    parser.add_argument("--outputs", default="outputs")
    parser.add_argument("--file", metavar="FILE", help="default: report.html beside the run")
    parser.add_argument(
        "--rows", type=at_least(1), default=MOST, help="rows the page carries at most"
    )
    parser.add_argument(
        "--band",
        type=float,
        default=0.1,
        help="half the 90 %% interval of an objective whose simulator states none (0.1: 10 %%)",
    )
    chosen = parser.parse_args(words)
    last = latest(chosen.name, chosen.outputs)
    text = page(content_of(chosen.name, last, band=chosen.band), rows=chosen.rows)
    file = Path(chosen.file) if chosen.file else last.folder / "report.html"
    write_text(file, text)
    print(f"{file}  ({len(text.encode()) / 1e6:.2f} MB; open it in a browser)")
    return 0


def content_of(name: str, last: Answered, *, band: float) -> Content:
    """Return what a report says of the last run of a space.

    Raises:
        UserError: no design is on a front.
    """
    results = last.store.scan()
    front = pareto_front(results, last.objectives, where=last.where)
    if front.is_empty():
        raise UserError(f"no feasible design of '{name}' qualifies, so there is nothing to report")
    asked = last.folder.parents[2] / "spaces" / f"{name}.yaml"  # what `ask` wrote
    file = places.spaces().get(name) or (asked if asked.is_file() else None)
    return Content(
        name=name,
        question=_question(file) or f"Which design of {name}?",
        space=last.space,
        objectives=last.objectives,
        where=last.where,
        results=results,
        front=front.insert_column(0, keys(last.store.definition, front)),
        evidence=evidence(last.space.simulator),
        band=band,
        versions=json.loads((last.folder / "versions.json").read_text(encoding="utf-8")),
        files=f"{last.store.results}/*.parquet",
    )


def _question(file: Path | None) -> str:
    """Return the question that a space's file opens with, if it does."""
    text = about(file) if file else ""
    return text[: text.index("?") + 1] if "?" in text else text
