"""SGLang: `sglang.launch_server`, which mixes prefill and decode only with an option."""

from __future__ import annotations

from deploy.launch import adapter_slots, has_prefix_cache, launches_kernels, speculation_of
from deploy.quoting import chosen
from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.serving.point import DRAFT, EAGLE, EAGLE3, MTP, NGRAM, ServingPoint
from simulators.serving.speculation import shape_of
from simulators.workload.llm.parallelism import AUTO, HIGH_THROUGHPUT, LOW_LATENCY

ALGORITHMS = {EAGLE: "EAGLE", EAGLE3: "EAGLE3", MTP: "NEXTN", DRAFT: "STANDALONE", NGRAM: "NGRAM"}
DEEPEP_MODES = {HIGH_THROUGHPUT: "normal", LOW_LATENCY: "low_latency", AUTO: "auto"}


def options(point: ServingPoint, model: LanguageModel) -> tuple[list[str], str]:
    """Return the options; SGLang needs no file."""
    gpus, context = point.tp * point.attention_dp, point.max_context or model.max_context
    spare, poll = point.moe.redundant_experts, point.scheduling.poll_interval
    host_bytes, stream = point.cache.prefix_host_bytes, point.client.stream_interval
    mode = DEEPEP_MODES.get(point.moe.backend)
    words = chosen(
        [
            (gpus > 1, f"--tp-size {gpus}"),
            (point.pp > 1, f"--pp-size {point.pp}"),
            (point.ep > 1, f"--ep-size {point.ep}"),
            (point.attention_dp > 1, f"--dp-size {point.attention_dp}"),
            (True, f"--max-running-requests {point.max_batch}"),
            (True, f"--chunked-prefill-size {point.chunk_size} --context-length {context}"),
            (True, f"--page-size {point.cache.block_size} --schedule-policy fcfs"),
            (True, f"--mem-fraction-static {point.memory_fraction}"),
            (poll > 1, f"--scheduler-recv-interval {poll}"),
            (stream > 1, f"--stream-interval {stream}"),
            (point.attention_dp > 1, "--enable-dp-attention"),
            (mode, f"--moe-a2a-backend deepep --deepep-mode {mode}"),
            (spare, f"--enable-eplb --ep-num-redundant-experts {spare}"),
            (point.scheduler == "sarathi", "--enable-mixed-chunk"),
            (not has_prefix_cache(point), "--disable-radix-cache"),
            (host_bytes, "--enable-hierarchical-cache"),
            (host_bytes, f"--hicache-size {max(1, int(host_bytes // 1e9))}"),
            (launches_kernels(point), "--disable-cuda-graph"),
        ]
    )
    if point.lora.adapters:
        words += ["--enable-lora", "--max-loras-per-batch", str(adapter_slots(point))]
        words += ["--max-lora-rank", str(point.lora.rank)]
    if speculation := speculation_of(point, "sglang", ALGORITHMS, has_trees=True):
        asked = point.speculation
        if asked.disable_batch:
            raise UserError("sglang drafts at every batch size: speculation.disable_batch 0")
        words += chosen(
            [
                (True, f"--speculative-algorithm {speculation.method}"),
                (True, f"--speculative-num-steps {asked.num_draft_tokens}"),
                (True, f"--speculative-eagle-topk {asked.topk}"),
                (True, f"--speculative-num-draft-tokens {shape_of(point)[0] + 1}"),
                (speculation.model, f"--speculative-draft-model-path {speculation.model}"),
            ]
        )
    return words, ""
