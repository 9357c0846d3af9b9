"""vLLM: `vllm serve`, with one token budget for whole or chunked prompts."""

from __future__ import annotations

import json

from deploy.launch import adapters_kept, check_chain, drafts, drafts_model, launches, pairs
from deploy.quoting import chosen
from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.serving.point import CACHED, DRAFT, NGRAM, SWAP, ServingPoint
from simulators.workload.llm.routing import AUTO, GATHERED, HIGH_THROUGHPUT, LOW_LATENCY


def options(point: ServingPoint, model: LanguageModel) -> tuple[list[str], str]:
    """Return the options; vLLM needs no file."""
    whole = point.scheduler == "vllm"
    budget = point.scheduling.max_batch_tokens if whole else point.chunk_size
    context = point.max_context or model.max_context
    if budget < point.max_batch:
        raise UserError(
            f"vLLM needs a token budget of at least max_batch: {budget} tokens for "
            f"{point.max_batch} requests"
        )
    if point.cache.prefix_host_bytes:
        raise UserError(
            "cache.prefix_host_bytes: the options of vLLM 0.8 to 0.11 keep no prefixes on the "
            "host; write 0, or add a connector by hand"
        )
    if point.client.stream_interval > 1:
        raise UserError(
            f"client.stream_interval {point.client.stream_interval}: vLLM 0.8 to 0.11 send each "
            "token; write 1"
        )
    if whole and budget < context:
        context = budget  # a whole prompt must fit in one batch
    caches = point.cache.prefix_caching or point.cache.preemption == CACHED
    words = chosen(
        [
            (point.tp > 1, f"--tensor-parallel-size {point.tp}"),
            (point.pp > 1, f"--pipeline-parallel-size {point.pp}"),
            (point.attention_dp > 1, f"--data-parallel-size {point.attention_dp}"),
            (True, f"--max-num-seqs {point.max_batch} --max-num-batched-tokens {budget}"),
            (True, f"--max-model-len {context} --block-size {point.cache.block_size}"),
            (True, f"--gpu-memory-utilization {point.memory_fraction}"),
            (True, "--no-enable-chunked-prefill" if whole else "--enable-chunked-prefill"),
            (True, "--enable-prefix-caching" if caches else "--no-enable-prefix-caching"),
            (point.ep > 1, "--enable-expert-parallel"),
        ]
    )
    if point.ep > 1:
        words += _experts(point)
    swap = f"--preemption-mode swap --swap-space {point.cache.swap_bytes / 2**30:.3g}"
    words += chosen([(launches(point), "--enforce-eager"), (point.cache.preemption == SWAP, swap)])
    if point.lora.adapters:
        words += ["--enable-lora", *pairs({"--max-loras": adapters_kept(point)})]
        words += pairs({"--max-lora-rank": point.lora.rank, "--max-cpu-loras": point.lora.adapters})
    if drafts(point):
        words += ["--speculative-config", json.dumps(_speculation(point))]
    return words, ""


def _experts(point: ServingPoint) -> list[str]:
    """Return the options of the MoE backend and of redundant experts."""
    words = []
    if point.moe.backend == AUTO:
        raise UserError(
            f"moe.backend {AUTO}: vLLM has one kind of kernels for all steps; choose "
            f"{HIGH_THROUGHPUT} or {LOW_LATENCY}"
        )
    if point.moe.backend != GATHERED:
        words += ["--all2all-backend", point.moe.backend]
    if copies := point.moe.redundant_experts:
        config = json.dumps({"num_redundant_experts": copies})
        words += ["--enable-eplb", "--eplb-config", config]
    return words


def _speculation(point: ServingPoint) -> dict[str, str | int]:
    """Return the configuration of speculative decoding."""
    config: dict[str, str | int] = {"num_speculative_tokens": point.speculation.num_draft_tokens}
    check_chain(point, "vllm")
    if point.speculation.disable_batch:
        config["disable_by_batch_size"] = point.speculation.disable_batch
    if point.speculation.method == DRAFT:
        return {"method": "speculation.draft_model", "model": drafts_model(point), **config}
    if model := drafts_model(point):
        config["model"] = model
    if point.speculation.method == NGRAM:
        config["prompt_lookup_max"] = point.speculation.num_draft_tokens
    return {"method": point.speculation.method, **config}
