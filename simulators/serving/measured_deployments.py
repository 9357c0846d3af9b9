"""Measured deployments: points, corrections by a user's own rows, prediction intervals.

Lengths and the number of requests are those of the benchmark's client. If all lengths are equal,
requests that start together end together, and a closed loop under an engine that prefers prefills
stays locked in waves; drawn lengths dissolve the waves. `EngineLaunch` holds the known launch
options of an engine; otherwise the defaults in the engine's file are used.

`sweeper calibrate NAME --measured FILE` writes a runtime whose times are scaled by the family's
factor, with the measured rows. The remaining deviations of these rows are smoothed over loads. In a
closed loop, rates follow from TTFT and TPOT; goodput, energy and queues are not corrected.

Prediction intervals. `composition` combines the intervals of kernels and messages into the interval
`r` of a forward pass, which is wide where kernel times are transferred from another GPU. The error
of the engine is independent, so squares add. The widths are fitted to deployments whose model on
that GPU was held out, some with the kernels of their GPU or architecture hidden (`lab.fits
deployment_bands`):

    scale = ( engine^2 + (ln(r_high) ln(1 / r_low))^(3/2) )^(1/2)
    ends of the interval = exp( -below * scale ), exp( +above * scale )

Releases before the measured ones have a further width, fitted to results printed in documentation:
the wider of both applies.

The kernels of one GPU share an error of unknown sign, so both ends of `r` count for either end.
Errors of transferred kernels are correlated, so the scale grows faster than `r`. An engine without
measured deployments has the widest interval of all engines. A 99th percentile has a further,
independent error, fitted to published runs. Intervals of rates and costs follow from those of
latencies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.engine_defaults import later_rules
from simulators.composition.replica import FRAMEWORKS, NOTHING, Runtime, load_runtime
from simulators.core.calibration import read_calibration, read_choice
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.fields import updated
from simulators.core.folder import RUNTIMES, once
from simulators.core.jit import Floats
from simulators.serving.answer.metrics import WITH_INTERVAL, ServingMetrics
from simulators.serving.point import (
    AUTO,
    CLOSED,
    DRAFT,
    OFF,
    SPECULATIONS,
    WHOLE,
    ArrivalsConfig,
    CacheConfig,
    ClientConfig,
    LengthsConfig,
    MeasurementConfig,
    SchedulingConfig,
    ServingPoint,
    SpeculationConfig,
)
from simulators.serving.prices.iteration_table import Ends
from simulators.workload.llm.parallelism import Parallelism


@dataclass(frozen=True)
class Client:
    """A closed-loop load: clients start together and send the next request after each answer."""

    name: str
    length_spread: float  # lengths are uniform down to this share below the longest; 0: fixed
    requests: int  # requests per client, after the warm-up
    source: str
    inferred: tuple[str, ...] = ()  # unpublished settings, with the reason for the assumed value
    frontend: str = AUTO
    # Token budgets other than the default, by engine.
    budgets: dict[str, int] = field(default_factory=dict, hash=False)
    # Token budget beyond a prompt and one token per client, by engine, if published.
    beside_prompt: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def mean_length(self) -> float:
        """Return the mean length over the stated length."""
        return 1.0 - self.length_spread / 2.0


INFERENCEX = Client(
    name="InferenceX",
    length_spread=0.2,
    requests=10,
    source="github.com/SemiAnalysisAI/InferenceX, benchmarks/single_node: --random-range-ratio "
    "0.8, --request-rate inf, --max-concurrency C, 10 C prompts, 2 C to warm up, --ignore-eos",
)
"""Default client of rows with an unknown client."""


@dataclass(frozen=True)
class EngineLaunch:
    """Launch options of an engine; 0 means the engine's default."""

    budget: int = 0  # tokens of an iteration
    poll_interval: int = 0  # decode iterations between polls of the queue
    memory_fraction: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """One measured deployment under one load."""

    framework: str
    model: str
    gpu: str
    layout: Parallelism
    dtype: str
    kv_dtype: str
    clients: int
    prompt: int  # longest lengths, in tokens
    output: int
    ttft_s: float
    tpot_s: float
    crowded: bool = False  # one client more than the maximum of running requests
    client: Client = INFERENCEX
    launch: EngineLaunch = EngineLaunch()
    runtime: str = ""  # runtime of the measured release; empty: today's
    release: str = ""  # the measured release or its date; empty: the last of the runtime
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)

    @property
    def budget(self) -> int:
        """Return the token budget: as launched, as in the client's source, or the default."""
        if self.launch.budget:
            return self.launch.budget
        if self.framework in self.client.beside_prompt:
            return self.clients + self.prompt + self.client.beside_prompt[self.framework]
        defaults = load_engine(self.framework).defaults
        usual = defaults.batch_limits(load_gpu(self.gpu)).tokens
        beyond = defaults.tokens_beyond_prompt
        needed = self.prompt + beyond if beyond else 0
        return max(self.client.budgets.get(self.framework, usual), needed)


def point_of(deployed: Deployed, runtime: str = "") -> ServingPoint:
    """Return the point that simulates a measured deployment; `runtime` replaces its runtime."""
    framework, layout = deployed.framework, deployed.layout
    engine, gpu = load_engine(framework), load_gpu(deployed.gpu)
    memory_fraction = engine.defaults.memory_fraction(gpu.hbm_bytes, layout.tp)
    return ServingPoint(
        model=deployed.model,
        gpu=deployed.gpu,
        tp=layout.tp,
        ep=layout.ep,
        attention_dp=layout.attention_dp,
        scheduler=engine.schedulers[0],
        runtime=runtime or deployed.runtime or engine.today,
        chunk_size=deployed.budget,
        scheduling=scheduling_of(deployed, engine.schedulers[0]),
        client=ClientConfig(
            stream_interval=engine.defaults.stream_interval, frontend=deployed.client.frontend
        ),
        max_batch=deployed.clients if deployed.crowded else engine.running_requests(gpu),
        memory_fraction=deployed.launch.memory_fraction or memory_fraction,
        cache=CacheConfig(block_size=16, watermark=0.0, prefix_caching=False),
        dtype=deployed.dtype,
        kv_dtype=deployed.kv_dtype,
        speculation=deployed.speculation,
        arrivals=ArrivalsConfig(process="closed", clients=deployed.clients + deployed.crowded),
        measurement=MeasurementConfig(window=WHOLE),
        requests=deployed.client.requests * deployed.clients,
        prompt_tokens=deployed.prompt,
        output_tokens=deployed.output,
        lengths=LengthsConfig(spread=deployed.client.length_spread),
    )


def scheduling_of(deployed: Deployed, scheduler: str) -> SchedulingConfig:
    """Return the scheduling options of a deployment, without rules of later releases."""
    later = later_rules(scheduler, deployed.release) if deployed.release else ()
    options = SchedulingConfig(poll_interval=deployed.launch.poll_interval)
    return updated(options, dict.fromkeys(later, OFF))


NEEDED = ("model", "gpu", "framework", "clients", "prompt_tokens", "output_tokens", "tpot_s")
DEFAULTS = {
    "tp": 1,
    "ep": 1,
    "attention_dp": 1,
    "dtype": "bf16",
    "kv_dtype": "bf16",
    "ttft_s": None,
    "speculation": NOTHING,
    "draft_tokens": 3,
}
"""Columns of a user's measured rows: required columns, and defaults of optional columns."""

COUNTS = ("clients", "prompt_tokens", "output_tokens", "tp", "ep", "attention_dp", "draft_tokens")
TIMES = ("tpot_s", "ttft_s")


def measured_deployment(row: Mapping[str, Any]) -> Deployed:
    """Return a user's measured row as a deployment; TTFT is NaN if missing.

    Raises:
        UnknownNameError: the framework has no fitted runtime, or the method of speculation is
            unknown.
        UserError: a count is below 1, or a time is not positive.
    """
    row = {**DEFAULTS, **{name: value for name, value in row.items() if value is not None}}
    if row["framework"] not in FRAMEWORKS:
        raise UnknownNameError("framework", str(row["framework"]), FRAMEWORKS)
    if row["speculation"] not in SPECULATIONS or row["speculation"] == DRAFT:
        known = [method for method in SPECULATIONS if method != DRAFT]
        raise UnknownNameError("speculation", str(row["speculation"]), known)
    _check(row)
    return Deployed(
        framework=row["framework"],
        model=row["model"],
        gpu=row["gpu"],
        layout=Parallelism(tp=row["tp"], ep=row["ep"], attention_dp=row["attention_dp"]),
        dtype=row["dtype"],
        kv_dtype=row["kv_dtype"],
        clients=int(row["clients"]),
        prompt=int(row["prompt_tokens"]),
        output=int(row["output_tokens"]),
        ttft_s=float("nan") if row["ttft_s"] is None else float(row["ttft_s"]),
        tpot_s=float(row["tpot_s"]),
        speculation=SpeculationConfig(
            method=row["speculation"], num_draft_tokens=int(row["draft_tokens"])
        ),
    )


def _check(row: Mapping[str, Any]) -> None:
    for name in (*COUNTS, *TIMES):
        value: Any = row.get(name)
        if name in DEFAULTS and value is None:
            continue
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if not is_number or value <= 0 or (name in COUNTS and value < 1):
            least = "at least 1" if name in COUNTS else "a number of seconds above zero"
            raise UserError(f"{name} of a measured row is {value}; it must be {least}")


SHARED = {"TPOT": 0.08, "TTFT": 0.22}
LOCAL = {"TPOT": 0.12, "TTFT": 0.5}
ALONE = {"TPOT": 0.05, "TTFT": 0.11}
"""Standard deviations of ln(measured / predicted): shared by a family, local to a load, per row."""

MAX_DEVIATIONS = 2.0
"""Rows are clipped to this many standard deviations of family and load together: larger deviations
come from filled queues and stalled engines, which do not carry over to other loads."""

LENGTH_SCALES = {"TPOT": (1.9, 1.3, 2.7, 4.2, 0.9), "TTFT": (2.5, 1.2, 1.5, 6.4, 0.8)}
"""Length scales of clients, GPUs, prompt, output and attention groups, in octaves. Deviations and
scales have the least error over random triples of rows of public families, each of a model, GPU and
release. With the scales of a model fitted to other models, errors after three rows of a server are
5.0 % (TPOT, mean) and 10.1 % (TTFT, median)."""


class DeploymentLoad(NamedTuple):
    """Load of a deployment and its number of GPUs, in the order of `LENGTH_SCALES`."""

    clients: float
    gpus: float
    prompt: float
    output: float
    attention_dp: float


Deviations = dict[str, list[tuple[DeploymentLoad, float]]]
"""By metric: loads of the measured rows of a family, and measured over predicted time."""


def load_of(row: Deployed) -> DeploymentLoad:
    """Return the load of a measured row."""
    return DeploymentLoad(
        row.clients, row.layout.gpus, row.prompt, row.output, row.layout.attention_dp
    )


def corrected(
    known: Sequence[tuple[DeploymentLoad, float]], rows: Sequence[DeploymentLoad], metric: str
) -> Floats:
    """Return correction factors for predictions of some loads, from the known rows of a metric.

    The mean of a Gaussian process over ln(measured / predicted) (kriging; Rasmussen and Williams,
    "Gaussian processes for machine learning", 2006, section 2.2) with a deviation shared by the
    family, one that fades with the distance of loads, and one of each row.
    """
    seen = _scaled_loads([row for row, _ in known], metric)
    limit = MAX_DEVIATIONS * np.hypot(SHARED[metric], LOCAL[metric])
    ratio = np.clip(np.log([ratio for _, ratio in known]), -limit, limit)
    spread = _covariance(seen, seen, metric) + ALONE[metric] ** 2 * np.eye(ratio.size)
    weights = np.linalg.solve(spread, ratio)
    return np.asarray(
        np.exp(_covariance(_scaled_loads(rows, metric), seen, metric) @ weights), np.float64
    )


def _scaled_loads(rows: Sequence[DeploymentLoad], metric: str) -> Floats:
    """Return the logarithms of loads in units of the length scales."""
    return np.asarray(np.log2(np.array(rows, np.float64)) / LENGTH_SCALES[metric], np.float64)


def _covariance(one: Floats, other: Floats, metric: str) -> Floats:
    distance = np.square(one[:, None, :] - other[None, :, :]).sum(axis=-1)
    return np.asarray(
        SHARED[metric] ** 2 + LOCAL[metric] ** 2 * np.exp(-distance / 2.0), np.float64
    )


Predict = Callable[[ServingPoint], ServingMetrics]

PER_TOKEN = ("tpot_", "itl_")
RATES = ("requests_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu")


class UserRows:
    """Measured rows of runtimes and their deviations from predictions, cached."""

    def __init__(self) -> None:
        self._rows = functools.cache(measured_rows)
        self._deviations: dict[str, Deviations] = {}

    def correct(
        self, metrics: ServingMetrics, point: ServingPoint, predict: Predict
    ) -> ServingMetrics:
        """Return the metrics, corrected by the measured rows of the point's runtime."""
        rows = self._rows(point.runtime)
        if not rows or not _is_same_family(point, rows[0]):
            return metrics
        if point.runtime not in self._deviations:
            self._deviations[point.runtime] = _deviations(rows, point.runtime, predict)
        ttft, tpot = (
            float(corrected(known, [_load(point)], metric)[0]) if known else 1.0
            for metric, known in self._deviations[point.runtime].items()
        )
        return _scaled(metrics, ttft, tpot)


def has_own_rows(point: ServingPoint) -> bool:
    """Return whether the point's runtime has measured rows of the point's family."""
    rows = measured_rows(point.runtime)
    return bool(rows) and _is_same_family(point, rows[0])


def measured_rows(runtime: str) -> tuple[Deployed, ...]:
    """Return the measured rows in a runtime's file; empty without such rows."""
    return RUNTIMES.load(runtime, _measured)


def _measured(file: Path) -> tuple[Deployed, ...]:
    return tuple(measured_deployment(row) for row in read_choice(file).get("measured", ()))


def _is_same_family(point: ServingPoint, row: Deployed) -> bool:
    """Return whether a point has the model, GPU, dtype and drafts of a row in a closed loop.

    bf16 and fp16 count as equal.
    """
    dtypes = {dtype.replace("fp16", "bf16") for dtype in (point.dtype, row.dtype)}
    is_model = row.model in (point.model, load_model(point.model).name)
    is_equal = is_model and point.gpu == row.gpu and len(dtypes) == 1
    is_equal &= drafts_of(point.speculation) == drafts_of(row.speculation)
    has_lengths = min(point.prompt_tokens, point.output_tokens) > 0
    return is_equal and has_lengths and point.arrivals.process == CLOSED


def drafts_of(config: SpeculationConfig) -> tuple[str, int]:
    """Return the method of speculation and the number of draft tokens; nothing and 0 without.

    >>> drafts_of(SpeculationConfig()), drafts_of(SpeculationConfig("mtp"))
    (('nothing', 0), ('mtp', 3))
    """
    is_off = config.method == NOTHING or not config.num_draft_tokens
    return (NOTHING, 0) if is_off else (config.method, config.num_draft_tokens)


def _load(point: ServingPoint) -> DeploymentLoad:
    return DeploymentLoad(
        clients=point.arrivals.clients / point.replicas,
        gpus=point.tp * point.pp * point.attention_dp,
        prompt=point.prompt_tokens,
        output=point.output_tokens,
        attention_dp=point.attention_dp,
    )


def _deviations(rows: Sequence[Deployed], runtime: str, predict: Predict) -> Deviations:
    """Return the ratios of measured over predicted TTFT and TPOT."""
    first, later = [], []
    for row in rows:
        found = predict(point_of(row, runtime))
        if isfinite(row.ttft_s) and found.ttft_mean_s:
            first.append((load_of(row), row.ttft_s / found.ttft_mean_s))
        if found.tpot_mean_s:
            later.append((load_of(row), row.tpot_s / found.tpot_mean_s))
    return {"TTFT": first, "TPOT": later}


def _scaled(metrics: ServingMetrics, ttft: float, tpot: float) -> ServingMetrics:
    """Return the metrics with scaled TTFT and TPOT, and rates and costs derived from both."""
    first_s, whole_s = metrics.ttft_mean_s, metrics.e2e_mean_s
    if not first_s or not whole_s:
        return metrics
    longer = (ttft * first_s + tpot * (whole_s - first_s)) / whole_s
    factors = dict.fromkeys(RATES, 1.0 / longer)
    factors |= {"cost_usd_per_mtok": longer, "tokens_per_s_per_user": 1.0 / tpot}
    for name in metrics.__dataclass_fields__:
        if name.startswith("ttft_"):
            factors[name] = ttft
        elif name.startswith(PER_TOKEN):
            factors[name] = tpot
        elif name.startswith("e2e_"):
            factors[name] = longer
    found: dict[str, Any] = {name: getattr(metrics, name) for name in factors}
    scaled = {n: value * factors[n] for n, value in found.items() if value is not None}
    return replace(metrics, **scaled)


CALIBRATION = Path(__file__).parent / "calibration" / "deployment_bands.toml"

UNMEASURED = "unmeasured"
"""Entry of engines without measured deployments."""

ALL_ENGINES = UNMEASURED, *FRAMEWORKS

OLDER_RELEASE = "older"
"""Entry of releases before those of the measured deployments."""

MIN_RATIO = 1e-2
"""Lower ends of intervals are clipped at this ratio."""

PASS_EXPONENT = 1.5
"""Exponent of errors over the log width of a pass: maximum likelihood among 1, 1.25 ... 3 for 372
forward passes on five GPUs of equal weight, with kernels measured, hidden, and hidden with
their architecture's. Leave-one-GPU-out interval scores are least at 1.6."""


@dataclass(frozen=True)
class Width:
    """Width of the error distribution of a latency, in logarithms."""

    engine: float  # of the engine, beside the intervals of its passes
    below: float  # lower end of the 90 % interval, in units of the combined scale
    above: float

    def interval(self, passes: Ends) -> Ends:
        """Return the 90 % interval of measured over predicted time, given that of the passes.

        >>> some = Width(engine=0.0, below=1.0, above=0.5)
        >>> [round(end, 2) for end in some.interval((math.exp(-0.5), math.exp(0.5)))]
        [0.7, 1.19]
        """
        size = float(scale(self.engine, np.array(passes)))
        return math.exp(-self.below * size), math.exp(self.above * size)


def scale(engine: float | Floats, ends: Floats) -> Floats:
    """Return the error scale of passes; each row of `ends` is one interval."""
    log_width = np.sqrt(np.prod(np.abs(np.log(np.maximum(ends, MIN_RATIO))), axis=-1))
    found: Floats = np.hypot(engine, log_width**PASS_EXPONENT)
    return found


def width_from(table: Mapping[str, float]) -> Width:
    """Return the width in a table of the calibration."""
    return Width(**{name: float(table[name]) for name in ("engine", "below", "above")})


def fitted_width(engine: str, metric: str) -> Width:
    """Return the fitted width of `tpot` or `ttft` of an engine."""
    return width_from(_fitted()["width"][engine][metric])


def latency_intervals(
    runtime: str,
    passes: Mapping[str, Ends],
    width_of: Callable[[str, str], Width] = fitted_width,
    *,
    is_measured_load: bool = True,
) -> Mapping[str, Ends]:
    """Return the 90 % intervals of latencies by metric, given the intervals of the passes.

    Under a kind of load that no deployment was measured with, they are the widest of all engines,
    and of older releases if the runtime is one.
    `width_of`: the width of an engine and a metric.

    >>> low, high = latency_intervals("vllm", {"tpot": (0.8, 1.2)})["tpot"]
    >>> low < 1.0 < high
    True
    """
    engines = engines_of(load_runtime(runtime))
    if not is_measured_load:
        engines = *ALL_ENGINES, *engines
    found = {}
    for metric, ends in passes.items():
        intervals = [width_of(engine, metric).interval(ends) for engine in engines]
        lows, highs = zip(*intervals, strict=True)
        found[metric] = min(lows), max(highs)
    return found


def engines_of(runtime: Runtime) -> tuple[str, ...]:
    """Return the entries whose widths apply to a runtime: all engines if its engine is unmeasured.

    A release that copies a later one with slower kernels also has the width of older releases.
    """
    if runtime.framework not in FRAMEWORKS:
        return ALL_ENGINES
    is_older = runtime.like and runtime.batch_times
    return (runtime.framework, OLDER_RELEASE) if is_older else (runtime.framework,)


def with_intervals(
    metrics: ServingMetrics, intervals: Mapping[str, Ends], *, think_s: float = 0.0
) -> ServingMetrics:
    """Return the metrics with 90 % intervals, from the relative intervals of `ttft` and `tpot`."""
    found: dict[str, Any] = {}
    for name in WITH_INTERVAL if intervals else ():
        metric, statistic = name.split("_")[:2]
        value, ends = getattr(metrics, name), intervals[metric]
        if statistic == "p99":
            ends = combined_interval(ends, _fitted()["tail"][metric]["ends"])
        if value is not None:
            found |= {f"{name}_lo": value * ends[0], f"{name}_hi": value * ends[1]}
    low, high = rate_interval(metrics, intervals, think_s) if intervals else (None, None)
    if low and high:
        rate, cost = metrics.tokens_per_s, metrics.cost_usd_per_mtok
        found |= {"tokens_per_s_lo": rate * low, "tokens_per_s_hi": rate * high}
        if cost is not None:
            found |= {"cost_usd_per_mtok_lo": cost / high, "cost_usd_per_mtok_hi": cost / low}
    return replace(metrics, **found)


def rate_interval(metrics: ServingMetrics, intervals: Mapping[str, Ends], think_s: float) -> Ends:
    """Return the relative 90 % interval of throughput, from the intervals of latencies.

    In an open loop the throughput equals the arrival rate, unless the run is saturated: then the
    throughput scales with TPOT. In a closed loop the throughput scales with the time per request;
    TTFT and TPOT are assumed to err in the same direction, which makes the interval wide.
    """
    is_closed = metrics.backlog_growth is None
    if not is_closed and not metrics.saturated:
        return 1.0, 1.0
    slow = np.array(intervals["tpot"])
    if is_closed and metrics.ttft_mean_s is not None and metrics.e2e_mean_s is not None:
        first_s = metrics.ttft_mean_s
        times_s = np.array([first_s, metrics.e2e_mean_s - first_s, think_s])
        parts = np.array([intervals["ttft"], intervals["tpot"], (1.0, 1.0)])
        slow = times_s @ parts / times_s.sum()
    fast = (1.0 / slow).tolist()
    return fast[1], fast[0]


def combined_interval(one: Ends, other: Ends) -> Ends:
    """Return the combined interval of two independent errors: squares of logarithms add.

    >>> [round(end, 3) for end in combined_interval((1.0, 2.0), (0.5, 1.0))]
    [0.5, 2.0]
    """
    low, high = np.hypot(np.log(one), np.log(other)).tolist()
    return math.exp(-low), math.exp(high)


def _fitted() -> Mapping[str, Any]:
    return once(read_calibration, CALIBRATION)
