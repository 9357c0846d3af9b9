"""Runs of AISimulate 0.13 (NVIDIA), under the rules of vLLM 1: what a change of one setting does.

Its times are another simulator's and not the truth: a change should have the same sign here, and
about the same size. Its tables hold kernels timed alone, on GPUs that do not slow down under load.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from lab.claims.predictions import columns, predict, together
from lab.fits.deployments import online_run_cache_without, run_cache_without, runtime_without
from lab.fits.engines import numbers_of, static_columns
from lab.parity.vidur import layers_and_gqa, vidur_price, vidur_table
from lab.tables import published
from lab.tables.passes import SESSION, StaticBatch, static_rows
from lab.tables.published import InferenceSubmission, PublishedRun, offline, online
from lab.tables.records import GPUS
from lab.tables.result_blocks import ResultBlock, blocks
from lab.tables.rows import numbers, read_records, read_table, words
from lab.tables.tensor_kernels import MODELS
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
from simulators.serving.engine.replica import ARRIVAL, COMPLETED, FIRST_TOKEN, ReplicaState
from simulators.serving.engine.service import EngineKernels, serve
from simulators.serving.point import (
    CACHED,
    NONE,
    RECOMPUTE,
    CacheConfig,
    ClientConfig,
    ServingPoint,
)
from simulators.serving.prices.user_operator_times import OpTable, by_operator
from simulators.serving.run import RunCache, run_of
from simulators.serving.simulator import simulate
from simulators.workload.llm.memory import kv_bytes_per_token

AISIMULATE_REQUESTS = "serving_peers/aisimulate_requests.parquet"


def changes(
    reference: Path, base: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]
) -> pl.DataFrame:
    """Return ratios of mean TTFT and TPOT of two runs on the same requests.

    Args:
        reference: the folder of reference tables.
        base: settings of all runs.
        pairs: each with the run whose requests both take, two settings and the published means.
    """
    rows = []
    for pair in pairs:
        asked = requests_of(reference / AISIMULATE_REQUESTS, pair["run"])
        points = [
            point_from(ServingPoint, {**base, "model": pair["model"], **one})
            for one in pair["settings"]
        ]
        before, after = (run_of(point, asked).metrics() for point in points)
        for metric in ("ttft", "tpot"):
            ours_s = [getattr(one, f"{metric}_mean_s") for one in (before, after)]
            theirs_ms = pair[f"{metric}_ms"]
            ours, theirs = ours_s[1] / ours_s[0], theirs_ms[1] / theirs_ms[0]
            cells = {"change": pair["name"], "metric": metric.upper(), "measured": theirs}
            error = abs(ours / theirs - 1.0)
            is_same = (ours > 1.0) == (theirs > 1.0)
            label = f"ours x{ours:.2f}, theirs x{theirs:.2f}"
            more = {"error": error, "is_same_sign": is_same, "label": label}
            rows.append({**cells, "predicted": ours, **more})
    return pl.DataFrame(rows)


def requests_of(file: Path, run: str) -> Requests:
    """Return the requests of a run.

    Raises:
        UserError: there are none.
    """
    rows = read_table(file, ("request_id",), run=run).sort_by("request_id")
    if not rows.num_rows:
        raise UserError(f"{file.name} has no request of {run}")
    columns = numbers(rows, ("arrival_ms", "input_tokens", "output_tokens"))
    arrival_ms, prompt, output = columns.values()
    lengths = prompt.astype(np.int64), output.astype(np.int64)
    return Requests(arrival_ms / 1e3, *lengths, np.zeros((len(rows), 2)))


HALVINGS = 6
"""Of the interval in which a server's rate is sought: to a fiftieth of the offline rate."""

ROUTER = "least_outstanding"
MOST_REQUESTS = 60_000
"""Of a run: as many replicas share its load as that allows."""

LENGTHS = "prompt_tokens", "output_tokens", "lengths.max_output_tokens"
"""Of a point, which follow from what was printed; the first two are means."""

ALIKE = 0.06
"""By which mean lengths of one load may differ: answers end where they end."""


def offline_runs(reference: Path) -> pl.DataFrame:
    """Return throughputs of TensorRT-LLM with all requests queued at once."""
    cache_of = functools.cache(run_cache_without)

    def answer(run: PublishedRun) -> dict[str, Any]:
        metrics = simulate(run.point, cache_of(run.point.runtime, run.group))
        return {"predicted": metrics.tokens_per_s, "measured": run.tokens_per_s}

    return predict(
        offline(reference),
        answer,
        lambda run: {"kind": "dense" if run.is_dense else "experts", "label": run.group},
    )


def online_runs(reference: Path) -> pl.DataFrame:
    """Return times and throughputs of TensorRT-LLM in an open loop.

    Runs of release 0.14, whose time to hand over a request was fitted to the other of two models.
    """
    cache_of = functools.cache(online_run_cache_without)

    def answer(run: Any) -> list[dict[str, Any]]:
        metrics = simulate(run.point, cache_of(run.point.model))
        figures = {
            "TTFT": (metrics.ttft_mean_s, run.ttft_s),
            "TPOT": (metrics.tpot_mean_s, run.tpot_s),
            "throughput": (metrics.tokens_per_s, run.tokens_per_s),
        }
        return [
            {"metric": metric, "predicted": ours, "measured": theirs}
            for metric, (ours, theirs) in figures.items()
        ]

    return predict(
        online(reference),
        answer,
        lambda run: {"load": "below saturation" if run.keeps_up else "saturated"},
    )


def static_batches(reference: Path) -> pl.DataFrame:
    """Return seconds of static batches of an older engine, as measured over predicted."""

    def answer(row: StaticBatch) -> dict[str, Any]:
        cells, [replica] = static_columns([row])
        columns_s = numbers_of(runtime_without(SESSION, row.group), replica)
        predicted_s = float(np.sum(cells[0] * columns_s))
        return {"predicted": row.measured_s, "measured": predicted_s}

    return predict(
        static_rows(reference),
        answer,
        lambda row: {"kind": "experts" if load_model(row.model).experts else "dense"},
    )


def mlperf(reference: Path) -> pl.DataFrame:
    """Return tokens per second and GPU of the best submissions to MLPerf Inference."""
    cache_of = functools.cache(run_cache_without)

    def answer(row: InferenceSubmission) -> dict[str, Any]:
        run_cache = cache_of(row.point.runtime, row.group)
        return {"predicted": tokens_per_gpu_s(row, run_cache), "measured": row.tokens_per_gpu_s}

    measured = calibrations("tensor")
    return predict(
        published.mlperf(reference),
        answer,
        lambda row: {
            "scenario": row.scenario,
            "kernels": "GPUs measured here" if row.point.gpu in measured else "data sheet alone",
            "label": f"{row.point.model}, {row.name}",
        },
    )


def tokens_per_gpu_s(row: InferenceSubmission, cache: RunCache) -> float:
    """Return our throughput per GPU: offline the highest; of a server the highest within its SLO.

    99 % of a server's requests, arriving as a Poisson process, must meet the benchmark's times.
    """
    point = row.point
    gpus = point.tp * point.pp * point.attention_dp
    most = simulate(point, cache).tokens_per_s
    if row.scenario == published.OFFLINE:
        return most / gpus
    low, high = 0.0, most / row.task.output
    replicas = min(row.gpus // gpus, max(1, MOST_REQUESTS // point.requests))
    shared = replace(
        point,
        arrivals=replace(point.arrivals, process="poisson"),
        replicas=replicas,
        router=ROUTER,
    )
    for _ in range(HALVINGS):
        rate = (low + high) / 2.0
        requests = round(published.RUN_S * rate * replicas) or 1
        times = simulate(replace(shared, qps=rate * replicas, requests=requests), cache)
        limits = (times.ttft_p99_s, row.task.ttft_s), (times.tpot_p99_s, row.task.tpot_s)
        is_met = all(seconds is not None and seconds <= limit for seconds, limit in limits)
        low, high = (rate, high) if is_met else (low, rate)
    return low * row.task.output / gpus


@functools.lru_cache(maxsize=1)
def _blocks(reference: Path) -> tuple[list[ResultBlock], pl.DataFrame]:
    """Return the printed results with a prediction, and their predictions."""
    known, unknown = blocks(reference)
    cache_of = functools.cache(run_cache_without)

    def answer(block: ResultBlock) -> dict[str, Any]:
        metrics = simulate(block.point, cache_of(block.point.runtime, block.group, block.decode))
        return {
            "number": positions[id(block)],
            "TPOT": metrics.tpot_mean_s,
            "throughput": metrics.tokens_per_s,
        }

    positions = {id(block): number for number, block in enumerate(known)}
    frame = predict(known, answer)
    skipped = pl.DataFrame([{"skipped": why} for why in Counter(unknown).elements()])
    found = [known[number] for number in frame["number"].drop_nulls()]
    return found, pl.concat([frame, skipped], how="diagonal_relaxed")


def result_blocks(reference: Path) -> pl.DataFrame:
    """Return TPOT and throughput of results printed in documentation of engines."""
    found, frame = _blocks(reference)
    known = frame.filter(pl.col("number").is_not_null())
    measured = {
        "TPOT": np.array([block.tpot_s for block in found]),
        "throughput": np.array([block.tokens_per_s for block in found]),
    }
    frames = [
        columns(
            metric=metric,
            predicted=known[metric].to_numpy(),
            measured=theirs,
            framework=[block.framework for block in found],
            label=[block.path for block in found],
        )
        for metric, theirs in measured.items()
    ]
    return together([*frames, frame.filter(pl.col("number").is_null()).select("skipped")])


def option_pairs(reference: Path) -> pl.DataFrame:
    """Return throughput ratios of results of the same page with one option changed."""
    found, frame = _blocks(reference)
    ours = frame["throughput"].drop_nulls().to_numpy()
    rows = []
    for a, b in itertools.combinations(range(len(found)), 2):
        if kind := changed(found[a], found[b]):
            measured = found[b].tokens_per_s / found[a].tokens_per_s
            rows.append({"kind": kind, "predicted": ours[b] / ours[a], "measured": measured})
    return pl.DataFrame(rows)


def changed(one: ResultBlock, other: ResultBlock) -> str:
    """Return the one kind of option in which two results of a page under one load differ, if so.

    Options without an axis are not compared: points that differ in how long answers happened to
    be say nothing of them.
    """
    a, b = one.point, other.point
    loads = [(p.model, p.gpu, p.arrivals, p.qps, p.requests) for p in (a, b)]
    if one.path != other.path or loads[0] != loads[1]:
        return ""
    for name in LENGTHS[:2]:
        if abs(getattr(a, name) / getattr(b, name) - 1.0) > ALIKE:
            return ""
    kinds = [kind for kind, values in one.options.items() if values != other.options[kind]]
    lengths = {name: attrgetter(name)(a) for name in LENGTHS}
    return kinds[0] if len(kinds) == 1 and a != updated(b, lengths) else ""


RUNS = "serving_modern/vllm_runs_meta.parquet"
REQUESTS = (
    "serving_modern/vllm_requests.parquet",
    "serving_modern/vllm_requests_qwen3_32b.parquet",
)
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
CLUSTERS = {"RTXPRO6000": "pcie_through_host"}
"""By GPU, the server of these runs. Its owners timed NCCL between the GPUs apart from them: large
all-reduces at 15.9 GB/s, and at 35 once they had disabled access control services and the IOMMU,
months after these runs (casys-kaist/LLMServingSim, profiler/perf/RTXPRO6000/hardware.yaml)."""


def runs(reference: Path) -> pl.DataFrame:
    """Return mean TTFT, median TPOT and throughput of each run."""

    def answer(run: Mapping[str, Any]) -> list[dict[str, Any]]:
        if run["gpu"] not in GPUS or run["model"] not in MODELS:
            raise UserError(f"{run['model']} on {run['gpu']} is not in the catalog")
        column = _requests(reference, run["run"])
        queued = column["queued_s"]
        lengths = column["input_toks"], column["output_toks"]
        asked = Requests(queued - queued[0], *lengths, np.zeros((queued.size, 2)))
        times = run_of(point_of_run(run), asked).state.times
        ours = _figures(times[:, ARRIVAL], times[:, FIRST_TOKEN], times[:, COMPLETED], asked)
        theirs = _figures(queued, column["first_token_s"], column["last_token_s"], asked)
        return [
            {"metric": metric, "predicted": ours[metric], "measured": measured}
            for metric, measured in theirs.items()
        ]

    return predict(read_records(reference / RUNS), answer, lambda run: {"run": run["run"]})


def _requests(reference: Path, run: str) -> Mapping[str, NDArray[Any]]:
    """Return the columns of a run's requests in the order in which they were queued."""
    for table in REQUESTS:
        if (reference / table).is_file() and len(rows := read_table(reference / table, run=run)):
            columns = rows.sort_by("queued_s").to_pydict()
            return {name: np.array(values) for name, values in columns.items()}
    raise UserError(f"there are no requests of {run}")


def _figures(arrived: Floats, first: Floats, last: Floats, asked: Requests) -> dict[str, float]:
    """Return what is compared of a run; the rate is of output tokens, to the last one."""
    return {
        "mean TTFT": float((first - arrived).mean()),
        "median TPOT": float(np.median((last - first) / (asked.output_tokens - 1))),
        "throughput": float(asked.output_tokens.sum() / (last.max() - arrived.min())),
    }


def point_of_run(run: Mapping[str, Any]) -> ServingPoint:
    """Return the deployment a run describes."""
    dtype = DTYPES[run["dtype"]]
    point = ServingPoint(
        model=MODELS[run["model"]],
        gpu=GPUS[run["gpu"]],
        cluster=CLUSTERS.get(run["gpu"], AUTO),
        tp=run["tp"],
        ep=run["dp"] if run["ep"] else 1,
        attention_dp=run["dp"],
        scheduler="vllm_v1",
        chunk_size=run["max_num_batched_tokens"],
        max_batch=run["max_num_seqs"],
        max_context=run["max_model_len"] or 0,
        memory_fraction=run["mem_util"],
        cache=CacheConfig(watermark=0.0, preemption=CACHED if run["prefix_caching"] else RECOMPUTE),
        dtype=dtype,
        kv_dtype=dtype,
        runtime="vllm",
        client=ClientConfig(frontend=NONE),
    )
    blocks = run["num_gpu_blocks"]
    if blocks is None:
        return point
    hardware = deployment_of(point).hardware
    replica = hardware.replica
    known = kv_blocks(
        hardware,
        memory_fraction=point.memory_fraction,
        block_size=point.cache.block_size,
        tokens=point.chunk_size,
        rows=point.max_batch,
    )
    block_bytes = point.cache.block_size * kv_bytes_per_token(
        replica.model, replica.layout, replica.kv_dtype
    )
    more = (blocks - known) * block_bytes / replica.gpu.hbm_bytes
    return replace(point, memory_fraction=point.memory_fraction + more)


OUTCOMES, VIDUR_REQUESTS, TABLES = (
    "serving/vidur_outcomes.parquet",
    "serving/vidur_requests.parquet",
    "serving/vidur_op_tables.parquet",
)
EXACT_S, CLOSE = 1e-5, 0.01
"""Times of requests agree to so many seconds; means of runs that cannot be exact, to this share."""

BY_MEANS = ("orca", "faster_transformer", "lightllm")
POLICIES = "lab.parity.vidur_policies"
SCHEDULERS, ROUTERS = {"vllm": POLICIES}, {"lor": POLICIES}
"""VIDUR's policies that differ from ours of the same name."""

TIMES = {
    "first_scheduled_s": at.SCHEDULED,
    "first_token_s": at.FIRST_TOKEN,
    "completed_s": at.COMPLETED,
    "stalled_s": at.STALLED,
}
Columns = Mapping[str, Floats]
"""Requests of the reference, by column."""


def replays(reference: Path) -> pl.DataFrame:
    """Return whether each reference run is reproduced, with its largest error.

    Raises:
        UserError: a model, a scheduler or a router is unknown, or an operator time is missing.
    """
    prices: dict[str, OpTable] = {}
    found = []
    for outcome in read_records(reference / OUTCOMES):
        name, key = outcome["config_id"], outcome["table_key"]
        if key not in prices:
            prices[key] = _op_table(read_table(reference / TABLES, table_key=key), outcome)
        rows = read_table(reference / VIDUR_REQUESTS, ("request_id",), config_id=name)
        theirs = numbers(
            rows.sort_by("request_id"), (*TIMES, "arrival_s", "prompt_tokens", "output_tokens")
        )
        state = _replayed(outcome, theirs, prices[key])
        found.append({"label": name, "predicted": _is_equal(outcome, theirs, state)})
    return pl.DataFrame(found)


def _op_table(rows: pa.Table, outcome: Mapping[str, Any]) -> OpTable:
    """Return the prices of one model, cut and GPU."""
    layers, grouped = layers_and_gqa(outcome["model"])
    a, b, ms = numbers(rows, ("a", "b", "ms")).values()
    times = by_operator(words(rows, "op"), a.astype(np.int64), b.astype(np.int64), ms)
    return vidur_table(times, layers=layers // outcome["pp"], grouped=grouped, tp=outcome["tp"])


def _replayed(outcome: Mapping[str, Any], theirs: Columns, prices: OpTable) -> ReplicaState:
    """Run one configuration of the reference."""
    scheduler = load_scheduler(SCHEDULERS.get(outcome["scheduler"], outcome["scheduler"]))
    router = ROUTERS.get(outcome["global_scheduler"], outcome["global_scheduler"])
    limits = ReplicaLimits(
        blocks=outcome["num_blocks_per_replica"],
        block_size=outcome["block_size"],
        watermark=0.01,
        max_num_seqs=outcome["batch_size_cap"],
        max_prefill_tokens=4096,
        token_budget=outcome["chunk_size"],
        max_model_len=outcome["max_request_tokens"],
        stages=outcome["pp"],
        reserves=scheduler.reserves,
    )
    prompt, output = (theirs[f"{n}_tokens"].astype(np.int64) for n in ("prompt", "output"))
    arrival_s = theirs["arrival_s"]
    return serve(
        EngineKernels(scheduler, load_router(router), vidur_price),
        limits,
        Requests(arrival_s, prompt, output, np.zeros((arrival_s.size, 2))),
        replicas=outcome["replicas"],
        shape=prices.shape,
        table=prices.table,
    )


def _is_equal(outcome: Mapping[str, Any], theirs: Columns, state: ReplicaState) -> bool:
    """Return whether all times and counts of a run are equal, or its means where they are not."""
    if outcome["scheduler"] in BY_MEANS:
        latency_s = state.times[:, [at.FIRST_TOKEN, at.COMPLETED]] - theirs["arrival_s"][:, None]
        means = np.array([outcome["ttft_s_mean"], outcome["e2e_s_mean"]])
        return bool(np.abs(latency_s.mean(axis=0) / means - 1.0).max() <= CLOSE)
    ours = (
        int(state.pool[:, at.ITERATIONS].sum()),
        int(state.pool[:, at.RECOMPUTE_PREEMPTIONS].sum()),
    )
    counts = int(outcome["num_iterations"]), int(outcome["restarts"])
    error_s = max(np.abs(state.times[:, i] - theirs[name]).max() for name, i in TIMES.items())
    return bool(error_s <= EXACT_S and ours == counts)
