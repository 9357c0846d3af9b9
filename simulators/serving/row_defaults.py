"""Rows whose open options are resolved: the engine's defaults as columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from simulators.catalog.cluster import AUTO
from simulators.composition.engine_defaults import NEEDED, RESOLVED, limits, resolved
from simulators.core.columns import categories, numbers, which
from simulators.serving.point import ANALYTIC, CLOSED
from simulators.serving.row_groups import kinds_of


def with_engine_defaults(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with all options resolved, as `resolved` does for one point.

    Raises:
        UserError: a name or a release is unknown.
    """
    known = {name: categories(batch, name)[1] for name in RESOLVED}
    if not any(known["release"]) and not any({AUTO, None} & {*v} for v in known.values()):
        return batch
    kind = kinds_of(batch, NEEDED)
    first = np.unique(kind, return_index=True)[1].tolist()
    rows = [resolved({n: batch.column(n)[i].as_py() for n in NEEDED}) for i in first]
    fills = fills_batch(batch)
    for name in RESOLVED:
        place = batch.schema.get_field_index(name)
        values = [row[name] for row in rows]
        distinct = [value for value in dict.fromkeys(values) if value is not None]
        codes = pa.array([distinct.index(v) if v is not None else None for v in values], pa.int32())
        typed = pa.array(distinct, _value_type(batch.schema.field(place).type))
        codes = codes.take(pa.array(kind))
        if name == "max_batch":
            is_open = np.isnan(numbers(batch, name).astype(np.float64)) & fills
            codes = pc.if_else(pa.array(is_open), pa.scalar(None, pa.int32()), codes)
        column = pa.DictionaryArray.from_arrays(codes, typed)
        batch = batch.set_column(place, batch.schema.field(place).with_type(column.type), column)
    return batch


def fills_batch(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return a mask of steady states whose batch is always full: neither arrivals nor clients."""
    has_clients = which(batch, "arrivals.process", CLOSED.__eq__)
    is_steady = which(batch, "fidelity", ANALYTIC.__eq__)
    return np.isnan(numbers(batch, "qps").astype(np.float64)) & is_steady & ~has_clients


def default_max_batch(batch: pa.RecordBatch) -> NDArray[np.float64]:
    """Return the engine's default of `max_batch` per row; schedulers are resolved."""
    names = ("scheduler", "gpu", "tp", "attention_dp")
    kind = kinds_of(batch, names)
    first = np.unique(kind, return_index=True)[1].tolist()
    rows = [limits(*(batch.column(name)[i].as_py() for name in names)) for i in first]
    return np.array([row["max_batch"] for row in rows], np.float64)[kind]


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
