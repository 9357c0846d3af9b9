"""Constants of engines on AMD's GPUs, fitted to whole deployments.

Libraries of AMD's GPUs (AITER, hipBLASLt, RCCL) were timed in no table, so that kernel times come
from data sheets and from other vendors' GPUs. A few numbers correct them, each by runtime or by
architecture. The later start of messages and the pace of latent decode kernels are fitted to TPOT
of InferenceX's rows, the pace of large products to MLPerf's offline throughput. Numbers are
searched on a grid, one after the other, for the least mean absolute logarithm of predicted over
measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from lab.fits.driver import Calibration, declared, settings
from lab.fits.methods import COVERED_SHARE, grouped, leave_one_out
from lab.tables.deployments import PublicDeployment, database
from lab.tables.published import OFFLINE, InferenceSubmission, mlperf
from simulators.catalog.gpu import load_gpu
from simulators.composition.replica import OTHER, Runtime, load_runtime
from simulators.core.jit import Floats
from simulators.serving.measured.deployments import point_of
from simulators.serving.run import RunCache
from simulators.serving.simulator import simulate

CONFIG = settings(__file__)
LATENT_DECODE, GEMM = "latent_decode", "gemm"
T = TypeVar("T")


@dataclass(frozen=True)
class AmdConstants:
    """Seconds by which messages start later, by runtime, and the pace of latent decode kernels."""

    start_s: Mapping[str, float]
    pace: float

    def tpot_s(self, rows: Sequence[PublicDeployment], share: float = 1.0) -> Floats:
        """Return TPOT of deployments and both ends of its interval, a row each."""
        return np.array(
            [predicted(row, self.start_s[row.runtime], self.pace, share) for row in rows]
        )

    def errors(self, rows: Sequence[PublicDeployment]) -> Floats:
        """Return the logarithms of predicted over measured TPOT."""
        measured_s = np.array([row.tpot_s for row in rows])
        return np.asarray(np.log(self.tpot_s(rows)[:, 0] / measured_s), np.float64)


def fit_rocm(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the constants of all engines."""
    rows = database(reference, CONFIG.vendor)
    found = constants(rows)
    left_out = list(leave_one_out(rows, lambda row: (row.prompt, row.output), constants))
    products = product_paces(mlperf(reference))
    seen = sorted({load_gpu(row.gpu).architecture for row in rows})
    yield declared(
        "rocm",
        content={
            "message_s": {**found.start_s, OTHER: found.start_s[CONFIG.today]},
            "transferred": {
                name: {LATENT_DECODE: found.pace} for name in sorted({*seen, *products})
            },
            "many": {name: {GEMM: pace} for name, pace in products.items()},
            "interval_share": dict.fromkeys(seen, interval_share(left_out)),
        },
        rows=len(rows),
        errors=np.exp(np.concatenate([fitted.errors(inside) for inside, fitted in left_out])) - 1.0,
    )


def constants(rows: Sequence[PublicDeployment]) -> AmdConstants:
    """Return the constants with the least error of TPOT."""
    groups = grouped(rows, lambda row: row.runtime)
    found = AmdConstants(dict.fromkeys(groups, 0.0), 1.0)
    for _ in range(CONFIG.rounds):
        for name in groups:
            tried = (
                replace(found, start_s={**found.start_s, name: start_s})
                for start_s in CONFIG.message_s
            )
            found = _best(tried, lambda one: one.errors(rows))
        tried = (replace(found, pace=pace) for pace in CONFIG.latent_decode)
        found = _best(tried, lambda one: one.errors(rows))
    return found


def _best(tried: Iterator[T], errors: Callable[[T], Floats]) -> T:
    return min(tried, key=lambda one: float(np.abs(errors(one)).mean()))


@functools.cache
def predicted(row: PublicDeployment, start_s: float, pace: float, share: float) -> Floats:
    """Return TPOT of a deployment and both ends of its interval, in seconds."""
    architecture = load_gpu(row.gpu).architecture
    known = load_runtime(row.runtime)
    runtime = replace(
        known,
        message_s={architecture: start_s},
        interval_share={architecture: share},
        transferred={**known.transferred, architecture: {LATENT_DECODE: pace}},
    )
    found = simulate(point_of(row), _cache(runtime))
    tpot_s = found.tpot_p50_s if row.is_median else found.tpot_mean_s
    ends = found.tpot_mean_s_lo, found.tpot_mean_s_hi
    assert tpot_s is not None
    assert found.tpot_mean_s is not None
    return np.array([tpot_s, *(tpot_s * (end or np.nan) / found.tpot_mean_s for end in ends)])


def interval_share(left_out: Sequence[tuple[list[PublicDeployment], AmdConstants]]) -> float:
    """Return the least share of kernels' intervals with which 90 % of held-out rows are covered."""
    measured_s = np.array([row.tpot_s for inside, _ in left_out for row in inside])

    def is_enough(share: float) -> bool:
        ends = np.concatenate([fitted.tpot_s(inside, share) for inside, fitted in left_out])
        inside = (ends[:, 1] <= measured_s) & (measured_s <= ends[:, 2])
        return float(inside.mean()) >= COVERED_SHARE

    return next((share for share in CONFIG.share if is_enough(share)), 1.0)


def product_paces(submissions: Sequence[InferenceSubmission]) -> dict[str, float]:
    """Return the pace of large products by architecture, from offline throughput."""
    rows = [
        row
        for row in submissions
        if row.scenario == OFFLINE and load_gpu(row.point.gpu).vendor == CONFIG.vendor
    ]
    groups = grouped(rows, lambda row: load_gpu(row.point.gpu).architecture)
    return {name: _product_pace(some) for name, some in groups.items()}


def _product_pace(rows: Sequence[InferenceSubmission]) -> float:
    def errors(pace: float) -> Floats:
        return np.log([_rate(row, pace) / row.tokens_per_gpu_s for row in rows])

    pace: float = _best(iter(CONFIG.gemm), errors)
    return pace


def _rate(row: InferenceSubmission, pace: float) -> float:
    """Return tokens per second and GPU of an offline run."""
    architecture = load_gpu(row.point.gpu).architecture
    known = load_runtime(row.point.runtime)
    runtime = replace(known, many={**known.many, architecture: {GEMM: pace}})
    gpus = row.point.tp * row.point.pp * row.point.attention_dp
    return float(simulate(row.point, _cache(runtime)).tokens_per_s) / gpus


def _cache(runtime: Runtime) -> RunCache:
    return RunCache(runtime=lambda _: runtime)
