"""TensorRT-LLM: `trtllm-serve` with command-line options and a YAML file."""

from __future__ import annotations

from typing import Any

from deploy.launch import has_prefix_cache, launches_kernels, speculation_of
from deploy.quoting import chosen
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.serving.deployment import deployment_of
from simulators.serving.point import DRAFT, EAGLE, EAGLE3, MTP, NGRAM, ServingPoint
from simulators.serving.schedulers.trtllm import FILLED
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.parallelism import GATHERED

MAX_UTILIZATION = "trtllm_max_utilization"
BUILT_AHEAD = ("trtllm_executor", "trtllm_session")
"""Runtimes whose engines are built ahead and run in C++."""

DECODING = {EAGLE: "Eagle", EAGLE3: "Eagle3", MTP: "MTP", DRAFT: "DraftTarget", NGRAM: "NGram"}


def options(point: ServingPoint, model: LanguageModel) -> tuple[list[str], str]:
    """Return the options, and the content of the YAML file."""
    if point.moe.backend != GATHERED or point.moe.redundant_experts:
        raise UserError(
            f"moe.backend {GATHERED} and moe.redundant_experts 0 are all that is written for "
            "TensorRT-LLM, which chooses its exchange itself; export for vLLM or SGLang"
        )
    if point.runtime in BUILT_AHEAD:
        raise UserError(
            f"runtime {point.runtime}: its engines are built ahead by trtllm-build, whose options "
            "are not written here; export with runtime auto"
        )
    if point.lora.adapters:
        raise UserError("adapters: no option of trtllm-serve for them is documented here; write 0")
    hbm, gpus = load_gpu(point.gpu).hbm_bytes, point.tp * point.attention_dp
    weights = weight_bytes(model, deployment_of(point).hardware.replica.layout, point.dtype)
    # The option is a share of the memory left by the weights, not of all memory.
    free = (point.memory_fraction * hbm - weights) / (hbm - weights)
    words = chosen(
        [
            (True, "--backend pytorch"),
            (gpus > 1, f"--tp_size {gpus}"),
            (point.pp > 1, f"--pp_size {point.pp}"),
            (point.ep > 1, f"--ep_size {point.ep}"),
            (True, f"--max_batch_size {point.max_batch} --max_num_tokens {point.chunk_size}"),
            (True, f"--max_seq_len {point.max_context or model.max_context}"),
            (True, f"--kv_cache_free_gpu_memory_fraction {free:.3f}"),
            (True, "--extra_llm_api_options engine.yaml"),
        ]
    )
    return words, _engine_file(point)


def _engine_file(point: ServingPoint) -> str:
    """Return the settings that have no option, as YAML."""
    import yaml  # type: ignore[import-untyped]

    cache: dict[str, Any] = {
        "tokens_per_block": point.cache.block_size,
        "enable_block_reuse": has_prefix_cache(point),
    }
    if point.cache.prefix_host_bytes:
        cache["host_cache_size"] = int(point.cache.prefix_host_bytes)
    if point.kv_dtype == "fp8":
        cache["dtype"] = "fp8"
    file: dict[str, Any] = {
        "kv_cache_config": cache,
        "enable_attention_dp": point.attention_dp > 1,
    }
    if point.scheduler == MAX_UTILIZATION:
        file["scheduler_config"] = {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    if point.client.stream_interval > 1:
        file["stream_interval"] = point.client.stream_interval
    if point.scheduling.poll_interval:
        file["batch_wait_timeout_iters"] = point.scheduling.poll_interval
        file["batch_wait_max_tokens_ratio"] = FILLED
    if not launches_kernels(point):
        file["cuda_graph_config"] = {"max_batch_size": point.max_batch}
    if speculation := speculation_of(point, "trtllm", DECODING):
        tokens = "num_nextn_predict_layers" if speculation.method == "MTP" else "max_draft_len"
        config = {
            "decoding_type": speculation.method,
            tokens: point.speculation.num_draft_tokens,
            "max_concurrency": point.speculation.disable_batch,
            "speculative_model_dir": speculation.model,
        }
        file["speculative_config"] = {name: value for name, value in config.items() if value}
    text: str = yaml.safe_dump(file, sort_keys=False)
    return text
