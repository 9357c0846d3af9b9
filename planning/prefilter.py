"""Lower bound on how much a deployment misses its deadlines, from a steady state.

A high percentile under bursts exceeds the mean under an even load, so a design whose steady-state
mean misses a deadline by far cannot meet it. The steady state has neither expert parallelism nor
separate pools; similar designs replace them: experts split by tensor parallelism, a prefill pool
alone, a decode pool whose prompts are already cached. Data-parallel attention has no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.columns import categories, numbers
from simulators.core.jit import Floats
from simulators.serving.demand.requests import token_counts
from simulators.serving.deployment import ONE_POOL
from simulators.serving.point import ANALYTIC
from simulators.workload.llm.routing import GATHERED

Steady = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Evaluates designs in the steady state."""

FULL = 2.0
"""Factor for a deployment that cannot carry the mean load."""


@dataclass(frozen=True)
class Prefilter:
    """Lower bound on the ratio of latencies to deadlines."""

    steady: Steady  # evaluates designs in the steady state
    own_rate: float  # requests per second of the trace, for designs without `qps`
    ttft_s: float | None  # deadline of TTFT; None for a median, which has no bound
    tpot_s: float  # deadline of TPOT

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return the factor of each row; infinity for infeasible designs."""
        rates = numbers(batch, "qps").astype(np.float64)
        even = np.where(np.isnan(rates), self.own_rate, rates)
        batch = _with(batch, {"qps": even, "fidelity": ANALYTIC})
        apart = numbers(batch, "pools.prefill_gpus") > 0
        found = np.empty(batch.num_rows)
        for rows, look in ((~apart, self._one_pool), (apart, self._two_pools)):
            which = np.flatnonzero(rows)
            if which.size:
                found[which] = look(batch.take(pa.array(which)))
        return found

    def _one_pool(self, batch: pa.RecordBatch) -> Floats:
        """Return the factors of designs with one pool."""
        groups, whole = numbers(batch, "attention_dp"), numbers(batch, "ep") > 1
        if not whole.any():
            return self._late(batch, self.ttft_s, self.tpot_s)
        cut = {"ep": 1, "attention_dp": 1, "moe.backend": GATHERED}
        alike = _with(batch, {"tp": numbers(batch, "tp") * groups, **cut})
        return np.where(groups > 1, 1.0, self._late(alike, self.ttft_s, self.tpot_s))

    def _two_pools(self, batch: pa.RecordBatch) -> Floats:
        """Return the factors of designs with two pools: the larger of both pools."""
        prompts = _mean_prompts(batch) + numbers(batch, "sessions.system_prompt_tokens")
        reads = _with(_pool(batch, "prefill"), {"output_tokens": 1})
        decodes = _with(
            _pool(batch, "decode"),
            {
                "prompt_tokens": 1,
                "sessions.system_prompt_tokens": prompts,
                "cache.prefix_caching": True,
            },
        )
        late = self._late(reads, self.ttft_s, None), self._late(decodes, None, self.tpot_s)
        return np.maximum(*late)

    def _late(self, batch: pa.RecordBatch, ttft_s: float | None, tpot_s: float | None) -> Floats:
        """Return the worst ratio of steady-state latencies to the given deadlines."""
        found = self.steady(batch)
        full = np.where(numbers(found, "saturated").astype(np.float64) == 1.0, FULL, 0.0)
        times = [
            numbers(found, name).astype(np.float64) / limit
            for name, limit in (("tpot_mean_s", tpot_s), ("ttft_mean_s", ttft_s))
            if limit is not None
        ]
        built = ~np.isnan(numbers(found, "requests_per_s").astype(np.float64))
        return np.where(built, np.fmax.reduce([full, *times]), np.inf)


def _pool(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return the designs of one of two pools; partial replicas make no design."""
    tp = numbers(batch, f"pools.{name}_tp")
    tp = np.where(tp > 0, tp, numbers(batch, "tp"))
    gpus = numbers(batch, "replicas") * numbers(batch, f"pools.{name}_gpus")
    replicas = gpus // (tp * numbers(batch, "pp"))
    return _with(batch, {"tp": tp, "replicas": replicas, **ONE_POOL})


def _mean_prompts(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the mean prompt of each row's workload."""
    codes, names = categories(batch, "workload")
    drawn = numbers(batch, "requests"), numbers(batch, "seed")
    known = [
        float(np.mean(token_counts(str(name), int(drawn[1][row]), int(drawn[0][row]))[0]))
        for name, row in zip(names, np.unique(codes, return_index=True)[1], strict=True)
    ]
    return np.array(known, np.float64)[codes].astype(np.int64)


def _with(batch: pa.RecordBatch, columns: Mapping[str, object]) -> pa.RecordBatch:
    """Return the batch with columns replaced by one value per row, or one for all rows."""
    for name, values in columns.items():
        place = batch.schema.get_field_index(name)
        if not isinstance(values, np.ndarray):
            values = [values] * batch.num_rows
        kind = batch.schema.field(place).type
        column = pa.array(values, kind.value_type if pa.types.is_dictionary(kind) else kind)
        if pa.types.is_dictionary(kind):
            column = column.dictionary_encode()
        batch = batch.set_column(place, name, column)
    return batch
