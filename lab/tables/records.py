"""Measured tables row by row, with the catalog's names and SI units, as `records.toml` declares.

A declaration has the `file` of a table below the reference folder and may have:

- `where`: values (or lists of values) that a row must have in some columns;
- `present`: columns that must be neither empty nor zero;
- `known`: columns that name a model or a GPU, of which unknown ones are left out with a warning;
- `columns`: further columns by our name, each a `[column, factor]` or the name of a column;
- `gpus`: further columns that hold the catalog's name of a GPU;
- `shapes`: further columns that hold a model, which the catalog may lack.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lab.tables.rows import Record, read_records
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, LanguageModel, load_model
from simulators.composition.replica import Replica
from simulators.core.folder import GPUS as CATALOG
from simulators.core.folder import MODELS as CATALOG_MODELS
from simulators.core.folder import read_toml

NAMES = read_toml(Path(__file__).with_name("names.toml"))
GPUS, MODELS = NAMES["gpus"], NAMES["models"]

REMARK = re.compile(r"( \(.*\)|-99(\.9)?|-edge|_lora)$")
"""Suffixes of a model's name in tables: a variant in brackets, the kind of an MLPerf benchmark."""


@functools.cache
def model_name(written: str) -> str:
    """Return the catalog's name of a model.

    Raises:
        UnknownNameError: the catalog has no such model.

    >>> model_name("Qwen/Qwen3-235B-A22B-FP8"), model_name("llama2-70b-99.9")
    ('qwen3_235b', 'llama2_70b')
    """
    return load_model(_known(written)).name


@functools.cache
def is_model(written: str) -> bool:
    """Return whether the catalog has a model."""
    return CATALOG_MODELS.has(_known(written))


def _known(written: str) -> str:
    plain = REMARK.sub("", written)
    return str(MODELS.get(written, MODELS.get(plain, plain)))


def model_of(written: str) -> LanguageModel:
    """Return the shape of a model that may be missing in the catalog.

    Raises:
        UnknownNameError: neither `names.toml` nor the catalog has it.

    >>> model_of("Vicuna-33B-v1.3").layers, model_of("Vicuna-7B-v1.3").layers
    (60, 32)
    """
    shape = NAMES["shapes"].get(written, written)
    return extra_model(shape) if shape.endswith(".toml") else load_model(model_name(shape))


def extra_model(file: str) -> LanguageModel:
    """Return the model described by a file of `models/`."""
    return load_model(str(Path(__file__).parent / "models" / file))


def gpu_name(written: str) -> str:
    """Return the catalog's name of a GPU, or the written name where the catalog has none.

    >>> gpu_name("AMD Instinct MI355X 288GB HBM3e (x87)")
    'mi355x'
    """
    return str(GPUS.get(written, GPUS.get(REMARK.sub("", written), written)))


@functools.cache
def is_gpu(written: str) -> bool:
    """Return whether the catalog has a GPU."""
    return CATALOG.has(gpu_name(written))


def replica_of(model: str | LanguageModel, gpu: str, **more: Any) -> Replica:
    """Return a replica of a model on GPUs in the nodes that they are sold in."""
    known, sheet = load_model(model) if isinstance(model, str) else model, load_gpu(gpu)
    return Replica(model=known, gpu=sheet, cluster=cluster_for("auto", sheet), **more)


def four_bit_experts(model: str, gpu: str) -> str:
    """Return the precision of a mixture of experts whose experts alone have 4-bit weights.

    Engines multiply experts published in MXFP4 by 8-bit activations.
    """
    if "fp4" not in load_gpu(gpu).peak_flops:
        return "bf16+w4a16"
    return "bf16+w4a8" if load_model(model).published_experts == MXFP4 else "bf16+fp4"


Row = TypeVar("Row", bound=Mapping[str, Any])

LOG = logging.getLogger("sweeper")
NAMED = 5
"""Unknown names that a warning lists."""


def declared(name: str) -> Mapping[str, Any]:
    """Return the declaration of a table."""
    found: Mapping[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))[name]
    return found


def file_of(name: str) -> str:
    """Return the file of a declared table, below the reference folder."""
    return str(declared(name)["file"])


def records(reference: Path, name: str, /, **wanted: Any) -> list[Record]:
    """Return the rows of a declared table.

    Args:
        reference: the folder of measured tables.
        name: a table of `records.toml`.
        wanted: by column, the value or list of values of the rows to return.

    Raises:
        UserError: the file is missing, unreadable, or lacks a column.
    """
    table = declared(name)
    rows = read_records(reference / table["file"], **table.get("where", {}), **wanted)
    rows = [row for row in rows if all(row[column] for column in table.get("present", ()))]
    checks = {
        column: is_model if "model" in column else is_gpu for column in table.get("known", ())
    }
    rows = known_rows(rows, table["file"], **checks)
    names = (("gpus", gpu_name), ("shapes", model_of))
    for row in rows:
        for ours, column in table.get("columns", {}).items():
            source, factor = column if isinstance(column, list) else (column, None)
            value = row[source]
            row[ours] = value if factor is None or value is None else factor * value
        for kind, name_of in names:
            row.update({ours: name_of(row[column]) for ours, column in table.get(kind, {}).items()})
    return rows


def known_rows(rows: Iterable[Row], table: str, **known: Callable[[Any], object]) -> list[Row]:
    """Return the rows whose columns hold known values, and warn once about the others.

    Args:
        rows: rows of a measured table.
        table: name of the table, for the warning.
        known: by column, a predicate of known values.

    >>> rows = [{"gpu": "a"}, {"gpu": "b"}]
    >>> known_rows(rows, "runs.parquet", gpu={"a", "b"}.__contains__) == rows
    True
    """
    kept, unknown = [], Counter[str]()
    for row in rows:
        wrong = next((name for name, is_known in known.items() if not is_known(row[name])), "")
        if wrong:
            unknown[f"the unknown {wrong} '{row[wrong]}'"] += 1
        else:
            kept.append(row)
    if unknown:
        names = sorted(unknown)
        more = f" and {len(names) - NAMED} other names" if len(names) > NAMED else ""
        listed = ", ".join(f"{unknown[name]:,} of {name}" for name in names[:NAMED])
        warn_once(f"{table}: left out {listed}{more}")
    return kept


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, the first time that it is given."""
    LOG.warning(message)
