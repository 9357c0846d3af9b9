"""Which deployment serves a model best? The question by flags, as a space of serving designs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.catalog.engine import load_engine
from simulators.core.errors import UserError
from simulators.core.folder import ENGINES
from simulators.core.questions import Deadline, Question, flag

COST = "cost_usd_per_mtok"
TAIL = 90
"""Percentiles from here on are as uncertain as a 99th, those below as a mean."""

USD_PER_HOUR = 0.0036
"""Seconds of an hour over a million: what turns $ per million tokens at a rate into $ per hour."""


@dataclass(frozen=True)
class Flags:
    """What may be asked: a model, GPUs, a load and its deadlines."""

    model: str = flag("a model of the catalog, or a config.json")
    gpu: str = flag("GPUs to choose from, as in h100_sxm,l40s")
    gpus: int = flag("how many there are (default 8)", least=1, default=8)
    workload: str = flag("chat, code, or the path of a trace", default="chat")
    qps: float = flag("requests per second (default 1)", default=1.0)
    ttft: float = flag("deadline of the first token (default 1 s)", default=1.0)
    tpot: float = flag("deadline of later tokens (default 0.05 s)", default=0.05)
    percentile: int = flag(
        "of requests that meet the deadlines (default 99)", choices=(50, 90, 95, 99), default=99
    )
    budget: float | None = flag("$ per hour that may be spent", default=None)
    dtype: str = flag("precisions to choose from (default bf16)", default="bf16")
    engine: str = flag(f"of {', '.join(ENGINES.names())}", default="vllm")
    requests: int = flag("simulated per design", least=1, default=1000)


def question_of(flags: Flags) -> Question:
    """Return the question that some flags put.

    Raises:
        UserError: a number is not above zero, or an engine is unknown.
    """
    for what in ("qps", "ttft", "tpot"):
        if not getattr(flags, what) > 0:
            raise UserError(f"--{what} {getattr(flags, what):g}: write a number above zero")
    for engine in flags.engine.split(","):
        if engine not in ENGINES.names():
            raise UserError(f"--engine {engine}: choose from {', '.join(ENGINES.names())}")
    of = "p99" if flags.percentile >= TAIL else "mean"
    deadlines = tuple(
        Deadline(metric=f"{kind}_p{flags.percentile}_s", limit=limit, interval=f"{kind}_{of}_s")
        for kind, limit in (("ttft", flags.ttft), ("tpot", flags.tpot))
    )
    space = _space(flags, deadlines)
    mark = hashlib.blake2b(json.dumps(space).encode(), digest_size=3).hexdigest()
    return Question(
        name=f"ask_{Path(flags.model).stem}_{mark}",
        asks=f"How is {flags.model} best served at {flags.qps:g} requests per second?",
        space=space,
        cost=COST,
        without_cost="gpus",
        deadlines=deadlines,
        shown=(
            "ttft_p50_s",
            "ttft_p99_s",
            "tpot_p50_s",
            "tpot_p99_s",
            "tokens_per_s",
            "mean_batch",
        ),
        details=("dtype", "max_batch", "chunk_size"),
        alternatives=("gpu", "tp", "pp", "replicas", "dtype"),
        device="gpu",
        described=_described,
        costs=_costs,
        too_large=(
            f"{flags.model} in {flags.dtype} does not fit on {flags.gpus} {flags.gpu}; take more "
            "(--gpus), larger ones (--gpu) or a smaller precision (--dtype fp8 or w4a16)"
        ),
        among=f"on at most {flags.gpus} of {flags.gpu}",
        warnings={"saturated": "its backlog grows"},
        advice=(
            "More or faster GPUs (--gpus, --gpu), fewer requests (--qps) or a smaller precision",
            "(--dtype fp8) would help.",
        ),
        target="kubernetes",
    )


def _costs(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what a design costs; nothing if its GPUs have no price."""
    if row[COST] is None:
        return {}
    per_hour = row[COST] * row["tokens_per_s"] * USD_PER_HOUR
    return {"per million tokens": row[COST], "an hour": per_hour}


def _space(flags: Flags, deadlines: tuple[Deadline, ...]) -> dict[str, Any]:
    """Return the designs to choose from: cuts over powers of two of the GPUs, batches, engines."""
    slo = " AND ".join(f"{d.metric} <= {d.limit:g}" for d in deadlines)
    where = f"{slo} AND NOT saturated"
    if flags.budget is not None:
        where += f" AND {COST} * tokens_per_s * {USD_PER_HOUR} <= {flags.budget:g}"
    powers = [2**i for i in range(int(math.log2(flags.gpus)) + 1)]
    return {
        "simulator": "serving",
        "axes": {
            "model": flags.model,
            "gpu": flags.gpu.split(","),
            "workload": flags.workload,
            "tp": [n for n in powers if n <= 8],
            "pp": [n for n in powers if n <= 4],
            "replicas": sorted({*powers, flags.gpus, max(1, flags.gpus * 3 // 4)}),
            "chunk_size": [512, 2048, 8192],
            "max_batch": [64, 256],
            "dtype": flags.dtype.split(","),
            "qps": flags.qps,
            "requests": flags.requests,
            "slo_ttft_s": flags.ttft,
            "slo_tpot_s": flags.tpot,
        },
        "union": [
            {"scheduler": load_engine(engine).schedulers[0]} for engine in flags.engine.split(",")
        ],
        "constraints": [f"gpus <= {flags.gpus}", "weight_bytes_per_gpu < 0.9 * hbm_bytes"],
        "where": where,
        "objectives": {COST: "min", **{d.metric: "min" for d in deadlines}},
    }


def _described(row: Mapping[str, Any]) -> str:
    """Return a design in a phrase: copies, GPUs, how the model is cut over them, the engine."""
    copies = f"{row['replicas']} × " if row["replicas"] > 1 else ""
    cut = f"tp {row['tp']}" + (f", pp {row['pp']}" if row["pp"] > 1 else "")
    engines = (load_engine(name) for name in ENGINES.names())
    engine = next(
        (e.name for e in engines if e.schedulers[0] == row["scheduler"]), row["scheduler"]
    )
    return f"{copies}{row['tp'] * row['pp']} {row['gpu']} ({cut}), {engine}"
