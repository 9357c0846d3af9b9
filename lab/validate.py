"""Accuracy of the simulators on measured rows that no calibration was fitted to.

A claim is a module `lab/claims/<group>/<claim>.py` with a function `checks(reference, rows)` that
yields `Check`s for a folder of measured tables and for `test` or `all` rows. `NEEDS` names the
tables without which a claim is skipped; `KIND` is the kind of all its checks where it is not
`error`. A user's own claims are in `catalog/claims/<group>/` or `$SWEEPER_HOME/claims/<group>/`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from lab.claims import runner
from lab.claims.claim import files_of
from simulators.core.calibration import reference_folder
from simulators.core.contract import ERROR, Check
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import Folder
from simulators.core.modules import load_module
from sweeper.report import evidence

CLAIMS = Folder("claim", "claims", ".py", package="lab")


def main(words: list[str]) -> int:
    """Print each check as soon as it is computed; return 1 when one fails."""
    parser = argparse.ArgumentParser("sweeper-lab validate", description=__doc__)
    parser.add_argument(
        "claims", nargs="*", help=f"{', '.join(groups())}, or one claim such as dataflow/maestro"
    )
    parser.add_argument("--reference", type=Path, help="folder of measured tables")
    parser.add_argument("--rows", choices=("test", "all"), default="test")
    parser.add_argument("--by", choices=("version",), help="errors by version of what was measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument(
        "--write", action="store_true", help="store the checks of whole groups with the product"
    )
    asked = parser.parse_args(words)
    function = f"by_{asked.by}" if asked.by else "checks"
    names = asked.claims or [g for g in groups() if not asked.by or claims(g, function)]
    if asked.write and (asked.by or asked.reference or asked.rows != "test" or "/" in str(names)):
        raise UserError("--write stores whole groups, on `test` rows of the reference tables")
    for name in names:
        if asked.by and not claims(name, function):
            raise UserError(f"{name} has no errors by {asked.by}")
    found: dict[str, list[Check]] = {}
    for name in names:
        for check in run(name, asked.reference, asked.rows, function):
            found.setdefault(name, []).append(check)
            print(json.dumps(dataclasses.asdict(check)) if asked.json else line(check), flush=True)
    if asked.write:
        store(found)
    return 1 if any(check.ok is False for checks in found.values() for check in checks) else 0


def line(check: Check) -> str:
    """Return a check as one line: name, value, unit, limit, verdict, number of rows, note.

    >>> line(Check("V100 linear MAPE", 4.2, "%", limit=5.0, ok=True, rows=120))
    'V100 linear MAPE: 4.2 %, limit 5 ok, 120 rows'
    """
    value = "-" if check.value is None else f"{check.value:.4g} {check.unit}".rstrip()
    limit = "" if check.limit is None else f"limit {check.limit:g} "
    rows = f"{check.rows:,} rows" if check.rows else ""
    parts = (value, f"{limit}{check.verdict}".strip(), rows, check.note)
    return f"{check.name}: {', '.join(part for part in parts if part)}"


def store(by_group: dict[str, list[Check]]) -> None:
    """Write the checks of some groups to the product's file; other groups stay."""
    known = dict(sorted((evidence.stored() | by_group).items()))
    parts = (
        f'"{group}": [\n' + ",\n".join(json.dumps(_fields(check)) for check in checks) + "\n]"
        for group, checks in known.items()
    )
    text = ",\n".join(parts)
    evidence.FILE.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def _fields(check: Check) -> dict[str, object]:
    """Return the fields of a check, without a kind or baseline that is the default."""
    fields = dataclasses.asdict(check)
    optional = {name: fields.pop(name) for name in ("kind", "peer")}
    return fields | {n: v for n, v in optional.items() if v not in (ERROR, None)}


def groups() -> list[str]:
    """Return the groups of claims: the folders of `claims/`."""
    return sorted({file.parent.name for file in [*_files("*"), *files_of()]})


def claims(name: str, function: str = "checks") -> list[ModuleType]:
    """Return the claims of a group, or one claim `group/claim`, that define a function.

    Raises:
        UnknownNameError: there is no such group or claim.
    """
    group, _, claim = name.partition("/")
    if group not in groups():
        raise UnknownNameError("group of claims", group, groups())
    files = [file for file in _files(group) if claim in ("", file.stem)]
    if not files and not any(claim in ("", file.stem) for file in files_of(group)):
        raise UnknownNameError("claim", name, [f"{group}/{file.stem}" for file in _files(group)])
    modules = [load_module(CLAIMS, str(file)) for file in files]
    return [module for module in modules if hasattr(module, function)]


def run(
    name: str, reference: Path | None = None, rows: str = "test", function: str = "checks"
) -> Iterator[Check]:
    """Yield the checks of a group, or of one claim, as they are computed.

    Raises:
        UserError: there is no folder of measured tables.
    """
    folder = measured_tables(reference)
    if any(file.parent.name == name.partition("/")[0] for file in files_of()):
        yield from runner.run(name, folder, rows)
    for module in claims(name, function):
        yield from _checks(module, function, folder, rows)


def measured_tables(reference: Path | None) -> Path:
    """Return the folder of measured tables: the one given, else $SWEEPER_REFERENCE.

    Raises:
        UserError: there is none.
    """
    folder = reference or reference_folder()
    if folder is None or not folder.is_dir():
        raise UserError(
            f"there is no measured data{f' in {reference}' if reference else ''}; name its folder "
            "by --reference DIR or $SWEEPER_REFERENCE"
        )
    return folder


def _checks(module: ModuleType, function: str, folder: Path, rows: str) -> Iterator[Check]:
    """Yield the checks of one claim; an exception becomes one failed check and ends the claim."""
    name = Path(str(module.__file__)).stem
    absent = [table for table in getattr(module, "NEEDS", ()) if not (folder / table).is_file()]
    if absent:
        yield Check(name, None, note=f"absent: {', '.join(absent)}")
        return
    try:
        for check in getattr(module, function)(folder, rows):
            yield dataclasses.replace(check, kind=getattr(module, "KIND", check.kind))
    except Exception as error:  # noqa: BLE001  one broken claim must not hide the others
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        yield Check(name, None, ok=False, note=reason)


def _files(group: str) -> list[Path]:
    """Return the files of a group's claims, the package's first."""
    places = reversed(CLAIMS.places)
    return [file for place in places for file in sorted(place.glob(f"{group}/[!_]*.py"))]
