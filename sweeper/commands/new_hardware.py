"""Hardware that nobody calibrated: a board of a user's few rows, kernels carried to another GPU.

What opens measured tables stands in `lab`, and is loaded by its name when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import math
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from sweeper.commands.flags import flags
from sweeper.report.tables import print_table, print_words


def calibrate(words: list[str]) -> int:
    """Fit a board or a device to measured rows, and say what they gained."""
    parser = flags("calibrate", "a board, or a device at the edge, from a few measured rows")
    parser.add_argument("name", help="your GPU's data sheet; or what your device shall be called")
    parser.add_argument("--measured", required=True, metavar="FILE", help="Parquet or CSV of rows")
    parser.add_argument(
        "--space", default="nb201", help="networks of a device at the edge: nb201, fbnet or ofa"
    )
    chosen = parser.parse_args(words)
    gains, file = _lab("calibrate").calibrate(chosen.name, Path(chosen.measured), chosen.space)
    header = ["", "rows", "error before", "after", "more rows that would halve it"]
    lines = [
        [
            gain.name,
            f"{gain.rows:,}",
            f"{gain.before:.1%}",
            f"{gain.after:.1%}",
            "no number would" if gain.more_rows is None else f"about {gain.more_rows:,}",
        ]
        for gain in gains
    ]
    print_table(f"{chosen.name}: errors of rows left out", header, lines)
    worse = [gain.name for gain in gains if not gain.is_better]
    nothing = f"Nothing is written: {chosen.name} is known better without these rows."
    print_words(nothing if file is None else f"Written: {file}")
    if worse and file is not None:
        print_words(f"Left as known without these rows: {', '.join(worse)}")
    return 0


def transfer(words: list[str]) -> int:
    """Carry kernels timed on one GPU to another, and say how far off that is, where it is known."""
    parser = flags("transfer", "kernels timed on one GPU, as another would run them")
    parser.add_argument("--measured", required=True, metavar="FILE", help="rows of the first GPU")
    parser.add_argument("--source", required=True, metavar="GPU", help="the first GPU's data sheet")
    parser.add_argument("--target", required=True, metavar="GPU", help="that of the other")
    parser.add_argument("--own", metavar="FILE", help="what was measured on the other, if anything")
    parser.add_argument(
        "--ask", type=int, metavar="COUNT", help="write instead which rows to time on the other"
    )
    parser.add_argument("--write", metavar="FILE", help="write the carried rows there, as Parquet")
    chosen = parser.parse_args(words)
    lab = _lab("transfer")
    if chosen.ask is not None:
        return _ask(lab, chosen)
    own = Path(chosen.own) if chosen.own else None
    found = lab.transfer(chosen.source, chosen.target, Path(chosen.measured), own)
    header = ["", "rows", "time, relative", "own rows", "error", "by a ratio"]
    lines = [
        [
            one.name,
            f"{len(one.rows):,}",
            f"{one.ratio:.2f}",
            str(one.own or ""),
            *("" if math.isnan(e) else f"{e:.1%}" for e in (one.error, one.naive)),
        ]
        for one in found
    ]
    print_table(f"{chosen.source} to {chosen.target}", header, lines)
    print_words(
        "Errors are of own rows that were left out; `by a ratio` of bandwidths or of FLOP/s, the "
        "better of the two."
        if own
        else f"How far off this is, --own FILE says: a few rows of {chosen.target}."
    )
    if chosen.write:
        lab.write(found, chosen.target, Path(chosen.write))
        print_words(f"Written: {chosen.write}")
    return 0


def _ask(lab: Any, chosen: argparse.Namespace) -> int:
    """Write which rows to time on the other GPU, and say by what.

    Raises:
        UserError: none are asked for, or there is nowhere to write them.
    """
    if chosen.ask < 1 or not chosen.write:
        raise UserError("--ask takes a number from one on, and --write the file for those rows")
    file = Path(chosen.write)
    count = lab.write_telling(chosen.source, Path(chosen.measured), chosen.ask, file)
    print_words(f"Written: {file}, {count} rows that tell most of the others. To time them:")
    print(f"  python -m lab.profiler --rows {file} --write own.parquet --gpu {chosen.target}")
    return 0


def _lab(name: str) -> Any:
    """Return a module of the room of new hardware.

    Raises:
        UserError: the package was installed without its measurement side.
    """
    try:
        return importlib.import_module(f"lab.new_hardware.{name}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"this needs the package `lab`, which is not installed ({error})"
        ) from error
