"""Runs of TensorRT-LLM whose throughput or latency was published, each as a point to simulate.

Offline: NVIDIA's tables with every request queued at once. An engine takes as many requests as its
memory holds, up to 2,048, and 8,192 tokens an iteration or one whole prompt. Of mixtures in 4 bits
the experts are; the KV cache is fp8 where weights are narrower than 16 bits. Options are those
of the pages (NVIDIA/TensorRT-LLM, `perf-overview.md` of 1.0 at 00f3768, of the developer guide at
585c756). Pages before 1.0 leave both limits to `trtllm-bench`, which read or computed them.

Online: latencies under open-loop arrivals. Outputs of one length are as stated; where a table gives
the mean of a conversation's lengths, they are drawn uniformly up to twice that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lab.tables.deployments import runtime_of
from lab.tables.passes import SESSION
from lab.tables.records import four_bit_experts, gpu_name, is_gpu, is_model, known_rows, model_name
from lab.tables.rows import Record, read_records
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, LanguageModel, load_model
from simulators.core.fields import updated
from simulators.core.folder import read_toml
from simulators.serving.point import (
    AS_WORKLOAD,
    CLOSED,
    NUCLEUS,
    WHOLE,
    ArrivalsConfig,
    LengthsConfig,
    MeasurementConfig,
    ServingPoint,
)
from simulators.workload.precision import precision

OFFLINE_TABLE = "serving_measured/trtllm_perf_overview_offline.parquet"
ONLINE_TABLE = "serving_measured/trtllm_online_qps.parquet"

RUN_FACTS = read_toml(Path(__file__).with_suffix(".toml"))
ENGINE: dict[str, Any] = RUN_FACTS["engine"]
MOST_TOKENS = 8192

OFFLINE_RUNTIME = "trtllm_cutlass"
"""The pages name CUTLASS for experts, or nothing, which is the same. On Hopper they name Triton for
gpt-oss; the kernel that TensorRT-LLM's table timed there is not stated."""

BUILD_BYTES = {"fp8": 1.0, "fp4": 0.5}
"""Bytes of a number, as `trtllm-bench` counts; others have two."""

FIXED_OUTPUTS = (16, 256)
"""Output lengths that were requested; others are means over a set of conversations."""

EVENLY = 0.99
"""Spread of lengths drawn from a hundredth of the longest, so that their mean is half of it."""

KEEPS_UP = 0.9
"""Least share of the requested rate that an engine answers unless it is saturated."""


@dataclass(frozen=True)
class PublishedRun:
    """One measured run."""

    point: ServingPoint
    tokens_per_s: float  # of output, from all its GPUs

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.point.model}.{self.point.gpu}"

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return load_model(self.point.model).experts == 0


@dataclass(frozen=True)
class OnlineRun(PublishedRun):
    """One measured rate of requests; times in seconds."""

    keeps_up: bool
    ttft_s: float
    tpot_s: float


def offline(reference: Path) -> list[PublishedRun]:
    """Return the offline runs whose models are known."""
    rows = _known(reference, OFFLINE_TABLE)
    return [PublishedRun(_offline_point(row), row.output_tokens_per_s) for row in rows]


def online(reference: Path) -> list[OnlineRun]:
    """Return the online runs whose models are known."""
    return [
        OnlineRun(
            point=_online_point(row),
            tokens_per_s=row.output_tokens_per_s,
            keeps_up=bool(row.request_rate_qps)
            and row.measured_req_per_s >= KEEPS_UP * row.request_rate_qps,
            ttft_s=row.mean_ttft_ms / 1e3,
            tpot_s=row.mean_itl_ms / 1e3,
        )
        for row in _known(reference, ONLINE_TABLE)
    ]


def _known(reference: Path, table: str) -> list[Record]:
    return known_rows(read_records(reference / table), table, model=is_model, gpu=is_gpu)


def _offline_point(row: Record) -> ServingPoint:
    """Return the engine with all requests queued at once."""
    model, gpu = model_name(row.model), gpu_name(row.gpu)
    stored = "fp4" if load_model(model).published_experts == MXFP4 else row.precision
    tp, dp = int(row.tp_size), 1
    has_experts = load_model(model).experts > 0
    # Attention of mixtures is data-parallel since release 1.0, later called DEP.
    if row.attention_dp or (has_experts and row.framework_version.startswith("1.")):
        tp, dp = 1, tp
    known = RUN_FACTS["requests"]
    requests = known.get(f"{row.isl} {row.osl}", known["otherwise"])
    kv_dtype = _kv_dtype(model, gpu, stored)
    max_batch, tokens = _built(row, load_model(model), gpu, stored, kv_dtype)
    return _point(
        model,
        gpu,
        min(requests, known["enough"]),
        tp=tp,
        pp=int(row.pp_size),
        attention_dp=dp,
        ep=dp if dp > 1 else int(row.ep_size or 1),
        max_batch=max_batch,
        chunk_size=tokens,
        runtime=_release_runtime(row, OFFLINE_RUNTIME),
        dtype=four_bit_experts(model, gpu) if has_experts and stored == "fp4" else stored,
        kv_dtype=kv_dtype,
        prompt_tokens=row.isl,
        output_tokens=row.osl,
    )


def _built(
    row: Record, model: LanguageModel, gpu: str, stored: str, kv_dtype: str
) -> tuple[int, int]:
    """Return the most requests and tokens of an iteration that an engine was built for."""
    tp, pp, isl, osl = int(row.tp_size), int(row.pp_size), row.isl, row.osl
    built = RUN_FACTS["built"]
    if row.framework_version.startswith(built["release"]):
        by_length = built["by_ranks_and_length"].get(f"{tp} {isl + osl}")
        requests, tokens = by_length or built["by_ranks"][str(tp)]
        return requests, tokens
    if _release_runtime(row, OFFLINE_RUNTIME) != SESSION:
        return ENGINE["max_batch"], max(MOST_TOKENS, isl)
    gpus, numbers = tp * pp, 2 * model.layers * max(tp, model.kv_heads) * model.head_dim
    left = load_gpu(gpu).hbm_bytes * gpus - model.parameters * BUILD_BYTES.get(stored, 2.0)
    fit = 0.95 * left / (numbers * BUILD_BYTES.get(kv_dtype, 2.0) * (isl + osl))
    max_batch, tokens = tuned(fit / pp, pp, isl / osl)
    return max_batch, max(tokens, isl)


def tuned(fit: float, pp: int, prompt_share: float) -> tuple[int, int]:
    """Return the limits that `trtllm-bench` computes from release 0.15 on.

    So `finetune_setting` in `bench/build/tuning.py`, whose cap of 4,096 requests is there "to avoid
    decoder buffer size becoming too large".

    Args:
        fit: requests of a stage whose KV caches fit.
        pp: stages.
        prompt_share: tokens of a prompt for each of its answer.

    >>> tuned(100.5, 1, 1.0), tuned(1e5, 1, 16.0)
    ((128, 2048), (4096, 32768))
    """
    requests = min(fit, 4096 / pp)
    tokens = min(requests * (1 + prompt_share), 32_768)
    by = 32 if requests < 256 else 128 if requests < 1024 else 256
    step = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    most = max(64, by * math.ceil(requests / by)), max(2048, step * math.ceil(tokens / step))
    return int(most[0]), int(most[1])


def _release_runtime(row: Record, today: str) -> str:
    """Return the default runtime of a row's release: before PyTorch, TensorRT's session."""
    stated = re.match(r"\d+(\.\d+)+", row["framework_version"])  # a page says "1.x (dev guide)"
    runtime = load_engine("trtllm").runtime_of_release(stated[0] if stated else "")
    return SESSION if runtime == SESSION else today


def _kv_dtype(model: str, gpu: str, stored: str) -> str:
    """Return the precision of the KV cache, which the page leaves alone for gpt-oss on Hopper."""
    if stored == "fp16":
        return "fp16"
    is_mxfp4 = load_model(model).published_experts == MXFP4
    return "bf16" if is_mxfp4 and "fp4" not in load_gpu(gpu).peak_flops else "fp8"


def _online_point(row: Record) -> ServingPoint:
    """Return the engine and its clients; without a rate all requests are queued at once."""
    rate, is_drawn = row.request_rate_qps, row.osl_mean not in FIXED_OUTPUTS
    longest = 2 if is_drawn else 1
    return _point(
        model_name(row.model),
        row.gpu,
        int(row.num_requests),
        tp=int(row.tp_size),
        runtime=_release_runtime(row, "trtllm"),
        dtype=row.precision,
        kv_dtype=row.precision,
        qps=rate,
        prompt_tokens=longest * int(row.isl_mean),
        output_tokens=longest * int(row.osl_mean),
        **{
            "arrivals.process": "poisson" if rate else "closed",
            "lengths.spread": EVENLY if is_drawn else 0.0,
        },
    )


def _point(model: str, gpu: str, requests: int, **more: Any) -> ServingPoint:
    """Return an engine with so many requests, all queued at once unless `more` says otherwise."""
    point = ServingPoint(
        model=model,
        gpu=gpu,
        requests=requests,
        arrivals=ArrivalsConfig(process="closed", clients=requests),
        measurement=MeasurementConfig(window=WHOLE),
    )
    return updated(point, ENGINE | {"chunk_size": MOST_TOKENS} | more)


LAUNCHES = Path(__file__).parent / "mlperf_launches.toml"
LENGTHS = Path(__file__).parent / "mlperf_lengths"
MLPERF_FACTS = read_toml(LAUNCHES)

OFFLINE, SERVER = SCENARIOS = "Offline", "Server"
TRTLLM, VLLM = "trtllm", "vllm"
MLPERF_TABLES = {version: facts["file"] for version, facts in MLPERF_FACTS["rounds"].items()}
RUN_S: float = MLPERF_FACTS["run_s"]
EXECUTOR, FILLS_MEMORY = "trtllm_executor", "trtllm_max_utilization"

WHOLE_ANSWER, EACH_TOKEN = 0, 1
"""Iterations between messages of an answer: offline it is sent whole, a server sends each token
unless configured otherwise (NVIDIA's harness of v5.1: `GenerationConfig.streaming` and
`DEFAULT_EXTRA_CONFIG` in `llmlib/config.py`)."""


class ServingBenchmark(NamedTuple):
    """A benchmark: mean lengths in tokens, and limits of 99 % of requests to a server."""

    prompt: int
    output: int
    ttft_s: float
    tpot_s: float


TASKS = {model: ServingBenchmark(**task) for model, task in MLPERF_FACTS["tasks"].items()}


@dataclass(frozen=True)
class InferenceSubmission(PublishedRun):
    """A measured system; `point` is a single replica with all requests queued."""

    name: str
    scenario: str
    gpus: int
    task: ServingBenchmark

    @property
    def tokens_per_gpu_s(self) -> float:
        """What was measured."""
        return self.tokens_per_s / self.gpus


def mlperf(reference: Path) -> list[InferenceSubmission]:
    """Return the submission of each round, benchmark, GPU and scenario with most tokens per GPU."""
    best: dict[tuple[str, ...], InferenceSubmission] = {}
    for version, row in _rows(reference):
        one = _submission(version, row)
        key = (version, one.group, one.scenario)
        best[key] = max(best.get(key, one), one, key=lambda one: one.tokens_per_gpu_s)
    return list(best.values())


def _rows(reference: Path) -> Iterator[tuple[str, Record]]:
    """Yield rounds and submissions whose model, GPU and number of GPUs are known."""
    earlier = MLPERF_FACTS["earlier_columns"]
    for version, table in MLPERF_TABLES.items():
        for row in read_records(reference / table, scenario=list(SCENARIOS), division="closed"):
            one = Record({earlier.get(name, name): value for name, value in row.items()})
            is_complete = one.tokens_per_s and one.n_accelerators and is_gpu(one.accelerator or "")
            if is_complete and is_model(one.model) and model_name(one.model) in TASKS:
                yield version, one


def _submission(version: str, row: Record) -> InferenceSubmission:
    model, gpu = model_name(row.model), gpu_name(row.accelerator)
    task = TASKS[model]._replace(output=_mean_output(row, TASKS[model].output))
    gpus, scenario = int(row.n_accelerators), row.scenario
    launched = _launched(version, gpu, model, scenario)
    point = updated(_replica(row, model, gpu, task), launched)
    point = replace(point, runtime=_round_runtime(version, model, point.runtime))
    share = point.tp * point.pp * point.attention_dp / gpus
    asked = max(1, round(RUN_S * share * row.tokens_per_s / task.output))
    requests = launched.get("requests", asked)
    return InferenceSubmission(
        point=updated(point, {"arrivals.clients": requests, "requests": requests}),
        tokens_per_s=row.tokens_per_s,
        name=f"{version} {row.vendor} {gpus} x {gpu}",
        scenario=scenario,
        gpus=gpus,
        task=task,
    )


def _round_runtime(version: str, model: str, engine: str) -> str:
    """Return the runtime of an engine's release of a round."""
    if engine == TRTLLM and model in MLPERF_FACTS["built_ahead"].get(version, ()):
        return EXECUTOR
    return runtime_of(engine, "", MLPERF_FACTS["rounds"][version]["date"])


def _mean_output(row: Record, usual: int) -> int:
    """Return the mean length of answers: as stated, else tokens over samples, else the usual."""
    is_server = row.scenario == SERVER
    tokens = row.get("completed_tokens_per_s") if is_server else row.tokens_per_s
    samples = row.get("completed_samples_per_s" if is_server else "samples_per_s")
    stated = row.get("mean_output_tokens")
    return round(stated or (tokens / samples if tokens and samples else usual))


def _replica(row: Record, model: str, gpu: str, task: ServingBenchmark) -> ServingPoint:
    """Return one replica as configured, with everything queued."""
    sheet, has_experts = load_gpu(gpu), load_model(model).experts > 0
    narrowest = "fp4" if "fp4" in sheet.peak_flops else "fp8"
    stored = MLPERF_FACTS["formats"].get(row.get("weight_data_types") or "", narrowest)
    tp, pp, dp = int(row.get("cfg_tp") or 0), int(row.get("cfg_pp") or 1), 1
    tp = tp or _fewest(model, gpu, stored)
    if row.get("cfg_attention_dp"):
        tp, dp = 1, tp
    is_vllm = sheet.vendor == "amd" or "vLLM" in str(row.software)
    framework = VLLM if is_vllm and "TensorRT" not in str(row.software) else TRTLLM
    settings = ENGINE | {
        "scheduler": FILLS_MEMORY if framework == TRTLLM else load_engine(framework).schedulers[0],
        "max_batch": int(row.get("cfg_batch") or ENGINE["max_batch"]),
        "client.stream_interval": EACH_TOKEN if row.scenario == SERVER else WHOLE_ANSWER,
    }
    point = ServingPoint(
        model=model,
        gpu=gpu,
        tp=tp,
        pp=pp,
        attention_dp=dp,
        ep=int(row.get("cfg_ep") or 1),
        runtime=framework,
        chunk_size=int(row.get("cfg_max_num_tokens") or MOST_TOKENS),
        dtype=four_bit_experts(model, gpu) if has_experts and stored == "fp4" else stored,
        kv_dtype="fp8",
        arrivals=ArrivalsConfig(process=CLOSED),
        measurement=MeasurementConfig(window=WHOLE),
        workload=str(LENGTHS / f"{model}.toml"),
        lengths=LengthsConfig(shape=AS_WORKLOAD),
        prompt_tokens=task.prompt,
        output_tokens=task.output,
    )
    return updated(point, settings)


def _launched(version: str, gpu: str, model: str, scenario: str) -> Mapping[str, Any]:
    """Return the fields of a point that a submitter's repository states."""
    key = (version, gpu, model)
    rows = (
        row for row in MLPERF_FACTS["launch"] if (row["round"], row["gpu"], row["model"]) == key
    )
    one: Mapping[str, Any] = next(rows, {})
    return {**one.get("both", {}), **one.get(scenario, {})}


def _fewest(model: str, gpu: str, stored: str) -> int:
    """Return the least power of two of GPUs that hold a model."""
    weights, tp = load_model(model).parameters * precision(stored).weight_bytes, 1
    while tp * load_gpu(gpu).hbm_bytes < MLPERF_FACTS["memory_headroom"] * weights:
        tp *= 2
    return tp


SERVED = "power/mlenergy_llm_serving.parquet"
LAUNCHED = "power/mlenergy_launch_configs.parquet"
CONFIGURED = "configs/vllm/{task}/{model}/{gpu}/monolithic.config.yaml"
SERVED_ENGINE, SERVED_RUNTIME = "vllm", "vllm_0_13"

PROMPT_TOKENS = {"lm-arena-chat": 385, "gpqa": 230, "sourcegraph-fim": 1112}
"""Tasks of text and their mean prompts: Llama-3.1-70B on four GPUs held 898 chats of 1,024,
Qwen3-Coder-30B on two for 750 files of 768. Questions are as short as their set prints them."""

TURNS, FEWEST = 2, 8
"""Requests of a client in turn, and the least number of all."""


@dataclass(frozen=True)
class Served:
    """One row; watts of one GPU, joules and rate of all, and seconds between tokens."""

    point: ServingPoint
    watts: float
    token_j: float
    tokens_per_s: float
    itl_median_s: float

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.point.model}.{self.point.gpu}"


def served(reference: Path) -> tuple[list[Served], list[str]]:
    """Return the usable rows, and the reason against each other one."""
    usable: list[Served] = []
    reasons: list[str] = []
    launches = {row.path: row.text for row in read_records(reference / LAUNCHED)}
    for row in read_records(reference / SERVED):
        if row.task not in PROMPT_TOKENS:
            reasons.append("images and videos")
        elif not is_model(row.model):
            reasons.append("unknown model")
        else:
            usable.append(_served(row, launches.get(CONFIGURED.format(**row), "")))
    return usable, reasons


def _served(row: Record, launched: str) -> Served:
    model, gpu = model_name(row.model), load_gpu(gpu_name(row.gpu)).name
    clients = max(1, round(row.avg_batch_size))
    point = ServingPoint(
        model=model,
        gpu=gpu,
        scheduler=load_engine(SERVED_ENGINE).schedulers[0],
        runtime=SERVED_RUNTIME,
        dtype=_dtype(row, model, gpu),
        max_batch=max(clients, int(row.max_num_seqs)),
        prompt_tokens=PROMPT_TOKENS[row.task],
        output_tokens=max(2, round(row.avg_output_tokens)),
        sampling=NUCLEUS,
        arrivals=ArrivalsConfig(process=CLOSED, clients=clients),
        requests=max(TURNS * clients, FEWEST),
    )
    point = updated(point, _budget(launched) | _cut(row, launched))
    watts = row.avg_power_W / row.n_gpus
    joules, rate = row.energy_J_per_output_token, row.output_tokens_per_s
    return Served(point, watts, joules, rate, row.itl_median_s)


def _dtype(row: Mapping[str, Any], model: str, gpu: str) -> str:
    sheet = load_model(model)
    if sheet.published_experts == MXFP4:
        return four_bit_experts(model, gpu)
    if row["weight_precision"] == "fp8":
        return "fp8_block" if sheet.experts else "fp8"
    return "bf16"


def _budget(launched: str) -> dict[str, Any]:
    """Return the token budget that a launch configuration states, if any."""
    found = re.search(r"^max-num-batched-tokens: (\d+)", launched, re.MULTILINE)
    return (
        {name: int(found[1]) for name in ("chunk_size", "scheduling.max_batch_tokens")}
        if found
        else {}
    )


def _cut(row: Mapping[str, Any], launched: str) -> dict[str, Any]:
    """Return the parallelism: tensor-parallel, or data-parallel where the launch states it."""
    gpus = int(row["n_gpus"])
    ep = gpus if row["ep"] > 1 else 1
    if "data-parallel-size" not in launched:
        return {"tp": gpus, "ep": ep}
    return {"tp": 1, "attention_dp": gpus, "ep": ep} if ep > 1 else {"tp": 1, "replicas": gpus}
