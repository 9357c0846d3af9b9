"""SGLang: `sglang.launch_server`, which mixes prefill and decode only with an option."""

from __future__ import annotations

from deploy.launch import adapters_kept, drafts, drafts_model, launches, method_of, pairs
from deploy.quoting import chosen
from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.serving.point import CACHED, DRAFT, EAGLE, EAGLE3, MTP, NGRAM, ServingPoint
from simulators.serving.speculation.drafter import shape_of
from simulators.workload.llm.routing import AUTO, HIGH_THROUGHPUT, LOW_LATENCY

ALGORITHMS = {
    EAGLE: "EAGLE",
    EAGLE3: "EAGLE3",
    MTP: "NEXTN",
    DRAFT: "STANDALONE",
    NGRAM: "NGRAM",
}

DEEPEP_MODES = {HIGH_THROUGHPUT: "normal", LOW_LATENCY: "low_latency", AUTO: "auto"}


def options(point: ServingPoint, model: LanguageModel) -> tuple[list[str], str]:
    """Return the options; SGLang needs no file."""
    context = point.max_context or model.max_context
    spare = point.moe.redundant_experts
    caches = point.cache.prefix_caching or point.cache.preemption == CACHED
    host_gb = max(1, int(point.cache.prefix_host_bytes // 1e9))
    mode = DEEPEP_MODES.get(point.moe.backend)
    words = chosen(
        [
            (point.tp * point.attention_dp > 1, f"--tp-size {point.tp * point.attention_dp}"),
            (point.pp > 1, f"--pp-size {point.pp}"),
            (point.ep > 1, f"--ep-size {point.ep}"),
            (point.attention_dp > 1, f"--dp-size {point.attention_dp}"),
            (True, f"--max-running-requests {point.max_batch}"),
            (True, f"--chunked-prefill-size {point.chunk_size} --context-length {context}"),
            (True, f"--page-size {point.cache.block_size} --schedule-policy fcfs"),
            (True, f"--mem-fraction-static {point.memory_fraction}"),
            (
                point.scheduling.poll_interval > 1,
                f"--scheduler-recv-interval {point.scheduling.poll_interval}",
            ),
            (point.client.stream_interval > 1, f"--stream-interval {point.client.stream_interval}"),
            (point.attention_dp > 1, "--enable-dp-attention"),
            (mode, f"--moe-a2a-backend deepep --deepep-mode {mode}"),
            (spare, f"--enable-eplb --ep-num-redundant-experts {spare}"),
            (point.scheduler == "sarathi", "--enable-mixed-chunk"),
            (not caches, "--disable-radix-cache"),
            (
                point.cache.prefix_host_bytes,
                f"--enable-hierarchical-cache --hicache-size {host_gb}",
            ),
            (launches(point), "--disable-cuda-graph"),
        ]
    )
    if point.lora.adapters:
        words += ["--enable-lora", *pairs({"--max-loras-per-batch": adapters_kept(point)})]
        words += pairs({"--max-lora-rank": point.lora.rank})
    if drafts(point):
        if point.speculation.disable_batch:
            raise UserError("sglang drafts however many requests run: draft_until 0")
        words += pairs(
            {
                "--speculative-algorithm": method_of(point, "sglang", ALGORITHMS),
                "--speculative-num-steps": point.speculation.num_draft_tokens,
                "--speculative-eagle-topk": point.speculation.topk,
                "--speculative-num-draft-tokens": shape_of(point)[0] + 1,
            }
        )
        if head := drafts_model(point):
            words += ["--speculative-draft-model-path", head]
    return words, ""
