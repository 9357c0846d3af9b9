"""Real runs of vLLM, request by request, against ours of the same requests on the same GPU.

LLMServingSim published them: vLLM 0.19.0 with its prefix cache on, of which only what preempted
requests leave there is modelled, 300 requests with their arrivals. Nothing was fitted to them. Ours
run as `runtime: vllm`; times are the engine's own, from when it queued a request, so no server
stands before it.

Where a run says how many KV blocks it had, that is what it gets: the share of memory it states
beside leaves activations out. With two launches of attention in the place of one, which is not the
default, nothing is judged.

A run as a whole adds up the errors of steps in queues. Steps can be told apart where a prompt was
scheduled and answered while no other was: vLLM schedules a step while the one before it runs, so
that from there to the first token a step of decodes passes, and then the prompt's own. Decodes
have made their tokens evenly, and ranks have equally many. Some prompts took half the time of
others as long. The generator of these requests asks for later turns of a conversation with all
before, which vLLM's prefix cache finds; the tables do not hold what prompts have in common, so
errors are told by their median.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.claims.lines import absent, answered, at_most
from lab.tables.catalog_names import GPUS
from lab.tables.kernels.engine_layers import MODELS
from lab.tables.rows import read_records, read_table
from planning.calibrate.timings import check_columns
from simulators.catalog.cluster import AUTO
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.core.levels import UNMODELLED
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import deployment_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import kv_blocks
from simulators.serving.engine.replica import ARRIVAL, COMPLETED, FIRST_TOKEN
from simulators.serving.point import BATCH, CACHED, NONE, RECOMPUTE, UNIFIED, ServingPoint
from simulators.serving.prices.iteration_table import IterationTable, iteration_table
from simulators.serving.prices.lookup import table_price
from simulators.serving.run import run_of
from simulators.workload.llm.memory import kv_bytes_per_token

NEEDS = (RUNS,) = ("serving_modern/vllm_runs_meta.parquet",)
REQUESTS = (
    "serving_modern/vllm_requests.parquet",
    "serving_modern/vllm_requests_qwen3_32b.parquet",
)
COLUMNS = ("queued_s", "scheduled_s", "first_token_s", "last_token_s", "input_toks", "output_toks")
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
CLUSTERS = {"RTXPRO6000": "pcie_through_host"}
"""By GPU, the server of these runs. Its owners timed NCCL between the boards apart from them: large
all-reduces at 15.9 GB/s, and at 35 once they had disabled access control services and the IOMMU,
months after these runs (casys-kaist/LLMServingSim, profiler/perf/RTXPRO6000/hardware.yaml)."""

LIMIT = 8.0
"""Percent that are asked of dense models: of the mean TTFT, the median TPOT and the throughput."""

LIMIT_OF_RANKS = 10.0
"""The same of a mixture under data parallelism, whose ranks step together."""


APART_S = 0.15
"""No other prompt was scheduled for so long before: longer than a step of decodes takes."""

BUSY = 0.75
"""A run is busy where at least this share of its most decodes run."""

FOUND = 1.15
"""A step that we say takes so many times as long had found much of its prompt."""


@dataclass(frozen=True)
class Step:
    """One prompt whole beside decodes, and a step of those alone before."""

    prompt: float
    decodes: float
    context: float
    seconds: float  # of both


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of mean TTFT, median TPOT and throughput of each run of a known model."""
    for run in read_records(reference / RUNS):
        if run["gpu"] not in GPUS or run["model"] not in MODELS:
            yield absent(f"vllm {run['run']}", "not modelled")
            continue
        found = answered(f"vllm {run['run']}", [run], partial(_run_checks, reference))
        yield from (line for lines in (*found.answers, found.lines) for line in lines)


def _requests(reference: Path, run: str) -> Mapping[str, NDArray[Any]] | None:
    """Return the columns of a run's requests in the order in which they were queued, if here."""
    for table in REQUESTS:
        if (reference / table).is_file() and len(rows := read_table(reference / table, run=run)):
            check_columns(rows, COLUMNS, table)
            columns = rows.sort_by("queued_s").to_pydict()
            return {name: np.array(values) for name, values in columns.items()}
    return None


def _run_checks(reference: Path, run: Mapping[str, Any]) -> list[Check]:
    """Return the errors of one run; TTFT counts from when the engine had the request."""
    column = _requests(reference, run["run"])
    if column is None:
        return [absent(f"vllm {run['run']}", "absent: its requests")]
    lines = []
    queued = column["queued_s"]
    lengths = column["input_toks"], column["output_toks"]
    asked = Requests(queued - queued[0], *lengths, np.zeros((queued.size, 2)))
    theirs = _figures(queued, column["first_token_s"], column["last_token_s"], asked)
    for how, called in ((UNIFIED, ""), (BATCH, ", two launches")):
        done = run_of(replace(point_of_run(run), mixed_step=how), asked)
        times = done.state.times
        ours = _figures(times[:, ARRIVAL], times[:, FIRST_TOKEN], times[:, COMPLETED], asked)
        asked_of = LIMIT if run["dp"] == 1 else LIMIT_OF_RANKS
        limit = asked_of if how == UNIFIED else None
        note = f"{done.tables[0].shares[UNMODELLED]:.0%} of the time by other GPUs' numbers"
        for name, unit in (("mean TTFT", "s"), ("median TPOT", "s"), ("throughput", "1/s")):
            error = 100.0 * float(abs(ours[name] / theirs[name] - 1.0))
            said = f"{ours[name]:.4g} {unit} of {theirs[name]:.4g} {unit}; {note}"
            line = f"vllm {run['run']} {name}{called}"
            lines.append(at_most(line, error, limit, queued.size, said))
    return [*lines, step_line(run["run"], point_of_run(run), column)]


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
        watermark=0.0,
        preemption=CACHED if run["prefix_caching"] else RECOMPUTE,
        dtype=dtype,
        kv_dtype=dtype,
        runtime="vllm",
        frontend=NONE,
    )
    blocks = run["num_gpu_blocks"]
    if blocks is None:
        return point
    hardware = deployment_of(point).hardware
    replica = hardware.replica
    known = kv_blocks(
        hardware,
        memory_fraction=point.memory_fraction,
        block_size=point.block_size,
        tokens=point.chunk_size,
        rows=point.max_batch,
    )
    block_bytes = point.block_size * kv_bytes_per_token(
        replica.model, replica.cut, replica.kv_dtype
    )
    more = (blocks - known) * block_bytes / replica.gpu.hbm_bytes
    return replace(point, memory_fraction=point.memory_fraction + more)


def step_line(run: str, point: ServingPoint, column: Mapping[str, NDArray[Any]]) -> Check:
    """Return the median error of the steps of one run that can be told apart."""
    tables, ranks = iteration_table(deployment_of(point).hardware), point.attention_dp
    seen = list(lone_prompts(column, point.chunk_size))
    ours = np.array(
        [
            _seconds(tables, ranks, 0.0, one) + _seconds(tables, ranks, one.prompt, one)
            for one in seen
        ]
    )
    ratio = ours / np.array([one.seconds for one in seen])
    others = ratio[ratio <= FOUND]
    said = (
        f"bias {100.0 * (np.median(ratio) - 1.0):+.1f} %; {ratio.size - others.size} took less "
        f"than {1.0 / FOUND:.0%} of ours"
    )
    if others.size:
        said += f", the mean error of others is {100.0 * np.abs(others - 1.0).mean():.1f} %"
    error = 100.0 * float(np.median(np.abs(ratio - 1.0)))
    return at_most(f"steps with one prompt, vllm {run}", error, None, ratio.size, said)


def lone_prompts(column: Mapping[str, NDArray[Any]], tokens: int) -> Iterator[Step]:
    """Yield the steps of at most so many tokens with one whole prompt, where a run is busy."""
    scheduled, first, last = (column[f"{n}_s"] for n in ("scheduled", "first_token", "last_token"))
    prompts, answers = column["input_toks"], column["output_toks"]
    most = max(np.sum((first < now) & (last > now)) for now in scheduled)
    for i in range(first.size):
        begun, ended = scheduled[i], first[i]
        others = np.arange(first.size) != i
        is_met = (first > begun - 1e-3) & (first < ended + 1e-3)
        is_met |= (scheduled > begun - APART_S) & (scheduled < ended - 1e-3)
        runs = others & (first < begun) & (last > ended)
        is_busy = runs.any() and BUSY * most <= runs.sum() <= tokens - prompts[i]
        if np.any(is_met & others) or not is_busy:
            continue
        made = (begun - first[runs]) / (last[runs] - first[runs]) * (answers[runs] - 1)
        context = float(np.mean(prompts[runs] + 1 + made))
        yield Step(float(prompts[i]), float(runs.sum()), context, float(ended - begun))


def _seconds(tables: IterationTable, ranks: int, prompt: float, seen: Step) -> float:
    """Return what a step takes by our account: all ranks wait for the one that has the prompt."""
    step, decodes = np.zeros(at.STEP_COLUMNS), seen.decodes / ranks
    step[at.PREFILLS] = float(prompt > 0.0)
    step[at.PREFILL_TOKENS] = step[at.PREFILL_KV] = prompt
    step[at.PREFILL_PAIRS] = prompt * (prompt + 1.0) / 2.0
    step[at.PREFILL_SQUARES] = prompt * prompt
    step[at.DECODES], step[at.DECODE_KV] = decodes, decodes * seen.context
    step[at.TOKENS] = prompt + decodes
    step[at.LOGITS_ROWS] = step[at.PREFILLS] + decodes
    together = prompt + seen.decodes
    step *= ranks
    step[at.EVERYWHERE] = together
    if ranks > 1:
        step[at.UNEVEN] = (together - decodes) * ranks / (together * (ranks - 1.0)) - 1.0
    price: Floats = np.zeros(at.PRICE_COLUMNS)
    return float(table_price(step, tables.shape, tables.table, price))
