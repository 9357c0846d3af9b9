"""By what factor a deployment will miss its deadlines at least: those of a steady state.

A high percentile under bursts lies above the mean under a load that comes evenly: what misses by
much in that mean has no hope. A steady state knows neither whole experts nor separate pools, but
designs that are alike: experts cut like all else, and a pool that reads prompts or one that decodes
behind prompts that are there already. Of ranks that attend on their own nothing is foreseen.
"""

from __future__ import annotations

from collections.abc import Callable
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
"""Answers designs whose fidelity is the steady state."""

FULL = 2.0
"""By what factor a deployment is said to miss that cannot even carry the mean load."""


@dataclass(frozen=True)
class Foresight:
    """Says by what factor designs will miss their deadlines at least."""

    steady: Steady  # what answers designs in the steady state
    own_rate: float  # requests per second where a design keeps those of its trace
    ttft_s: float | None  # deadline of the first token; None: of a median, which is not foreseen
    tpot_s: float  # deadline of later tokens

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return the factor of each row; infinity where it cannot be built."""
        rates = numbers(batch, "qps").astype(np.float64)
        even = np.where(np.isnan(rates), self.own_rate, rates)
        batch = _with(batch, qps=even, fidelity=ANALYTIC)
        apart = numbers(batch, "prefill_gpus") > 0
        found = np.empty(batch.num_rows)
        for rows, look in ((~apart, self._together), (apart, self._apart)):
            which = np.flatnonzero(rows)
            if which.size:
                found[which] = look(batch.take(pa.array(which)))
        return found

    def _together(self, batch: pa.RecordBatch) -> Floats:
        """Return the factors of designs of one pool."""
        groups, whole = numbers(batch, "attention_dp"), numbers(batch, "ep") > 1
        if not whole.any():
            return self._late(batch, self.ttft_s, self.tpot_s)
        cut = {"ep": 1, "attention_dp": 1, "moe_backend": GATHERED}
        alike = _with(batch, tp=numbers(batch, "tp") * groups, **cut)
        return np.where(groups > 1, 1.0, self._late(alike, self.ttft_s, self.tpot_s))

    def _apart(self, batch: pa.RecordBatch) -> Floats:
        """Return the factors of designs of two pools: of the one that misses by more."""
        prompts = _mean_prompts(batch) + numbers(batch, "system_prompt_tokens")
        reads = _with(_pool(batch, "prefill"), output_tokens=1)
        decodes = _with(
            _pool(batch, "decode"), prompt_tokens=1, system_prompt_tokens=prompts, prefix_cache=True
        )
        late = self._late(reads, self.ttft_s, None), self._late(decodes, None, self.tpot_s)
        return np.maximum(*late)

    def _late(self, batch: pa.RecordBatch, ttft_s: float | None, tpot_s: float | None) -> Floats:
        """Return by what factor steady states miss the deadlines that are given."""
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
    """Return the designs of one of two pools; sizes that are no whole replicas are no designs."""
    tp = numbers(batch, f"{name}_tp")
    tp = np.where(tp > 0, tp, numbers(batch, "tp"))
    gpus = numbers(batch, "replicas") * numbers(batch, f"{name}_gpus")
    return _with(batch, tp=tp, replicas=gpus // (tp * numbers(batch, "pp")), **ONE_POOL)


def _mean_prompts(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the mean prompt of each row's workload."""
    codes, names = categories(batch, "workload")
    drawn = numbers(batch, "requests"), numbers(batch, "seed")
    known = [
        float(np.mean(token_counts(str(name), int(drawn[1][row]), int(drawn[0][row]))[0]))
        for name, row in zip(names, np.unique(codes, return_index=True)[1], strict=True)
    ]
    return np.array(known, np.float64)[codes].astype(np.int64)


def _with(batch: pa.RecordBatch, **columns: object) -> pa.RecordBatch:
    """Return rows of which some columns hold other values: one of each row, or one for all."""
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
