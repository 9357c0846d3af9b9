"""Accuracy of the simulators on measured rows that no calibration has seen.

Claims are entries of `lab/claims/GROUP.toml`; a user's own are in `catalog/claims/` or
`$SWEEPER_HOME/claims/`. `lab.claims.claim` describes the schema.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from lab.claims.claim import ALL, FOLDER, TEST, run
from simulators.core.checks import ERROR, Check
from simulators.core.errors import UserError
from sweeper.report import evidence


def main(words: list[str]) -> int:
    """Print each check as soon as it is computed; return 1 when one fails."""
    parser = argparse.ArgumentParser("sweeper-lab validate", description=__doc__)
    parser.add_argument("claims", nargs="*", help=", ".join(FOLDER.names()))
    parser.add_argument("--reference", type=Path, help="folder of measured tables")
    parser.add_argument("--rows", choices=(TEST, ALL), default=TEST)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--write", action="store_true", help="store the checks of whole groups")
    parser.add_argument("--details", action="store_true", help="also single GPUs and models")
    asked = parser.parse_args(words)
    names = asked.claims or FOLDER.names()
    if asked.write and (asked.reference or asked.rows != TEST):
        raise UserError("--write stores whole groups, on `test` rows of the reference tables")
    for name in names:
        FOLDER.find(name)
    found: dict[str, list[Check]] = {}
    for name in names:
        details = asked.details or asked.write
        for check in run(name, asked.reference, asked.rows, details=details):
            found.setdefault(name, []).append(check)
            print(json.dumps(dataclasses.asdict(check)) if asked.json else line(check), flush=True)
    if asked.write:
        store(found)
    checks = [check for some in found.values() for check in some]
    if not asked.json:
        print(counted(checks))
    return 1 if any(check.ok is False for check in checks) else 0


def counted(checks: Sequence[Check]) -> str:
    """Return the number of lines by outcome.

    >>> counted([Check("a", 4.2, limit=5.0, ok=True), Check("b", 3.0)])
    '2 lines: 1 ok, 0 failed, 1 without a limit, 0 absent'
    """
    ok, failed = (sum(check.ok is verdict for check in checks) for verdict in (True, False))
    absent = sum(check.ok is None and check.value is None for check in checks)
    unlimited = f"{len(checks) - ok - failed - absent} without a limit"
    return f"{len(checks)} lines: {ok} ok, {failed} failed, {unlimited}, {absent} absent"


def line(check: Check) -> str:
    """Return a check as one line: name, value, unit, limit, verdict, number of rows, note.

    >>> line(Check("V100 linear MAPE", 4.2, "%", limit=5.0, ok=True, rows=120))
    'V100 linear MAPE: 4.2 %, limit 5 ok, 120 rows'
    """
    value = "-" if check.value is None else f"{check.value:.4g} {check.unit}".rstrip()
    unlimited = "" if check.value is None else "no limit"
    limit = unlimited if check.limit is None else f"limit {check.limit:g} "
    rows = f"{check.rows:,} rows" if check.rows else ""
    parts = (value, f"{limit}{check.verdict}".strip(), rows, check.note)
    return f"{check.name}: {', '.join(part for part in parts if part)}"


def store(by_group: dict[str, list[Check]]) -> None:
    """Write the checks of some groups to the product's file; other groups are kept."""
    known = dict(sorted((evidence.stored() | by_group).items()))
    parts = (
        f'"{group}": [\n' + ",\n".join(json.dumps(_fields(check)) for check in checks) + "\n]"
        for group, checks in known.items()
    )
    text = ",\n".join(parts)
    evidence.FILE.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def _fields(check: Check) -> dict[str, object]:
    """Return the fields of a check, without a kind, baseline or identifier that is the default."""
    fields = dataclasses.asdict(check)
    optional = {name: fields.pop(name) for name in ("kind", "peer", "id")}
    return fields | {n: v for n, v in optional.items() if v not in (ERROR, None, "")}
