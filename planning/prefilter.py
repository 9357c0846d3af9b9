"""A prefilter of serving deployments: those whose steady state misses the SLO by far."""

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
from simulators.serving.options import ANALYTIC
from simulators.workload.llm.parallelism import GATHERED

OVERLOADED = 2.0
"""Ratio of latency to deadline for a deployment that cannot carry the mean load."""
Steady = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Evaluates designs in the steady state."""


@dataclass(frozen=True)
class Prefilter:
    """Lower bound on the ratio of latencies to deadlines, from a steady state.

    A high percentile under bursts exceeds the mean under an even load, so a design whose mean
    latency in the steady state misses a deadline by far cannot meet the deadline. The steady state
    supports neither expert parallelism nor separate pools, so similar designs replace them: experts
    split by tensor parallelism, a prefill pool alone, and a decode pool whose prompts are cached.
    Data-parallel attention has no bound, in a pool neither.

    A run of few requests starts on an empty server and may end before the steady state: the number
    of requests at once approaches its mean with a time constant of the time `R` that a request is
    decoded, so over a run of `T` seconds its mean is `1 - R / T (1 - exp(-T / R))` of that. Ratios
    are multiplied by this share. Above capacity, requests wait once the server is full; the median
    request waits for the backlog of those before it.
    """

    steady: Steady
    own_rate: float  # requests per second of designs without `qps`; NaN in a closed loop
    wait_s: float  # deadline of TTFT
    tpot_s: float  # deadline of TPOT
    is_tail: bool  # whether the percentile exceeds the mean; a median may be below the mean TTFT

    @property
    def ttft_s(self) -> float | None:
        """The deadline that the mean TTFT may not exceed; None for a median."""
        return self.wait_s if self.is_tail else None

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return the ratio of each row; infinity for infeasible designs."""
        qps = numbers(batch, "qps").astype(np.float64)
        rates = np.where(np.isnan(qps), self.own_rate, qps)
        batch = _with(batch, {"qps": rates, "fidelity": ANALYTIC})
        is_separate = numbers(batch, "pools.prefill_gpus") > 0
        found = np.empty(batch.num_rows)
        for mask, ratios in ((~is_separate, self._one_pool), (is_separate, self._two_pools)):
            rows = np.flatnonzero(mask)
            if rows.size:
                found[rows] = ratios(batch.take(pa.array(rows)))
        return found

    def _one_pool(self, batch: pa.RecordBatch) -> Floats:
        groups = numbers(batch, "attention_dp")
        if (numbers(batch, "ep") > 1).any():
            dense = {"ep": 1, "attention_dp": 1, "moe.backend": GATHERED}
            batch = _with(batch, {"tp": numbers(batch, "tp") * groups, **dense})
            return np.where(groups > 1, 1.0, self._ratios(batch, self.ttft_s, self.tpot_s))
        return self._ratios(batch, self.ttft_s, self.tpot_s)

    def _two_pools(self, batch: pa.RecordBatch) -> Floats:
        """Return the ratios of designs with two pools: the larger of both pools."""
        prefill = _with(_pool(batch, "prefill"), {"output_tokens": 1})
        cached_prompts = {
            "prompt_tokens": 1,
            "sessions.system_prompt_tokens": _mean_prompts(batch)
            + numbers(batch, "sessions.system_prompt_tokens"),
            "cache.prefix_caching": True,
        }
        decode = _with(_pool(batch, "decode"), cached_prompts)
        ttft = _bound(batch, "prefill", self._ratios(prefill, self.ttft_s, None))
        return np.maximum(ttft, _bound(batch, "decode", self._ratios(decode, None, self.tpot_s)))

    def _ratios(self, batch: pa.RecordBatch, ttft_s: float | None, tpot_s: float | None) -> Floats:
        found = self.steady(batch)

        def metric(name: str) -> Floats:
            return np.asarray(numbers(found, name), np.float64)

        rate, carried = numbers(batch, "qps").astype(np.float64), metric("requests_per_s")
        requests = numbers(batch, "requests").astype(np.float64)
        requests[requests == 0.0] = np.inf  # a whole trace
        decoded_s = metric("tpot_mean_s") * metric("tokens_per_s") / carried
        reached = _share_reached(requests / rate, decoded_s)
        late = np.maximum(0.5 * requests - carried * np.nan_to_num(decoded_s), 0.0)
        with np.errstate(invalid="ignore"):  # of a whole trace at its capacity
            wait_s = late * np.maximum(1.0 / carried - 1.0 / rate, 0.0)
        overload = np.minimum(OVERLOADED, wait_s / self.wait_s)
        ratios = [np.where(metric("saturated") == 1.0, overload, 0.0)]
        for name, limit_s in (("tpot_mean_s", tpot_s), ("ttft_mean_s", ttft_s)):
            if limit_s is not None:
                ratios.append(metric(name) / limit_s * reached)
        return np.where(np.isnan(carried), np.inf, np.fmax.reduce(ratios))


def _share_reached(run_s: Floats, decoded_s: Floats) -> Floats:
    """Return the mean population of a run as a share of that of the steady state; 1 if unknown."""
    lives = np.nan_to_num(run_s / decoded_s, nan=np.inf)
    with np.errstate(invalid="ignore"):  # infinity times 0
        return np.where(np.isinf(lives), 1.0, 1.0 + np.expm1(-lives) / lives)


def _bound(batch: pa.RecordBatch, name: str, ratios: Floats) -> Floats:
    """Return the ratios of a pool, and 1 where its attention is data-parallel."""
    groups = numbers(batch, f"pools.{name}_attention_dp").astype(np.float64)
    return np.where(np.nan_to_num(groups, nan=1.0) > 1.0, 1.0, ratios)


def _pool(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    tp = numbers(batch, f"pools.{name}_tp")
    tp = np.where(tp > 0, tp, numbers(batch, "tp"))
    gpus = numbers(batch, "replicas") * numbers(batch, f"pools.{name}_gpus")
    replicas = gpus // (tp * numbers(batch, "pp"))
    return _with(batch, {"tp": tp, "replicas": replicas, **ONE_POOL})


def _mean_prompts(batch: pa.RecordBatch) -> NDArray[np.int64]:
    codes, names = categories(batch, "workload")
    requests, seeds = numbers(batch, "requests"), numbers(batch, "seed")
    means = [
        float(np.mean(token_counts(str(name), int(seeds[row]), int(requests[row]))[0]))
        for name, row in zip(names, np.unique(codes, return_index=True)[1], strict=True)
    ]
    return np.array(means, np.float64)[codes].astype(np.int64)


def _with(batch: pa.RecordBatch, columns: Mapping[str, object]) -> pa.RecordBatch:
    for name, values in columns.items():
        place = batch.schema.get_field_index(name)
        if not isinstance(values, np.ndarray):
            values = [values] * batch.num_rows
        kind = batch.schema.field(place).type
        kind_of_value = kind.value_type if pa.types.is_dictionary(kind) else kind
        column = pa.array(values, kind_of_value, from_pandas=True)  # NaN is null
        if pa.types.is_dictionary(kind):
            column = column.dictionary_encode()
        batch = batch.set_column(place, name, column)
    return batch
