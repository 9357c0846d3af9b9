"""Carbon of a deployment, from the energy and the GPUs of finished rows.

Electricity: joules times the site's PUE times grams per kWh of the grid. Making the GPUs: the
published footprint of the modules, spread evenly over the years of use, also while they idle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.catalog.carbon import YEAR_S, embodied_kg, read_grid
from simulators.catalog.gpu import load_gpu
from simulators.composition.replica import NOTHING
from simulators.core.columns import categories, equal_row_groups, numbers
from simulators.core.fields import values_of
from simulators.core.jit import Floats
from simulators.serving.answer.metrics import CARBON, ServingMetrics
from simulators.serving.gpu_shares import PRICE_SHARE_FIELDS, price_shares
from simulators.serving.point import ServingPoint

NEEDS = ("energy_j_per_token", "requests_per_s")
"""Metrics that carbon depends on, besides those of costs."""
FIELDS = ("prices", "grid", "gpu_life_years")
"""Fields of a point that change only carbon, and costs."""
MTOK, G_PER_KG = 1e6, 1e3


def carbon_of(rows: pa.RecordBatch, fields: Mapping[str, Any]) -> dict[str, Floats]:
    """Return the carbon metrics of rows at one value of each field; NaN where unknown."""
    joules, rate, served, size, replicas, running = (
        numbers(rows, name).astype(np.float64)
        for name in (NEEDS[0], "tokens_per_s", NEEDS[1], "gpus", "replicas", "replicas_mean")
    )
    tokens = np.where(rate > 0.0, rate, np.nan)
    per_mtok = joules * MTOK * read_grid(str(fields["grid"])).g_per_j(str(fields["prices"]))
    part = numbers(rows, "pools.decode_gpus") * replicas / size
    own_kg, decode_kg = (_kg(rows, name) for name in ("gpu", "pools.decode_gpu"))
    kg = np.where(np.isnan(part) | (part <= 0.0), own_kg, own_kg + part * (decode_kg - own_kg))
    modules = size * price_shares(rows) * running / replicas
    per_s = modules * kg * G_PER_KG / (float(fields["gpu_life_years"]) * YEAR_S)
    with np.errstate(invalid="ignore", divide="ignore"):
        per_request = per_mtok / MTOK * tokens / np.where(served > 0.0, served, np.nan)
    return dict(zip(CARBON, (per_mtok, per_request, per_s * MTOK / tokens), strict=True))


def with_carbon(batch: pa.RecordBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return finished rows with their carbon; `batch` holds their points."""
    both = pa.RecordBatch.from_arrays(
        [*batch.columns, *(rows.column(name) for name in _METRICS)],
        [*batch.schema.names, *_METRICS],
    )
    columns = {name: np.full(batch.num_rows, np.nan) for name in CARBON}
    for where, fields in equal_row_groups(batch, FIELDS):
        found = carbon_of(both.take(pa.array(where)), fields)
        for name, values in found.items():
            columns[name][where] = values
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        kept = pa.array(values, rows.schema.field(place).type, mask=np.isnan(values))
        rows = rows.set_column(place, rows.schema.field(place), kept)
    return rows


def with_carbon_of(point: ServingPoint, metrics: ServingMetrics) -> ServingMetrics:
    """Return the metrics of a point with its carbon."""
    known = values_of(metrics) | values_of(point)
    names = (*_METRICS, *_OF_POINT, *PRICE_SHARE_FIELDS)
    row = pa.RecordBatch.from_pydict({name: [known[name]] for name in names})
    found = carbon_of(row, {name: known[name] for name in FIELDS})
    carbon: dict[str, Any] = {
        n: None if math.isnan(g[0]) else float(g[0]) for n, g in found.items()
    }
    return replace(metrics, **carbon)


_OF_POINT = ("gpu", "replicas", "pools.decode_gpu", "pools.decode_gpus")
_METRICS = (*NEEDS, "tokens_per_s", "gpus", "replicas_mean")


def _kg(rows: pa.RecordBatch, name: str) -> Floats:
    """Return the kilograms of making one GPU of a column; a pool without an own GPU has `gpu`."""
    codes, names = categories(rows, name)
    if NOTHING in names:
        own = _kg(rows, "gpu")
        return (
            own
            if len(names) == 1
            else np.where(_known(names)[codes] < 0.0, own, _known(names)[codes])
        )
    return _known(names)[codes]


def _known(names: Sequence[str]) -> Floats:
    """Return the kilograms of making each GPU: NaN where unknown, negative for no GPU."""
    known = [-1.0 if name == NOTHING else embodied_kg(load_gpu(name)) for name in names]
    return np.array([np.nan if kg is None else kg for kg in known], np.float64)
