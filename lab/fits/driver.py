"""Run a fit: load rows, fit parameters, measure the error on held-out rows, write TOML.

    sweeper-lab fit NAME [FILE ...]                 fit to the tables of the reference folder
    sweeper-lab fit NAME --check                    compare with the stored files, write none
    sweeper-lab fit NAME --device l40s --measured mine.parquet

A fit is a function `fit_NAME(reference, only)` in a module of this package, or of a user's
`catalog/fits/`. It yields a `Calibration` for each file; where files are independent, only for
those named in `only`, if any are. A fit that accepts a user's own measurements has a second
function, `measured_NAME(measured, device)`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import re
import tomllib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lab.tables.rows import Record
from planning.calibrate.measurements import toml_lines, write_sealed
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import reference_folder
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import PACKAGE, Folder, import_file, read_toml

FITS = Folder("fit", "fits", ".py", package="lab")
SIGNATURE = re.compile(r"^def fit_(\w+)\(reference: Path, _?only\b", re.M)
DECLARED = read_toml(Path(__file__).with_name("fits.toml"))
MAPE_TOLERANCE = 6e-4
"""Stored files have three or four decimals of the held-out error."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fitted numbers of one file, the rows behind them and the error on held-out rows."""

    file: Path
    content: Mapping[str, Any]  # the fitted numbers, as nested tables
    style: str = ".4g"  # format of every number in `content`
    tables: Sequence[str | Path]  # measured tables; names are relative to the reference folder
    rows: int  # fitted to
    split: str  # the rule that holds rows out, in a sentence
    errors: ArrayLike  # relative errors of held-out rows; the file stores their mean absolute value
    provenance: Mapping[str, Any] = field(default_factory=dict)  # further entries

    @property
    def held_out_mape(self) -> float:
        """Mean absolute relative error of held-out rows."""
        return float(np.mean(np.abs(self.errors)))

    def document(self, reference: Path = Path()) -> dict[str, Any]:
        """Return the content of the file. Raises UserError if none of the tables exists."""
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
            "held_out_mape": round(self.held_out_mape, 4),
            **self.provenance,
        }
        return {"provenance": provenance, **content}

    def text(self, fit: str, reference: Path = Path()) -> str:
        """Return the text of the file, without its checksum."""
        header = f"# Written by `sweeper-lab fit {fit}`.\n# To change a number, change the fit.\n"
        return header + "\n".join(toml_lines(self.document(reference)))


def declared(fit: str, *, name: str = "", **fields: Any) -> Calibration:
    """Return a calibration with the file, tables, split and style that `fits.toml` declares.

    `name`: of the file, where a fit writes several. `fields` replace those of the declaration.
    """
    file = PACKAGE / DECLARED[fit]["file"].format(name=name)
    return Calibration(**{**DECLARED[fit], "file": file, **fields})


def settings(module: str) -> Record:
    """Return the content of the TOML file beside a module, given by its `__file__`."""
    return Record(read_toml(Path(module).with_suffix(".toml")))


def fits() -> dict[str, Path]:
    """Return the modules of all fits by name; a user's own replace those of this package."""
    return {
        name: file
        for place in reversed(FITS.places)
        for file in sorted(place.rglob("*.py"))
        for name in SIGNATURE.findall(file.read_text(encoding="utf-8"))
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one fit from the command line. Raises UserError if it lacks rows."""
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
    module, reference = import_file(fits()[asked.fit]), Path()
    if asked.measured is None:
        reference = asked.reference or reference_folder() or Path("reference")
        if not reference.is_dir():
            raise UserError("there is no reference folder; set SWEEPER_REFERENCE to where it is")
        found = getattr(module, f"fit_{asked.fit}")(reference, asked.only)
    elif own := getattr(module, f"measured_{asked.fit}", None):
        found = own(asked.measured.absolute(), asked.device)
    else:
        raise UserError(f"'{asked.fit}' is fitted to tables of the reference folder alone")
    for one in found:
        if asked.measured is None and asked.only and one.file.stem not in asked.only:
            continue
        if asked.check:
            print(f"{one.file}: {difference(one.document(reference), one.file)}", flush=True)
        else:
            write_sealed(one.file, one.text(asked.fit, reference))
            print(f"Written: {one.file}, held-out error {one.held_out_mape:.1%}", flush=True)


def difference(document: Mapping[str, Any], file: Path) -> str:
    """Return a sentence on the differences between fitted and stored numbers."""
    if not file.is_file():
        return "is not there"
    stored = tomllib.loads(file.read_text(encoding="utf-8"))
    before, after = (
        dict(leaves({**one, "provenance": {"rows": one["provenance"]["rows"]}}))
        for one in (stored, document)
    )
    errors = [one["provenance"]["held_out_mape"] for one in (stored, document)]
    if abs(errors[0] - errors[1]) > MAPE_TOLERANCE:
        before["held_out_mape",], after["held_out_mape",] = errors
    changed = [path for path in before | after if before.get(path) != after.get(path)]
    if not changed:
        return "reproduced"
    pairs = [(before.get(path), after.get(path)) for path in changed]
    relative = [abs(b / a - 1.0) for a, b in pairs if is_number(a) and is_number(b) and a]
    return (
        f"{len(changed)} of {len(before)} entries differ, numbers by up to "
        f"{100.0 * max(relative, default=0.0):.2g} %; first: {'.'.join(map(str, changed[0]))} = "
        f"{pairs[0][0]!r}, fitted {pairs[0][1]!r}"
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
    """Return the number of fitted numbers in a calibration."""
    return sum(is_number(value) for _, value in leaves(content))


def is_number(value: object) -> bool:
    """Return whether an entry of a calibration is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def rounded(value: Any, style: str) -> Any:
    """Return nested tables with every float rounded by a format.

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
    """Return `only`, or all known names. Raises UnknownNameError if a name is not known."""
    names = list(dict.fromkeys(known))
    for name in only:
        if name not in names:
            raise UnknownNameError(kind, name, names)
    return list(only) or names


def gpu_of(device: str) -> Gpu:
    """Return the data sheet of a user's own GPU. Raises UserError if there is none."""
    if not device:
        raise UserError("whose measurements are these? --device NAME, as its data sheet is called")
    return load_gpu(device)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
