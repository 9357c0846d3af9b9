"""vLLM: `vllm serve`, whose one token budget holds prompts whole or in chunks."""

from __future__ import annotations

import json

from deploy.launch import adapters_kept, check_chain, drafts, drafts_model, launches, pairs
from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.serving.point import CACHED, DRAFT, NGRAM, SWAP, ServingPoint
from simulators.workload.llm.routing import AUTO, GATHERED, HIGH_THROUGHPUT, LOW_LATENCY


def options(point: ServingPoint, model: LanguageModel) -> tuple[list[str], str]:
    """Return the words after the model; no file belongs to them."""
    whole = point.scheduler == "vllm"
    budget = point.max_batch_tokens if whole else point.chunk_size
    context = point.max_context or model.max_context
    if budget < point.max_batch:
        raise UserError(
            f"vLLM wants a token budget of at least max_batch: {budget} tokens for "
            f"{point.max_batch} requests"
        )
    if point.prefix_host_bytes:
        raise UserError(
            "prefix_host_bytes: the options of vLLM 0.8 to 0.11 keep no prefixes on the host; "
            "write 0, or add a connector by hand"
        )
    if point.stream_interval > 1:
        raise UserError(
            f"stream_interval {point.stream_interval}: vLLM 0.8 to 0.11 send each token; write 1"
        )
    if whole and budget < context:
        context = budget  # a whole prompt must fit in one batch
    words = [
        *pairs(
            {
                "--tensor-parallel-size": point.tp,
                "--pipeline-parallel-size": point.pp,
                "--data-parallel-size": point.attention_dp,
            },
            least=2,
        ),
        *pairs(
            {
                "--max-num-seqs": point.max_batch,
                "--max-num-batched-tokens": budget,
                "--max-model-len": context,
                "--block-size": point.block_size,
                "--gpu-memory-utilization": point.memory_fraction,
            }
        ),
        "--no-enable-chunked-prefill" if whole else "--enable-chunked-prefill",
        "--enable-prefix-caching"
        if point.prefix_cache or point.preemption == CACHED
        else "--no-enable-prefix-caching",
    ]
    if point.ep > 1:
        words.append("--enable-expert-parallel")
        words += _experts(point)
    if launches(point):
        words.append("--enforce-eager")
    if point.preemption == SWAP:
        words += ["--preemption-mode", "swap", "--swap-space", f"{point.swap_bytes / 2**30:.3g}"]
    if point.adapters:
        words += ["--enable-lora", *pairs({"--max-loras": adapters_kept(point)})]
        words += pairs({"--max-lora-rank": point.adapter_rank, "--max-cpu-loras": point.adapters})
    if drafts(point):
        words += ["--speculative-config", json.dumps(_speculation(point))]
    return words, ""


def _experts(point: ServingPoint) -> list[str]:
    """Return what vLLM is told of the way to experts, and of copies of them."""
    words = []
    if point.moe_backend == AUTO:
        raise UserError(
            f"moe_backend {AUTO}: vLLM has one kind of kernels for all steps; choose "
            f"{HIGH_THROUGHPUT} or {LOW_LATENCY}"
        )
    if point.moe_backend != GATHERED:
        words += ["--all2all-backend", point.moe_backend]
    if copies := point.redundant_experts:
        told = json.dumps({"num_redundant_experts": copies})
        words += ["--enable-eplb", "--eplb-config", told]
    return words


def _speculation(point: ServingPoint) -> dict[str, str | int]:
    """Return what vLLM is told of drafts."""
    told: dict[str, str | int] = {"num_speculative_tokens": point.draft_tokens}
    check_chain(point, "vllm")
    if point.draft_until:
        told["disable_by_batch_size"] = point.draft_until
    if point.speculation == DRAFT:
        return {"method": "draft_model", "model": drafts_model(point), **told}
    if model := drafts_model(point):
        told["model"] = model
    if point.speculation == NGRAM:
        told["prompt_lookup_max"] = point.draft_tokens
    return {"method": point.speculation, **told}
