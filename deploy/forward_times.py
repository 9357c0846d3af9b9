"""Write the forward passes of a serving design as a table that simulators of engines read.

Grids are powers of two, up to the design's token budget and number of sequences. A pass through a
pipeline is the sum of its stages.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np

from simulators.catalog.engine import engine_of
from simulators.catalog.model import checkpoint_of, load_model
from simulators.composition.price import pass_s
from simulators.core.errors import UserError
from simulators.core.folder import reader
from simulators.serving.deployment import deployment_of
from simulators.serving.point import ServingPoint

FORMAT = "forward_passes"
MOST_CONTEXT = 131_072
"""Longest context of a request in the table, unless the model's limit is shorter."""


def write_forward_times(point: ServingPoint, file: Path) -> int:
    """Write prefill and decode passes of one replica, and return the number of rows.

    Raises:
        Infeasible: the design cannot exist.
        UserError: the design has separate pools or ranks of attention, or the file cannot be
            written.
    """
    if point.pools.prefill_gpus or point.attention_dp > 1:
        raise UserError(
            "a table of forward passes describes one pool without attention_dp: write one table "
            "per pool, from a design with the pool's options, and attention_dp 1"
        )
    model, replica = load_model(point.model), deployment_of(point).hardware.replica
    longest = min(model.max_context or MOST_CONTEXT, MOST_CONTEXT)
    kinds = reader(FORMAT, "TimedPasses")
    prompts = [
        (b, b * new, b * past)
        for b, new in product(_powers(1, 16), _powers(64, longest))
        for past in (0, *_powers(1024, longest))
        if b * new <= max(point.token_budget, 64) and past + new <= longest
    ]
    decodes = [
        (b, 0, b * past)
        for b, past in product(_powers(1, point.max_num_seqs), _powers(64, longest // 2))
    ]
    passes = []
    for kind, rows in (("prefill", prompts), ("decode", decodes)):
        columns = np.array(rows, np.float64).T
        empty = kinds(kind, *columns, np.zeros(columns.shape[1]))
        passes.append(kinds(kind, *columns, pass_s(replica, empty.step)))
    engine = reader(FORMAT, "PassEngine")(
        model=model.name,
        gpu=point.gpu,
        framework=engine_of(point.scheduler).name,
        release=point.release,
        dtype=point.dtype,
        kv_dtype=point.kv_dtype,
        layout=replica.layout,
    )
    repository = checkpoint_of(model, point.workload) or model.name
    count: int = reader(FORMAT, "write_passes")(file, engine, passes, repository)
    return count


def _powers(least: int, most: int) -> list[int]:
    found = [least]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found
