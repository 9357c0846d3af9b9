"""The scenarios that practitioners need answers for: all of them, or some, on one board."""

from __future__ import annotations

import time
from pathlib import Path

from simulators.core.errors import UserError, unknown
from sweeper.commands.flags import flags
from sweeper.report.tables import write_text
from sweeper.scenarios.board import as_json, page, print_board
from sweeper.scenarios.board_page import board_page
from sweeper.scenarios.scenario import Scenario, in_order, read_scenario
from sweeper.space.shipped_files import scenarios


def main(words: list[str]) -> int:
    """Answer scenarios, and print the board."""
    parser = flags("scenarios", "what practitioners ask: which are answered, and how plausibly")
    parser.add_argument("names", nargs="*", metavar="ID", help="as in T1.1; a file; all if none")
    parser.add_argument("--outputs", default="outputs/scenarios")
    parser.add_argument("--write", metavar="FILE", help="the board as a page: Markdown or HTML")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    outcomes, seconds = [], []
    for scenario in _asked(chosen.names):
        begun = time.process_time()
        outcomes.append(scenario.answer(Path(chosen.outputs)))
        seconds.append(time.process_time() - begun)
    if chosen.write:
        command = f"python -m sweeper scenarios --write {chosen.write}"
        is_html = Path(chosen.write).suffix in (".html", ".htm")
        text = board_page(outcomes) if is_html else page(outcomes, command)
        write_text(Path(chosen.write), text)
    if chosen.json:
        print(as_json(outcomes, seconds))
    else:
        print_board(outcomes, seconds)
    return 0


def shipped() -> list[Scenario]:
    """Return all scenarios there are, in order."""
    return in_order([read_scenario(file) for file in scenarios().values()])


def _asked(names: list[str]) -> list[Scenario]:
    """Return the scenarios that are named by id, name or path; all of them if none is."""
    files = [name for name in names if name.endswith((".yaml", ".yml"))]
    for name in files:
        if not Path(name).is_file():
            raise UserError(f"{name}: there is no such file")
    known = shipped() if len(files) < len(names) or not names else []
    by_name = {key: one for one in known for key in (one.id.lower(), one.name)}
    for name in names:
        if name not in files and name.lower() not in by_name:
            ids = [one.id for one in known]
            raise unknown(f"there is no scenario '{name}'", name, ids, "Scenarios")
    if not names:
        return known
    return [read_scenario(Path(n)) if n in files else by_name[n.lower()] for n in names]
