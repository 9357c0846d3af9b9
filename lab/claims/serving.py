"""Claims about serving: published runs, engines replayed request by request, other simulators.

Runtimes are those fitted without the model on the GPU. AISimulate 0.13 (NVIDIA) and VIDUR are other
simulators, so their times are not the truth: a change of one setting should have the same sign and
size as AISimulate's, and VIDUR's runs, made with the exact operator times of a table, test the
scheduler alone. LLMServingSim published real runs of vLLM 0.19.0 with 300 requests each, and
nothing was fitted to them. Their times are the engine's own, so there is no front end, and only
preempted requests find their prompts in the prefix cache.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.claim import Cells, figures, predict, together
from lab.fits.deployments import (
    lengths_of,
    online_run_cache_without,
    run_cache_without,
    runtime_without,
    stalls_without,
    tails_without,
    width_without_page,
)
from lab.fits.engines import numbers_of, static_columns
from lab.parity.vidur import vidur_price, vidur_table
from lab.tables import published
from lab.tables.deployments import PublicDeployment, database
from lab.tables.kernels import ENGINE
from lab.tables.passes import SESSION, StaticBatch, static_rows
from lab.tables.published import InferenceSubmission, OnlineRun, PublishedRun
from lab.tables.records import GPUS, model_of
from lab.tables.result_blocks import ResultBlock, blocks
from lab.tables.rows import STORED_RUNS, evaluated, numbers, read_records, read_table, words
from simulators.catalog.cluster import AUTO
from simulators.catalog.model import load_model
from simulators.core.errors import UserError
from simulators.core.fields import point_from, updated
from simulators.core.jit import Floats
from simulators.evidence.lookup import calibrations
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import deployment_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import ReplicaLimits, kv_blocks, load_router, load_scheduler
from simulators.serving.engine.service import EngineKernels, serve
from simulators.serving.measured.deployments import point_of
from simulators.serving.point import ServingPoint
from simulators.serving.prices.user_operator_times import OpTable, by_operator
from simulators.serving.run import RunCache, run_of
from simulators.serving.simulator import simulate
from simulators.workload.llm.memory import kv_bytes_per_token

BISECTIONS = 6  # of the interval of a server's rate: to a fiftieth of the offline rate
MAX_REQUESTS = 60_000  # of a run: as many replicas share its load as that allows
LENGTHS = "prompt_tokens", "output_tokens", "lengths.max_output_tokens"
SIMILAR_LENGTHS = 0.06  # by which mean lengths of one load may differ: answers end where they end

AISIMULATE = "serving_peers/aisimulate_requests.parquet"
VLLM_RUNS = "serving_modern/vllm_runs_meta.parquet"
VLLM_REQUESTS = (
    "serving_modern/vllm_requests.parquet",
    "serving_modern/vllm_requests_qwen3_32b.parquet",
)
VLLM_CLUSTERS = {"RTXPRO6000": "pcie_through_host"}
"""Servers of these runs by GPU. The owners timed NCCL between the GPUs separately: large
all-reduces at 15.9 GB/s, and at 35 GB/s once access control services and the IOMMU were disabled,
months after these runs (casys-kaist/LLMServingSim, profiler/perf/RTXPRO6000/hardware.yaml)."""

VIDUR = "serving/vidur_{}.parquet"
VIDUR_EXACT_S, VIDUR_CLOSE = 1e-5, 0.01  # largest difference of times, and of means if not exact
VIDUR_BY_MEANS = ("orca", "faster_transformer", "lightllm")  # not in the table of operators
VIDUR_POLICIES = "lab.parity.vidur"  # where they differ from ours of the same name
VIDUR_TIMES = {
    "first_scheduled_s": at.SCHEDULED,
    "first_token_s": at.FIRST_TOKEN,
    "completed_s": at.COMPLETED,
    "stalled_s": at.STALLED,
}


def offline_runs(reference: Path) -> Iterator[Cells]:
    """Yield throughputs of TensorRT-LLM with all requests queued at once."""
    cache_of = functools.cache(run_cache_without)

    def answer(run: PublishedRun) -> Cells:
        metrics = simulate(run.point, cache_of(run.point.runtime, run.group))
        cells = {"kind": "dense" if run.is_dense else "experts", "label": run.group}
        return {**cells, "predicted": metrics.tokens_per_s, "measured": run.tokens_per_s}

    return predict(published.offline(reference), answer)


def online_runs(reference: Path) -> Iterator[Cells]:
    """Yield times and throughputs of TensorRT-LLM 0.14 in an open loop.

    The time to hand over a request was fitted to the other of two models.
    """
    cache_of = functools.cache(online_run_cache_without)

    def answer(run: OnlineRun) -> list[Cells]:
        metrics = simulate(run.point, cache_of(run.point.model))
        pairs = {
            "TTFT": (metrics.ttft_mean_s, run.ttft_s),
            "TPOT": (metrics.tpot_mean_s, run.tpot_s),
            "throughput": (metrics.tokens_per_s, run.tokens_per_s),
        }
        return figures("metric", pairs, load="below saturation" if run.keeps_up else "saturated")

    return predict(published.online(reference), answer)


def static_batches(reference: Path) -> Iterator[Cells]:
    """Yield seconds of static batches of an older engine: measured relative to predicted."""

    def answer(row: StaticBatch) -> Cells:
        cells, [replica] = static_columns([row])
        columns_s = numbers_of(runtime_without(SESSION, row.group), replica)
        kind = "experts" if load_model(row.model).experts else "dense"
        predicted_s = float(np.sum(cells[0] * columns_s))
        return {"kind": kind, "predicted": row.measured_s, "measured": predicted_s}

    return predict(static_rows(reference), answer)


def mlperf(reference: Path) -> Iterator[Cells]:
    """Yield tokens per second and GPU of the best submissions to MLPerf Inference."""
    cache_of = functools.cache(run_cache_without)
    measured = calibrations("tensor")

    def answer(row: InferenceSubmission) -> Cells:
        return {
            "predicted": _tokens_per_gpu_s(row, cache_of(row.point.runtime, row.group)),
            "measured": row.tokens_per_gpu_s,
            "scenario": row.scenario,
            "kernels": "GPUs measured here" if row.point.gpu in measured else "data sheet alone",
            "label": f"{row.point.model}, {row.name}",
        }

    return predict(published.mlperf(reference), answer)


def _tokens_per_gpu_s(row: InferenceSubmission, cache: RunCache) -> float:
    """Return throughput per GPU: offline the highest; of a server the highest within its SLO.

    99 % of a server's requests, arriving as a Poisson process, must meet the benchmark's times.
    """
    point = row.point
    gpus = point.tp * point.pp * point.attention_dp
    most = simulate(point, cache).tokens_per_s
    if row.scenario == published.OFFLINE:
        return most / gpus
    low, high = 0.0, most / row.task.output
    replicas = min(row.gpus // gpus, max(1, MAX_REQUESTS // point.requests))
    load = {"arrivals.process": "poisson", "replicas": replicas, "router": "least_outstanding"}
    shared = updated(point, load)
    for _ in range(BISECTIONS):
        rate = (low + high) / 2.0
        requests = round(published.RUN_S * rate * replicas) or 1
        times = simulate(replace(shared, qps=rate * replicas, requests=requests), cache)
        limits = (times.ttft_p99_s, row.task.ttft_s), (times.tpot_p99_s, row.task.tpot_s)
        is_met = all(seconds is not None and seconds <= limit for seconds, limit in limits)
        low, high = (rate, high) if is_met else (low, rate)
    return low * row.task.output / gpus


@functools.lru_cache(maxsize=1)
def result_blocks(reference: Path) -> pl.DataFrame:
    """Return TPOT and throughput of results printed in documentation of engines."""
    known, unknown = blocks(reference)

    @functools.cache
    def cache_of(runtime: str, group: str, decode: str, page: str) -> RunCache:
        cache = run_cache_without(runtime, group, decode)
        cache.width_of = functools.partial(width_without_page, page)
        return cache

    def answer(numbered: tuple[int, ResultBlock]) -> list[Cells]:
        number, block = numbered
        cache = cache_of(block.point.runtime, block.group, block.decode, block.path)
        metrics = simulate(block.point, cache)
        pairs = {
            "TPOT": (metrics.tpot_mean_s, block.tpot_s),
            "throughput": (metrics.tokens_per_s, block.tokens_per_s),
        }
        found = figures("metric", pairs, number=number, label=block.path)
        ends = {
            "TPOT": (metrics.tpot_mean_s_lo, metrics.tpot_mean_s_hi),
            "throughput": (metrics.tokens_per_s_lo, metrics.tokens_per_s_hi),
        }
        return [
            {**one, "lo": low, "hi": high} for one in found for low, high in [ends[one["metric"]]]
        ]

    skipped = ({"skipped": why} for why in unknown)
    return together([*predict(enumerate(known), answer), *skipped])


def option_pairs(reference: Path) -> Iterator[Cells]:
    """Yield throughput ratios of results of the same page with one option changed."""
    known, _ = blocks(reference)
    rates = result_blocks(reference).filter(pl.col("metric") == "throughput").to_dicts()
    for before, after in itertools.combinations(rates, 2):
        if kind := changed(known[before["number"]], known[after["number"]]):
            ratios = {name: after[name] / before[name] for name in ("predicted", "measured")}
            yield {**ratios, "kind": kind}


def changed(one: ResultBlock, other: ResultBlock) -> str:
    """Return the only kind of option in which two results of a page and load differ, if any.

    Options without an axis are not compared: their points differ only in lengths of answers.
    """
    a, b = one.point, other.point
    loads = [(p.model, p.gpu, p.arrivals, p.qps, p.requests) for p in (a, b)]
    if one.path != other.path or loads[0] != loads[1]:
        return ""
    for name in LENGTHS[:2]:
        if abs(getattr(a, name) / getattr(b, name) - 1.0) > SIMILAR_LENGTHS:
            return ""
    kinds = [kind for kind, values in one.options.items() if values != other.options[kind]]
    lengths = {name: attrgetter(name)(a) for name in LENGTHS}
    return kinds[0] if len(kinds) == 1 and a != updated(b, lengths) else ""


def changes(
    reference: Path, base: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]
) -> Iterator[Cells]:
    """Yield ratios of mean TTFT and TPOT of two runs on the requests of AISimulate.

    `base`: options of all runs. `pairs`: each with the run whose requests are used, two sets of
    options and published means.
    """
    for pair in pairs:
        asked = _aisimulate_requests(reference / AISIMULATE, pair["run"])
        points = [
            point_from(ServingPoint, {**base, "model": pair["model"], **options})
            for options in pair["settings"]
        ]
        before, after = (run_of(point, asked).metrics() for point in points)
        for metric in ("ttft", "tpot"):
            ours = getattr(after, f"{metric}_mean_s") / getattr(before, f"{metric}_mean_s")
            theirs = pair[f"{metric}_ms"][1] / pair[f"{metric}_ms"][0]
            yield {
                "predicted": ours,
                "measured": theirs,
                "change": pair["name"],
                "metric": metric.upper(),
                "error": abs(ours / theirs - 1.0),
                "is_same_sign": (ours > 1.0) == (theirs > 1.0),
                "label": f"ours x{ours:.2f}, theirs x{theirs:.2f}",
            }


def _aisimulate_requests(file: Path, run: str) -> Requests:
    rows = read_table(file, ("request_id",), run=run).sort_by("request_id")
    if not rows.num_rows:
        raise UserError(f"{file.name} has no request of {run}")
    columns = numbers(rows, ("arrival_ms", "input_tokens", "output_tokens"))
    arrival_ms, prompt, output = columns.values()
    return _requests(arrival_ms / 1e3, prompt, output)


def _requests(arrival_s: Floats, prompt: Floats, output: Floats) -> Requests:
    lengths = prompt.astype(np.int64), output.astype(np.int64)
    return Requests(arrival_s, *lengths, np.zeros((arrival_s.size, 2)))


def runs(reference: Path) -> Iterator[Cells]:
    """Yield mean TTFT, median TPOT and throughput of real runs of vLLM on the same requests."""

    def answer(run: Mapping[str, Any]) -> list[Cells]:
        if run["gpu"] not in GPUS or run["model"] not in ENGINE.models:
            raise UserError(f"{run['model']} on {run['gpu']} is not in the catalog")
        queued, first, last, asked = requests_of_run(reference, run["run"])
        times = run_of(point_of_run(run), asked).state.times
        arrived, started, ended = times[:, (at.ARRIVAL, at.FIRST_TOKEN, at.COMPLETED)].T
        ours = _figures(arrived, started, ended, asked)
        theirs = _figures(queued, first, last, asked)
        pairs = {metric: (ours[metric], measured) for metric, measured in theirs.items()}
        return figures("metric", pairs, run=run["run"])

    return predict(read_records(reference / VLLM_RUNS), answer)


def requests_of_run(reference: Path, run: str) -> tuple[Floats, Floats, Floats, Requests]:
    """Return the times of a run's requests in seconds, and the requests.

    Times are of arrival in the engine's queue, and of the first and last token. Raises UserError if
    the tables lack the run.
    """
    names = ("queued_s", "first_token_s", "last_token_s", "input_toks", "output_toks")
    for table in VLLM_REQUESTS:
        if (reference / table).is_file() and len(rows := read_table(reference / table, run=run)):
            found = numbers(rows.sort_by("queued_s"), names).values()
            queued, first, last, prompt, output = found
            return queued, first, last, _requests(queued - queued[0], prompt, output)
    raise UserError(f"there are no requests of {run}")


def _figures(arrived: Floats, first: Floats, last: Floats, asked: Requests) -> dict[str, float]:
    """Return the compared figures of a run; the throughput counts to the last output token."""
    return {
        "mean TTFT": float((first - arrived).mean()),
        "median TPOT": float(np.median((last - first) / (asked.output_tokens - 1))),
        "throughput": float(asked.output_tokens.sum() / (last.max() - arrived.min())),
    }


def point_of_run(run: Mapping[str, Any]) -> ServingPoint:
    """Return the deployment of a run of vLLM, with the number of KV blocks that the run states."""
    dtype = {"bfloat16": "bf16", "float16": "fp16"}[run["dtype"]]
    options = {
        "model": ENGINE.models[run["model"]],
        "gpu": GPUS[run["gpu"]],
        "cluster": VLLM_CLUSTERS.get(run["gpu"], AUTO),
        "dtype": dtype,
        "kv_dtype": dtype,
        **evaluated(STORED_RUNS["vllm"], run),
    }
    point = point_from(ServingPoint, options)
    stated = run["num_gpu_blocks"]
    if stated is None:
        return point
    hardware, block_size = deployment_of(point).hardware, point.block_size
    fraction, replica = point.gpu_memory_utilization, hardware.replica
    load = {"tokens": point.token_budget, "rows": point.max_num_seqs}
    found = kv_blocks(hardware, memory_fraction=fraction, block_size=block_size, **load)
    token_bytes = kv_bytes_per_token(replica.model, replica.layout, replica.kv_dtype)
    more = (stated - found) * block_size * token_bytes / replica.gpu.hbm_bytes
    return replace(point, memory_fraction=fraction + more)


def replays(reference: Path) -> Iterator[Cells]:
    """Yield whether each run of VIDUR is reproduced: batches, times and preempted requests.

    Raises:
        UserError: a model, a scheduler or a router is unknown, or an operator time is missing.
    """
    tables, requests, outcomes = (
        reference / VIDUR.format(name) for name in ("op_tables", "requests", "outcomes")
    )
    prices = functools.cache(functools.partial(_op_table, tables))
    for run in read_records(outcomes):
        name = run.config_id
        rows = read_table(requests, ("request_id",), config_id=name).sort_by("request_id")
        theirs = numbers(rows, (*VIDUR_TIMES, "arrival_s", "prompt_tokens", "output_tokens"))
        price = prices(run.table_key, run.model, run.pp, run.tp)
        state = _replayed(run, theirs, price)
        yield {"label": name, "predicted": _is_equal(run, theirs, state)}


def _op_table(tables: Path, key: str, model: str, pp: int, tp: int) -> OpTable:
    rows = read_table(tables, table_key=key)
    known = model_of(model)
    a, b, ms = numbers(rows, ("a", "b", "ms")).values()
    times = by_operator(words(rows, "op"), a.astype(np.int64), b.astype(np.int64), ms)
    grouped = known.kv_heads != known.heads
    return vidur_table(times, layers=known.layers // pp, grouped=grouped, tp=tp)


def _replayed(
    run: Mapping[str, Any], theirs: Mapping[str, Floats], prices: OpTable
) -> at.ReplicaState:
    policies = {"vllm": VIDUR_POLICIES, "lor": VIDUR_POLICIES}
    scheduler = load_scheduler(policies.get(run["scheduler"], run["scheduler"]))
    router = load_router(policies.get(run["global_scheduler"], run["global_scheduler"]))
    limits = ReplicaLimits(
        **evaluated(STORED_RUNS["limits"]["vidur"], run), reserves=scheduler.reserves
    )
    columns = (theirs[name] for name in ("arrival_s", "prompt_tokens", "output_tokens"))
    return serve(
        EngineKernels(scheduler, router, vidur_price),
        limits,
        _requests(*columns),
        replicas=run["replicas"],
        shape=prices.shape,
        table=prices.table,
    )


def _is_equal(run: Mapping[str, Any], theirs: Mapping[str, Floats], state: at.ReplicaState) -> bool:
    """Return whether times and counts of a run are equal, or its means if times are not exact."""
    if run["scheduler"] in VIDUR_BY_MEANS:
        latency_s = state.times[:, [at.FIRST_TOKEN, at.COMPLETED]] - theirs["arrival_s"][:, None]
        means = np.array([run["ttft_s_mean"], run["e2e_s_mean"]])
        return bool(np.abs(latency_s.mean(axis=0) / means - 1.0).max() <= VIDUR_CLOSE)
    iterations, preemptions = (
        int(state.pool[:, column].sum()) for column in (at.ITERATIONS, at.RECOMPUTE_PREEMPTIONS)
    )
    error_s = max(np.abs(state.times[:, i] - theirs[n]).max() for n, i in VIDUR_TIMES.items())
    counts = int(run["num_iterations"]), int(run["restarts"])
    return bool(error_s <= VIDUR_EXACT_S and (iterations, preemptions) == counts)


WARM, WARMED, FRESH = "warm", "warmed by its client", "started for the load"
PERCENTS = (90, 99)
TAIL_METRICS = ("ttft", "tpot")


def percentiles(reference: Path) -> Iterator[Cells]:
    """Yield 90th and 99th percentiles; intervals of the 99th, which alone have one.

    `server` says what the requests met. Runs of vLLM 0.19 are replayed request by request; results
    of documentation pages mostly come from servers that had answered other loads before. InferenceX
    starts a server for each load, and with ten requests per client the first prompts are the 99th
    percentile; since 2026-01-27 its client sends copies of one prompt before them.

    The engine's constants are fitted without the model, stalls of first prompts without the
    lengths of prompts and answers.
    """
    yield from _replays(reference)
    yield from predict(blocks(reference)[0], _printed)
    cache_of = functools.cache(_cache_without)
    yield from predict(database(reference), functools.partial(_listed, cache_of))


def _replays(reference: Path) -> Iterator[Cells]:
    def answer(run: Mapping[str, Any]) -> Iterator[Cells]:
        queued, first, last, asked = requests_of_run(reference, run["run"])
        times = run_of(point_of_run(run), asked).state.times
        ours = times[:, (at.ARRIVAL, at.FIRST_TOKEN, at.COMPLETED)].T
        later = asked.output_tokens - 1
        pairs = {
            "ttft": (ours[1] - ours[0], first - queued),
            "tpot": ((ours[2] - ours[1]) / later, (last - first) / later),
        }
        for metric, (predicted, measured) in pairs.items():
            for percent in PERCENTS:
                cells = {"source": "replayed", "server": WARM, "label": run["run"]}
                values = {
                    "predicted": _percentile(predicted, percent),
                    "measured": _percentile(measured, percent),
                }
                yield cells | values | {"metric": metric.upper(), "percent": percent}

    return predict(read_records(reference / VLLM_RUNS), answer)


def _percentile(values: Floats, percent: int) -> float:
    return float(np.percentile(values, percent))


@functools.cache
def _page_cache(runtime: str, group: str, decode: str, page: str) -> RunCache:
    cache = run_cache_without(runtime, group, decode)
    cache.width_of = functools.partial(width_without_page, page)
    cache.tails = tails_without(group.rpartition(".")[2])
    return cache


def _printed(block: ResultBlock) -> Iterator[Cells]:
    cache = _page_cache(block.point.runtime, block.group, block.decode, block.path)
    cells = {"source": "documentation", "server": WARM, "label": block.path}
    return _tail_rows(cells | {"gpu": block.point.gpu}, simulate(block.point, cache), block)


def _listed(cache_of: Any, row: PublicDeployment) -> Iterator[Cells]:
    server = FRESH if row.is_fresh else WARMED
    cells = {"source": "InferenceX", "server": server, "label": row.name, "gpu": row.gpu}
    cache = cache_of(row.runtime, row.model, lengths_of(row), row.gpu)
    cache.stalls, cache.tails = stalls_without(row), tails_without(row.gpu)
    return _tail_rows(cells, simulate(point_of(row), cache), row)


def _cache_without(runtime: str, model: str, lengths: str, gpu: str) -> RunCache:
    """Return a run cache of deployments with equal lengths on a GPU, which are left out."""
    del lengths, gpu
    return run_cache_without(runtime, model)


def _tail_rows(cells: Cells, found: Any, row: ResultBlock | PublicDeployment) -> Iterator[Cells]:
    for metric in TAIL_METRICS:
        for percent in PERCENTS:
            name = f"{metric}_p{percent}_s"
            measured = getattr(row, name, None)
            if measured and measured == measured:
                ends = {end: getattr(found, f"{name}_{end}", None) for end in ("lo", "hi")}
                values = {"predicted": getattr(found, name), "measured": measured}
                yield {**cells, **values, **ends, "metric": metric.upper(), "percent": percent}
