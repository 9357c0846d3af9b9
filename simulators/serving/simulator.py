"""The serving simulator: latency, throughput, cost and energy of an LLM deployment under load.

Iteration times come from composition, decisions from a scheduler and a router, lengths and arrivals
from a workload. Points of equal seed and workload serve the same requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.carbon import carbon_notes
from simulators.catalog.engine import engine_runtimes, reference_engine
from simulators.catalog.price import (
    priced_by,
    usd_per_gpu_hours,
    usd_per_mtok,
    with_rates,
)
from simulators.composition.explain import explained
from simulators.composition.price import PROBE
from simulators.composition.replica import NOTHING
from simulators.composition.simulator import SIMULATOR as COMPOSITION
from simulators.core.columns import categories, evaluate_pointwise, numbers, which
from simulators.core.contract import Contribution, ErrorBudget, weakest_of
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import check_point, obeys_rules, point_from
from simulators.core.folder import (
    ROUTERS,
    RUNTIMES,
    SCHEDULERS,
    WORKLOADS,
    file_of_user,
    single_scan,
)
from simulators.core.jit import Kernel, compile_all
from simulators.evidence.lookup import notes_on
from simulators.serving.answer.carbon import NEEDS as CARBON_NEEDS
from simulators.serving.answer.carbon import carbon_of, with_carbon, with_carbon_of
from simulators.serving.answer.error_layers import error_budget
from simulators.serving.answer.explain import batch_table, explained_request, request_table
from simulators.serving.answer.metrics import CARBON, ServingMetrics
from simulators.serving.demand.sessions import load_sessions
from simulators.serving.demand.workloads import is_trace, load_trace
from simulators.serving.deployment import Facts, deployment_of, describe
from simulators.serving.engine.kv_transfer import CALIBRATION as TRANSFERS
from simulators.serving.engine.limits import load_router, load_scheduler
from simulators.serving.engine.loop import run
from simulators.serving.gpu_shares import PRICE_SHARE_FIELDS, price_shares, shared_rows
from simulators.serving.measured.intervals import (
    error_shares,
    newest_measurement,
    tail_rows,
    with_intervals,
)
from simulators.serving.options import ANALYTIC, AUTO, FRESH
from simulators.serving.point import DEPLOYED, ServingPoint
from simulators.serving.prices.iteration_table import table_price
from simulators.serving.row_defaults import with_engine_defaults
from simulators.serving.row_groups import evaluate_apart, evaluate_together
from simulators.serving.run import RunCache, logged_run, metrics_of, prepare
from simulators.serving.sharing import as_partition
from simulators.serving.steady.bounds import RANGED, ignored_limits, steady_bounds
from simulators.serving.steady.steady_state import evaluate_analytic, simulate_analytic
from simulators.workload.llm.parallelism import is_file


@dataclass(frozen=True)
class Serving:
    """The serving simulator: its point, metrics, bounds, costs and explanations."""

    name: str = "serving"
    version: int = 33
    point: type = ServingPoint
    metrics: type = ServingMetrics
    facts: type = Facts
    load: str = "qps"
    throughput: str = "tokens_per_s"
    deadlines: str = "ttft_p99_s <= 1 AND NOT saturated"
    copies: str = "replicas"
    shares: tuple[str, ...] = ("max_batch",)
    cheaper: tuple[tuple[str, str], ...] = (("fidelity", ANALYTIC),)
    ranged: tuple[str, ...] = RANGED
    rented: str = "gpu"
    priced: tuple[str, ...] = ("prices", "usd_per_gpu_hour", "grid", "gpu_life_years")
    cost_needs: tuple[str, ...] = (
        "gpu",
        "gpus",
        "tokens_per_s",
        "tokens_per_s_lo",
        "tokens_per_s_hi",
        "replicas",
        "replicas_mean",
        *PRICE_SHARE_FIELDS,
        "pools.decode_gpu",
        "pools.decode_gpus",
        *CARBON_NEEDS,
    )
    cost_metrics: tuple[str, ...] = (
        "cost_usd_per_mtok",
        "cost_usd_per_mtok_lo",
        "cost_usd_per_mtok_hi",
        "cost_usd_per_hour",
        *CARBON,
    )

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Evaluate a batch of points: events row by row, steady states as columns."""
        batch = with_engine_defaults(batch)
        together = is_analytic(batch) & ~shared_rows(batch)
        with single_scan():
            rows = evaluate_apart(together, evaluate_analytic, evaluate_events, batch)
        return with_carbon(batch, rows)

    def bounds(self, low: pa.RecordBatch, high: pa.RecordBatch) -> Mapping[str, Any]:
        """Return lower bounds of latencies and costs over boxes of analytic points."""
        return bounds_of(with_engine_defaults(low), with_engine_defaults(high))

    def ignored(self, batch: pa.RecordBatch) -> Mapping[str, NDArray[np.bool_]]:
        """Return, by field, a mask of the analytic rows whose token limit the scheduler ignores."""
        return ignored_limits(with_engine_defaults(batch), is_analytic(batch) & ~shared_rows(batch))

    describe = staticmethod(describe)
    error_shares = staticmethod(error_shares)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files that a value of a field names: data sheets, policies, calibrations."""
        text = str(value)
        if name == "workload":
            return (Path(text) if is_trace(text) else WORKLOADS.find(text),)
        if (name, value) == ("scheduler", AUTO):
            return ()
        if name in ("scheduler", "router"):
            file = file_of_user(SCHEDULERS if name == "scheduler" else ROUTERS, text)
            return () if file is None else (file,)
        if name == "iteration_table":
            return (Path(text),) if text else ()
        if name == "moe.routing_histogram":
            return (Path(text),) if text and is_file(text) else ()
        if name == "pools.decode_gpu":
            return () if value == NOTHING else COMPOSITION.reads("gpu", value)
        if name == "pools.prefill_gpus":
            return (TRANSFERS,) if value else ()
        if name in self.priced or (name, value) == ("dtype", AUTO):
            return ()
        if (name, value) == ("runtime", AUTO) or (name == "release" and value):
            return tuple(map(RUNTIMES.find, engine_runtimes()))
        return COMPOSITION.reads(name, value)

    def records(self, point: Mapping[str, Any]) -> Mapping[str, pa.Table]:
        """Return tables of all requests and all iterations of a point."""
        state = logged_run(validated_partition(point_from(ServingPoint, point))).state
        return {"requests": request_table(state), "iterations": batch_table(state)}

    def warm_up(self) -> None:
        """Compile the event loop, the price kernel and the usual policies.

        Other policies are compiled at their first use, which takes half a second.
        """
        usual = reference_engine().schedulers
        schedulers = (load_scheduler(name).schedule for name in usual)
        kernels: tuple[Kernel[..., Any], ...] = (
            load_router(USUAL_ROUTER),
            *schedulers,
            table_price,
            run,
        )
        compile_all(*(each.where(OPTIONAL_FEATURES=False) for each in kernels))

    def weakest(self, point: Mapping[str, Any]) -> Contribution | None:
        """Return the operator of a typical decode batch with the weakest evidence."""
        with single_scan():
            deployment = deployment_of(validated_partition(point_from(ServingPoint, point)))
            return weakest_of(explained(deployment.hardware.replica, PROBE, "decode", 0.0))

    def rests_on(self, point: Mapping[str, Any]) -> str:
        """Return the day of the newest fitted deployment, and what intervals of tails rest on."""
        design = point_from(ServingPoint, point)
        day = newest_measurement(design.runtime)
        fitted = f"Constants: fitted to deployments measured up to {day}. " if day else ""
        stall = ", and stalls of fresh servers" if design.measurement.server == FRESH else ""
        return (
            f"{fitted}Intervals of 99th percentiles: those of means, the tails of "
            f"{tail_rows():,} results of benchmark clients{stall}"
        )

    def explain(self, point: Mapping[str, Any]) -> Sequence[Contribution]:
        """Return the time and energy of the mean request by operator."""
        return explained_request(logged_run(validated_partition(point_from(ServingPoint, point))))

    def explain_errors(self, point: Mapping[str, Any]) -> ErrorBudget:
        """Return the layers of the intervals of TTFT, TPOT and throughput, and what narrows them.

        Raises:
            UserError: the design is analytic, or has a user's operator times.
            Infeasible: no request completes.
        """
        design = validated_partition(point_from(ServingPoint, point))
        if design.fidelity == ANALYTIC or design.iteration_table:
            raise UserError("errors are explained of fidelity 'event' without an iteration_table")
        with single_scan():
            prepared = prepare(design)
            metrics = prepared.run().metrics()
            if metrics.ttft_mean_s is None or metrics.tpot_mean_s is None:
                raise Infeasible("no_request_is_answered", "no request completed")
            prompt_tokens = float(np.mean(prepared.admitted.prompt_tokens))
            return error_budget(
                design, prepared.deployment, prepared.frontend, prompt_tokens, metrics
            )

    def notes(self, axes: Mapping[str, Sequence[Any]]) -> Sequence[str]:
        """Return the date and provider of prices, and the GPUs without measurements."""
        decoders = (gpu for gpu in axes["pools.decode_gpu"] if gpu != NOTHING)
        gpus = list(dict.fromkeys((*axes["gpu"], *decoders)))
        unknown = (*notes_on(gpus), *carbon_notes(axes["grid"]))
        if any(usd is not None for usd in axes["usd_per_gpu_hour"]):
            return ("Prices of GPU-hours: usd_per_gpu_hour.", *unknown)
        return (*priced_by(axes["prices"], gpus), *unknown)

    def costs(
        self, rows: pa.RecordBatch, prices: Mapping[str, Any]
    ) -> Mapping[str, NDArray[np.float64]]:
        """Return dollars and grams of CO2e per million tokens; NaN where unknown."""
        codes, gpus = categories(rows, "gpu")
        listed = str(prices["prices"]), prices["usd_per_gpu_hour"]
        usd = usd_per_gpu_hours(gpus, *listed)[codes]
        size, *rates = (numbers(rows, n).astype(np.float64) for n in self.cost_needs[1:5])
        decoders, kinds = categories(rows, "pools.decode_gpu")
        if others := [str(kind) for kind in kinds if kind != NOTHING]:
            dear = dict(zip(others, usd_per_gpu_hours(others, *listed), strict=True))
            theirs = np.array([dear.get(str(kind), np.nan) for kind in kinds])[decoders]
            part = numbers(rows, "pools.decode_gpus") * numbers(rows, "replicas") / size
            apart = np.array([kind in dear for kind in kinds])[decoders] & (part > 0.0)
            usd = np.where(apart, usd + part * (theirs - usd), usd)
        running = numbers(rows, "replicas_mean") / numbers(rows, "replicas")
        size = size * price_shares(rows) * running
        rates = [np.where(rate > 0.0, rate, np.nan) for rate in rates]
        per_mtok = (usd_per_mtok(usd, size, rate) for rate in rates)
        names = ("cost_usd_per_mtok", "cost_usd_per_mtok_hi", "cost_usd_per_mtok_lo")
        usd_of = {**dict(zip(names, per_mtok, strict=True)), "cost_usd_per_hour": usd * size}
        return usd_of | carbon_of(rows, prices)

    def rates(self, devices: Sequence[str], prices: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return dollars per GPU-hour; NaN without a price."""
        return usd_per_gpu_hours(devices, str(prices["prices"]), prices["usd_per_gpu_hour"])

    def priced_at(self, prices: Mapping[str, Any], rates: Mapping[str, float]) -> dict[str, Any]:
        """Return the price list with other prices of GPU-hours."""
        return {"prices": with_rates(str(prices["prices"]), rates), "usd_per_gpu_hour": None}

    def replica_resources(self, row: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the GPUs of one replica, and their cost per hour if known."""
        taken = {"gpus": row["gpus"] / row["replicas"]}
        if row["cost_usd_per_mtok"] is not None:
            usd = row["cost_usd_per_mtok"] * row["tokens_per_s"] * 3600.0 / 1e6
            taken["usd_per_hour"] = usd / row["replicas"]
        return taken

    def cost_hint_s(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Estimate: simulation time is proportional to the number of requests."""
        counts = numbers(batch, "requests").astype(np.float64)
        if (whole := counts == 0.0).any():
            codes, names = categories(batch, "workload")
            lengths = [_requests_of_trace(str(name)) for name in names]
            counts = np.where(whole, np.array(lengths, np.float64)[codes], counts)
        event_s = PER_REQUEST_S * counts
        return np.where(is_analytic(batch), STEADY_STATE_S, event_s)


USUAL_ROUTER = "round_robin"

PER_REQUEST_S = 5e-6
"""Typical CPU time of a request of 200 output tokens."""

STEADY_STATE_S = 15e-6
"""Typical CPU time of an analytic row in a large batch, with the time to store it."""

TYPICAL_TRACE = 20_000
"""Assumed number of requests of a trace that cannot be read."""

SIMULATOR = Serving()


def _requests_of_trace(workload: str) -> int:
    if not is_trace(workload):
        return TYPICAL_TRACE
    try:
        sessions = load_sessions(workload)
        return sessions.requests() if sessions else load_trace(workload).prompt_tokens.size
    except UserError:
        return TYPICAL_TRACE


def is_analytic(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return a mask of the rows with fidelity `analytic`."""
    return which(batch, "fidelity", ANALYTIC.__eq__)


def bounds_of(low: pa.RecordBatch, high: pa.RecordBatch) -> Mapping[str, NDArray[np.float64]]:
    """Return lower bounds of the analytic metrics over boxes of points.

    Raises:
        UserError: a box has points with fidelity `event` or co-located models.
    """
    if shared_rows(low).any() or not is_analytic(low).all():
        raise UserError(
            "serving has bounds for fidelity=analytic without co-located models; for other designs "
            "use sampler=grid, nsga2 or halving"
        )
    return steady_bounds(low, high)


def validated_partition(point: ServingPoint) -> ServingPoint:
    """Validate the point and reduce it to its share of the GPU."""
    check_point(point)
    return as_partition(point, simulate_analytic)


def evaluate_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Simulate every row; rows of equal deployment are adjacent and share iteration tables."""
    cache = RunCache()

    def one_by_one(rows: pa.RecordBatch) -> pa.RecordBatch:
        # Rows of an invalid batch are checked one by one, so that each names its own errors.
        one = partial(
            _simulated_alone if obeys_rules(ServingPoint, rows) else simulate, cache=cache
        )
        return evaluate_pointwise(ServingPoint, ServingMetrics, one, rows)

    return evaluate_together(one_by_one, batch, DEPLOYED)


def simulate(point: ServingPoint, cache: RunCache | None = None) -> ServingMetrics:
    """Return the metrics of one deployment under one load.

    `cache` holds deployments and requests shared with other points of the batch.

    Raises:
        Infeasible: the deployment cannot be built, or no request fits.
        UserError: a value is invalid.

    >>> simulate(ServingPoint(model="llama3_1_8b", gpu="h100_sxm", requests=50)).completed_requests
    50
    """
    check_point(point)
    return with_carbon_of(point, _simulated_alone(point, cache))


def _simulated_alone(point: ServingPoint, cache: RunCache | None) -> ServingMetrics:
    """Return the metrics of a valid point; a co-located model runs on its GPU partition."""
    point = as_partition(point, simulate_analytic)
    if point.fidelity == ANALYTIC:
        return simulate_analytic(point)
    known = cache or RunCache()

    def predict(row: ServingPoint) -> ServingMetrics:
        return metrics_of(row, known)

    found = known.user_rows.correct(predict(point), point, predict)
    think_s = point.client.think_s
    return with_intervals(found, known.bands(point), think_s=think_s, tails=known.tails)
