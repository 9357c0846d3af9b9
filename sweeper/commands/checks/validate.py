"""How accurate the simulators are, on measured rows that nothing was fitted to.

A claim is a file: `lab/claims/<room>/<claim>.py` has a function `checks(reference, rows)`, which
returns its lines for a folder of measured tables and for the rows `test` or `all`; one that tells
versions apart has `by_version` with the same arguments. Tables it cannot do without are its
`NEEDS`; where all its lines are of another kind than errors against measurements, that is its
`KIND`. A user's own stand in `catalog/claims/<room>/` or `$SWEEPER_HOME/claims/<room>/`.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from simulators.core.calibration import reference_folder
from simulators.core.contract import Check
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import Folder
from simulators.core.modules import load_module
from simulators.core.report import cells, print_checks
from sweeper.commands.flags import flags
from sweeper.report import evidence, headlines
from sweeper.report.tables import print_table, width, write_text


def main(words: list[str]) -> int:
    """Print the checks; exit code 1 when one misses its limit."""
    parser = flags("validate", "accuracy of simulators against measured data")
    parser.add_argument(
        "rooms",
        nargs="*",
        help=f"{', '.join(rooms())}, or one claim, as in dataflow/maestro; all of them if none "
        "is named",
    )
    parser.add_argument(
        "--reference", metavar="DIR", help="a folder laid out like the reference data"
    )
    parser.add_argument("--rows", choices=("test", "all"), default="test")
    parser.add_argument(
        "--by", choices=("version",), help="errors of each version of what was measured, and drift"
    )
    parser.add_argument(
        "--predictions",
        metavar="FILE",
        help="score another tool's predictions on the measured rows: a CSV or Parquet file laid "
        "out as docs/predictions.md says, or an entry, such as aiconfigurator",
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--write",
        metavar="FILE",
        help="also write the table as Markdown; of `test` rows of the reference data, with the "
        "other rooms as they were last written, and what README and reports say of accuracy",
    )
    parser.add_argument(
        "--stored", action="store_true", help="what the package was last found to be, not anew"
    )
    chosen = parser.parse_args(words)
    if chosen.predictions:
        return _score(chosen.predictions, chosen.reference, as_json=chosen.json)
    for room in chosen.rooms:
        _known(room)
    if chosen.write and any("/" in room for room in chosen.rooms):
        raise UserError("a page has whole rooms: name rooms to --write, or no claim")
    asked = chosen.rooms or (rooms_by(chosen.by) if chosen.by else rooms())
    if chosen.stored:
        if any("/" in room for room in asked):
            raise UserError("what was found is stored by room: name rooms, or leave --stored out")
        by_room = {room: found for room, found in evidence.stored().items() if room in asked}
    else:
        by_room = {room: run(room, chosen.reference, chosen.rows, chosen.by) for room in asked}
    checks = [check for found in by_room.values() for check in found]
    _print(checks, as_json=chosen.json)
    if chosen.write:
        is_ours = chosen.rows == "test" and not chosen.reference and not chosen.by
        _write(Path(chosen.write), by_room, chosen.rows, is_ours=is_ours)
    return 1 if any(check.ok is False for check in checks) else 0


CLAIMS = Folder("claim", "claims", ".py", package="lab")


def _known(named: str) -> None:
    """Raise where there is no such room, or no such claim in it."""
    room, _, claim = named.partition("/")
    if room not in rooms():
        raise UnknownNameError("room", room, rooms())
    names = [file.stem for file in _files(room)]
    if claim and claim not in names:
        raise UnknownNameError("claim", named, [f"{room}/{name}" for name in names])


def _score(named: str, reference: str | None, *, as_json: bool) -> int:
    """Print how good the predictions of another tool are."""
    module = importlib.import_module("lab.predictions.score")
    _print(module.scores(named, _folder(reference)), as_json=as_json)
    return 0


def _print(checks: list[Check], *, as_json: bool) -> None:
    if as_json or width() is None:
        print_checks(checks, as_json=as_json)
    else:
        print_table("", *cells(checks))


def _write(file: Path, by_room: dict[str, list[Check]], rows: str, *, is_ours: bool) -> None:
    """Write a page; of our own figures also what travels with the package, and README."""
    command = f"python -m sweeper validate --write {file}"
    if is_ours:
        known = evidence.write(by_room)
        write_text(file, headlines.page(known, command))
        headlines.write_readme(known)
        return
    which = "rows outside the fits" if rows == "test" else "all rows"
    pages = [f"# Accuracy\n\nWritten by `{command}`, on {which}."]
    write_text(file, "\n\n".join([*pages, *headlines.of_rooms(by_room)]) + "\n")


def rooms() -> list[str]:
    """Return the rooms that can be checked: those with a folder of claims."""
    return sorted({file.parent.name for file in _files("*")})


def rooms_by(word: str) -> list[str]:
    """Return the rooms whose checks can be told apart by a word, such as `version`."""
    return [room for room in rooms() if claims(room, f"by_{word}")]


def claims(named: str, function: str = "checks") -> list[ModuleType]:
    """Return the claims of a room, or the one named, that have that function, by their files."""
    room, _, claim = named.partition("/")
    return [
        module
        for file in _files(room)
        if claim in ("", file.stem) and hasattr(module := load_module(CLAIMS, str(file)), function)
    ]


def run(room: str, reference: str | None, rows: str, by: str | None = None) -> list[Check]:
    """Return the checks of one room, or of one claim of it, told apart `by` a word if one is given.

    Raises:
        UserError: there is no reference folder to check against; the room knows no such word.
    """
    function = f"by_{by}" if by else "checks"
    asked = claims(room, function)
    if by and not asked:
        known = ", ".join(rooms_by(by))
        raise UserError(f"checks of '{room}' are not told apart by {by}; those of {known} are")
    folder = _folder(reference)
    return [check for claim in asked for check in _lines(claim, function, folder, rows)]


def _folder(reference: str | None) -> Path:
    """Return the folder of measured tables.

    Raises:
        UserError: there is none.
    """
    folder = Path(reference) if reference else reference_folder()
    if folder is None or not folder.is_dir():
        raise UserError(
            f"there is no measured data{f' in {reference}' if reference else ''}; name its folder "
            "by --reference DIR or $SWEEPER_REFERENCE"
        )
    return folder


def _lines(claim: ModuleType, function: str, folder: Path, rows: str) -> Iterator[Check]:
    """Yield the lines of one claim, or why there are none, or no more of them."""
    name = Path(str(claim.__file__)).stem
    absent = [table for table in getattr(claim, "NEEDS", ()) if not (folder / table).is_file()]
    if absent:
        yield Check(name, None, note=f"absent: {', '.join(absent)}")
        return
    try:
        for check in getattr(claim, function)(folder, rows):
            kind = getattr(claim, "KIND", check.kind)
            yield check if check.kind == kind else dataclasses.replace(check, kind=kind)
    except (Infeasible, UserError) as error:
        yield Check(name, None, note=f"skipped: {str(error).partition(chr(10))[0]}")


def _files(room: str) -> list[Path]:
    """Return the files of a room's claims, the package's first."""
    places = reversed(CLAIMS.places)
    return [file for place in places for file in sorted(place.glob(f"{room}/[!_]*.py"))]
