"""vLLM's own scheduler on a virtual clock, run by the Python of an environment that has vLLM.

Scheduler, KV cache manager and configuration are those of the installed release. Each request that
has caught up gets its next token. The loop follows the engine core: a batch is formed when the one
before it has ended or, with asynchronous scheduling, when it has started.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from lab.parity.virtual_clock import VirtualClock, answer_jobs, output_id


def known(kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a configuration class of this release has."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in options.items() if name in names}


def _configured(job: dict[str, Any]) -> VllmConfig:
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(job["model"]))
    length, spec = job["max_model_len"], None
    model = ModelConfig(
        model=str(folder), skip_tokenizer_init=True, max_model_len=length, dtype="float16"
    )
    if job["spec_tokens"]:
        spec = SpeculativeConfig(method="ngram", num_speculative_tokens=job["spec_tokens"])
    scheduling = SchedulerConfig(
        max_model_len=length, is_encoder_decoder=False, **known(SchedulerConfig, job)
    )
    cache = CacheConfig(**known(CacheConfig, job))
    cache.num_gpu_blocks = job["blocks"] + 1  # one is vLLM's null block
    return VllmConfig(
        model_config=model, cache_config=cache, scheduler_config=scheduling, speculative_config=spec
    )


class ReplayedEngine(VirtualClock):
    """The engine core's loop around vLLM's scheduler."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        config, block = _configured(job), job["block_size"]
        spec = FullAttentionSpec(block, num_kv_heads=1, head_size=1, dtype=torch.float16)
        cache = KVCacheConfig(job["blocks"] + 1, [], [KVCacheGroupSpec(["layer"], spec)])
        self.core = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block,
            log_stats=False,
        )
        init_none_hash(sha256_cbor)
        hasher = get_request_block_hasher(block, sha256_cbor)
        self.hasher = hasher if job["enable_prefix_caching"] else None
        self.accepts = json.loads(job["accepts"])
        self.depth = 2 if config.scheduler_config.async_scheduling else 1
        self.options = known(SchedulerConfig, vars(config.scheduler_config))
        self.steps = [0] * len(self.prompts)
        self.decoding: set[str] = set()  # requests whose prefill is complete

    def run(self) -> dict[str, Any]:
        """Serve all requests; return the records of iterations and requests."""
        queue: deque[tuple[Any, float, dict[str, int]]] = deque()
        while self.arriving or queue or self.core.has_requests():
            self.add_arrived()
            formed = False
            if self.core.has_requests() and len(queue) < self.depth:
                batch = self.form()
                formed = batch[0].total_num_scheduled_tokens > 0
                if formed or not queue:
                    queue.append(batch)
                if formed and len(queue) < self.depth:
                    continue
            if not queue:
                self.skip_to_arrival()
                continue
            output, end_s, due = queue.popleft()
            self.now = max(self.now, end_s)
            self.finish(output, due)
            if not formed and not queue and not self.core.has_unfinished_requests():
                if not self.arriving:
                    break
                self.skip_to_arrival()
        return self.records(self.options)

    def add_arrived(self) -> None:
        """Hand the requests that have arrived to the scheduler."""
        for arrival_s, req in self.arrived():
            request = Request(
                request_id=str(req),
                prompt_token_ids=self.prompts[req],
                sampling_params=SamplingParams(
                    max_tokens=self.requests["output_tokens"][req], ignore_eos=True
                ),
                pooling_params=None,
                arrival_time=arrival_s,
                block_hasher=self.hasher,
            )
            self.core.add_request(request)

    def form(self) -> tuple[Any, float, dict[str, int]]:
        """Schedule a batch; return the batch, its end, and drafts by request that gets tokens."""
        core = self.core
        output = core.schedule()
        for key, request in core.requests.items():
            if request.num_preemptions > self.counts["preemptions"][int(key)]:
                self.counts["preemptions"][int(key)] = request.num_preemptions
                self.decoding.discard(key)
        row: dict[str, float] = {"requests": 0, "tokens": 0, "prefill_tokens": 0}
        context, due = 0, dict[str, int]()
        new = {one.req_id for one in output.scheduled_new_reqs}
        for key, scheduled in output.num_scheduled_tokens.items():
            request, req = core.requests[key], int(key)
            drafts = len(output.scheduled_spec_decode_tokens.get(key, ()))
            computed = request.num_computed_tokens
            context += computed - drafts
            row["requests"] += 1
            row["tokens"] += scheduled
            row["prefill_tokens"] += 0 if key in self.decoding else scheduled
            if not request.is_prefill_chunk:
                due[key] = drafts
                self.decoding.add(key)
            self.scheduled(req, computed - scheduled if key in new else 0)
        self.free_s = max(self.now, self.free_s)
        if row["tokens"]:
            free = core.kv_cache_manager.block_pool.get_num_free_blocks()
            row |= {"kv_blocks": self.job["blocks"] - free}
            row["waiting"] = len(core.requests) - len(core.running)
            self.launch(context, row)
        return output, self.free_s, due

    def finish(self, output: Any, due: dict[str, int]) -> None:
        """Give tokens to the requests that are due, and send the successors of ended requests."""
        core, keys = self.core, list(output.num_scheduled_tokens)
        sampled = []
        for key in keys:
            tokens: list[int] = []
            if key in due:
                req, request = int(key), core.requests.get(key)
                accepted = min(self.accepts[self.steps[req] % len(self.accepts)], due[key])
                self.steps[req] += due[key] > 0
                done = request.num_output_tokens if request else 0  # an ended request gets none
                tokens = [output_id(req, done + k) for k in range(1 + accepted)]
            sampled.append(tokens)
        places = {key: i for i, key in enumerate(keys)}
        core.update_from_output(output, ModelRunnerOutput(keys, places, sampled))
        for key, tokens in zip(keys, sampled, strict=True):
            if tokens and self.times["last_token_s"][int(key)] < 0.0:
                self.received(int(key), is_last=key not in core.requests)
        alive = [key for key in due if key in core.requests]
        if self.job["spec_tokens"] and self.depth == 1 and alive:
            drafts = [[1] * self.job["spec_tokens"] for _ in alive]
            core.update_draft_token_ids(DraftTokenIds(alive, drafts))


if __name__ == "__main__":
    answer_jobs(lambda job: ReplayedEngine(job).run())
