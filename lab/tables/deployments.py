"""Deployments measured in public: InferenceMAX and NVIDIA's gap analyses, one row a load.

Rows are left out by the documented rules of `excluded` alone. No rule reads a prediction, but some
were found through residuals: rows that every model missed were looked into, and rules written for
what their sources then turned out to say. So limits hold without these rows, which flatters, and
`validate serving` prints the figures with them beside (`with excluded rows`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import four_bit_experts, is_gpu, is_model, model_name
from lab.tables.records import known_rows
from lab.tables.rows import Record, read_records
from lab.tables.serving.launch_recipes import Load, recipe_of
from lab.tables.serving.sweeps import defined_cut
from simulators.catalog.engine import load_engine
from simulators.catalog.model import load_model
from simulators.composition.replica import FRAMEWORKS, load_runtime
from simulators.serving.measured_deployments import INFERENCEX, Client, Deployed, Launch
from simulators.serving.point import NONE
from simulators.workload.llm.parallelism import Parallelism

SILICON = "serving_measured/inferencex_aic_silicon.parquet"
PEER = "serving_measured/peer_aiconfigurator_on_silicon.parquet"
QWEN3_32B = "serving_measured/inferencex_aic_silicon_qwen3_32b.parquet"
"""Rows that nothing was fitted to."""

QWEN3_32B_PEER = "serving_measured/peer_aiconfigurator_on_silicon_qwen3_32b.parquet"
ANNOTATIONS = "serving_measured/silicon_row_annotations.parquet"

NVIDIA = Client(
    name="NVIDIA's gap analyses",
    length_spread=0.0,
    requests=10,
    source="tables of github.com/ai-dynamo/aiconfigurator, src/aiconfigurator/generator: "
    "rule_plugin/benchmark/vllm.rule (max_num_tokens = max_batch_size + isl + 1500)",
    inferred=(
        "fixed lengths: from rows of SGLang, which are locked in waves",
        "ten requests of a client: as InferenceX asks",
        "prompts of 8,192 tokens at once under SGLang: its default on GPUs of this memory",
        "that vLLM was started by the generator's rule: the rows are the generator's own project's",
        "no API server in front: from times to the first token",
    ),
    budgets={"sglang": 8192},
    beside_prompt={"vllm": 1500},
    frontend=NONE,
)
"""Of vLLM and SGLang."""

NVIDIA_TRTLLM = Client(
    name="NVIDIA's gap analyses of TensorRT-LLM",
    length_spread=0.0,
    requests=10,
    source="tables of github.com/ai-dynamo/aiconfigurator; older than its generator's rules",
    inferred=(
        "fixed lengths, and room for one prompt in an iteration: from times to the first token, "
        "which hardly grow with the number of clients",
        "ten requests of a client: as InferenceX asks",
    ),
    budgets={"trtllm": 0},
)

OF_NVIDIA = "source_file=data/"
"""In the provenance of what NVIDIA measured itself. Other files named gap analyses repeat rows of
InferenceX."""

CROWDED = "trtllm/1.0.0rc3/meta-llama"
"""A source whose engines take no more requests than are stated, while one more is in flight: its
first tokens wait for the time of a whole answer over the clients."""


@dataclass(frozen=True, kw_only=True)
class PublicDeployment(Deployed):
    """A measured deployment as it was published, beside what the peer says of it."""

    name: str
    family: tuple[str, ...]  # model, GPU, framework, precision and version
    peer_ttft_s: float | None
    peer_tpot_s: float | None
    excluded: str  # why it is left out of what is held to a limit; empty: it is not

    @property
    def group(self) -> str:
        """A model on a GPU: what is held out together."""
        return f"{self.model}.{self.gpu}"

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return load_model(self.model).experts == 0


def silicon(reference: Path, table: str = SILICON, peer: str = PEER) -> list[PublicDeployment]:
    """Return the aggregated deployments of a table of the reference folder, without copies.

    Without the table of the peer, it answers none; without that of annotations, nothing is marked.
    """
    peers, marks = _by_id(reference / peer), _by_id(reference / ANNOTATIONS)
    found: dict[tuple[object, ...], PublicDeployment] = {}
    rows = read_records(reference / table, mode="agg")
    names = {row["id"] for row in rows}
    rows = [Record({"suspect_mtp": False} | marks.get(row["id"], {}) | row) for row in rows]
    aggregated = known_rows(
        [row for row in rows if row["concurrency"] and row.get("duplicate_of") not in names],
        table,
        model=is_model,
        gpu=is_gpu,
        framework=FRAMEWORKS.__contains__,
    )
    for row in aggregated:
        one = _deployed(row, peers.get(row["id"], {}), _cut(row, reference))
        times = (round(row["ttft_ms"], 1), round(row["tpot_ms"], 1))
        load = (one.cut, one.clients, one.prompt, one.output)
        found.setdefault((*one.family, *load, *times), one)
    return list(found.values())


def _by_id(table: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a table that may not be there."""
    return {row["id"]: row for row in read_records(table)} if table.is_file() else {}


def client_of(provenance: str, framework: str) -> Client:
    """Return whose program measured a row, or which other it resembles."""
    if OF_NVIDIA not in provenance:
        return INFERENCEX
    return NVIDIA_TRTLLM if framework == "trtllm" else NVIDIA


def _deployed(
    row: Mapping[str, Any], peer: Mapping[str, Any], cut: Parallelism
) -> PublicDeployment:
    """Return one row.

    Assumed where the table is silent: of mixtures in 4 bits the experts alone are narrow; the KV
    cache is fp8 where weights are narrow; nothing is speculated.
    """
    model, framework = model_name(row["model"]), row["framework"]
    precision = row["precision"] or "bf16"
    answered = bool(peer.get("aic_ok"))  # else the peer has nothing to say
    client = client_of(row["provenance"], framework)
    load = Load(row["isl"], row["osl"], int(row["concurrency"]), cut.width, cut.attention_dp > 1)
    recipe = None
    if client is INFERENCEX:
        recipe = recipe_of(framework, model, row["gpu"], precision, row["measured_date"])
    narrow_kv = "bf16" if precision == "bf16" else "fp8"
    return PublicDeployment(
        name=row["id"],
        family=(model, row["gpu"], framework, precision, row["framework_version"] or ""),
        framework=framework,
        model=model,
        gpu=row["gpu"],
        cut=cut,
        dtype=_dtype(model, row["gpu"], precision),
        kv_dtype=(recipe.kv_dtype if recipe else "") or narrow_kv,
        clients=int(row["concurrency"]),
        prompt=row["isl"],
        output=row["osl"],
        crowded=CROWDED in row["provenance"],
        client=client,
        launch=recipe.launch(load) if recipe else Launch(),
        runtime=runtime_of(framework, row["framework_version"] or "", row["measured_date"] or ""),
        ttft_s=row["ttft_ms"] * 1e-3,
        tpot_s=row["tpot_ms"] * 1e-3,
        peer_ttft_s=peer["aic_ttft_ms"] * 1e-3 if answered else None,
        peer_tpot_s=peer["aic_tpot_ms"] * 1e-3 if answered else None,
        excluded=excluded(row),
    )


def runtime_of(framework: str, version: str, measured: str) -> str:
    """Return the runtime of the release that a public deployment ran.

    Nightly images are as old as their names say, or else as the measurement. Launch scripts choose
    the kernels of experts, so factors of releases that were launched without options do not apply.

    >>> runtime_of("sglang", "0.5.9", "2026-04-03"), runtime_of("vllm", "0.11.2", "2025-12-08")
    ('sglang_0_5_9', 'vllm')
    >>> runtime_of("sglang", "nightly-dev-20260402-d7256eb6", "2026-04-08")
    'sglang'
    """
    numbers = re.match(r"\d+(\.\d+)+", version)
    built = re.search(r"-(\d{4})(\d\d)(\d\d)-", version)
    date = "-".join(built.groups()) if built else measured
    runtime = load_engine(framework).runtime_of_release(numbers.group() if numbers else date)
    return load_runtime(runtime).like or runtime


def _cut(row: Mapping[str, Any], reference: Path) -> Parallelism:
    """Return how a row's model is cut.

    Tables of 2025, which name no release, are silent of experts, and where both degrees of
    attention are `n` the source has multiplied out one stage of `n` GPUs: there the sweep that the
    row is of says more. Of a stage that none defines attention is taken to be apart.
    """
    tp, dp, ep = (int(row[n] or 1) for n in ("tp_size", "attention_dp_size", "moe_ep_size"))
    has_experts = load_model(model_name(row["model"])).experts > 0
    is_multiplied = tp == dp > 1
    is_silent = not row["framework_version"] and has_experts
    if is_multiplied or is_silent:
        cut = Parallelism(tp=1, ep=dp, attention_dp=dp) if is_multiplied else Parallelism(tp=tp)
        return defined_cut(reference, row, ep=dp if is_multiplied else 0) or cut
    return Parallelism(tp=tp, ep=ep if has_experts else 1, attention_dp=dp)


def _dtype(model: str, gpu: str, precision: str) -> str:
    """Return the precision a checkpoint is served in: mixtures in 8 bits are scaled in blocks."""
    if precision == "bf16" or load_model(model).experts == 0:
        return precision
    if precision == "fp8":
        return "fp8_block"
    return four_bit_experts(model, gpu) if precision == "fp4" else "bf16+w4a16"


def excluded(row: Mapping[str, Any]) -> str:
    """Return why a row says nothing certain about its deployment; empty where it does.

    The rules read no prediction; some of them were found partly through residuals.
    """
    model, gpu, precision = model_name(row["model"]), row["gpu"], row["precision"]
    framework, date = row["framework"], row["measured_date"] or ""
    rules = {
        "speculation suspected": bool(row["suspect_mtp"]),
        "parallelism multiplied out": bool(row["suspect_parallelism"]),
        "speculation not stated": model == "deepseek_v3"
        and framework == "trtllm"
        and date in ("2026-01-14", "2026-02-05", "2026-02-06"),
        "a mixture of runs": model == "qwen3_5_397b"
        and (precision, framework, gpu, date) == ("fp8", "sglang", "b200_sxm", "2026-03-20"),
        "a start-up stall averaged in": model == "deepseek_v3"
        and (precision, framework, date) == ("fp4", "sglang", "2025-11-10")
        and row["ttft_ms"] > 3000.0,
        "an engine limit below the clients": model == "gpt_oss_120b"
        and (gpu, framework) == ("h100_sxm", "vllm")
        and date.startswith("2025-12"),
        "weights leave no room": model == "deepseek_v3"
        and (precision, gpu, row["tp_size"]) == ("fp8", "b200_sxm", 4),
        "batch per rank unclear": row["model"].startswith("nvidia/")
        or gpu == "gb200"
        or (model == "gpt_oss_120b" and (gpu, framework) == ("h100_sxm", "trtllm")),
    }
    return next((why for why, applies in rules.items() if applies), "")
