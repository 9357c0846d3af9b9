"""vLLM: `vllm serve`, with one token budget for whole or chunked prompts."""

from __future__ import annotations

import json

from deploy.launch import adapter_slots, has_prefix_cache, launches_kernels, speculation_of
from deploy.quoting import chosen
from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.serving.point import DRAFT, EAGLE, EAGLE3, MEDUSA, MTP, NGRAM, SWAP, ServingPoint
from simulators.workload.llm.parallelism import AUTO, GATHERED, HIGH_THROUGHPUT, LOW_LATENCY

METHODS = {**{name: name for name in (MEDUSA, EAGLE, EAGLE3, MTP, NGRAM)}, DRAFT: "draft_model"}


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
    parallel = point.ep > 1
    if parallel and point.moe.backend == AUTO:
        raise UserError(
            f"moe.backend {AUTO}: vLLM has one kind of kernels for all steps; choose "
            f"{HIGH_THROUGHPUT} or {LOW_LATENCY}"
        )
    swaps = point.cache.preemption == SWAP
    swap = f"--preemption-mode swap --swap-space {point.cache.swap_bytes / 2**30:.3g}"
    words = chosen(
        [
            (point.tp > 1, f"--tensor-parallel-size {point.tp}"),
            (point.pp > 1, f"--pipeline-parallel-size {point.pp}"),
            (point.attention_dp > 1, f"--data-parallel-size {point.attention_dp}"),
            (True, f"--max-num-seqs {point.max_batch} --max-num-batched-tokens {budget}"),
            (True, f"--max-model-len {context} --block-size {point.cache.block_size}"),
            (True, f"--gpu-memory-utilization {point.memory_fraction}"),
            (True, "--no-enable-chunked-prefill" if whole else "--enable-chunked-prefill"),
            (has_prefix_cache(point), "--enable-prefix-caching"),
            (not has_prefix_cache(point), "--no-enable-prefix-caching"),
            (parallel, "--enable-expert-parallel"),
            (
                parallel and point.moe.backend != GATHERED,
                f"--all2all-backend {point.moe.backend}",
            ),
            (launches_kernels(point), "--enforce-eager"),
            (swaps, swap),
        ]
    )
    if parallel and (copies := point.moe.redundant_experts):
        words += ["--enable-eplb", "--eplb-config", json.dumps({"num_redundant_experts": copies})]
    if adapters := point.lora.adapters:
        slots = f"--max-loras {adapter_slots(point)} --max-lora-rank {point.lora.rank}"
        words += ["--enable-lora", *slots.split(), "--max-cpu-loras", str(adapters)]
    if speculation := speculation_of(point, "vllm", METHODS):
        tokens = point.speculation.num_draft_tokens
        config = {
            "method": speculation.method,
            "model": speculation.model,
            "num_speculative_tokens": tokens,
            "disable_by_batch_size": point.speculation.disable_batch,
            "prompt_lookup_max": tokens if speculation.method == NGRAM else 0,
        }
        stated = {name: value for name, value in config.items() if value}
        words += ["--speculative-config", json.dumps(stated)]
    return words, ""
