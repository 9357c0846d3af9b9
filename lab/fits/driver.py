"""Run a fit: arguments, provenance, writing, and the errors on rows that were held out.

    python -m lab.fits NAME [FILE ...]                 fit the reference folder's tables again
    python -m lab.fits NAME --check                    write nothing; are the files reproduced?
    python -m lab.fits NAME --device l40s --measured mine.parquet

A fit is a module of this folder, or a user's own in `catalog/fits/`. It has `FOLDER`, where its
calibrations are, and `fit_reference(reference, only)`, which yields those that are asked for, or
all. Where users may bring tables of their own, it also has `fit_measured(measured, device)` and
`OWN`.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import SEAL, read_calibration, reference_folder
from simulators.core.contract import Check
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import Folder
from simulators.core.modules import import_file
from simulators.core.report import print_checks
from simulators.evidence.intervals import Band

FITS = Folder("fit", "fits", ".py", package="lab")


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A file of fitted numbers, what they rest on, and how far they are off held-out rows."""

    name: str  # of the file, without .toml: a GPU's, usually
    folder: Path | None = None  # apart from those of its fit; below `--out`, one of that name
    tables: Mapping[str, str]  # sha256 of each, by its name
    is_listed: bool = True  # they are written as a list even where there is one
    rows: int  # fitted to
    split: str  # the rule that holds rows out, in a sentence
    held_out_rows: int = 0  # 0: not told
    error: float  # mean absolute, relative, of held-out rows
    digits: int = 4  # of the error
    lines: Sequence[str]  # the numbers, as TOML
    checks: Sequence[Check] = ()  # held-out errors, to be printed
    about: str = ""  # what the first line says of the file; " for NAME." unless given
    head: Sequence[str] = ()  # lines before the provenance
    more: Sequence[str] = ()  # further lines of the provenance

    def text(self, fit: str) -> str:
        """Return the content of the file, but for its seal."""
        about = self.about or f" for {self.name}."
        names, sums = strings(self.tables), strings(self.tables.values())
        if not self.is_listed and len(self.tables) == 1:
            names, sums = names[1:-1], sums[1:-1]
        lines = [
            f"# Written by `python -m lab.fits {fit}`{about}",
            "# To change a number, change the fit.",
            *self.head,
            "[provenance]",
            f"measured = {names}",
            f"sha256 = {sums}",
            f"rows = {self.rows}",
            f'split = "{self.split}"',
            *([f"held_out_rows = {self.held_out_rows}"] if self.held_out_rows else []),
            f"held_out_mape = {self.error:.{self.digits}f}",
            *self.more,
            *self.lines,
        ]
        return "\n".join(lines)


def fits() -> dict[str, Path]:
    """Return the files of all fits by their names, a user's own before those of this folder."""
    return {
        file.stem: file
        for place in reversed(FITS.places)
        for file in sorted(place.rglob("*.py"))
        if "\ndef fit_reference(" in file.read_text(encoding="utf-8")
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, write and report."""
    asked = _parser().parse_args(arguments)
    if asked.device and asked.measured is None:
        _parser().error("--device and --measured belong together")
    try:
        run(asked)
    except (UserError, Infeasible) as error:
        sys.exit(f"fit: {error}")


def run(asked: argparse.Namespace) -> None:
    """Run one fit as asked.

    Raises:
        UserError: there is nothing to fit to; the fit knows no tables of a user's own.
    """
    fit = import_file(fits()[asked.fit])
    if asked.measured is None:
        folder, found = fit.FOLDER, fit.fit_reference(_reference(asked), asked.only)
    elif hasattr(fit, "fit_measured"):
        folder, found = fit.OWN, fit.fit_measured(asked.measured, asked.device)
    else:
        raise UserError(f"'{asked.fit}' is fitted to tables of the reference folder alone")
    checks: list[Check] = []
    for calibration in found:
        checks += calibration.checks
        text = calibration.text(asked.fit)
        file = _place(calibration.folder, folder, asked.out) / f"{calibration.name}.toml"
        if asked.check:
            print(f"{file}: {_compared(text, file)}", flush=True)
        else:
            write_calibration(file, text)
            print(f"Written: {file}", flush=True)
    if checks:
        print_checks(checks)


def calibration(
    name: str,
    tables: Mapping[str, str],
    *,
    rows: int,
    held_out: NDArray[np.float64],
    split: str,
    lines: Sequence[str],
    digits: int = 3,
) -> Calibration:
    """Return a calibration, given the relative error of each held-out row."""
    error = float(np.mean(np.abs(held_out))) if held_out.size else 0.0
    return Calibration(
        name=name,
        about=".",
        tables=tables,
        is_listed=False,
        rows=rows,
        split=split,
        lines=lines,
        held_out_rows=held_out.size,
        error=error,
        digits=digits,
    )


def gpu_of(device: str) -> Gpu:
    """Return the data sheet of a user's own device.

    Raises:
        UserError: none is named, or nothing is known by that name.
    """
    if not device:
        raise UserError("whose measurements are these? --device NAME, as its data sheet is called")
    return load_gpu(device)


def chosen(only: Sequence[str], known: Iterable[str], kind: str = "gpu") -> list[str]:
    """Return the files to write: all that are known, unless some are asked for.

    Raises:
        UnknownNameError: one that is asked for is not known.
    """
    names = list(dict.fromkeys(known))
    for name in only:
        if name not in names:
            raise UnknownNameError(kind, name, names)
    return list(only) or names


def hashes(reference: Path, tables: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of those tables that are there, by their names.

    Raises:
        UserError: none of them is there.
    """
    names = list(tables)
    found = {name: sha256_of(reference / name) for name in names if (reference / name).is_file()}
    if not found:
        raise UserError(f"{reference} has no {' or '.join(names)}: there is nothing to fit to")
    return found


def fitted_tables(files: Iterable[Path]) -> set[tuple[str, str]]:
    """Return name and hash of every table that some calibrations were fitted to.

    Raises:
        UserError: a calibration is unreadable or was changed by hand.
    """
    blocks = (read_calibration(file)["provenance"] for file in files)
    pairs = (zip(_listed(b["measured"]), _listed(b["sha256"]), strict=True) for b in blocks)
    return {pair for found in pairs for pair in found}


def write_calibration(path: Path, body: str) -> None:
    """Write the text of a calibration and seal it; the file is whole or absent."""
    body = body.rstrip("\n") + "\n"
    seal = hashlib.sha256(body.encode()).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".partial")
    draft.write_text(f"{body}{SEAL}{seal}\n", encoding="utf-8")
    draft.replace(path)


def sha256_of(path: Path) -> str:
    """Return the hash of a file's content.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _listed(entry: object) -> tuple[str, ...]:
    return tuple(map(str, entry)) if isinstance(entry, list) else (str(entry),)


def strings(items: Iterable[str]) -> str:
    """Return a TOML list of strings.

    >>> strings(["a", "b"])
    '["a", "b"]'
    """
    return "[" + ", ".join(f'"{item}"' for item in items) + "]"


def inline(numbers: Mapping[str, float], style: str = ".5g") -> str:
    """Return numbers as a TOML table on one line.

    >>> inline({"start_s": 1.25e-06, "share": 0.5})
    '{ start_s = 1.25e-06, share = 0.5 }'
    """
    return f"{{ {', '.join(f'{name} = {value:{style}}' for name, value in numbers.items())} }}"


def table_lines(title: str, numbers: Mapping[str, float], style: str = ".3g") -> list[str]:
    """Return a TOML table of numbers, after an empty line.

    >>> table_lines("sustained", {"pcie": 0.75})
    ['', '[sustained]', 'pcie = 0.75']
    """
    return ["", f"[{title}]", *(f"{name} = {value:{style}}" for name, value in numbers.items())]


def band_lines(band: Band) -> list[str]:
    """Return both ends of a band, as TOML."""
    return [
        f"{name} = [{', '.join(f'{end:.4f}' for end in ends)}]"
        for name, ends in (("lo", band.lo), ("hi", band.hi))
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.fits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("fit", choices=fits(), metavar="NAME", help=", ".join(fits()))
    parser.add_argument("only", nargs="*", metavar="FILE", help="only these, such as GPUs")
    parser.add_argument("--reference", type=Path, help="folder of the tables (SWEEPER_REFERENCE)")
    parser.add_argument("--device", default="", help="one of your own, by its data sheet's name")
    parser.add_argument("--measured", type=Path, help="its measurements, Parquet or CSV")
    parser.add_argument("--out", type=Path, help="folder of the calibrations")
    parser.add_argument("--check", action="store_true", help="compare with the files, write none")
    return parser


def _reference(asked: Any) -> Path:
    reference: Path | None = asked.reference or reference_folder()
    if reference is None or not reference.is_dir():
        raise UserError("there is no reference folder; set SWEEPER_REFERENCE to where it is")
    return reference


def _place(own: Path | None, folder: Path, out: Path | None) -> Path:
    """Return the folder of a calibration: what is kept apart stays apart where it is written to.

    >>> _place(Path("a/b"), Path("c"), None), _place(Path("a/b"), Path("c"), Path("out"))
    (PosixPath('a/b'), PosixPath('out/b'))
    """
    if own is None:
        return out or folder
    return out / own.name if out else own


def _compared(text: str, file: Path) -> str:
    """Say whether a file holds what was fitted; comments and seal do not count."""
    if not file.is_file():
        return "is not there"
    old = file.read_text(encoding="utf-8").rpartition(SEAL)[0]
    there, fitted = (
        [line for line in one.splitlines() if not line.startswith("#")] for one in (old, text)
    )
    changed = [line for line in difflib.ndiff(there, fitted) if line[0] in "+-"]
    return f"{len(changed)} lines differ, first: {changed[0][:80]}" if changed else "reproduced"
