"""CPU time per simulated iteration and request, including all metrics.

The limits come from the fastest simulators measured: VIDUR spends 113 us on an
iteration of the first case and 173 us on one of the second; AISimulate, with a core in Rust, serves
13,100, 8,600 and 28,500 requests per CPU-second in the three cases that follow.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.timing import median_cpu_s
from lab.fits.workloads import CONFIG
from simulators.core.calibration import reference_folder
from simulators.core.checks import Check, print_checks
from simulators.core.fields import updated
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.demand.requests import Requests, requests_of, stream
from simulators.serving.demand.workloads import load_trace
from simulators.serving.options import CacheConfig
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import iteration_table
from simulators.serving.run import run_of
from simulators.serving.simulator import SIMULATOR
from simulators.workload.llm.parallelism import HIGH_THROUGHPUT, LOW_LATENCY
from sweeper.engines.inline import Inline
from sweeper.samplers.grid import Grid
from sweeper.space.design_space import space_of
from sweeper.store.keys import define
from sweeper.store.store import Store
from sweeper.sweep import Sweep

LONGEST = 4096
"""Requests of the conversation trace beyond the context of Llama 2 are left out."""

TECHNIQUES: Mapping[str, Mapping[str, Any]] = {
    "drafts": {"scheduler": "vllm_v1", "speculation.method": "eagle"},
    "prefix cache": {"scheduler": "vllm_v1", "cache.prefix_caching": True},
    "narrow weights": {"dtype": "w4a16", "kv_dtype": "fp8"},
    "overlapped attention": {"scheduling.mixed_step": "overlapped"},
    "early exit": {"dynamic.exit_depth": 0.5, "dynamic.exit_depth_std": 0.2},
}
"""Further options, each with the limit of the same requests without the option."""


def main() -> None:
    """Print the CPU time of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    SIMULATOR.warm_up()
    checks = [
        _per_iteration("7B A100 TP1, chats at 2/s", 0.35, _llama2("7b", "a100_sxm", tp=1), qps=2.0),
        _per_iteration(
            "70B H100 TP8, chats at 4/s", 0.6, _llama2("70b", "h100_sxm", tp=8), qps=4.0
        ),
        _requests_per_s("8B H100, 1,024 in 128 out at 10/s", 60_000.0, output=128, qps=10.0),
        _requests_per_s("8B H100, 1,024 in 512 out at 10/s", 30_000.0, output=512, qps=10.0),
        _requests_per_s("8B H100, 1,024 in 128 out at 60/s", 60_000.0, output=128, qps=60.0),
        *(
            _requests_per_s(
                f"8B H100, 1,024 in 128 out at 10/s, {name}", 60_000.0, output=128, qps=10.0, **more
            )
            for name, more in TECHNIQUES.items()
        ),
        *_mooncake(),
        _pools(),
        _agents(),
        *_million(),
        _memory(),
        *_candidates(),
        *_pairs(),
    ]
    print_checks(checks, as_json=chosen.json)


def _llama2(size: str, gpu: str, *, tp: int) -> ServingPoint:
    return ServingPoint(model=f"llama2_{size}", gpu=gpu, tp=tp)


def _chats(count: int, qps: float, run: int = 0) -> tuple[Requests, str]:
    """Return consecutive chats of the production trace, or drawn chats without the trace.

    Every run starts at another place of the trace and has new arrivals.
    """
    reference = reference_folder()
    file = None if reference is None else reference / CONFIG.traces["chat"]
    gaps = stream(run, "gaps").standard_exponential(count)
    draws = np.zeros((count, 2))
    if file is None or not file.is_file():
        drawn = requests_of(ServingPoint(model="", gpu="", qps=qps, requests=count, seed=run))
        return drawn, "lengths drawn: the trace is absent"
    trace = load_trace(str(file))
    fits = trace.prompt_tokens + trace.output_tokens <= LONGEST
    prompt, output = (
        np.roll(tokens[fits], -run * 1000)[:count]
        for tokens in (trace.prompt_tokens, trace.output_tokens)
    )
    return Requests(np.cumsum(gaps) / qps, prompt, output, draws), "lengths of the Azure trace"


def _per_iteration(name: str, limit_us: float, point: ServingPoint, *, qps: float) -> Check:
    note = _chats(1, qps)[1]

    def prepare(run: int) -> Callable[[], ServingMetrics]:
        asked, _ = _chats(10_000, qps, run)
        return lambda: run_of(point, asked).metrics()

    metrics, spent = median_cpu_s(prepare)
    assert metrics.iterations is not None  # an event simulation counts them
    used = spent / metrics.iterations * 1e6
    return Check(
        name,
        used,
        "CPU-us/iteration",
        limit_us,
        used <= limit_us,
        metrics.iterations,
        f"10,000 requests, {note}",
    )


def _requests_per_s(name: str, limit: float, *, output: int, qps: float, **more: Any) -> Check:
    count = 10_000
    plain = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", scheduler="sarathi", chunk_size=2048)
    point = updated(plain, more)

    def prepare(run: int) -> Callable[[], ServingMetrics]:
        gaps = stream(run, "gaps").standard_exponential(count)
        tokens = np.full(count, 1024), np.full(count, output)
        asked = Requests(np.cumsum(gaps) / qps, *tokens, np.zeros((count, 2)))
        return lambda: run_of(point, asked).metrics()

    metrics, spent = median_cpu_s(prepare)
    rate = count / spent
    note = f"batch {metrics.mean_batch:.0f}" + (", saturated" if metrics.saturated else "")
    return Check(name, rate, "requests/CPU-s", limit, rate >= limit, count, note)


MOONCAKE = "traces/mooncake_fast25_conversation.parquet"


def _mooncake() -> Iterator[Check]:
    """Yield the CPU time of a trace of conversations on eight replicas with a prefix cache.

    The limit is what AISimulate takes with a polynomial in place of tables of times, 3.6 s, less a
    sixth.
    """
    reference = reference_folder()
    file = None if reference is None else reference / MOONCAKE
    if file is None or not file.is_file():
        return
    point = ServingPoint(
        model="llama3_1_8b",
        gpu="h100_sxm",
        replicas=8,
        scheduler="vllm_v1",
        chunk_size=8192,
        max_batch=256,
        workload=str(file),
        requests=0,
        qps=None,
        cache=CacheConfig(prefix_caching=True),
        router="cache_aware",
    )
    started = time.process_time()  # one run only: the trace has no second half like the first
    metrics = run_of(point).metrics()
    spent = time.process_time() - started
    yield Check(
        "8B, 8 H100, Mooncake's conversations, prefix cache",
        spent,
        "CPU-s",
        3.0,
        spent <= 3.0,
        metrics.measured_requests or 0,
        f"{metrics.prefix_hit_ratio:.1%} of prompt tokens found",
    )


def _pools() -> Check:
    """Return the CPU time of 10,000 requests on 96 GPUs in two pools of wide expert parallelism."""
    count, ranks = 10_000, {"prefill": 24, "decode": 72}
    wide = {
        f"pools.{pool}_{name}": number
        for pool, number in ranks.items()
        for name in ("gpus", "attention_dp", "ep")
    }
    backends = {
        "pools.prefill_moe_backend": HIGH_THROUGHPUT,
        "pools.decode_moe_backend": LOW_LATENCY,
    }
    plain = ServingPoint(
        model="deepseek_v3", gpu="h100_sxm", tp=1, scheduler="sglang", prompt_tokens=2000
    )
    more = {"output_tokens": 100, "requests": count, "qps": 100.0, "moe.redundant_experts": 32}
    point = updated(plain, {**more, **wide, **backends})

    def prepare(run: int) -> Callable[[], ServingMetrics]:
        return lambda: run_of(updated(point, {"seed": run})).metrics()

    metrics, spent = median_cpu_s(prepare)
    name = "DeepSeek-V3, 96 H100 in two pools, 2,000 in 100 out"
    note = f"TPOT {(metrics.tpot_mean_s or 0.0) * 1e3:.0f} ms"
    return Check(name, spent, "CPU-s", 2.0, spent <= 2.0, count, note)


def _agents() -> Check:
    """Check the lane-hours per CPU-minute of 128 lanes, with the drawing of their sessions."""
    lanes, needed = 128, 1_000.0
    point = updated(_agents_on(4, lanes), {"requests": 0, "sessions.duration_s": 3600.0})

    def prepare(run: int) -> Callable[[], ServingMetrics]:
        seeded = updated(point, {"seed": run})
        return lambda: run_of(seeded, requests_of(seeded)).metrics()

    metrics, spent = median_cpu_s(prepare)
    found = lanes / spent * 60.0
    return Check(
        f"DeepSeek-V4-Pro on 32 B200, {lanes} lanes of agents for an hour",
        found,
        "lane-hours/CPU-min",
        needed,
        found >= needed,
        metrics.measured_requests or 0,
        "sessions drawn anew",
    )


def _agents_on(replicas: int, lanes: int) -> ServingPoint:
    """Return lanes of agents, drawn by the shipped statistics, on replicas of 8 GPUs.

    DeepSeek-V4-Pro with data-parallel attention, prefix caches in HBM and in host memory, and a
    router that knows the caches.
    """
    return updated(
        ServingPoint(model="deepseek_v4_pro", gpu="b200_sxm", qps=None),
        {
            **{"scheduler": "vllm_v1", "router": "cache_aware", "replicas": replicas},
            **{"dtype": "fp8_block+w4a8", "kv_dtype": "fp8", "ep": 8, "attention_dp": 8},
            **{"workload": "agentic", "arrivals.process": "closed", "arrivals.clients": lanes},
            **{"cache.prefix_caching": True, "cache.prefix_host_bytes": 3e11},
        },
    )


def _million() -> Iterator[Check]:
    """Yield the CPU time and the peak memory of a million requests of agents on 64 replicas.

    All sessions are played once, from drawing them to all metrics, in a process of its own.
    """
    lanes, wanted = 2_048, 1_000_000
    point = updated(_agents_on(64, lanes), {"requests": wanted, "seed": time.time_ns() % (1 << 31)})
    with get_context("spawn").Pool(1) as pool:
        count, spent, peak_mb = pool.apply(_served_alone, (point,))
    name, note = "a million requests of agents on 512 B200", f"{lanes:,} lanes, 64 replicas"
    yield Check(name, spent, "CPU-s", 120.0, spent <= 120.0, count, note)
    yield Check(f"{name}: memory", peak_mb, "MB", 2_000.0, peak_mb <= 2_000.0, count, note)


def _served_alone(point: ServingPoint) -> tuple[int, float, float]:
    """Return the measured requests of a point, its CPU-seconds, and this process's peak in MB."""
    SIMULATOR.warm_up()
    few = updated(point, {"requests": 200, "arrivals.clients": 2, "replicas": 2})
    run_of(few).metrics()  # loads the kernels
    started = time.process_time()
    metrics = run_of(point).metrics()
    spent = time.process_time() - started
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return metrics.measured_requests or 0, spent, peak_kib * 1024 / 1e6


def _memory() -> Check:
    """Return the memory growth of the process over a run of 100,000 requests."""
    asked, note = _chats(100_000, 2.0)
    if asked.prompt_tokens.size < asked.arrival_s.size:
        again = np.arange(asked.arrival_s.size) % asked.prompt_tokens.size
        asked = Requests(
            asked.arrival_s, asked.prompt_tokens[again], asked.output_tokens[again], asked.draws
        )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run_of(_llama2("7b", "a100_sxm", tp=1), asked).metrics()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024.0
    return Check("growth at 100,000 requests", grown, "MiB", 100.0, grown <= 100.0, 100_000, note)


CANDIDATES = {
    "model": ["llama2_70b"],
    "gpu": ["h100_sxm"],
    "tp": [2, 4, 8],
    "pp": [1, 2],
    "scheduler": ["vllm", "sarathi"],
    "chunk_size": [512, 1024],
    "max_batch": [64, 256],
    "memory_fraction": [0.85, 0.9],
    "qps": [0.5, 1.0, 2.0, 4.0],
    "requests": [1000],
}


def _candidates() -> Iterator[Check]:
    """Yield the deployments of 1,000 requests evaluated per CPU-second, by stage.

    The first sweep tabulates the iterations of each deployment; the second has other requests and
    finds the tables known.
    """
    iteration_table.cache_clear()
    for seed, note in enumerate(("tables built", "tables known")):
        space = space_of({"simulator": SIMULATOR.name, "axes": {**CANDIDATES, "seed": [seed]}})
        simulated_s: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder, define(space))
            sweep = Sweep(space, Grid(), Inline(), store, {"ttft_p99_s": "min"})
            started = time.process_time()
            sweep.run(lambda part, spent=simulated_s: spent.append(part.seconds))  # type: ignore[misc]
            spent = time.process_time() - started
        rate, share = len(space) / spent, 100.0 * sum(simulated_s) / spent
        yield Check(
            "candidates of 1,000 chats, swept",
            rate,
            "designs/CPU-s",
            100.0,
            rate >= 100.0,
            len(space),
            note,
        )
        yield Check(
            "CPU time within the simulator",
            share,
            "%",
            85.0,
            share >= 85.0,
            len(space),
            note,
        )


LOADS = {
    "model": ["llama3_1_8b", "llama3_1_70b", "qwen3_32b"],
    "gpu": ["h100_sxm", "h200_sxm"],
    "tp": [2, 4, 8],
    "dtype": ["fp8"],
    "kv_dtype": ["fp8"],
    "scheduler": ["vllm_v1"],
    "runtime": ["vllm"],
    "chunk_size": [2048, 4096, 8192],
    "max_batch": [128, 256, 512, 1024],
    "memory_fraction": [0.8, 0.84, 0.88, 0.9, 0.92],
    "arrivals.process": ["closed"],
    "arrivals.clients": [1, 2, 4, 8, 16, 32, 64, 80],
    "prompt_tokens": [1024],
    "output_tokens": [256],
    "lengths.spread": [0.2],
    "requests": [80],
}
"""1,080 deployments of 18 replicas, each under eight loads."""


def _pairs() -> Iterator[Check]:
    """Yield the CPU time of a deployment under one load, its iterations tabulated first or known.

    The first pass tabulates each replica once, for 60 deployments; the second has other requests.
    """
    iteration_table.cache_clear()
    for seed, note in enumerate(("tables built", "tables known")):
        space = space_of({"simulator": SIMULATOR.name, "axes": {**LOADS, "seed": [seed]}})
        points = space.batch(np.arange(len(space)))
        started = time.process_time()
        SIMULATOR.evaluate(points)
        used = (time.process_time() - started) / len(space) * 1e3
        yield Check(
            "deployments and concurrencies, 80 requests",
            used,
            "CPU-ms/pair",
            1.0,
            used <= 1.0,
            len(space),
            note,
        )


if __name__ == "__main__":
    main()
