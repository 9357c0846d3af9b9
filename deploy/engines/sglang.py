"""SGLang: `sglang.launch_server`, which mixes prompts into batches of decodes only when told."""

from __future__ import annotations

from deploy.launch import adapters_kept, drafts, drafts_model, launches, method_of, pairs
from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.serving.point import CACHED, DRAFT, EAGLE, EAGLE3, MTP, NGRAM, ServingPoint
from simulators.serving.speculation.drafter import shape_of
from simulators.workload.llm.routing import AUTO, GATHERED, HIGH_THROUGHPUT, LOW_LATENCY

ALGORITHMS = {
    EAGLE: "EAGLE",
    EAGLE3: "EAGLE3",
    MTP: "NEXTN",
    DRAFT: "STANDALONE",
    NGRAM: "NGRAM",
}

DEEPEP_MODES = {HIGH_THROUGHPUT: "normal", LOW_LATENCY: "low_latency", AUTO: "auto"}


def options(point: ServingPoint, model: LanguageModel) -> tuple[list[str], str]:
    """Return the words after the model; no file belongs to them."""
    words = [
        *pairs({"--tp-size": point.tp * point.attention_dp, "--pp-size": point.pp}, least=2),
        *pairs({"--ep-size": point.ep, "--dp-size": point.attention_dp}, least=2),
        *pairs(
            {
                "--max-running-requests": point.max_batch,
                "--chunked-prefill-size": point.chunk_size,
                "--context-length": point.max_context or model.max_context,
                "--page-size": point.block_size,
                "--mem-fraction-static": point.memory_fraction,
                "--schedule-policy": "fcfs",
            }
        ),
        *pairs({"--scheduler-recv-interval": point.poll_interval}, least=2),
        *pairs({"--stream-interval": point.stream_interval}, least=2),
    ]
    if point.attention_dp > 1:
        words.append("--enable-dp-attention")
    if point.moe_backend != GATHERED:
        mode = DEEPEP_MODES[point.moe_backend]
        words += ["--moe-a2a-backend", "deepep", "--deepep-mode", mode]
    if point.redundant_experts:
        words += ["--enable-eplb", *pairs({"--ep-num-redundant-experts": point.redundant_experts})]
    if point.scheduler == "sarathi":
        words.append("--enable-mixed-chunk")
    if not (point.prefix_cache or point.preemption == CACHED):
        words.append("--disable-radix-cache")
    if point.prefix_host_bytes:
        words.append("--enable-hierarchical-cache")
        words += pairs({"--hicache-size": max(1, int(point.prefix_host_bytes // 1e9))})
    if launches(point):
        words.append("--disable-cuda-graph")
    if point.adapters:
        words += ["--enable-lora", *pairs({"--max-loras-per-batch": adapters_kept(point)})]
        words += pairs({"--max-lora-rank": point.adapter_rank})
    if drafts(point):
        if point.draft_until:
            raise UserError("sglang drafts however many requests run: draft_until 0")
        words += pairs({"--speculative-algorithm": method_of(point, "sglang", ALGORITHMS)})
        words += pairs(
            {
                "--speculative-num-steps": point.draft_tokens,
                "--speculative-eagle-topk": point.draft_topk,
                "--speculative-num-draft-tokens": shape_of(point)[0] + 1,
            }
        )
        if head := drafts_model(point):
            words += ["--speculative-draft-model-path", head]
    return words, ""
