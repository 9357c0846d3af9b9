"""TensorRT-LLM: `trtllm-serve` with command-line options and a YAML file."""

from __future__ import annotations

import json

from deploy.launch import check_chain, drafts, drafts_model, launches, method_of, pairs
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.serving.deployment import deployment_of
from simulators.serving.point import CACHED, DRAFT, EAGLE, EAGLE3, MTP, NGRAM, ServingPoint
from simulators.serving.schedulers.trtllm import FILLED
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.routing import GATHERED

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
    hbm = load_gpu(point.gpu).hbm_bytes
    weights = weight_bytes(model, deployment_of(point).hardware.replica.cut, point.dtype)
    # The option is a share of the memory left by the weights, not of all memory.
    free = (point.memory_fraction * hbm - weights) / (hbm - weights)
    words = [
        "--backend",
        "pytorch",
        *pairs({"--tp_size": point.tp * point.attention_dp, "--pp_size": point.pp}, least=2),
        *pairs({"--ep_size": point.ep}, least=2),
        *pairs(
            {
                "--max_batch_size": point.max_batch,
                "--max_num_tokens": point.chunk_size,
                "--max_seq_len": point.max_context or model.max_context,
                "--kv_cache_free_gpu_memory_fraction": f"{free:.3f}",
                "--extra_llm_api_options": "engine.yaml",
            }
        ),
    ]
    lines = ["kv_cache_config:", f"  tokens_per_block: {point.cache.block_size}"]
    caches = point.cache.prefix_caching or point.cache.preemption == CACHED
    lines.append(f"  enable_block_reuse: {'true' if caches else 'false'}")
    if point.cache.prefix_host_bytes:
        lines.append(f"  host_cache_size: {int(point.cache.prefix_host_bytes)}")
    if point.kv_dtype == "fp8":
        lines.append("  dtype: fp8")
    lines.append(f"enable_attention_dp: {'true' if point.attention_dp > 1 else 'false'}")
    if point.scheduler == MAX_UTILIZATION:
        lines += ["scheduler_config:", "  capacity_scheduler_policy: MAX_UTILIZATION"]
    if point.client.stream_interval > 1:
        lines.append(f"stream_interval: {point.client.stream_interval}")
    if point.scheduling.poll_interval:
        lines.append(f"batch_wait_timeout_iters: {point.scheduling.poll_interval}")
        lines.append(f"batch_wait_max_tokens_ratio: {FILLED}")
    if not launches(point):
        lines += ["cuda_graph_config:", f"  max_batch_size: {point.max_batch}"]
    if point.lora.adapters:
        raise UserError("adapters: no option of trtllm-serve for them is documented here; write 0")
    if drafts(point):
        decoding = method_of(point, "trtllm", DECODING)
        lines += ["speculative_config:", f"  decoding_type: {decoding}"]
        drafted = "num_nextn_predict_layers" if point.speculation.method == MTP else "max_draft_len"
        check_chain(point, "trtllm")
        lines.append(f"  {drafted}: {point.speculation.num_draft_tokens}")
        if point.speculation.disable_batch:
            lines.append(f"  max_concurrency: {point.speculation.disable_batch}")
        if head := drafts_model(point):
            lines.append(f"  speculative_model_dir: {json.dumps(head)}")
    return words, "\n".join(lines) + "\n"
