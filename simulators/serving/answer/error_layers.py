"""The 90 % intervals of TTFT, TPOT and throughput by layer, and measurements that narrow them.

Within a pass, families of kernels and messages add up by squares, and with them what no kernel
explains (composition); the engine's error adds to the logarithm of that by squares. So the squared
logarithm of each end of an interval is a sum over layers. With `w` the half-widths of a pass, and
`R` what its two ends make of the scale (`measured/intervals.py`):

    ln(end)^2 = side^2 * ( engine^2 + R^2 * sum over layers of w_layer^2 / w^2 )

The engine's error is one fitted number. Host, scheduler and client have parts of it in proportion
to the squares of their seconds in the metric: launches and host waits of passes; queueing and
batches with others' prompts; the API server. A throughput that depends on both latencies has their
parts in proportion to their effect on it.

A measurement times one operator or message in the sizes of a typical prompt or of typical decodes.
Its half-width afterwards is expected to be the median over other measured GPUs of the relative
half-width of the same operator.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulators.catalog.cluster import AUTO, cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.composition.operator_prices import Row, family_of
from simulators.composition.price import pipeline_iterations
from simulators.composition.replica import NOTHING, Replica
from simulators.composition.uncertainty import unexplained_share
from simulators.core.contract import ErrorBudget, ErrorPart, Measurement
from simulators.core.errors import Infeasible, UserError
from simulators.evidence.lookup import calibrations, has_related_gpu
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.deployment import Deployment, Frontend
from simulators.serving.measured.intervals import ALL_ENGINES, engines_of, fitted_width, scale
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import TYPICAL, Ends
from simulators.serving.speculation import times_interval

KERNEL, COMPOSITION, NETWORK = "kernel", "composition", "network"
HOST, SCHEDULER, CLIENT = "host", "scheduler", "client"
LAYERS = (KERNEL, COMPOSITION, NETWORK, HOST, SCHEDULER, CLIENT)
TTFT, TPOT, RATE = "ttft_mean_s", "tpot_mean_s", "tokens_per_s"
MESSAGES = "messages"
MOST = 10
"""Number of measurements that are named."""

PHASES = {TTFT: "a prompt of 1,024 tokens", TPOT: "64 decodes"}

Squares = Mapping[str, Ends]
"""By layer, its part of the squared logarithms of an interval's two ends."""


Narrowed = Mapping[int, Ends]
"""By position of a row, its relative half-widths, below and above, once it is measured."""


@dataclass(frozen=True)
class TypicalPass:
    """One typical pass of a metric: the priced operators of all stages, and its seconds."""

    replica: Replica
    rows: Sequence[Row]
    latency_s: float
    host_s: float

    def squares_s(self, narrowed: Narrowed) -> Mapping[str, Ends]:
        """Return the squared half-widths by layer; `narrowed` has new relative ones by row.

        Where no kernel of the architecture was measured all err together, so half-widths add up.
        """
        share = self.replica.runtime.interval_share.get(self.replica.gpu.architecture, 1.0)
        own: dict[str, np.ndarray] = {}
        for place, row in enumerate(self.rows):
            ends = half_width_s(row)
            if place in narrowed:
                ends = np.array(narrowed[place]) * float(np.asarray(row.seconds))
            family = family_of(row.operator)
            own[family] = own.get(family, np.zeros(2)) + share * ends
        squares = {name: ends**2 for name, ends in own.items()}
        if not has_related_gpu(self.replica.gpu, self.replica.level):
            together = np.sum(list(own.values()), axis=0)
            squares = {name: ends * together for name, ends in own.items()}
        network = squares.pop(MESSAGES, np.zeros(2))
        kernel = np.sum([*squares.values(), np.zeros(2)], axis=0)
        rest_s = unexplained_share(self.replica.runtime, self.replica.gpu) * self.latency_s
        found = {KERNEL: kernel, COMPOSITION: np.full(2, rest_s**2), NETWORK: network}
        return {layer: (float(part[0]), float(part[1])) for layer, part in found.items()}

    def reach(self, squares_s: Mapping[str, Ends]) -> Ends:
        """Return the ends of the pass's interval, relative to its time."""
        below, above = np.sqrt(np.sum(list(squares_s.values()), axis=0)) / self.latency_s
        return max(0.0, 1.0 - float(below)), 1.0 + float(above)


def half_width_s(row: Row) -> np.ndarray:
    """Return the half-widths of a row in seconds, below and above."""
    ends = np.array([row.seconds - row.lo_s, row.hi_s - row.seconds], np.float64)
    return ends.reshape(2, -1)[:, 0]


def typical_passes(deployment: Deployment) -> Mapping[str, TypicalPass]:
    """Return the typical passes behind TTFT and TPOT; prompts have a pool of their own or not."""
    pools = deployment.pools or (deployment,)
    ends = zip((TTFT, TPOT), (pools[0], pools[-1]), strict=True)
    return {metric: typical_pass(pool.hardware.replica, metric) for metric, pool in ends}


def typical_pass(replica: Replica, metric: str) -> TypicalPass:
    """Return the typical pass behind TTFT or TPOT."""
    step = dict(zip((TTFT, TPOT), (step for _, step in TYPICAL), strict=True))[metric]
    stages = pipeline_iterations(replica, step)
    total_s, host_s = (
        sum(float(np.asarray(getattr(stage, name))) for stage in stages)
        for name in ("latency_s", "launch_s")
    )
    return TypicalPass(replica, [row for one in stages for row in one.rows], total_s, host_s)


def error_budget(
    point: ServingPoint,
    deployment: Deployment,
    frontend: Frontend,
    prompt_tokens: float,
    metrics: ServingMetrics,
    *,
    most: int = MOST,
) -> ErrorBudget:
    """Return the layers of a design's intervals, and the measurements that narrow them most.

    Args:
        point: the design.
        deployment: its replicas.
        frontend: its API server.
        prompt_tokens: mean prompt length of its requests.
        metrics: the prediction.
        most: largest number of measurements.
    """
    passes = typical_passes(deployment)
    client_s = _client_seconds(frontend, prompt_tokens, metrics, point.replicas)
    seconds = engine_seconds(client_s, metrics, passes)
    layers_of = functools.partial(_squares, point, metrics, passes, seconds)
    squares = layers_of({})
    parts = [
        ErrorPart(metric=metric, layer=layer, low=ends[0], high=ends[1])
        for metric, layers in squares.items()
        for layer, ends in layers.items()
    ]
    candidates = list(measurements_of(passes)) if most else []
    before = _log_width(squares)
    gains = [(before - _log_width(layers_of(narrowed)), what) for what, narrowed in candidates]
    order = sorted(range(len(gains)), key=lambda i: -gains[i][0])[:most]
    chosen = [i for i in order if gains[i][0] > 0.0]
    measurements = [
        Measurement(
            what=gains[i][1][0],
            layer=gains[i][1][1],
            narrows=_ratios(squares, layers_of(candidates[i][1])),
        )
        for i in chosen
    ]
    together = merged([candidates[i][1] for i in chosen])
    return ErrorBudget(
        parts=parts,
        measurements=measurements,
        together=_ratios(squares, layers_of(together)),
    )


def _client_seconds(
    frontend: Frontend, prompt_tokens: float, metrics: ServingMetrics, replicas: int
) -> Mapping[str, float]:
    running = metrics.requests_in_system_mean or 0.0
    return {
        TTFT: frontend.request_s + frontend.token_s * prompt_tokens,
        TPOT: frontend.stream_s * running / max(1, replicas),
    }


def engine_seconds(
    client_s: Mapping[str, float], metrics: ServingMetrics, passes: Mapping[str, TypicalPass]
) -> Mapping[str, Mapping[str, float]]:
    """Return the seconds of host, scheduler and client in TTFT and TPOT."""
    first_s, later_s = metrics.ttft_mean_s, metrics.tpot_mean_s
    waits_s = {TTFT: metrics.queue_mean_s or 0.0, TPOT: 0.0}
    if later_s and metrics.itl_p50_s:
        waits_s[TPOT] = max(0.0, later_s - metrics.itl_p50_s)
    found = {}
    for metric, value in ((TTFT, first_s), (TPOT, later_s)):
        rest_s = max(0.0, (value or 0.0) - waits_s[metric] - client_s[metric])
        share = passes[metric].host_s / passes[metric].latency_s
        found[metric] = {HOST: share * rest_s, SCHEDULER: waits_s[metric], CLIENT: client_s[metric]}
    return found


def _squares(
    point: ServingPoint,
    metrics: ServingMetrics,
    passes: Mapping[str, TypicalPass],
    seconds: Mapping[str, Mapping[str, float]],
    narrowed: Mapping[str, Narrowed],
) -> dict[str, Squares]:
    """Return the layers of each metric, with rows of passes narrowed."""
    found: dict[str, Squares] = {
        metric: _latency_squares(point, metric, one, seconds[metric], narrowed.get(metric, {}))
        for metric, one in passes.items()
    }
    found[RATE] = _rate_squares(metrics, found, point.client.think_s)
    return found


def _latency_squares(
    point: ServingPoint,
    metric: str,
    one: TypicalPass,
    seconds: Mapping[str, float],
    narrowed: Narrowed,
) -> Squares:
    squares_s = one.squares_s(narrowed)
    reach = np.array(one.reach(squares_s))
    whole = np.sum(list(squares_s.values()), axis=0)
    engines: tuple[str, ...] = engines_of(one.replica.runtime)
    if has_sessions(point.workload):  # no deployment was measured with such a load
        engines = *ALL_ENGINES, *engines
    widths = [fitted_width(engine, metric.partition("_")[0]) for engine in engines]
    found = {layer: [0.0, 0.0] for layer in LAYERS}
    parts = {name: value**2 for name, value in seconds.items()}
    sum_s2 = sum(parts.values())
    for end, side in enumerate(("below", "above")):
        far = [getattr(w, side) * float(scale(w.engine, reach)) for w in widths]
        widest = widths[int(np.argmax(far))]
        engine = (getattr(widest, side) * widest.engine) ** 2
        within = max(far) ** 2 - engine
        for layer, ends in squares_s.items():
            found[layer][end] += within * ends[end] / whole[end] if whole[end] else 0.0
        for layer, part in parts.items():
            found[layer][end] += engine * (part / sum_s2 if sum_s2 else layer == SCHEDULER)
    drafts = point.speculation
    is_drawn = drafts.num_draft_tokens and not drafts.acceptance.strip()
    if metric == TPOT and drafts.method != NOTHING and is_drawn:
        for end, value in enumerate(times_interval()):
            found[SCHEDULER][end] += math.log(value) ** 2
    return {layer: (ends[0], ends[1]) for layer, ends in found.items()}


def _rate_squares(
    metrics: ServingMetrics, latencies: Mapping[str, Squares], think_s: float
) -> Squares:
    """Return the layers of throughput, from those of the latencies it depends on.

    In an open loop below saturation throughput equals the arrival rate, whatever the layers do.
    """
    is_closed = metrics.backlog_growth is None
    if not is_closed and not metrics.saturated:
        return dict.fromkeys(LAYERS, (0.0, 0.0))
    weights = {TTFT: 0.0, TPOT: 1.0}
    whole_s = 1.0
    if is_closed and metrics.ttft_mean_s is not None and metrics.e2e_mean_s is not None:
        first_s = metrics.ttft_mean_s
        weights = {TTFT: first_s, TPOT: metrics.e2e_mean_s - first_s}
        whole_s = metrics.e2e_mean_s + think_s
    found = {layer: [0.0, 0.0] for layer in LAYERS}
    for end, sign in enumerate((1.0, -1.0)):  # slow latencies are a low throughput
        other = 1 - end
        sums = {m: sum(part[other] for part in latencies[m].values()) for m in weights}
        changes = {m: weights[m] / whole_s * math.expm1(sign * math.sqrt(sums[m])) for m in weights}
        change = sum(changes.values())
        square = math.log1p(change) ** 2
        for metric, of in changes.items():
            for layer, part in latencies[metric].items():
                if change and sums[metric]:
                    found[layer][end] += square * of / change * part[other] / sums[metric]
    return {layer: (ends[0], ends[1]) for layer, ends in found.items()}


Candidate = tuple[tuple[str, str], Mapping[str, Narrowed]]
"""What is timed and its layer; by metric, the rows that it narrows."""


def measurements_of(passes: Mapping[str, TypicalPass]) -> Iterator[Candidate]:
    """Yield a measurement of each operator and message of the typical passes."""
    for metric, one in passes.items():
        after = expected_half_widths(one, metric)
        names: dict[tuple[str, str], dict[int, Ends]] = {}
        for place, row in enumerate(one.rows):
            if place in after:
                layer = NETWORK if family_of(row.operator) == MESSAGES else KERNEL
                names.setdefault((row.operator.name, layer), {})[place] = after[place]
        for (name, layer), rows in names.items():
            what = f"{name} of {PHASES[metric]} on {one.replica.gpu.name}"
            if layer == NETWORK:
                what = f"{name} of {PHASES[metric]} over {one.replica.cluster.name}"
            yield (what, layer), {metric: rows}


def expected_half_widths(one: TypicalPass, metric: str) -> Narrowed:
    """Return the expected relative half-widths of each row once it is measured on the GPU.

    The median over other GPUs with measured kernels, but no wider than now; empty where no other
    GPU runs the design.
    """
    replica, found = one.replica, dict[int, list[Ends]]()
    for name in calibrations("tensor"):
        if name == (replica.gpu.measured_as or replica.gpu.name):
            continue
        try:
            gpu = load_gpu(name)
            other = replace(replica, gpu=gpu, cluster=cluster_for(AUTO, gpu), level="best")
            rows = typical_pass(other, metric).rows
        except (Infeasible, UserError):
            continue
        if len(rows) != len(one.rows):
            continue
        for place, row in enumerate(rows):
            if row.is_own and (ends := relative_half_widths(row)):
                found.setdefault(place, []).append(ends)
    return {
        place: tuple(np.minimum(np.median(many, axis=0), now).tolist())
        for place, many in found.items()
        if (now := relative_half_widths(one.rows[place]))
    }


def relative_half_widths(row: Row) -> Ends | None:
    """Return the half-widths of a row relative to its seconds; None if it takes no time."""
    seconds = float(np.asarray(row.seconds))
    if seconds <= 0.0:
        return None
    below, above = (half_width_s(row) / seconds).tolist()
    return below, above


def merged(many: Sequence[Mapping[str, Narrowed]]) -> dict[str, dict[int, Ends]]:
    """Return the rows that several measurements narrow together."""
    found: dict[str, dict[int, Ends]] = {TTFT: {}, TPOT: {}}
    for one in many:
        for metric, rows in one.items():
            found[metric].update(rows)
    return found


def _log_width(squares: Mapping[str, Squares]) -> float:
    """Return the sum over both latencies of the logarithm of an interval's ends' ratio."""
    return sum(widths(squares)[metric] for metric in (TTFT, TPOT))


def widths(squares: Mapping[str, Squares]) -> dict[str, float]:
    """Return, by metric, the logarithm of the ratio of the interval's ends."""
    return {
        metric: sum(math.sqrt(sum(part[end] for part in layers.values())) for end in (0, 1))
        for metric, layers in squares.items()
    }


def _ratios(before: Mapping[str, Squares], after: Mapping[str, Squares]) -> dict[str, float]:
    old, new = widths(before), widths(after)
    return {metric: new[metric] / old[metric] for metric in old if old[metric]}
