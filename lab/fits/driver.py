"""Run a fit: load rows, fit parameters, measure the error on held-out rows, write TOML.

    sweeper-lab fit NAME [FILE ...]                 fit to the tables of the reference folder
    sweeper-lab fit NAME --check                    compare with the stored files, write none
    sweeper-lab fit NAME --device l40s --measured mine.parquet

A fit is a module of this package, or of a user's `catalog/fits/`. It defines `FOLDER`, where its
calibrations are stored, and `fit_reference(reference, only)`, which yields a `Calibration` for each
file named in `only`, or for all files. A fit that accepts a user's own measurements also defines
`OWN`, their folder, and `fit_measured(measured, device)`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
import tomllib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from planning.calibrate.measurements import toml_lines
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import SEAL, read_calibration, reference_folder
from simulators.core.checks import Check, print_checks
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import Folder, import_file

FITS = Folder("fit", "fits", ".py", package="lab")
MAPE_TOLERANCE = 6e-4
"""Stored files have three or four decimals of the held-out error."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fitted numbers of one file, the rows behind them and the error on held-out rows."""

    name: str  # of the file, without .toml
    content: Mapping[str, Any]  # the fitted numbers, as nested tables
    style: str = ".4g"  # format of every number in `content`
    tables: Sequence[str | Path]  # measured tables; names are relative to the reference folder
    rows: int  # fitted to
    split: str  # the rule that holds rows out, in a sentence
    errors: ArrayLike  # relative errors of held-out rows; the file stores their mean absolute value
    folder: Path | None = None  # where it differs from the fit's FOLDER
    provenance: Mapping[str, Any] = field(default_factory=dict)  # further entries
    checks: Sequence[Check] = ()  # held-out errors to print

    def document(self, reference: Path = Path()) -> dict[str, Any]:
        """Return what the file says.

        Raises:
            UserError: none of the measured tables exists.
        """
        files = {
            Path(table).name if Path(table).is_absolute() else str(table): reference / table
            for table in self.tables
        }
        known = {name: sha256_of(file) for name, file in files.items() if file.is_file()}
        if not known:
            raise UserError(f"{reference} has no {' or '.join(files)}: there is nothing to fit to")
        content = rounded(self.content, self.style)
        provenance = {
            "measured": list(known),
            "sha256": list(known.values()),
            "rows": self.rows,
            "parameters": count_parameters(content),
            "split": self.split,
            "held_out_mape": round(float(np.mean(np.abs(self.errors))), 4),
            **self.provenance,
        }
        return {"provenance": provenance, **content}

    def text(self, fit: str, reference: Path = Path()) -> str:
        """Return the text of the file, without its checksum."""
        header = f"# Written by `sweeper-lab fit {fit}`.\n# To change a number, change the fit.\n"
        return header + "\n".join(toml_lines(self.document(reference)))


def fits() -> dict[str, Path]:
    """Return the files of all fits by name; a user's own replace those of this package."""
    return {
        file.stem: file
        for place in reversed(FITS.places)
        for file in sorted(place.rglob("*.py"))
        if "\ndef fit_reference(" in file.read_text(encoding="utf-8")
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one fit as the command line asks."""
    parser = argparse.ArgumentParser(
        prog="sweeper-lab fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("fit", choices=fits(), metavar="NAME", help=", ".join(fits()))
    parser.add_argument("only", nargs="*", metavar="FILE", help="only these files, such as GPUs")
    parser.add_argument("--reference", type=Path, help="folder of the tables (SWEEPER_REFERENCE)")
    parser.add_argument("--device", default="", help="your own GPU, by the name of its data sheet")
    parser.add_argument("--measured", type=Path, help="its measurements, Parquet or CSV")
    parser.add_argument("--check", action="store_true", help="compare with stored files only")
    asked = parser.parse_args(arguments)
    if asked.device and asked.measured is None:
        parser.error("--device and --measured belong together")
    try:
        _run(asked)
    except (UserError, Infeasible) as error:
        sys.exit(f"fit: {error}")


def _run(asked: argparse.Namespace) -> None:
    fit, reference = import_file(fits()[asked.fit]), Path()
    if asked.measured is None:
        reference = asked.reference or reference_folder() or Path("reference")
        if not reference.is_dir():
            raise UserError("there is no reference folder; set SWEEPER_REFERENCE to where it is")
        folder, found = fit.FOLDER, fit.fit_reference(reference, asked.only)
    elif hasattr(fit, "fit_measured"):
        folder, found = fit.OWN, fit.fit_measured(asked.measured.absolute(), asked.device)
    else:
        raise UserError(f"'{asked.fit}' is fitted to tables of the reference folder alone")
    checks: list[Check] = []
    for calibration in found:
        checks += calibration.checks
        file = (calibration.folder or folder) / f"{calibration.name}.toml"
        if asked.check:
            print(f"{file}: {difference(calibration.document(reference), file)}", flush=True)
        else:
            write_calibration(file, calibration.text(asked.fit, reference))
            print(f"Written: {file}", flush=True)
    if checks:
        print_checks(checks)


def difference(document: Mapping[str, Any], file: Path) -> str:
    """Compare what was fitted with a stored file, and say what differs and by how much."""
    if not file.is_file():
        return "is not there"
    stored = tomllib.loads(file.read_text(encoding="utf-8"))
    old, new = stored.pop("provenance"), dict(document)["provenance"]
    before, after = (
        dict(
            leaves({"rows": source["rows"], **{k: v for k, v in one.items() if k != "provenance"}})
        )
        for source, one in ((old, stored), (new, document))
    )
    changed = [path for path in before | after if before.get(path) != after.get(path)]
    if abs(old["held_out_mape"] - new["held_out_mape"]) > MAPE_TOLERANCE:
        changed.append(("held_out_mape",))
        before[changed[-1]], after[changed[-1]] = old["held_out_mape"], new["held_out_mape"]
    if not changed:
        return "reproduced"
    pairs = [(before.get(path), after.get(path)) for path in changed]
    relative = [abs(b / a - 1.0) for a, b in pairs if _is_number(a) and _is_number(b) and a]
    first = ".".join(map(str, changed[0]))
    return (
        f"{len(changed)} of {len(before)} entries differ, numbers by up to "
        f"{100.0 * max(relative, default=0.0):.2g} %; first: {first} = {pairs[0][0]!r}, "
        f"fitted {pairs[0][1]!r}"
    )


def leaves(
    value: Any, path: tuple[Hashable, ...] = ()
) -> Iterator[tuple[tuple[Hashable, ...], Any]]:
    """Yield every entry of nested tables and lists, with its path; a text of numbers is a list."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = list(map(float, value.split())) or value
    if isinstance(value, Mapping | list):
        for key, one in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(one, (*path, key))
    else:
        yield path, value


def count_parameters(content: Mapping[str, Any]) -> int:
    """Return how many numbers a calibration holds besides its provenance."""
    return sum(_is_number(value) for _, value in leaves(content))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rounded(value: Any, style: str) -> Any:
    """Return nested tables with every float as a format writes it.

    >>> rounded({"start_s": np.float64(1.23456e-06), "seen": (1, 2.0)}, ".3g")
    {'start_s': 1.23e-06, 'seen': [1, 2.0]}
    """
    if isinstance(value, Mapping):
        return {str(key): rounded(one, style) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [rounded(one, style) for one in value]
    if isinstance(value, np.integer):
        return int(value)
    return float(f"{value:{style}}") if isinstance(value, float) else value


def chosen(only: Sequence[str], known: Iterable[str], kind: str = "gpu") -> list[str]:
    """Return the names of files to write: those in `only`, or all that are known.

    Raises:
        UnknownNameError: a name in `only` is not known.
    """
    names = list(dict.fromkeys(known))
    for name in only:
        if name not in names:
            raise UnknownNameError(kind, name, names)
    return list(only) or names


def gpu_of(device: str) -> Gpu:
    """Return the data sheet of a user's own GPU.

    Raises:
        UserError: no GPU is named, or there is no data sheet of that name.
    """
    if not device:
        raise UserError("whose measurements are these? --device NAME, as its data sheet is called")
    return load_gpu(device)


def fitted_tables(files: Iterable[Path]) -> set[tuple[str, str]]:
    """Return name and sha256 of every table that some calibrations were fitted to.

    Raises:
        UserError: a calibration is unreadable or was changed by hand.
    """
    found: set[tuple[str, str]] = set()
    for file in files:
        block = read_calibration(file)["provenance"]
        found.update(zip(_listed(block["measured"]), _listed(block["sha256"]), strict=True))
    return found


def _listed(entry: object) -> list[str]:
    return list(map(str, entry)) if isinstance(entry, list) else [str(entry)]


def write_calibration(path: Path, body: str) -> None:
    """Write a calibration and the checksum of its text; the file is whole or absent."""
    body = body.rstrip("\n") + "\n"
    seal = hashlib.sha256(body.encode()).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".partial")
    draft.write_text(f"{body}{SEAL}{seal}\n", encoding="utf-8")
    draft.replace(path)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
