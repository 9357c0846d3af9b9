"""Shares of a GPU's SMs and price when several processes use the GPU."""

from __future__ import annotations

import contextlib
from dataclasses import fields

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.gpu import load_gpu, mig_slice
from simulators.composition.replica import NOTHING
from simulators.core.columns import equal_row_groups, which
from simulators.core.errors import Infeasible
from simulators.core.fields import point_from
from simulators.core.jit import Floats
from simulators.serving.options import MIG, TIME_SLICE, ColocationConfig
from simulators.serving.point import ServingPoint

WITHOUT_NEIGHBOURS = {
    f"colocation.{field.name}": field.default
    for field in fields(ColocationConfig)
    if field.name not in ("time_share", "power_share")
}
"""Fields of a point without neighbours, with their values."""

SHARED_BY = ("models", "sharing", "sm_share", "other_sm_share", "mig_slice")
"""Fields of `colocation`, of which any other value than the default asks for a partition."""


def shares_gpu(point: ServingPoint) -> bool:
    """Return whether a point asks for a partition of its GPUs."""
    return any(not is_default(point, name) for name in SHARED_BY)


def shared_rows(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return the rows of a batch that ask for a partition of their GPUs."""
    names = [f"colocation.{name}" for name in SHARED_BY]
    asked = [which(batch, name, WITHOUT_NEIGHBOURS[name].__ne__) for name in names]
    return np.logical_or.reduce(asked)  # type: ignore[no-any-return]


def price_share(point: ServingPoint) -> float:
    """Return the share of a GPU's price that is charged to a point.

    Time-sliced processes are charged evenly, MPS processes by their SM shares, and MIG slices by
    their compute share.
    """
    how = point.colocation
    if how.sharing == MIG:
        return mig_slice(load_gpu(point.gpu), how.mig_slice).compute_share
    if how.models == NOTHING:
        return 1.0
    others = len(how.models.split("+"))
    if how.sharing == TIME_SLICE:
        return 1.0 / (1 + others)
    return how.sm_share / (how.sm_share + others * sm_share_of_others(point))


PRICE_SHARE_FIELDS = (
    "colocation.sharing",
    "colocation.models",
    "colocation.sm_share",
    "colocation.other_sm_share",
    "colocation.mig_slice",
)
"""Fields of a point, besides its GPU, that determine its share of a GPU's price."""


def price_shares(rows: pa.RecordBatch) -> Floats:
    """Return each row's share of a GPU's price; NaN where the GPU cannot be shared in this way."""
    if not shared_rows(rows).any():
        return np.ones(rows.num_rows)
    shares = np.full(rows.num_rows, np.nan)
    for where, named in equal_row_groups(rows, ("gpu", *PRICE_SHARE_FIELDS)):
        with contextlib.suppress(Infeasible):
            shares[where] = price_share(point_from(ServingPoint, {"model": "", **named}))
    return shares


def is_default(point: ServingPoint, name: str) -> bool:
    """Return whether a field of `colocation` has the value of a point without neighbours."""
    return bool(getattr(point.colocation, name) == WITHOUT_NEIGHBOURS[f"colocation.{name}"])


def sm_share_of_others(point: ServingPoint) -> float:
    """Return the share of the SMs of each other model."""
    own, others = point.colocation.sm_share, len(point.colocation.models.split("+"))
    share = point.colocation.other_sm_share or (1.0 - own) / others
    if share <= 0.0:
        raise Infeasible("no_sms_for_colocated", f"sm_share {own:g} leaves no SMs")
    return share
