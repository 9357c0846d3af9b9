"""Tasks of whole systems: deployments, their tails, separate pools, training steps, energy.

Lower bounds follow from data sheets: a token reads the weights that the running requests select and
their KV cache, or multiplies them; a prompt and a training step multiply all active weights.
`LATER` asks for constants fitted to rows before the protocol's day, `MODEL` for constants without
the model, `GPU` for kernels of other GPUs and constants without the model on its GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lab.benchmark.protocol import (
    GPU,
    LATER,
    MODEL,
    PROTOCOL,
    SHIPPED,
    Answer,
    BenchmarkSubject,
)
from lab.claims.serving import VLLM_RUNS, point_of_run, requests_of_run
from lab.fits import training as steps
from lab.fits.deployment_bands import HIDDEN, cache_knowing
from lab.fits.deployments import (
    online_run_cache_without,
    rank_wait_without,
    run_cache_without,
)
from lab.tables import published
from lab.tables.deployments import PublicDeployment, database, silicon, until
from lab.tables.disaggregated import read_pooled_runs
from lab.tables.result_blocks import ResultBlock, blocks
from lab.tables.rows import read_records
from lab.tables.training import FOUNDRY, PAPERS, MeasuredStep
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.calibration import read_calibration
from simulators.serving.engine import replica as at
from simulators.serving.measured.deployments import point_of
from simulators.serving.point import ServingPoint
from simulators.serving.run import RunCache, run_of
from simulators.serving.simulator import simulate
from simulators.training.job import CALIBRATION, Constants, constants_of
from simulators.workload.llm.memory import kv_bytes_per_token
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.precision import precision

Cache = Callable[[str], RunCache]
"""Returns the run cache for a split."""


def lower_bounds(point: ServingPoint, clients: float, gpus: tuple[int, int]) -> dict[str, float]:
    """Return the least TTFT and TPOT in seconds by data sheets.

    `gpus`: those that run a prompt, and those that share all decodes.
    """
    model, gpu, stored = load_model(point.model), load_gpu(point.gpu), precision(point.dtype)
    peak = gpu.peak_flops.get(stored.compute) or max(gpu.peak_flops.values())
    prompt, output = max(point.prompt_tokens, 1), max(point.output_tokens, 1)
    read = min(model.parameters, model.active_parameters * clients) * stored.weight_bytes
    cached = (
        clients * (prompt + output / 2) * kv_bytes_per_token(model, Parallelism(), point.kv_dtype)
    )
    flops = 2.0 * model.active_parameters
    return {
        "ttft_s": flops * prompt / (gpus[0] * peak),
        "tpot_s": max(
            (read + cached) / (gpus[1] * gpu.hbm_bytes_per_s), flops * clients / (gpus[1] * peak)
        ),
    }


def _sizes(point: ServingPoint, clients: float) -> tuple[float, ...]:
    model = load_model(point.model)
    gpus = point.tp * point.pp * point.attention_dp * point.replicas
    weights = precision(point.dtype).weight_bytes
    lengths = max(point.prompt_tokens, 1), max(point.output_tokens, 1)
    return clients, gpus, *lengths, model.active_parameters * weights, model.parameters * weights


def _figures(found: Any, names: Iterable[str]) -> dict[str, Answer]:
    return {
        f"{name}_s": (
            getattr(found, f"{name}_s"),
            getattr(found, f"{name}_s_lo", None),
            getattr(found, f"{name}_s_hi", None),
        )
        for name in names
    }


def _known(**figures: float | None) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value and value == value}


def _means(found: Any) -> dict[str, Answer]:
    known = _figures(found, ("ttft_mean", "tpot_mean"))
    return {name.replace("_mean", ""): answer for name, answer in known.items()}


@functools.lru_cache(maxsize=128)
def _cache(split: str, runtime: str, model: str, gpu: str) -> RunCache:
    """Return the run cache whose constants a split may use."""
    if split == SHIPPED:
        return RunCache()
    if split == LATER:
        return run_cache_without(runtime, until(PROTOCOL.cut))
    if split == MODEL:
        return run_cache_without(runtime, model)
    without = run_cache_without(runtime, f"{model}.{gpu}")
    return cache_knowing(HIDDEN, without) if split == GPU else without


def closed_loop(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield public deployments under a fixed number of clients, without excluded rows."""
    for row in silicon(reference):
        if row.excluded:
            continue
        point, gpus = point_of(row), row.layout.gpus

        def answer(
            split: str, row: PublicDeployment = row, point: ServingPoint = point
        ) -> Mapping[str, Answer]:
            return _means(simulate(point, _cache(split, row.runtime, row.model, row.gpu)))

        yield BenchmarkSubject(
            row=row.name,
            gpu=row.gpu,
            model=row.model,
            date=(row.measured or "")[:10],
            measured={"ttft_s": row.ttft_s, "tpot_s": row.tpot_s},
            sizes=_sizes(point, row.clients),
            kinds=(row.framework, row.dtype),
            lower_bound=lower_bounds(point, row.clients, (gpus, gpus)),
            peers={"aiconfigurator": _known(ttft_s=row.peer_ttft_s, tpot_s=row.peer_tpot_s)},
            answer=answer,
        )


def open_loop(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield TensorRT-LLM's online runs, and runs of vLLM whose arrivals are recorded."""
    for number, run in enumerate(published.online(reference)):
        point = run.point
        rate = point.qps or 1000.0
        gpus = point.tp * point.pp
        yield BenchmarkSubject(
            row=f"trtllm 0.14 {number} {point.model} {point.gpu} {point.qps}",
            gpu=point.gpu,
            model=point.model,
            measured={"ttft_s": run.ttft_s, "tpot_s": run.tpot_s},
            sizes=(rate, *_sizes(point, 1.0)[1:]),
            kinds=("trtllm",),
            lower_bound=lower_bounds(point, 1.0, (gpus, gpus)),
            answer=functools.partial(_online, point),
        )
    for recorded in read_records(reference / VLLM_RUNS):
        yield _recorded(reference, recorded)


def _online(point: ServingPoint, split: str) -> Mapping[str, Answer]:
    cache = RunCache() if split == SHIPPED else online_run_cache_without(point.model)
    return _means(simulate(point, cache))


def _recorded(reference: Path, run: Mapping[str, Any]) -> BenchmarkSubject:
    point = point_of_run(run)
    queued, first, last, asked = requests_of_run(reference, run["run"])
    later = asked.output_tokens - 1

    def means(times: Any) -> dict[str, float]:
        arrived, started, ended = times
        return {
            "ttft_s": float((started - arrived).mean()),
            "tpot_s": float(((ended - started) / later).mean()),
        }

    def answer(_: str) -> Mapping[str, Answer]:
        times = run_of(point, asked).state.times
        found = means(times[:, (at.ARRIVAL, at.FIRST_TOKEN, at.COMPLETED)].T)
        return {name: (seconds, None, None) for name, seconds in found.items()}

    rate = asked.output_tokens.size / float(np.ptp(queued))
    gpus = point.tp * point.attention_dp
    return BenchmarkSubject(
        row=run["run"],
        gpu=point.gpu,
        model=point.model,
        date="2026-11-21",
        measured=means((queued, first, last)),
        sizes=(rate, *_sizes(point, 1.0)[1:]),
        kinds=("vllm",),
        lower_bound=lower_bounds(point, 1.0, (gpus, gpus)),
        answer=answer,
    )


def tails(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield 99th percentiles of InferenceX's database and of documentation pages."""
    listed = [
        (
            f"{one.name} {one.model} {one.gpu} {one.framework} {one.dtype} tp={one.layout.tp}",
            one.measured or "",
            point_of(one),
            one,
        )
        for one in database(reference)
    ]
    printed = [(f"{one.path}:{one.line}", "", one.point, one) for one in blocks(reference)[0]]
    rows: list[tuple[str, str, ServingPoint, PublicDeployment | ResultBlock]]
    rows = [*listed, *printed]
    for name, date, point, row in rows:
        clients = float(point.arrivals.clients or point.requests)
        gpus = point.tp * point.attention_dp
        lower_bound = lower_bounds(point, clients, (gpus, gpus))

        def answer(split: str, point: ServingPoint = point) -> Mapping[str, Answer]:
            cache = _cache(split, point.runtime, point.model, point.gpu)
            return _figures(simulate(point, cache), ("ttft_p99", "tpot_p99"))

        yield BenchmarkSubject(
            row=name,
            gpu=point.gpu,
            model=point.model,
            date=date,
            measured={
                "ttft_p99_s": row.ttft_p99_s or float("nan"),
                "tpot_p99_s": row.tpot_p99_s or float("nan"),
            },
            sizes=_sizes(point, clients),
            kinds=(row.framework, point.dtype),
            lower_bound={
                name.replace("_s", "_p99_s"): value for name, value in lower_bound.items()
            },
            answer=answer,
        )


def disaggregated(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield deployments with separate pools whose set-up is known."""
    most = PROTOCOL.tasks["disaggregated"].most_clients
    for run in read_pooled_runs(reference):
        point, clients = run.point, run.point.arrivals.clients
        if clients > most:
            continue
        pools = point.pools
        width = (pools.prefill_tp or 1) * (pools.prefill_attention_dp or 1)
        model_bytes = _sizes(point, clients)[4:]

        def answer(
            split: str, point: ServingPoint = point, engine: str = run.framework
        ) -> Mapping[str, Answer]:
            cache = RunCache()
            if split != SHIPPED:
                cache.rank_wait_s = rank_wait_without(engine)
            return _means(simulate(point, cache))

        yield BenchmarkSubject(
            row=run.row,
            gpu=point.gpu,
            model=point.model,
            date=run.date[:10],
            measured={"ttft_s": run.ttft_s, "tpot_s": run.tpot_s},
            sizes=(
                float(clients),
                float(pools.prefill_gpus),
                float(pools.decode_gpus),
                float(point.prompt_tokens),
                float(point.output_tokens),
                run.draft_tokens + 1.0,
                *model_bytes,
            ),
            kinds=(run.framework, point.dtype),
            lower_bound=lower_bounds(point, float(clients), (width, pools.decode_gpus)),
            answer=answer,
        )


DAYS = {
    PAPERS: "2022-07-01",
    FOUNDRY: "2023-12-01",
}
"""Days of sources whose rows name no release: between the papers, and the benchmark's tables."""


def training(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield steps of pre-training whose plan is known, without flagged rows."""
    table = read_calibration(CALIBRATION)
    for one in steps.priced_steps(reference):
        step = one.step
        if step.is_flagged:
            continue
        job = step.job
        peak = job.gpu.peak_flops.get(precision(job.dtype).compute) or max(
            job.gpu.peak_flops.values()
        )

        def answer(split: str, one: steps.PricedSteps = one) -> Mapping[str, Answer]:
            constants = _constants(table, split, one.step)
            band = constants_of(table["step"]).band
            mean = steps.fastest_s(one, constants)
            return {"step_s": (mean, band[0] * mean, band[1] * mean)}

        yield BenchmarkSubject(
            row=step.row,
            gpu=job.gpu.name,
            model=job.model.name,
            date=step.day or DAYS.get(step.source, ""),
            measured={"step_s": step.seconds},
            sizes=(
                float(step.gpus),
                step.useful_flops,
                float(job.sequence),
                float(job.model.active_parameters),
            ),
            kinds=(step.source, job.dtype),
            lower_bound={"step_s": step.useful_flops / peak},
            peers={"calculon": _known(step_s=step.peer_s)},
            answer=answer,
        )


def _constants(table: Mapping[str, Any], split: str, step: MeasuredStep) -> Constants:
    """Return the constants that a split may use; as shipped for sources that no fit has seen."""
    if split == LATER:
        return steps.constants_until(PROTOCOL.cut)
    if split == SHIPPED:
        return constants_of(table["step"])
    kind = "GPU" if split == GPU else "model"
    section = steps.section_of(kind, steps.SPLITS[kind](step))
    return constants_of(table.get(section, table["step"]))


def energy(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield joules per output token of ML.ENERGY's models."""
    for number, row in enumerate(published.served(reference)[0]):
        point = row.point
        clients = float(point.arrivals.clients)
        gpus = point.tp * point.attention_dp * point.replicas
        bound_s = lower_bounds(point, clients, (gpus, gpus))["tpot_s"]
        gpu = load_gpu(point.gpu)

        def answer(split: str, row: published.ServedModel = row) -> Mapping[str, Answer]:
            group = row.point.model if split == MODEL else row.group
            is_shipped = split == SHIPPED
            cache = RunCache() if is_shipped else run_cache_without(row.point.runtime, group)
            return {"token_j": (simulate(row.point, cache).energy_j_per_token or 0.0, None, None)}

        yield BenchmarkSubject(
            row=f"{number} {point.model} {point.dtype} {gpus} {point.prompt_tokens} {clients:g}",
            gpu=point.gpu,
            model=point.model,
            measured={"token_j": row.token_j},
            sizes=_sizes(point, clients),
            kinds=(point.dtype,),
            lower_bound={"token_j": gpus * gpu.tdp_w * bound_s / clients},
            answer=answer,
        )


READERS: Mapping[str, Callable[[Path], Iterable[BenchmarkSubject]]] = {
    "closed_loop": closed_loop,
    "open_loop": open_loop,
    "tails": tails,
    "disaggregated": disaggregated,
    "training": training,
    "energy": energy,
}
