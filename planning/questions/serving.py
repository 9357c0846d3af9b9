"""Build the space of serving deployments for the flags of `ask`.

Degrees of parallelism are powers of two; experts are split by expert or tensor parallelism; each
GPU runs the engines that support its vendor, in the precisions of the published checkpoint.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Template

from planning.day import with_peak
from planning.flags.serving import ALSO, ANY, NOTHING, ServingFlags
from planning.prefilter import Prefilter
from planning.serving.axes import (
    GpuOptions,
    canonical_names,
    chunk_sizes_tried,
    drafting_grids,
    engine_named,
    grids_of,
    known_names,
    moe_backend_axis,
    options_on,
    parallelism_of,
    pool_grids,
    remedies,
    replica_counts,
    routers_tried,
    with_tiers,
)
from planning.serving.load import OfferedLoad, offered_load
from planning.serving.measured import with_measured
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import checkpoint_of, load_model
from simulators.catalog.price import HOURS_PER_YEAR, load_prices
from simulators.core.errors import UserError
from simulators.core.folder import ENGINES, MODELS, PRICES, read_toml
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.demand.workloads import is_trace, load_trace
from simulators.serving.options import CLOSED
from simulators.serving.simulator import SIMULATOR
from sweeper.questions import Deadline, Question

TEXTS: Mapping[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))


LEAST_GPUS, MOST_GPUS = 8, 512
"""GPUs tried first without --gpus, and most GPUs of a question that grows: doubled each time."""


TTFT_S, AGENTS_TTFT_S = 1.0, 30.0
"""Deadlines of TTFT by default. Prompts of agents have 100,000 tokens and more."""

AGENTS_DURATION_S = 900.0
"""Time of sending of agents: the shortest that AgentX accepts."""

AGENTS_KV_DTYPE = "fp8"
"""Precision of the KV cache for agents: that of most recipes of AgentX."""

AGENTS_SHOWN = (
    "e2e_per_token_p90_s",
    "prefix_hit_ratio",
    "computed_prompt_tokens_per_s",
    "tokens_per_s_per_gpu",
    "cost_usd_per_session",
)
"""Metrics of an answer about agents, beside those of all answers."""


FEW_REQUESTS = 4000
"""Requests of a faster, less exact answer."""


TAIL_PERCENTILE = 90
"""Percentiles from here on have the uncertainty of a p99, lower ones that of a mean."""

HOUR, MONTH, MTOK = "an hour", "a month", "per million tokens"
HOURS_PER_MONTH = HOURS_PER_YEAR / 12

ALTERNATIVES = (
    "gpu",
    "tp",
    "pp",
    "ep",
    "attention_dp",
    "replicas",
    "dtype",
    "scheduler",
    "router",
    "chunk_size",
    "cache.prefix_caching",
    "speculation.method",
    "speculation.num_draft_tokens",
    "moe.backend",
    "pools.prefill_gpus",
    "pools.decode_gpus",
    "pools.prefill_tp",
    "pools.decode_tp",
    "pools.prefill_attention_dp",
    "pools.decode_attention_dp",
)
"""Fields, in one of which the runner-up differs from the best design."""


def question_of(flags: ServingFlags) -> Question:
    """Return the question for parsed flags; without a number of GPUs it grows from `LEAST_GPUS`.

    Raises:
        UserError: a number is not above zero, or a name is unknown.
    """
    is_grown = flags.gpus == 0
    asked, (flags, day) = flags, with_peak(flags)
    flags = replace(flags, gpus=flags.gpus or LEAST_GPUS)
    asked = replace(asked, gpus=flags.gpus)
    twice = replace(asked, gpus=2 * flags.gpus)

    def relaxed(limits: Mapping[str, float]) -> Question:
        own: dict[str, Any] = {name.partition("_")[0]: limit for name, limit in limits.items()}
        return question_of(replace(asked, **own))

    return replace(
        _question(flags),
        most_devices=flags.gpus,
        is_grown=is_grown,
        larger=functools.partial(question_of, twice) if twice.gpus <= MOST_GPUS else None,
        sized=lambda gpus: question_of(replace(asked, gpus=gpus)),
        day=day,
        relaxed=relaxed,
    )


def _question(flags: ServingFlags) -> Question:
    agents = has_sessions(flags.workload)
    ttft_s = (AGENTS_TTFT_S if agents else TTFT_S) if flags.ttft is None else flags.ttft
    flags = replace(flags, dtype=flags.dtype.lower(), ttft=ttft_s)
    _check(flags, agents=agents)
    models = canonical_names(flags.model, _model_name)
    substitutes = _substitutes(flags.model, flags.workload)
    gpus = canonical_names(flags.gpu, lambda name: load_gpu(name).name)
    prices = _price_lists(flags, gpus)
    methods = drafting_grids(flags)
    tried = [options_on(gpu, models, flags.engine, flags.dtype) for gpu in gpus]
    refused = {one.gpu: one.refused for one in tried if one.refused}
    if len(refused) == len(tried):
        raise UserError("\n".join(f"{gpu}: {why}" for gpu, why in refused.items()))
    load = offered_load(flags)
    chunk_sizes = chunk_sizes_tried(flags)
    grids, notes = with_measured(grids_of(tried, chunk_sizes), flags.measured)
    is_tail = flags.percentile >= TAIL_PERCENTILE
    deadlines = _deadlines(flags, ttft_s, is_tail=is_tail)
    space = _space(flags, models, tried, grids, methods, load, deadlines, prices[0])
    mark = hashlib.blake2b(json.dumps(space).encode(), digest_size=3).hexdigest()
    asked = _load_words(load, agents=agents)
    smaller, needed = remedies(tried, flags.gpus)
    percentiles = sorted({50, flags.percentile, 99})
    latencies = [f"{kind}_p{p}_s" for kind in ("ttft", "tpot") for p in percentiles]
    return Question(
        name=f"ask_{Path(models[0]).stem}_{mark}",
        asks=f"How is {' or '.join(models)} best served at {asked}?",
        space=space,
        given=("model", "arrivals.clients" if load.clients else "qps"),
        device="gpu",
        copies="replicas",
        devices="total_gpus",
        options=("router", "chunk_size", "cache.prefix_caching"),
        amounts=_amounts,
        prices=tuple(prices),
        faster=_faster(load),
        budget=flags.budget,
        without_price="gpus",
        deadlines=deadlines,
        prefilter=None
        if agents
        else Prefilter(SIMULATOR.evaluate, load.own_rate, ttft_s, flags.tpot, is_tail),
        excluded={"saturated": "the queue grows without bound"},
        shown=(*latencies, "tokens_per_s", "mean_batch", *(AGENTS_SHOWN if agents else ())),
        asked=lambda row: _replayed(row, flags.workload, load) + substitutes,
        details=("moe.backend", "dtype", "max_batch", "chunk_size"),
        resolved={"max_batch": "max_num_seqs", "chunk_size": "token_budget"},
        alternatives=ALTERNATIVES,
        contrast=(
            ("pools.prefill_gpus", "one pool", "separate pools") if flags.pools == ALSO else None
        ),
        described=_described,
        refused=refused,
        notes=notes,
        too_large=(
            f"{flags.model} does not fit on {flags.gpus} {flags.gpu}; use "
            f"{' or '.join([*smaller, f'--gpus {needed}', 'larger GPUs (--gpu)'])}"
        ),
        among=f"on at most {flags.gpus} of {', '.join(gpus)}",
        advice=_advice(load, smaller, agents=agents),
        unfit="No design can run: use shorter requests (--isl, --osl, --workload), a model with a "
        f"longer context, or {' or '.join(['more or larger GPUs (--gpus, --gpu)', *smaller])}.",
        target=lambda row: "dynamo" if row["pools.prefill_gpus"] else "kubernetes",
    )


def _price_lists(flags: ServingFlags, gpus: Sequence[str]) -> list[str]:
    """Return the price lists, with the stated prices behind their names.

    Raises:
        UserError: a price is invalid, or is stated for a GPU that is not asked about.
    """

    def named(name: str) -> str:
        written, options = PRICES.parted(name)
        return (written if "/" in written else load_prices(name).name) + options

    prices = canonical_names(flags.prices, named)
    if own := flags.price.replace(",", "+"):
        prices = [f"{name}{'+' if ':' in name else ':'}{own}" for name in prices]
    for name in prices:
        if unused := load_prices(name).unused(gpus):
            raise UserError(
                f"{' and '.join(unused)}: a price is stated, but --gpu is {', '.join(gpus)}; add "
                "it to --gpu, or leave the price out"
            )
    return prices


def _deadlines(flags: ServingFlags, ttft_s: float, *, is_tail: bool) -> tuple[Deadline, ...]:
    return tuple(
        Deadline(
            metric=f"{kind}_p{flags.percentile}_s",
            limit=limit,
            interval=f"{kind}_p99_s" if is_tail else f"{kind}_mean_s",
        )
        for kind, limit in (("ttft", ttft_s), ("tpot", flags.tpot))
    )


def _load_words(load: OfferedLoad, *, agents: bool) -> str:
    """Return the offered load in words.

    >>> _load_words(OfferedLoad((4.0,), 0, 40_000), agents=False)
    '4 requests per second'
    """
    if load.clients:
        what = "sessions of agents at once" if agents else "concurrent requests"
        return f"{', '.join(map(str, load.clients))} {what}"
    if load.rates == (None,):
        return "the load of the trace"
    rates = ", ".join("its own" if rate is None else f"{rate:.4g}" for rate in load.rates)
    return f"{rates} requests per second"


def _advice(load: OfferedLoad, smaller: Sequence[str], *, agents: bool) -> tuple[str, ...]:
    """Return what to change if no design meets the deadlines."""
    less = (
        "--lanes"
        if agents
        else "--concurrency"
        if load.clients
        else "--traffic 0.5x"
        if None in load.rates
        else "--qps"
    )
    return (
        f"Use more or faster GPUs (--gpus, --gpu), fewer requests ({less}), longer deadlines",
        f"{' or '.join(['(--ttft, --tpot)', *smaller])}.",
        "--relax prints the least relaxation of each limit that gives an answer.",
    )


def _faster(load: OfferedLoad) -> str:
    """Return the flag of a shorter load; empty if the load is short.

    >>> _faster(OfferedLoad((None,), 0, 40_000))
    '--requests 4000 (the first of 40,000)'
    """
    requests = load.requests or load.available
    if requests < 2 * FEW_REQUESTS:
        return ""
    return f"--requests {FEW_REQUESTS} (the first of {requests:,})"


def _check(flags: ServingFlags, *, agents: bool) -> None:
    if flags.lanes and not agents:
        raise UserError(
            f"--lanes: workload '{flags.workload}' has no sessions of agents; use --concurrency"
        )
    if agents:
        for name in ("isl", "osl", "concurrency"):
            if getattr(flags, name):
                raise UserError(f"--{name} has no meaning for sessions of agents; use --lanes")
    for name in ("host_kv", "nvme_kv", "remote_kv"):
        if (size := getattr(flags, name)) < 0:
            written = name.replace("_", "-")
            raise UserError(f"--{written} {size:g}: write 0 or more bytes, as in 128GiB")
    if (flags.nvme_kv or flags.remote_kv) and not flags.host_kv:
        raise UserError(
            "--nvme-kv and --remote-kv need --host-kv: engines load from drives and stores through "
            "host memory"
        )
    for what in ("qps", "ttft", "tpot", "budget"):
        value = getattr(flags, what)
        if value is not None and not value > 0:
            raise UserError(f"--{what} {value:g}: write a number above zero")
    if flags.engine != ANY:
        known_names(flags.engine, "--engine", ENGINES.names())


def _model_name(word: str) -> str:
    """Return the name of a model, which of several models of the same shapes is the one meant."""
    load_model(word)  # raises for an unknown name
    return MODELS.name_of(word)


def _substitutes(words: str, workload: str = "") -> str:
    """Return a note for each checkpoint simulated as another one of the same shapes.

    >>> _substitutes("meta-llama/Llama-3.1-8B-Instruct,meta-llama/Llama-3.1-8B,qwen3_32b")
    '; meta-llama/Llama-3.1-8B-Instruct is simulated as llama3_1_8b, whose checkpoint is deployed'
    >>> _substitutes("glm_4_6")
    '; glm_4_6 is simulated as glm_4_7, which has the same shapes'
    """
    found = []
    for word in (word.strip() for word in words.split(",")):
        model, name = load_model(word), MODELS.name_of(word)
        sources = model.source.lower().replace(",", " ").replace(";", " ").split()
        deployed = checkpoint_of(model, workload)
        is_known = word.lower() in (*sources, deployed.lower())
        if "/" in word and not Path(word).is_file() and not is_known:
            found.append(f"; {word} is simulated as {name}, whose checkpoint is deployed")
        elif name in model.variants:
            found.append(f"; {word} is simulated as {model.name}, which has the same shapes")
    return "".join(found)


def _replayed(row: Mapping[str, Any], workload: str, load: OfferedLoad) -> str:
    traced = is_trace(workload)
    name = Path(workload).name if traced else workload
    return _text("load", row=row, workload=name, is_trace=traced, available=load.available)


def _text(name: str, **values: object) -> str:
    """Return a text of `serving.toml` with its values."""
    return str(Template(TEXTS["texts"][name]).render(values))


def _amounts(row: Mapping[str, Any], prices: str) -> dict[str, float]:
    """Return the costs of a design at a price list; empty without a price of the GPU."""
    listed, gpu = load_prices(prices), load_gpu(row["gpu"])
    if listed.quote(gpu) is None:
        return {}
    per_hour = listed.usd_per_gpu_hour(gpu) * row["gpus"]
    found = {HOUR: per_hour, MONTH: per_hour * HOURS_PER_MONTH}
    if row["tokens_per_s"]:
        found[MTOK] = per_hour / 3600.0 / row["tokens_per_s"] * 1e6
    return found


def _space(
    flags: ServingFlags,
    models: Sequence[str],
    tried: Sequence[GpuOptions],
    grids: Sequence[Mapping[str, Any]],
    methods: Sequence[Mapping[str, Any]],
    load: OfferedLoad,
    deadlines: tuple[Deadline, ...],
    prices: str,
) -> dict[str, Any]:
    slo = " AND ".join(f"{d.metric} <= {d.limit:g}" for d in deadlines)
    parallelism, rules = parallelism_of(models, flags.gpus)
    backends, supported = moe_backend_axis(flags, mixtures="ep" in parallelism)
    pools, sizes = pool_grids(flags, tried, parallelism)
    rules += [*supported, *sizes]
    if any(method["speculation.method"] != NOTHING for method in methods):
        rules.append(f"pp = 1 OR speculation.method = '{NOTHING}'")
    agents = has_sessions(flags.workload)
    shared = _shared_prefix_axes(flags, agents=agents)
    routers = routers_tried(flags, is_shared=bool(shared))
    if len(routers) > 1:
        of_pools = " OR pools.prefill_gpus > 0" if pools else ""
        rules.append(f"replicas > 1 OR router = '{routers[0]}'{of_pools}")
    return {
        "simulator": "serving",
        "axes": {
            "workload": flags.workload,
            **shared,
            "router": routers,
            **({"sessions.duration_s": AGENTS_DURATION_S} if agents and load.clients else {}),
            **({"kv_dtype": AGENTS_KV_DTYPE} if agents else {}),
            **({} if pools else parallelism),
            **backends,
            **_load_axes(flags, load),
            "slo_ttft_s": flags.ttft,
            "slo_tpot_s": flags.tpot,
            "prices": prices,
            "replicas": replica_counts(flags.gpus),
        },
        "union": [
            {**grid, **method, **pool}
            for grid in with_tiers(grids, flags)
            for method in methods or ({},)
            for pool in pools or ({},)
        ],
        "derived": {"total_gpus": "gpus"},
        "constraints": [f"gpus <= {flags.gpus}", "weight_bytes_per_gpu < 0.9 * hbm_bytes", *rules],
        "where": f"{slo} AND NOT saturated",
        "objectives": {"cost_usd_per_mtok": "min", **{d.metric: "min" for d in deadlines}},
    }


def _shared_prefix_axes(flags: ServingFlags, *, agents: bool) -> dict[str, Any]:
    """Return the axes of prefix caching; empty if no requests share a prefix."""
    hashed = (
        not agents
        and is_trace(flags.workload)
        and load_trace(flags.workload, flags.requests).hashes
    )
    if not (flags.system_prompt or hashed or agents or flags.host_kv):
        return {}
    return {
        "sessions.system_prompt_tokens": flags.system_prompt,
        "cache.prefix_caching": [True] if agents or flags.host_kv else [True, False],
        "cache.prefix_host_bytes": flags.host_kv,
        "kv_tiers.nvme_bytes": flags.nvme_kv,
        "kv_tiers.remote_bytes": flags.remote_kv,
    }


def _load_axes(flags: ServingFlags, load: OfferedLoad) -> dict[str, Any]:
    """Return the axes of the load: rates or clients, lengths, number of requests."""
    closed = {"arrivals.process": CLOSED, "arrivals.clients": [*load.clients]}
    lengths = {"prompt_tokens": flags.isl, "output_tokens": flags.osl}
    return {
        "qps": list(load.rates),
        **(closed if load.clients else {}),
        **{axis: tokens for axis, tokens in lengths.items() if tokens},
        "requests": load.requests,
    }


def _described(row: Mapping[str, Any]) -> str:
    return _text("design", row=row, engine=engine_named(row["scheduler"]))


QUESTIONS = SimpleNamespace(flags=ServingFlags, question=question_of)
