"""Published serving results as points to simulate: TensorRT-LLM, MLPerf Inference, ML.ENERGY.

`published.toml` and `mlperf_launches.toml` hold what sources state and what is assumed. Quote
MLPerf as "MLPerf, result ID"; no derived figure is an official result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lab.tables.deployments import dtype_of, runtime_of
from lab.tables.passes import SESSION
from lab.tables.records import four_bit_experts, gpu_name, is_gpu, is_model, known_rows, model_name
from lab.tables.rows import Record, read_records
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, LanguageModel, load_model
from simulators.core.fields import point_from, updated
from simulators.core.folder import read_toml
from simulators.serving.options import AS_WORKLOAD, CLOSED
from simulators.serving.point import ServingPoint
from simulators.workload.precision import precision

FOLDER = Path(__file__).parent
FACTS = Record(read_toml(FOLDER / "published.toml"))
ENGINE: dict[str, Any] = FACTS.engine
OFFLINE_TABLE, ONLINE_TABLE = FACTS.tables["offline"], FACTS.tables["online"]

LAUNCHES, LENGTHS = FOLDER / "mlperf_launches.toml", FOLDER / "mlperf_lengths"
MLPERF = Record(read_toml(LAUNCHES))
MLPERF_TABLES = {version: facts["file"] for version, facts in MLPERF.rounds.items()}
RUN_S: float = MLPERF.run_s
OFFLINE, SERVER = SCENARIOS = "Offline", "Server"
TRTLLM, VLLM = "trtllm", "vllm"
EVENLY: float = FACTS.even_spread
PROMPT_TOKENS: dict[str, int] = FACTS.served["prompt_tokens"]


@dataclass(frozen=True)
class PublishedRun:
    """One measured run: the point, and output tokens per second of all its GPUs."""

    point: ServingPoint
    tokens_per_s: float

    @property
    def group(self) -> str:
        """The model and GPU, which are held out together."""
        return f"{self.point.model}.{self.point.gpu}"

    @property
    def gpu(self) -> str:
        """The GPU of the run."""
        return self.point.gpu

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return load_model(self.point.model).experts == 0


@dataclass(frozen=True)
class OnlineRun(PublishedRun):
    """A run at one request rate; times in seconds."""

    keeps_up: bool
    ttft_s: float
    tpot_s: float


class ServingBenchmark(NamedTuple):
    """A benchmark: mean lengths in tokens, and limits of 99 % of requests to a server."""

    prompt: int
    output: int
    ttft_s: float
    tpot_s: float


TASKS = {model: ServingBenchmark(**task) for model, task in MLPERF.tasks.items()}


@dataclass(frozen=True)
class InferenceSubmission(PublishedRun):
    """An MLPerf system; `point` is a single replica with all requests queued."""

    name: str
    scenario: str
    gpus: int
    task: ServingBenchmark

    @property
    def tokens_per_gpu_s(self) -> float:
        """Measured tokens per second and GPU."""
        return self.tokens_per_s / self.gpus


@dataclass(frozen=True)
class ServedModel(PublishedRun):
    """A row of ML.ENERGY: watts of one GPU, joules per output token, seconds between tokens."""

    watts: float
    token_j: float
    itl_median_s: float


def offline(reference: Path) -> list[PublishedRun]:
    """Return TensorRT-LLM's offline runs of known models."""
    rows = _known(reference, OFFLINE_TABLE)
    return [PublishedRun(_offline_point(row), row.output_tokens_per_s) for row in rows]


def online(reference: Path) -> list[OnlineRun]:
    """Return TensorRT-LLM's online runs of known models."""
    return [
        OnlineRun(
            point=_online_point(row),
            tokens_per_s=row.output_tokens_per_s,
            keeps_up=bool(row.request_rate_qps)
            and row.measured_req_per_s >= FACTS.keeps_up * row.request_rate_qps,
            ttft_s=row.mean_ttft_ms / 1e3,
            tpot_s=row.mean_itl_ms / 1e3,
        )
        for row in _known(reference, ONLINE_TABLE)
    ]


def _known(reference: Path, table: str) -> list[Record]:
    return known_rows(read_records(reference / table), table, model=is_model, gpu=is_gpu)


def _offline_point(row: Record) -> ServingPoint:
    model, gpu = model_name(row.model), gpu_name(row.gpu)
    stored = "fp4" if load_model(model).published_experts == MXFP4 else row.precision
    tp, dp = int(row.tp_size), 1
    has_experts = load_model(model).experts > 0
    # Attention of mixtures is data-parallel since release 1.0, later called DEP.
    if row.attention_dp or (has_experts and row.framework_version.startswith("1.")):
        tp, dp = 1, tp
    known = FACTS.requests
    requests = min(known.get(f"{row.isl} {row.osl}", known["otherwise"]), known["enough"])
    kv_dtype = _kv_dtype(model, gpu, stored)
    max_batch, tokens = _built(row, load_model(model), gpu, stored, kv_dtype)
    options = {
        "tp": tp,
        "pp": int(row.pp_size),
        "attention_dp": dp,
        "ep": dp if dp > 1 else int(row.ep_size or 1),
        "max_batch": max_batch,
        "chunk_size": tokens,
        "runtime": _release_runtime(row, FACTS.offline_runtime),
        "dtype": four_bit_experts(model, gpu) if has_experts and stored == "fp4" else stored,
        "kv_dtype": kv_dtype,
        "prompt_tokens": row.isl,
        "output_tokens": row.osl,
    }
    return _trtllm_point(model, gpu, requests, options)


def _built(
    row: Record, model: LanguageModel, gpu: str, stored: str, kv_dtype: str
) -> tuple[int, int]:
    tp, pp, isl, osl = int(row.tp_size), int(row.pp_size), row.isl, row.osl
    built = FACTS.built
    if row.framework_version.startswith(built["release"]):
        by_length = built["by_ranks_and_length"].get(f"{tp} {isl + osl}")
        requests, tokens = by_length or built["by_ranks"][str(tp)]
        return requests, tokens
    if _release_runtime(row, FACTS.offline_runtime) != SESSION:
        return ENGINE["max_batch"], max(ENGINE["chunk_size"], isl)
    gpus, numbers = tp * pp, 2 * model.layers * max(tp, model.kv_heads) * model.head_dim
    left = load_gpu(gpu).hbm_bytes * gpus - model.parameters * FACTS.build_bytes.get(stored, 2.0)
    fit = 0.95 * left / (numbers * FACTS.build_bytes.get(kv_dtype, 2.0) * (isl + osl))
    max_batch, tokens = tuned(fit / pp, pp, isl / osl)
    return max_batch, max(tokens, isl)


def tuned(fit: float, pp: int, prompt_share: float) -> tuple[int, int]:
    """Return the requests and tokens that `trtllm-bench` computes from release 0.15 on.

    `finetune_setting` in `bench/build/tuning.py`, whose cap of 4,096 requests is there "to avoid
    decoder buffer size becoming too large".

    Args:
        fit: requests of a stage whose KV caches fit.
        pp: number of stages.
        prompt_share: prompt tokens per answer token.

    >>> tuned(100.5, 1, 1.0), tuned(1e5, 1, 16.0)
    ((128, 2048), (4096, 32768))
    """
    requests = min(fit, 4096 / pp)
    tokens = min(requests * (1 + prompt_share), 32_768)
    by = 32 if requests < 256 else 128 if requests < 1024 else 256
    step = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    most = max(64, by * math.ceil(requests / by)), max(2048, step * math.ceil(tokens / step))
    return int(most[0]), int(most[1])


def _release_runtime(row: Record, latest: str) -> str:
    """Return the runtime of a row's release: TensorRT's session before PyTorch, else `latest`."""
    stated = re.match(r"\d+(\.\d+)+", row.framework_version)  # a page says "1.x (dev guide)"
    runtime = load_engine(TRTLLM).runtime_of_release(stated[0] if stated else "")
    return SESSION if runtime == SESSION else latest


def _kv_dtype(model: str, gpu: str, stored: str) -> str:
    """Return the precision of the KV cache; the page leaves gpt-oss on Hopper at the default."""
    if stored == "fp16":
        return "fp16"
    is_mxfp4 = load_model(model).published_experts == MXFP4
    return "bf16" if is_mxfp4 and "fp4" not in load_gpu(gpu).peak_flops else "fp8"


def _online_point(row: Record) -> ServingPoint:
    rate, is_drawn = row.request_rate_qps, row.osl_mean not in FACTS.fixed_outputs
    longest = 2 if is_drawn else 1
    options = {
        "tp": int(row.tp_size),
        "runtime": _release_runtime(row, TRTLLM),
        "dtype": row.precision,
        "kv_dtype": row.precision,
        "qps": rate,
        "prompt_tokens": longest * int(row.isl_mean),
        "output_tokens": longest * int(row.osl_mean),
        "arrivals.process": "poisson" if rate else CLOSED,
        "lengths.spread": EVENLY if is_drawn else 0.0,
    }
    return _trtllm_point(model_name(row.model), row.gpu, int(row.num_requests), options)


def _trtllm_point(model: str, gpu: str, requests: int, options: Mapping[str, Any]) -> ServingPoint:
    load = {"requests": requests, "arrivals.clients": requests}
    return point_from(ServingPoint, {"model": model, "gpu": gpu, **load, **ENGINE, **options})


def mlperf(reference: Path) -> list[InferenceSubmission]:
    """Return the submission of each round, benchmark, GPU and scenario with most tokens per GPU."""
    best: dict[tuple[str, ...], InferenceSubmission] = {}
    for version, row in _complete_rows(reference):
        one = _submission(version, row)
        key = (version, one.group, one.scenario)
        best[key] = max(best.get(key, one), one, key=lambda one: one.tokens_per_gpu_s)
    return list(best.values())


def _complete_rows(reference: Path) -> Iterator[tuple[str, Record]]:
    earlier = MLPERF.earlier_columns
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
    key, launches = (version, gpu, model), MLPERF.launch
    stated = (one for one in launches if (one["round"], one["gpu"], one["model"]) == key)
    launch: Mapping[str, Any] = next(stated, {})
    launched = {**launch.get("both", {}), **launch.get(scenario, {})}
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
    if engine == TRTLLM and model in MLPERF.built_ahead.get(version, ()):
        return str(MLPERF.executor)
    return runtime_of(engine, "", MLPERF.rounds[version]["date"])


def _mean_output(row: Record, usual: int) -> int:
    """Return the mean length of answers: as stated, else tokens per sample, else the usual."""
    is_server = row.scenario == SERVER
    tokens = row.get("completed_tokens_per_s") if is_server else row.tokens_per_s
    samples = row.get("completed_samples_per_s" if is_server else "samples_per_s")
    stated = row.get("mean_output_tokens")
    return round(stated or (tokens / samples if tokens and samples else usual))


def _replica(row: Record, model: str, gpu: str, task: ServingBenchmark) -> ServingPoint:
    sheet, has_experts = load_gpu(gpu), load_model(model).experts > 0
    narrowest = "fp4" if "fp4" in sheet.peak_flops else "fp8"
    stored = MLPERF.formats.get(row.get("weight_data_types") or "", narrowest)
    tp, dp = int(row.get("cfg_tp") or 0) or _min_gpus(model, gpu, stored), 1
    if row.get("cfg_attention_dp"):
        tp, dp = 1, tp
    is_vllm = sheet.vendor == "amd" or "vLLM" in str(row.software)
    framework = VLLM if is_vllm and "TensorRT" not in str(row.software) else TRTLLM
    options = {
        "model": model,
        "gpu": gpu,
        "tp": tp,
        "pp": int(row.get("cfg_pp") or 1),
        "attention_dp": dp,
        "ep": int(row.get("cfg_ep") or 1),
        "runtime": framework,
        "scheduler": MLPERF.schedulers[framework],
        "max_batch": int(row.get("cfg_batch") or ENGINE["max_batch"]),
        "chunk_size": int(row.get("cfg_max_num_tokens") or ENGINE["chunk_size"]),
        "client.stream_interval": MLPERF.stream_interval[row.scenario],
        "dtype": four_bit_experts(model, gpu) if has_experts and stored == "fp4" else stored,
        "kv_dtype": "fp8",
        "workload": str(LENGTHS / f"{model}.toml"),
        "lengths.shape": AS_WORKLOAD,
        "prompt_tokens": task.prompt,
        "output_tokens": task.output,
    }
    return point_from(ServingPoint, ENGINE | options)


def _min_gpus(model: str, gpu: str, stored: str) -> int:
    weights, tp = load_model(model).parameters * precision(stored).weight_bytes, 1
    while tp * load_gpu(gpu).hbm_bytes < MLPERF.memory_headroom * weights:
        tp *= 2
    return tp


def served(reference: Path) -> tuple[list[ServedModel], list[str]]:
    """Return ML.ENERGY's usable rows, and the reason to skip each other row."""
    usable: list[ServedModel] = []
    reasons: list[str] = []
    launches = {row.path: row.text for row in read_records(reference / FACTS.served["launches"])}
    for row in read_records(reference / FACTS.served["table"]):
        if row.task not in PROMPT_TOKENS:
            reasons.append("images and videos")
        elif not is_model(row.model):
            reasons.append("unknown model")
        else:
            usable.append(_served(row, launches.get(FACTS.served["launch_path"].format(**row), "")))
    return usable, reasons


def _served(row: Record, launched: str) -> ServedModel:
    model, gpu = model_name(row.model), load_gpu(gpu_name(row.gpu)).name
    clients = max(1, round(row.avg_batch_size))
    options = {
        "model": model,
        "gpu": gpu,
        "dtype": _dtype(row, model, gpu),
        "max_batch": max(clients, int(row.max_num_seqs)),
        "prompt_tokens": PROMPT_TOKENS[row.task],
        "output_tokens": max(2, round(row.avg_output_tokens)),
        "arrivals.clients": clients,
        "requests": max(2 * clients, 8),
    }
    return ServedModel(
        point=point_from(
            ServingPoint, FACTS.served["engine"] | options | _budget(launched) | _cut(row, launched)
        ),
        tokens_per_s=row.output_tokens_per_s,
        watts=row.avg_power_W / row.n_gpus,
        token_j=row.energy_J_per_output_token,
        itl_median_s=row.itl_median_s,
    )


def _dtype(row: Mapping[str, Any], model: str, gpu: str) -> str:
    is_mxfp4 = load_model(model).published_experts == MXFP4
    stored = "fp8" if row["weight_precision"] == "fp8" else "bf16"
    return dtype_of(model, gpu, "fp4" if is_mxfp4 else stored)


def _budget(launched: str) -> dict[str, Any]:
    found = re.search(r"^max-num-batched-tokens: (\d+)", launched, re.MULTILINE)
    fields = ("chunk_size", "scheduling.max_batch_tokens")
    return dict.fromkeys(fields, int(found[1])) if found else {}


def _cut(row: Mapping[str, Any], launched: str) -> dict[str, Any]:
    """Return the parallelism: tensor-parallel, or data-parallel where the launch states it."""
    gpus = int(row["n_gpus"])
    ep = gpus if row["ep"] > 1 else 1
    if "data-parallel-size" not in launched:
        return {"tp": gpus, "ep": ep}
    return {"tp": 1, "attention_dp": gpus, "ep": ep} if ep > 1 else {"tp": 1, "replicas": gpus}
