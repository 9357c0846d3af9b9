"""The command `accuracy`: print stored errors of predictions on held-out measured rows."""

from __future__ import annotations

import dataclasses
import json

from simulators.core.checks import Check
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import FOLDERS
from sweeper.commands.flags import add_words, flags
from sweeper.report.evidence import naming, stored
from sweeper.report.headlines import headlines
from sweeper.report.tables import print_table, print_words

HEADER = ["", "check", "error", "limit", "rows", "baseline"]


def main(words: list[str]) -> int:
    """Print the checks of a simulator, a model or a GPU; by default the main figures."""
    known = stored()
    parser = flags("accuracy")
    add_words(parser, "simulators", known, nargs="*", help=f"groups of checks: {', '.join(known)}")
    parser.add_argument("--model", default="", help="checks that name a model")
    parser.add_argument("--gpu", default="", help="checks that name a GPU")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    for name in chosen.simulators:
        if name not in known:
            raise UnknownNameError("group of checks", name, known)
    names = [
        FOLDERS[kind].find(name).stem
        for kind, name in (("model", chosen.model), ("gpu", chosen.gpu))
        if name
    ]
    found = {
        group: naming(checks, names)
        for group, checks in known.items()
        if group in chosen.simulators or not chosen.simulators
    }
    found = {group: checks for group, checks in found.items() if checks}
    if names and not found:
        raise UserError(f"no accuracy check exists for {' and '.join(names)}")
    if chosen.json:
        lines = [{"group": g, **dataclasses.asdict(c)} for g, cs in found.items() for c in cs]
        print(json.dumps(lines, indent=1))
    elif names or chosen.simulators:
        print_table("", HEADER, [_cells(group, c) for group, cs in found.items() for c in cs])
    else:
        rows = [("", *headline.cells(known)) for headline in headlines()]
        print_table("", ["", "predicted", "error", "rows", "baseline"], [list(row) for row in rows])
        print_words(
            f"All checks of one group: accuracy {next(iter(known))}; filter: --model, --gpu."
        )
    return 0


def _cells(group: str, check: Check) -> list[str]:
    """Return a line of the table; `!` marks a check that misses its limit."""
    unit = check.unit
    return [
        "!" if check.ok is False else "",
        f"{group}: {check.name}",
        "-" if check.value is None else f"{check.value:.3g} {unit}".rstrip(),
        "" if check.limit is None else f"{check.limit:g}",
        f"{check.rows:,}",
        "" if check.peer is None else f"{check.peer:.3g} {unit}".rstrip(),
    ]
