"""Serving figures that engines, vendors and benchmarks publish, beside ours.

Of groups (a model on a GPU) that runtimes were fitted to, the constants without the group are used.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import columns, predict, together
from lab.fits.engine_columns import numbers_of
from lab.fits.engines import static_columns
from lab.fits.left_out import online_run_cache_without, run_cache_without, runtime_without
from lab.tables import mlperf as mlperf_tables
from lab.tables.mlperf import InferenceSubmission
from lab.tables.published_runs import PublishedRun, offline, online
from lab.tables.result_blocks import ResultBlock, blocks
from lab.tables.static_batches import SESSION, StaticBatch, static_rows
from simulators.catalog.model import load_model
from simulators.core.fields import updated
from simulators.evidence.calibration_files import calibrations
from simulators.serving.run import RunCache
from simulators.serving.simulator import simulate

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
        numbers = numbers_of(runtime_without(SESSION, row.group), replica)
        predicted_s = float(np.sum(cells[0] * numbers))
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
        mlperf_tables.mlperf(reference),
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
    if row.scenario == mlperf_tables.OFFLINE:
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
        requests = round(mlperf_tables.RUN_S * rate * replicas) or 1
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
            "number": numbers[id(block)],
            "TPOT": metrics.tpot_mean_s,
            "throughput": metrics.tokens_per_s,
        }

    numbers = {id(block): number for number, block in enumerate(known)}
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
