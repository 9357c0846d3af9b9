"""Build the space of serving deployments for the flags of `ask`.

Degrees of parallelism are powers of two; experts are split by expert or tensor parallelism; each
GPU runs the engines that support its vendor, in the precisions of the published checkpoint.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, log2, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Template

from planning.calibrate.deployment import (
    calibrate_deployment,
    family_name,
    kept_calibrations,
)
from planning.calibrate.measurements import read_table
from planning.flags.serving import ALSO, ANY, CHECKPOINT, NO, NOTHING, ONLY, ServingFlags
from planning.prefilter import Prefilter
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.catalog.model import LanguageModel, checkpoint_of, load_model
from simulators.catalog.price import HOURS_PER_YEAR, load_prices
from simulators.composition.engine_defaults import is_supported, limits
from simulators.core.calibration import read_choice
from simulators.core.errors import UserError
from simulators.core.folder import ENGINES, MODELS, ROUTERS, RUNTIMES, read_toml
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.demand.workloads import is_trace, load_trace
from simulators.serving.measured_deployments import NEEDED, Deployed, measured_deployment
from simulators.serving.point import AUTO, CLOSED, DRAFT, RDMA, SPECULATIONS
from simulators.serving.simulator import SIMULATOR
from simulators.serving.speculation import survival
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.parallelism import (
    BACKENDS,
    GATHERED,
    HIGH_THROUGHPUT,
    LOW_LATENCY,
    Parallelism,
)
from sweeper.questions import Deadline, Question
from sweeper.text import number_in

TEXTS: Mapping[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))

MAX_TP, MAX_EP, MAX_PP = 8, 16, 4
"""Largest degrees tried: tensor parallelism within a node, experts over two, four stages."""

LEAST_GPUS, MOST_GPUS = 8, 512
"""GPUs tried first without --gpus, and most GPUs of a question that grows: doubled each time."""

MAX_EXACT = 4096
"""Number of replicas up to which every number is tried."""

SMALLER = ("fp8", "w4a16")
"""Precisions offered where those tried are too large or too slow."""

CHUNK_SIZES = (512, 2048, 8192, 16_384)
"""Token budgets tried besides the engine's default."""

ROUTERS_TRIED = LEAST_OUTSTANDING, ROUND_ROBIN = "least_outstanding", "round_robin"
SHARED_ROUTER = "cache_aware"
"""Routers tried, the last where prompts share prefixes. `power_of_two` and `random` approximate
the first with less knowledge."""

DRAFT_TOKENS = (1, 3, 5)
"""Draft tokens per sequence and iteration."""

MOE_BACKENDS = {"vllm_v1": (GATHERED, HIGH_THROUGHPUT, LOW_LATENCY), "sglang": BACKENDS}
"""MoE backends that an engine has options for, by its scheduler."""

DEFAULT_DTYPE, OLDER_DTYPE = "bf16", "fp16"
"""Precision of checkpoints that state none; GPUs without bf16 use fp16."""

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

TAIL_REQUESTS = 50
"""Requests beyond a percentile that make the percentile stable, for random loads."""

MIN_DURATION_S = 120.0
"""Least duration of such a load: a queue needs time to grow."""

FEW_REQUESTS = 4000
"""Requests of a faster, less exact answer."""

LANES = 16
"""Sessions of agents at once, without --lanes."""

ROUNDS = 10
"""Requests per client of a closed loop."""


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
    flags = replace(flags, gpus=flags.gpus or LEAST_GPUS)
    twice = replace(flags, gpus=2 * flags.gpus)

    def relaxed(limits: Mapping[str, float]) -> Question:
        own: dict[str, Any] = {name.partition("_")[0]: limit for name, limit in limits.items()}
        return question_of(replace(flags, **own))

    return replace(
        _question(flags),
        most_devices=flags.gpus,
        is_grown=is_grown,
        larger=functools.partial(question_of, twice) if twice.gpus <= MOST_GPUS else None,
        sized=lambda gpus: question_of(replace(flags, gpus=gpus)),
        relaxed=relaxed,
    )


def _question(flags: ServingFlags) -> Question:
    agents = has_sessions(flags.workload)
    ttft_s = (AGENTS_TTFT_S if agents else TTFT_S) if flags.ttft is None else flags.ttft
    flags = replace(flags, dtype=flags.dtype.lower(), ttft=ttft_s)
    _check(flags, agents=agents)
    models = _named(flags.model, _model_name)
    substitutes = _substitutes(flags.model, flags.workload)
    gpus = _named(flags.gpu, lambda name: load_gpu(name).name)
    own = f":{flags.price.replace(',', '+')}" if flags.price else ""
    prices = [name + own for name in _named(flags.prices, lambda name: load_prices(name).name)]
    methods = _drafting(flags)
    tried = [options_on(gpu, models, flags.engine, flags.dtype) for gpu in gpus]
    refused = {one.gpu: one.refused for one in tried if one.refused}
    if len(refused) == len(tried):
        raise UserError("\n".join(f"{gpu}: {why}" for gpu, why in refused.items()))
    load = _offered_load(flags)
    chunk_sizes = _chunk_sizes(flags)
    grids, notes = _with_measured(grids_of(tried, chunk_sizes), flags.measured)
    is_tail = flags.percentile >= TAIL_PERCENTILE
    deadlines = tuple(
        Deadline(
            metric=f"{kind}_p{flags.percentile}_s",
            limit=limit,
            interval=f"{kind}_p99_s" if is_tail else f"{kind}_mean_s",
        )
        for kind, limit in (("ttft", ttft_s), ("tpot", flags.tpot))
    )
    space = _space(flags, models, tried, grids, methods, load, deadlines, prices[0])
    mark = hashlib.blake2b(json.dumps(space).encode(), digest_size=3).hexdigest()
    rates = ", ".join("its own" if rate is None else f"{rate:.4g}" for rate in load.rates)
    asked = "the load of the trace" if load.rates == (None,) else f"{rates} requests per second"
    if load.clients:
        what = "sessions of agents at once" if agents else "concurrent requests"
        asked = f"{', '.join(map(str, load.clients))} {what}"
    smaller, needed = _remedies(tried, flags.gpus)
    less = (
        "--lanes"
        if agents
        else "--concurrency"
        if load.clients
        else "--traffic 0.5x"
        if None in load.rates
        else "--qps"
    )
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
        else Prefilter(SIMULATOR.evaluate, load.own_rate, ttft_s if is_tail else None, flags.tpot),
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
        advice=(
            f"Use more or faster GPUs (--gpus, --gpu), fewer requests ({less}), longer deadlines",
            f"{' or '.join(['(--ttft, --tpot)', *smaller])}.",
            "--relax prints the least relaxation of each limit that gives an answer.",
        ),
        target=lambda row: "dynamo" if row["pools.prefill_gpus"] else "kubernetes",
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
        _known(flags.engine, "--engine", ENGINES.names())


def _named(words: str, canonical: Any) -> list[str]:
    """Return the canonical names of comma-separated words; paths stay as they are."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    if not names:
        raise UserError("write at least one name")
    found = [name if "/" in name and Path(name).is_file() else canonical(name) for name in names]
    return list(dict.fromkeys(found))


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
    backends, supported = _moe_backends(flags, mixtures="ep" in parallelism)
    pools, sizes = _pools(flags, tried, mixtures="ep" in parallelism)
    rules += [*supported, *sizes]
    if any(method["speculation.method"] != NOTHING for method in methods):
        rules.append(f"pp = 1 OR speculation.method = '{NOTHING}'")
    agents = has_sessions(flags.workload)
    hashed = (
        not agents
        and is_trace(flags.workload)
        and load_trace(flags.workload, flags.requests).hashes
    )
    is_shared = bool(flags.system_prompt or hashed or agents or flags.host_kv)
    shared = {
        "sessions.system_prompt_tokens": flags.system_prompt,
        "cache.prefix_caching": [True] if agents or flags.host_kv else [True, False],
        "cache.prefix_host_bytes": flags.host_kv,
        "kv_tiers.nvme_bytes": flags.nvme_kv,
        "kv_tiers.remote_bytes": flags.remote_kv,
    }
    routers = _routers(flags, is_shared=is_shared)
    if len(routers) > 1:
        of_pools = " OR pools.prefill_gpus > 0" if pools else ""
        rules.append(f"replicas > 1 OR router = '{routers[0]}'{of_pools}")
    return {
        "simulator": "serving",
        "axes": {
            "workload": flags.workload,
            **(shared if is_shared else {}),
            "router": routers,
            **({"sessions.duration_s": AGENTS_DURATION_S} if agents and load.clients else {}),
            **({"kv_dtype": AGENTS_KV_DTYPE} if agents else {}),
            **parallelism,
            **backends,
            "qps": list(load.rates),
            **(
                {"arrivals.process": CLOSED, "arrivals.clients": [*load.clients]}
                if load.clients
                else {}
            ),
            **{
                axis: n
                for axis, n in (("prompt_tokens", flags.isl), ("output_tokens", flags.osl))
                if n
            },
            "requests": load.requests,
            "slo_ttft_s": flags.ttft,
            "slo_tpot_s": flags.tpot,
            "prices": prices,
            "replicas": _replicas(flags.gpus),
        },
        "union": [
            {**grid, **method, **pool}
            for grid in _with_tiers(grids, flags)
            for method in methods or ({},)
            for pool in pools or ({},)
        ],
        "derived": {"total_gpus": "gpus"},
        "constraints": [f"gpus <= {flags.gpus}", "weight_bytes_per_gpu < 0.9 * hbm_bytes", *rules],
        "where": f"{slo} AND NOT saturated",
        "objectives": {"cost_usd_per_mtok": "min", **{d.metric: "min" for d in deadlines}},
    }


def _with_tiers(grids: Sequence[Mapping[str, Any]], flags: ServingFlags) -> list[Mapping[str, Any]]:
    """Return the grids of engines that have the drives and stores asked for, with their loads.

    Raises:
        UserError: none of the engines has them.
    """
    stores = bool(flags.nvme_kv) + bool(flags.remote_kv)
    if not stores:
        return list(grids)
    engines = map(load_engine, ENGINES.names())
    load_of = {e.schedulers[0]: e.kv_tier_load for e in engines if e.kv_tier_stores >= stores}
    found: list[Mapping[str, Any]] = []
    for grid in grids:
        able = [name for name in grid["scheduler"] if name in load_of]
        for load in dict.fromkeys(load_of[name] for name in able):
            alike = [name for name in able if load_of[name] == load]
            found.append({**grid, "scheduler": alike, "kv_tiers.load": load})
    if not found:
        names = ", ".join(map(engine_named, load_of))
        raise UserError(f"--nvme-kv, --remote-kv: none of these engines supports them; {names} do")
    return found


def _described(row: Mapping[str, Any]) -> str:
    return _text("design", row=row, engine=engine_named(row["scheduler"]))


@dataclass(frozen=True)
class GpuOptions:
    """The engines and precisions of each model on a GPU."""

    gpu: str
    engines: tuple[str, ...]
    dtypes: Mapping[str, tuple[str, ...]]  # by model
    refused: str  # why nothing can run; empty if something can


def options_on(gpu: str, models: Sequence[str], engines: str, dtypes: str) -> GpuOptions:
    """Return the engines and precisions to try on a GPU.

    `engines` and `dtypes` are comma-separated names, or `any` and `checkpoint`.

    Raises:
        UserError: a name is unknown.
    """
    sheet = load_gpu(gpu)
    asked = [load_engine(n) for n in (ENGINES.names() if engines == ANY else engines.split(","))]
    supported = [engine for engine in asked if sheet.vendor in engine.vendors]
    tried = {model: _dtypes(sheet, load_model(model), dtypes) for model in models}
    refused = ""
    if not supported:
        do = "does" if len(asked) == 1 else "do"
        titles = ", ".join(engine.label for engine in asked)
        refused = f"{titles} {do} not run on {sheet.vendor.upper()} devices"
    elif not any(tried.values()):
        published = load_model(models[0]).formats or (DEFAULT_DTYPE,)
        refused = f"no {dtypes if dtypes != CHECKPOINT else ', '.join(published)} support"
    return GpuOptions(gpu, tuple(engine.schedulers[0] for engine in supported), tried, refused)


def _dtypes(gpu: Gpu, model: LanguageModel, asked: str) -> tuple[str, ...]:

    def supported(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if is_supported(gpu.peak_flops, name))

    if asked != CHECKPOINT:
        return supported(asked.split(","))
    if model.formats:
        return supported(model.formats)
    return supported((DEFAULT_DTYPE,)) or supported((OLDER_DTYPE,))


def grids_of(
    gpus_tried: Sequence[GpuOptions], chunk_sizes: Sequence[int | None]
) -> list[dict[str, Any]]:
    """Return a grid of precisions, engines and chunk sizes for each model and GPU.

    Engines with the same default chunk size share a grid, which leaves that size out.
    """
    found = []
    for one in gpus_tried:
        default = {name: limits(name, one.gpu, tp=1)["chunk_size"] for name in one.engines}
        for model, dtypes in one.dtypes.items():
            if not dtypes or one.refused:
                continue
            grid = {"model": model, "gpu": [one.gpu], "dtype": list(dtypes)}
            for tokens in dict.fromkeys(default.values()):
                alike = [name for name in one.engines if default[name] == tokens]
                tried = [size for size in chunk_sizes if size != tokens] or [None]
                found.append({**grid, "scheduler": alike, "chunk_size": tried})
    return found


def _routers(flags: ServingFlags, *, is_shared: bool) -> list[str]:
    """Return the routers to try, the default first; one if a router makes no difference."""
    if flags.router != ANY:
        return _named(flags.router, lambda name: _known(name, "--router", ROUTERS.names())[0])
    if flags.gpus == 1:
        return [ROUND_ROBIN]
    if has_sessions(flags.workload):
        return [SHARED_ROUTER]
    return [*ROUTERS_TRIED, *([SHARED_ROUTER] if is_shared else [])]


def _chunk_sizes(flags: ServingFlags) -> list[int | None]:
    """Return the chunk sizes to try; None is the engine's default.

    Raises:
        UserError: a size is not a whole number above 0.
    """
    if flags.chunk_size == ANY:
        return [None] if has_sessions(flags.workload) else [None, *CHUNK_SIZES]
    sizes = [number_in(word.strip()) for word in flags.chunk_size.split(",")]
    if any(size is None or size < 1 or size % 1 for size in sizes):
        raise UserError(f"--chunk-size {flags.chunk_size}: write tokens, as in 2048,8192")
    return [int(size) for size in sizes if size is not None]


def _with_measured(
    grids: Sequence[Mapping[str, Any]], file: str
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Use calibrated engines in the grids of their model, GPU, engine and precision.

    Args:
        grids: the designs.
        file: rows to calibrate to; empty: calibrations that were kept; `no`: none.

    Returns:
        The grids, and a note on each calibration.

    Raises:
        UserError: the file cannot be read, or no grid has its model, GPU, engine and precision.
    """
    found, notes = [{**grid} for grid in grids], []
    if not file:
        for name, rows in kept_calibrations().items():
            used = _calibrated(found, rows[0], name)
            if used is not None:
                found = used
                notes.append(_kept_note(name, rows))
        return found, tuple(notes)
    if file == NO:
        return found, ()
    table = read_table(Path(file), NEEDED).to_pylist()
    if not table:
        raise UserError(f"{file} has no rows")
    row, name = measured_deployment(table[0]), family_name(table[0])
    used = _calibrated(found, row, name)
    if used is None:
        raise UserError(f"{file} measures {_family(row)}, which is not among the designs")
    gains, written = calibrate_deployment(name, Path(file))
    return used, (
        f"Corrected by {gains[0].rows} measured rows of {file} for {_family(row)}: the error of "
        f"their TPOT was {100 * gains[0].before:.0f} %, and is {100 * gains[0].after:.0f} % for "
        f"each row after calibration to the others. Kept as {written}: later answers use it.",
    )


def _family(row: Deployed) -> str:
    return f"{row.model} in {row.dtype} on {row.gpu} with {row.framework}"


def _kept_note(name: str, rows: Sequence[Deployed]) -> str:
    file = RUNTIMES.find(name)
    about = read_choice(file)["provenance"]
    errors = ""
    if "mape_before" in about:
        errors = (
            f"; the error of TPOT was {100 * about['mape_before']:.0f} %, and is "
            f"{100 * about['held_out_mape']:.0f} % for each row after calibration to the others"
        )
    return (
        f"Corrected by {len(rows)} measured rows for {_family(rows[0])}, kept as {file}{errors}. "
        "Without: --measured no."
    )


def _calibrated(
    grids: Sequence[Mapping[str, Any]], row: Deployed, name: str
) -> list[dict[str, Any]] | None:
    """Return the grids with a runtime for the family of a measured row; None without the family."""
    own = {"dtype": row.dtype, "scheduler": load_engine(row.framework).schedulers[0]}
    model, gpu = load_model(row.model).name, load_gpu(row.gpu).name
    found, is_used = [], False
    for grid in grids:
        rest = {"runtime": AUTO, **grid}
        is_model = load_model(grid["model"]).name == model and grid["gpu"] == [gpu]
        is_open = is_model and rest["runtime"] == AUTO
        if is_open and all(value in grid[axis] for axis, value in own.items()):
            is_used = True
            chosen: dict[str, Any] = {axis: [value] for axis, value in own.items()}
            found.append({**rest, **chosen, "runtime": name})
            for axis, value in own.items():  # all other precisions, then other engines
                if others := [one for one in grid[axis] if one != value]:
                    found.append({**rest, axis: others})
                rest[axis] = [value]
        else:
            found.append(rest)
    return found if is_used else None


def _remedies(tried: Sequence[GpuOptions], gpus: int) -> tuple[list[str], int]:
    """Return flags of smaller precisions that fit, and the fewest GPUs for those tried.

    Both refer to weights in 0.9 of the memory; numbers of GPUs are powers of two.
    """
    used, fitting = [], []
    for one in tried:
        sheet = load_gpu(one.gpu)
        for model, dtypes in one.dtypes.items():
            free_bytes = 0.9 * sheet.hbm_bytes
            bytes_of = {
                dtype: weight_bytes(load_model(model), Parallelism(), dtype)
                for dtype in (*dtypes, *SMALLER)
                if is_supported(sheet.peak_flops, dtype)
            }
            least = min((bytes_of[dtype] for dtype in dtypes), default=inf)
            used += [least / free_bytes] if least < inf else []
            fitting += [d for d, size in bytes_of.items() if size < min(least, gpus * free_bytes)]
    needed = 2 ** max(0, ceil(log2(min(used)))) if used else gpus
    return [f"--dtype {dtype}" for dtype in SMALLER if dtype in fitting], needed


def _replicas(gpus: int) -> str | list[int]:
    """Return the numbers of replicas tried: all up to 4,096, then steps of at most 0.05 %."""
    if gpus <= MAX_EXACT:
        return f"1..{gpus}"
    steps = (2**e for e in range(1, int(log2(gpus / MAX_EXACT)) + 2))
    larger = (n * step for step in steps for n in range(MAX_EXACT // 2 + 1, MAX_EXACT + 1))
    return [*range(1, MAX_EXACT + 1), *(n for n in larger if n < gpus), gpus]


def _powers(limit: int, most: int = 2**31) -> list[int]:
    return [2**n for n in range(int(log2(limit)) + 1) if 2**n <= most]


def parallelism_of(models: Sequence[str], gpus: int) -> tuple[dict[str, list[int]], list[str]]:
    """Return the axes of parallelism within a number of GPUs, and their constraints."""
    axes = {"tp": _powers(gpus, MAX_TP), "pp": _powers(gpus, MAX_PP)}
    mixtures = [name for name in models if load_model(name).experts]
    if not mixtures:
        return axes, []
    rules = [
        "ep = 1 OR ep = tp * attention_dp",
        "attention_dp = 1 OR (tp = 1 AND pp = 1 AND ep > 1)",
    ]
    if len(mixtures) < len(models):
        rules.append(f"ep * attention_dp = 1 OR model IN ({_quoted(mixtures)})")
    return axes | {"ep": _powers(gpus, MAX_EP), "attention_dp": _powers(gpus, MAX_EP)}, rules


def _moe_backends(flags: ServingFlags, *, mixtures: bool) -> tuple[dict[str, list[str]], list[str]]:
    """Return the axis of MoE backends and constraints; empty for the default backend."""
    asked = _known(flags.moe_backend, "--moe-backend", BACKENDS)
    if asked == [GATHERED]:
        return {}, []
    if not mixtures:
        raise UserError(f"--moe-backend {flags.moe_backend}: none of the models has experts")
    supported = " OR ".join(
        f"(scheduler = '{scheduler}' AND moe.backend IN ({_quoted(backends)}))"
        for scheduler, backends in MOE_BACKENDS.items()
    )
    default = f"moe.backend = '{GATHERED}'"
    return {"moe.backend": asked}, [f"{default} OR attention_dp > 1", f"{default} OR {supported}"]


def _pools(
    flags: ServingFlags, tried: Sequence[GpuOptions], *, mixtures: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return grids of separate prefill and decode pools, and their constraints.

    Each pool has its own number of GPUs and tensor parallelism, or, for mixtures of experts,
    data-parallel attention with experts on all GPUs of a replica. KV caches move by RDMA. Empty
    for `--pools no`.
    """
    pools, gpus = flags.pools, flags.gpus
    if pools == NO:
        return [], []
    powers = _powers(gpus)
    sizes = sorted(n for n in {*powers, *(3 * n for n in powers)} if n < gpus)
    if not sizes:
        raise UserError(f"--pools {pools}: two pools need at least two GPUs (--gpus)")
    engines = [load_engine(name) for name in ENGINES.names()]
    able = {engine.schedulers[0]: engine.name for engine in engines if engine.kv_connector}
    if not any(scheduler in able for one in tried for scheduler in one.engines):
        raise UserError(f"--pools {pools}: separate pools need --engine {','.join(able.values())}")
    widths = _powers(gpus - 1, MAX_EP)[1:] if mixtures else []
    prefill, decode = (
        [_pool(name, sizes, tp=_powers(gpus - 1, MAX_TP))]
        + [_pool(name, sizes, attention_dp=width) for width in widths]
        for name in ("prefill", "decode")
    )
    separate = [{**one, **other, "pools.kv_link": RDMA} for one in prefill for other in decode]
    one_pool = {**dict.fromkeys(separate[0], 1), "pools.kv_link": AUTO}
    one_pool |= {"pools.prefill_gpus": 0, "pools.decode_gpus": 0}
    rules = [
        "pools.prefill_gpus = 0 OR tp * pp * ep * attention_dp * replicas = 1",
        "pools.prefill_gpus % (pools.prefill_tp * pools.prefill_attention_dp) = 0",
        "pools.decode_gpus % (pools.decode_tp * pools.decode_attention_dp) = 0",
        f"pools.prefill_gpus = 0 OR scheduler IN ({_quoted(list(able))})",
    ]
    return separate if pools == ONLY else [one_pool, *separate], rules


def _pool(
    name: str, sizes: Sequence[int], *, tp: Sequence[int] = (1,), attention_dp: int = 1
) -> dict[str, Any]:
    """Return the axes of a pool; its experts are on all ranks of data-parallel attention."""
    axes = {"gpus": [*sizes], "tp": [*tp], "attention_dp": attention_dp, "ep": attention_dp}
    return {f"pools.{name}_{axis}": values for axis, values in axes.items()}


def _known(names: str, option: str, known: Sequence[str]) -> list[str]:
    spelt = {name.lower(): name for name in known}
    words = [word.strip() for word in names.split(",") if word.strip()]
    found = list(dict.fromkeys(spelt.get(word.lower(), word) for word in words))
    for name in found:
        if name not in known:
            raise UserError(f"{option} {name}: choose from {', '.join(known)}")
    return found


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _drafting(flags: ServingFlags) -> list[dict[str, Any]]:
    """Return grids of speculative decoding; empty without speculation."""
    names = _known(flags.speculation, "--speculation", SPECULATIONS)
    if (flags.drafter != NOTHING) != (DRAFT in names):
        raise UserError("--drafter NAME and --speculation draft need each other")
    if flags.acceptance and names in ([], [NOTHING]):
        raise UserError(f"--acceptance {flags.acceptance} needs --speculation, as in eagle3")
    for name in names:
        if name != NOTHING:
            survival(name, flags.acceptance, max(DRAFT_TOKENS))
    if names in ([], [NOTHING]):
        return []
    return [
        {
            "speculation.method": name,
            "speculation.num_draft_tokens": 0 if name == NOTHING else list(DRAFT_TOKENS),
            "speculation.acceptance": "" if name == NOTHING else flags.acceptance,
            "speculation.draft_model": flags.drafter if name == DRAFT else NOTHING,
        }
        for name in sorted(names, key=lambda name: name != NOTHING)
    ]


@dataclass(frozen=True)
class OfferedLoad:
    """The load: request rates, and the number of replayed requests."""

    rates: tuple[float | None, ...]  # None: the trace's own
    requests: int  # 0: the whole trace
    available: int  # requests of the trace; 0 for a random load
    own_rate: float = 0.0  # requests per second of a trace; NaN for a closed loop
    clients: tuple[int, ...] = ()  # of a closed loop


def _offered_load(flags: ServingFlags) -> OfferedLoad:
    """Return the load: a whole trace, or enough requests for a stable percentile."""
    qps, traffic = flags.qps, _factors(flags.traffic)
    if has_sessions(flags.workload) and (flags.lanes or qps is None):
        if qps is not None:
            raise UserError("--lanes and --qps are two loads; write one of them")
        lanes = tuple(max(1, round((flags.lanes or LANES) * factor)) for factor in traffic)
        return OfferedLoad((None,), flags.requests, 0, nan, lanes)
    tail = TAIL_REQUESTS / (1.0 - flags.percentile / 100.0)
    if flags.concurrency:
        if qps is not None:
            raise UserError("--concurrency and --qps are two loads; write one of them")
        clients = tuple(max(1, round(flags.concurrency * factor)) for factor in traffic)
        traced = load_trace(flags.workload).prompt_tokens.size if is_trace(flags.workload) else 0
        count = traced or _two_digits(max(tail, ROUNDS * max(clients)))
        return OfferedLoad((None,), flags.requests or count, traced, nan, clients)
    if is_trace(flags.workload):
        trace = load_trace(flags.workload, flags.requests)
        own = _rate(trace.arrival_s) if trace.arrival_s is not None else None
        base = qps or own
        if base is None:
            raise UserError(f"trace '{flags.workload}' has no arrival times; say --qps")
        rates = tuple(None if qps is None and f == 1.0 else base * f for f in traffic)
        count = trace.prompt_tokens.size
        return OfferedLoad(rates, min(flags.requests, count), count, own or 0.0)
    drawn = tuple((qps or 1.0) * factor for factor in traffic)
    enough = max(tail, *(rate * MIN_DURATION_S for rate in drawn))
    return OfferedLoad(drawn, flags.requests or _two_digits(enough), 0)


def _two_digits(count: float) -> int:
    """Return a count, rounded up to two digits.

    >>> _two_digits(4_999.5), _two_digits(5_120)
    (5000, 5200)
    """
    unit = 10.0 ** max(0, int(log2(count) / log2(10.0)) - 1)
    return int(-(-count // unit) * unit)


def _rate(arrival_s: Any) -> float | None:
    span_s = float(arrival_s[-1])
    return (arrival_s.size - 1) / span_s if span_s > 0.0 else None


@functools.cache
def engine_named(scheduler: str) -> str:
    """Return the engine whose own scheduler this is, or the scheduler's name."""
    engines = map(load_engine, ENGINES.names())
    return next((e.name for e in engines if e.schedulers[0] == scheduler), scheduler)


QUESTIONS = SimpleNamespace(flags=ServingFlags, question=question_of)
