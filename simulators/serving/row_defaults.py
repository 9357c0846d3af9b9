"""Rows whose open options are resolved: the engine's defaults as columns.

Each default is computed once for equal values of the columns that it depends on. `max_batch` stays
null in a steady state with a full batch, which holds as many requests as fit, up to the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.cluster import AUTO
from simulators.composition.engine_defaults import (
    CACHE,
    LIMITS,
    NAMES,
    cache_defaults,
    limits,
    resolved_names,
)
from simulators.core.columns import categories, numbers, schema_of, which
from simulators.core.jit import Ints
from simulators.serving.options import ANALYTIC, CLOSED
from simulators.serving.point import ServingPoint
from simulators.serving.row_groups import kinds_of

GPU_AND_CUT = ("scheduler", "gpu", "tp", "attention_dp")
"""Fields that the limits of an engine depend on, as the arguments of `limits`."""


def with_engine_defaults(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with all options resolved, as `ServingPoint` resolves those of one point.

    Raises:
        UserError: a name or a release is unknown.
    """
    words = {name: categories(batch, name)[1] for name in ("scheduler", "runtime", "dtype")}
    if any(AUTO in known for known in words.values()) or any(categories(batch, "release")[1]):
        needed = ("model", "gpu", *NAMES) if AUTO in words["dtype"] else NAMES
        rows, kind = _by_kind(batch, needed, lambda row: resolved_names({**LOAD, **row}))
        for name in NAMES if AUTO in words["dtype"] else (n for n in NAMES if n != "dtype"):
            batch = _replaced(batch, name, [row[name] for row in rows], kind)
    if any(batch.column(name).null_count for name in CACHE):
        found = _by_kind(
            batch,
            ("scheduler", "cache.preemption"),
            lambda row: cache_defaults(row["scheduler"], row["cache.preemption"]),
        )
        batch = _filled(batch, CACHE, *found, np.ones(batch.num_rows, bool))
    if any(batch.column(name).null_count for name in LIMITS):
        is_pool = numbers(batch, "pools.prefill_gpus") == 0
        found = _by_kind(batch, GPU_AND_CUT, lambda row: limits(*row.values()))
        for name in LIMITS:
            is_open = is_pool & ~fills_batch(batch) if name == "max_batch" else is_pool
            batch = _filled(batch, (name,), *found, is_open)
    return batch


LOAD = {"model": "", "gpu": "", "dtype": ""}
"""Fields of `resolved_names` that matter only for an open precision."""


def fills_batch(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return a mask of steady states whose batch is always full: neither arrivals nor clients."""
    has_clients = which(batch, "arrivals.process", CLOSED.__eq__)
    is_steady = which(batch, "fidelity", ANALYTIC.__eq__)
    return np.isnan(numbers(batch, "qps").astype(np.float64)) & is_steady & ~has_clients


def default_max_batch(batch: pa.RecordBatch) -> NDArray[np.float64]:
    """Return the engine's default of `max_batch` per row; schedulers are resolved."""
    rows, kind = _by_kind(batch, GPU_AND_CUT, lambda row: limits(*row.values()))
    return np.array([row["max_batch"] for row in rows], np.float64)[kind]


def _by_kind(
    batch: pa.RecordBatch,
    names: Sequence[str],
    of: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], Ints]:
    """Return a function of the values of some columns, once per kind of row, and the kinds."""
    kind = kinds_of(batch, names)
    first = np.unique(kind, return_index=True)[1].tolist()
    return [of({name: batch.column(name)[i].as_py() for name in names}) for i in first], kind


def _replaced(
    batch: pa.RecordBatch, name: str, values: Sequence[str], kind: Ints
) -> pa.RecordBatch:
    """Return the rows with a column of words, given by kind."""
    distinct = list(dict.fromkeys(values))
    codes = np.array([distinct.index(value) for value in values], np.int32)[kind]
    column = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(distinct, pa.string()))
    return batch.set_column(batch.schema.get_field_index(name), name, column)


def _filled(
    batch: pa.RecordBatch,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    kind: Ints,
    is_open: NDArray[np.bool_],
) -> pa.RecordBatch:
    """Return the rows with the defaults of some columns, given by kind, where they are null."""
    import pyarrow.compute as pc  # here: its import takes 0.1 CPU-seconds

    for name in names:
        column, value_type = batch.column(name), schema_of(ServingPoint).field(name).type
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        usual = pa.array([row[name] for row in rows], value_type).take(pa.array(kind))
        chosen = pc.and_(column.is_null(), pa.array(is_open))
        column = pc.if_else(chosen, usual, column.cast(value_type))
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    return batch
