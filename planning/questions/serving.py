"""Build the space of serving deployments for the flags of `ask`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from planning.candidates import (
    ANY,
    CHECKPOINT,
    CHUNK_SIZES,
    MAX_BATCHES,
    NO,
    POOLS,
    GpuOptions,
    OfferedLoad,
    Prefilter,
    backends_of,
    drafting_of,
    engine_named,
    grids_of,
    load_of,
    options_on,
    parallelism_of,
    pools_of_gpus,
)
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.catalog.price import DEFAULT as PUBLIC_CLOUD
from simulators.catalog.price import load_prices
from simulators.composition.replica import NOTHING
from simulators.core.errors import UserError
from simulators.core.folder import ENGINES
from simulators.serving.demand.workloads import is_trace, load_trace
from simulators.serving.point import SPECULATIONS
from simulators.serving.simulator import SIMULATOR
from simulators.workload.llm.parallelism import BACKENDS, GATHERED
from sweeper.questions import Asks, Deadline, Question, flag
from sweeper.text import number_in

TAIL_PERCENTILE = 90
"""Percentiles from here on have the uncertainty of a p99, lower ones that of a mean."""

MAX_TPOT_S = 10.0
"""Largest deadline of TPOT in seconds; a larger number was meant in milliseconds."""

HOUR, MTOK = "an hour", "per million tokens"

ALTERNATIVES = (
    *("gpu", "tp", "pp", "ep", "attention_dp", "replicas", "dtype", "scheduler"),
    *("speculation.method", "speculation.num_draft_tokens", "moe.backend"),
    *("pools.prefill_gpus", "pools.decode_gpus", "pools.prefill_tp", "pools.decode_tp"),
)
"""Fields, in one of which the runner-up differs from the best design."""


@dataclass(frozen=True)
class ServingFlags:
    """Flags of `ask`: model, GPUs, load and SLO."""

    model: str = flag("models, as in llama3_1_70b or Qwen/Qwen3-32B, or the path of a config.json")
    gpu: str = flag("GPUs to choose from, as in h100_sxm,l40s")
    gpus: int = flag("number of GPUs (default 8)", least=1, default=8)
    workload: str = flag(
        "chat, code, sharegpt, summarization, or the path of a trace", default="chat"
    )
    system_prompt: int = flag(
        "tokens of a shared system prompt, kept in the prefix cache (default 0)",
        least=0,
        default=0,
    )
    qps: float | None = flag(
        "requests per second (default 1; a trace has its own rate)", unit="1/s", default=None
    )
    traffic: str = flag("multiples of the load, as in 1x,2x", default="1x")
    ttft: float = flag("deadline of TTFT (default 1s)", unit="s", default=1.0)
    tpot: float = flag("deadline of TPOT (default 50ms)", unit="s", default=0.05)
    percentile: int = flag(
        "percentile of requests that must meet the SLO (default 99)",
        choices=(50, 90, 95, 99),
        default=99,
    )
    budget: float | None = flag("largest cost in $ per hour", unit="$", default=None)
    prices: str = flag("price lists, as in public_cloud,owned", default=PUBLIC_CLOUD)
    dtype: str = flag("precisions (default: those of the published checkpoint)", default=CHECKPOINT)
    engine: str = flag(
        f"engines, of {', '.join(ENGINES.names())} (default: all that support the GPU)", default=ANY
    )
    pools: str = flag(
        "separate prefill and decode pools: no, also (with and without), only (default no)",
        choices=POOLS,
        default=NO,
    )
    moe_backend: str = flag(
        f"MoE backend, of {', '.join(BACKENDS)}; separate several by commas",
        default=GATHERED,
    )
    speculation: str = flag(
        f"speculative decoding: {', '.join(SPECULATIONS)}, by commas (default nothing)",
        default=NOTHING,
    )
    drafter: str = flag("draft model, for --speculation draft", default=NOTHING)
    acceptance: str = flag(
        "acceptance rate, or one rate per position (default: measured rates)", default=""
    )
    requests: int = flag(
        "number of requests (default: the whole trace, or enough for the percentile)",
        least=0,
        default=0,
    )


def question_of(flags: ServingFlags) -> Question:
    """Return the question for parsed flags.

    Raises:
        UserError: a number is not above zero, or a name is unknown.
    """
    _check(flags)
    models = _named(flags.model, lambda name: load_model(name).name)
    substitutes = _substitutes(flags.model)
    gpus = _named(flags.gpu, lambda name: load_gpu(name).name)
    prices = _named(flags.prices, lambda name: load_prices(name).name)
    methods = drafting_of(flags.speculation, flags.drafter, flags.acceptance)
    tried = [options_on(gpu, models, flags.engine, flags.dtype) for gpu in gpus]
    refused = {one.gpu: one.refused for one in tried if one.refused}
    if len(refused) == len(tried):
        raise UserError("\n".join(f"{gpu}: {why}" for gpu, why in refused.items()))
    load = load_of(
        flags.workload, flags.qps, _factors(flags.traffic), flags.percentile, flags.requests
    )
    is_tail = flags.percentile >= TAIL_PERCENTILE
    deadlines = tuple(
        Deadline(
            metric=f"{kind}_p{flags.percentile}_s",
            limit=limit,
            interval=f"{kind}_p99_s" if is_tail else f"{kind}_mean_s",
        )
        for kind, limit in (("ttft", flags.ttft), ("tpot", flags.tpot))
    )
    space = _space(flags, models, tried, methods, load, deadlines, prices[0])
    mark = hashlib.blake2b(json.dumps(space).encode(), digest_size=3).hexdigest()
    rates = ", ".join("its own" if rate is None else f"{rate:.4g}" for rate in load.rates)
    asked = "the load of the trace" if load.rates == (None,) else f"{rates} requests per second"
    percentiles = sorted({50, flags.percentile, 99})
    latencies = [f"{kind}_p{p}_s" for kind in ("ttft", "tpot") for p in percentiles]
    return Question(
        name=f"ask_{Path(models[0]).stem}_{mark}",
        asks=f"How is {' or '.join(models)} best served at {asked}?",
        space=space,
        given=("model", "qps"),
        device="gpu",
        copies="replicas",
        devices="total_gpus",
        amounts=_amounts,
        prices=tuple(prices),
        budget=flags.budget,
        without_price="gpus",
        deadlines=deadlines,
        prefilter=Prefilter(
            SIMULATOR.evaluate, load.own_rate, flags.ttft if is_tail else None, flags.tpot
        ),
        excluded={"saturated": "the queue grows without bound"},
        shown=(*latencies, "tokens_per_s", "mean_batch"),
        asked=lambda row: _replayed(row, flags.workload, load) + substitutes,
        details=("moe.backend", "dtype", "max_batch", "chunk_size"),
        alternatives=ALTERNATIVES,
        described=_described,
        refused=refused,
        too_large=(
            f"{flags.model} does not fit on {flags.gpus} {flags.gpu}; use more GPUs (--gpus), "
            "larger GPUs (--gpu) or a smaller precision (--dtype fp8 or w4a16)"
        ),
        among=f"on at most {flags.gpus} of {', '.join(gpus)}",
        advice=(
            "Use more or faster GPUs (--gpus, --gpu), fewer requests (--qps) or a smaller",
            "precision (--dtype fp8).",
        ),
        target=lambda row: "dynamo" if row["pools.prefill_gpus"] else "kubernetes",
    )


def _check(flags: ServingFlags) -> None:
    for what in ("qps", "ttft", "tpot", "budget"):
        value = getattr(flags, what)
        if value is not None and not value > 0:
            raise UserError(f"--{what} {value:g}: write a number above zero")
    if flags.tpot > MAX_TPOT_S:
        raise UserError(f"--tpot {flags.tpot:g}: the TPOT deadline is in seconds; write 50ms")
    if flags.engine != ANY:
        for engine in flags.engine.split(","):
            if engine not in ENGINES.names():
                raise UserError(f"--engine {engine}: choose from {', '.join(ENGINES.names())}")


def _named(words: str, canonical: Any) -> list[str]:
    """Return the canonical names of comma-separated words; paths stay as they are."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    if not names:
        raise UserError("write at least one name")
    found = [name if "/" in name and Path(name).is_file() else canonical(name) for name in names]
    return list(dict.fromkeys(found))


def _substitutes(words: str) -> str:
    """Return a note for each checkpoint simulated as another model of the same shape.

    >>> _substitutes("meta-llama/Llama-3.1-8B-Instruct,meta-llama/Llama-3.1-8B,qwen3_32b")
    '; meta-llama/Llama-3.1-8B-Instruct is simulated as llama3_1_8b, whose checkpoint is deployed'
    """
    asked = [word.strip() for word in words.split(",") if "/" in word]
    sheets = {word: load_model(word) for word in asked if not Path(word).is_file()}
    found = [
        f"; {word} is simulated as {sheet.name}, whose checkpoint is deployed"
        for word, sheet in sheets.items()
        if word.lower() not in sheet.source.lower().replace(",", " ").replace(";", " ").split()
    ]
    return "".join(found)


def _factors(words: str) -> list[float]:
    """Return multiples of a load.

    >>> _factors("1x,2.5x")
    [1.0, 2.5]
    """
    found = []
    for word in words.split(","):
        factor = number_in(word.strip().casefold().removesuffix("x"))
        if factor is None or not 0.0 < factor < inf:
            raise UserError(f"--traffic {word}: write a number above zero, as in 2x")
        found.append(factor)
    return list(dict.fromkeys(found))


def _replayed(row: Mapping[str, Any], workload: str, load: OfferedLoad) -> str:
    answered = row["completed_requests"] or 0
    rate = "at the trace's rate" if row["qps"] is None else f"{row['qps']:.4g} per second"
    if is_trace(workload):
        of = f"{answered:,} of {load.available:,} requests of {Path(workload).name}"
    else:
        of = f"{answered:,} of {row['requests']:,} requests of {workload}"
    drafts = ""
    if row["speculation.method"] != NOTHING and not row["speculation.acceptance"].strip():
        drafts = "; published acceptance rates (change: --acceptance)"
    shared = ""
    if row["sessions.system_prompt_tokens"]:
        shared = f", with a system prompt of {row['sessions.system_prompt_tokens']:,} tokens"
    if row["cache.prefix_caching"]:
        shared += f"; prefix cache hit rate {100 * row['prefix_hit_ratio']:.0f} %"
    return f"{of}, {rate}{shared}{drafts}"


def _amounts(row: Mapping[str, Any], prices: str) -> dict[str, float]:
    """Return the costs of a design at a price list; empty without a price of the GPU."""
    listed, gpu = load_prices(prices), load_gpu(row["gpu"])
    if listed.quote(gpu) is None:
        return {}
    per_hour = listed.usd_per_gpu_hour(gpu) * row["gpus"]
    found = {HOUR: per_hour}
    if row["tokens_per_s"]:
        found[MTOK] = per_hour / 3600.0 / row["tokens_per_s"] * 1e6
    return found


def _space(
    flags: ServingFlags,
    models: Sequence[str],
    tried: Sequence[GpuOptions],
    methods: Sequence[Mapping[str, Any]],
    load: OfferedLoad,
    deadlines: tuple[Deadline, ...],
    prices: str,
) -> dict[str, Any]:
    slo = " AND ".join(f"{d.metric} <= {d.limit:g}" for d in deadlines)
    parallelism, rules = parallelism_of(models, flags.gpus)
    backends, supported = backends_of(flags.moe_backend, mixtures="ep" in parallelism)
    pools, sizes = pools_of_gpus(flags.pools, flags.gpus, tried)
    rules += [*supported, *sizes]
    if any(method["speculation.method"] != NOTHING for method in methods):
        rules.append(f"pp = 1 OR speculation.method = '{NOTHING}'")
    hashed = is_trace(flags.workload) and load_trace(flags.workload).hashes is not None
    shared = {"sessions.system_prompt_tokens": flags.system_prompt, "cache.prefix_caching": True}
    return {
        "simulator": "serving",
        "axes": {
            "workload": flags.workload,
            **(shared if flags.system_prompt or hashed else {}),
            **parallelism,
            **backends,
            "chunk_size": list(CHUNK_SIZES),
            "max_batch": list(MAX_BATCHES),
            "qps": list(load.rates),
            "requests": load.requests,
            "slo_ttft_s": flags.ttft,
            "slo_tpot_s": flags.tpot,
            "prices": prices,
            "replicas": f"1..{flags.gpus}",
        },
        "union": [
            {**grid, **method, **pool}
            for grid in grids_of(tried)
            for method in methods or ({},)
            for pool in pools or ({},)
        ],
        "derived": {"total_gpus": "gpus"},
        "constraints": [f"gpus <= {flags.gpus}", "weight_bytes_per_gpu < 0.9 * hbm_bytes", *rules],
        "where": f"{slo} AND NOT saturated",
        "objectives": {"cost_usd_per_mtok": "min", **{d.metric: "min" for d in deadlines}},
    }


def _described(row: Mapping[str, Any]) -> str:
    gpu, engine = row["gpu"], engine_named(row["scheduler"])
    if row["pools.prefill_gpus"]:
        pools = (
            f"{row[f'pools.{role}_gpus'] // row[f'pools.{role}_tp']} × {row[f'pools.{role}_tp']} "
            f"{gpu} {role}"
            for role in ("prefill", "decode")
        )
        return ", ".join([*pools, engine])
    copies = f"{row['replicas']} × " if row["replicas"] > 1 else ""
    degrees = {"tp": row["tp"], "pp": row["pp"], "ep": row["ep"], "dp": row["attention_dp"]}
    shown = (f"{name} {n}" for name, n in degrees.items() if name == "tp" or n > 1)
    gpus = row["tp"] * row["pp"] * row["attention_dp"]
    drafts = ""
    if row["speculation.method"] != NOTHING:
        drafts = f", {row['speculation.num_draft_tokens']} drafts by {row['speculation.method']}"
    return f"{copies}{gpus} {gpu} ({', '.join(shown)}), {engine}{drafts}"


QUESTIONS = Asks(ServingFlags, question_of)
