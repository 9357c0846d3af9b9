"""The schema of a claims file: rows and their predictor, a statistic of the errors, and a limit.

    [[claims]]
    name = "step time, {source}"
    predictions = "training:measured_steps"
    split = "model and GPU left out"
    where = "NOT is_mixture"
    by = ["source"]
    statistic = "mean"
    at_most = 8.0

    [inputs."training:measured_steps"]
    splits = 3

`predictions` names a function of a module beside the file. It maps the folder of reference tables
to a frame with a row per prediction: the columns `predicted` and `measured`, and where known `lo`
and `hi` (the 90 % prediction interval), `peer` (another tool's prediction), `baseline` (a naive
prediction), `label` (of the row), `skipped` (reason for a missing prediction) and `held_out`
(whether no fit has seen the row).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from simulators.core.checks import COVERAGE, ERROR
from simulators.core.errors import UserError
from simulators.core.folder import Folder, import_file, read_toml

FOLDER = Folder("claim", "claims", package="lab")


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a claims file, evaluated to a line per group of rows."""

    name: str  # of the line; {column} is the value of a grouping column
    predictions: str = ""  # "module:function"
    split: str = ""  # how the rows were held out of the fits, in words
    where: str = ""  # an SQL condition on the rows
    by: tuple[str, ...] = ()  # columns; each combination of values is a line
    mean_over: tuple[str, ...] = ()  # the statistic is averaged over these groups
    statistic: str = "mean"
    column: str = "predicted"  # column that the statistic is computed from
    at_most: float | dict[str, float] | str | None = None  # a number, one per group, or a column
    at_least: float | str | None = None
    unit: str = "%"
    kind: str = ERROR
    note: str = ""
    is_detail: bool = False  # stored with the product, printed only with `--details`

    @property
    def line_kind(self) -> str:
        """The kind of the line: prediction intervals are judged by their coverage."""
        return COVERAGE if self.statistic == "coverage" else self.kind


class ClaimsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a claims file."""

    claims: tuple[Claim, ...]
    inputs: dict[str, dict[str, Any]] = {}  # keyword arguments of predictors, by "module:function"


def load_claims(file: Path) -> ClaimsFile:
    """Return the contents of a claims file.

    Raises:
        UserError: an entry is not valid.
    """
    try:
        return msgspec.convert(read_toml(file), ClaimsFile)
    except msgspec.ValidationError as error:
        raise UserError(f"{file}: {error}") from error


def load_function(file: Path, named: str) -> Callable[..., pl.DataFrame]:
    """Return a function "module:function" of a module beside a claims file.

    Raises:
        UserError: there is no such module or function.
    """
    name, _, function = named.partition(":")
    code = file.with_name(f"{name}.py")
    if not code.is_file():
        raise UserError(f"{file}: there is no {code.name} for '{named}'")
    is_shipped = file.is_relative_to(FOLDER.shipped)
    module = importlib.import_module(f"lab.claims.{name}") if is_shipped else import_file(code)
    if not hasattr(module, function):
        raise UserError(f"{file}: {code} has no function '{function}'")
    return getattr(module, function)  # type: ignore[no-any-return]
