"""SGLang's own scheduler on a virtual clock, run by the Python of an environment that has torch.

Scheduler, event loops, prefix cache, allocators and batches are those of the release. Modules that
its scheduler imports and never calls are absent: kernels, models, media and communication.
"""

from __future__ import annotations

import sys
from array import array
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

from lab.parity.virtual_clock import VirtualClock, answer_jobs, output_id

PACKAGES = """IPython PIL accelerate fastsafetensors huggingface_hub orjson sgl_kernel
torch_memory_saver torchcodec torchvision transformers triton"""
MODULES = """configs disaggregation entrypoints function_call layers models multimodal parser
utils.hf_transformers_patches utils.hf_transformers_utils"""
ABSENT = (
    "sglang.jit_kernel.",
    "sglang.kernels.",
    "sglang.lang.",
    *(f"{name}." for name in PACKAGES.split()),
    *(f"sglang.srt.{name}." for name in MODULES.split()),
)


class Unused:
    """A false object with every attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, Unused())
        return getattr(self, name)

    def __call__(self, *given: Any, **_named: Any) -> Any:
        """Return the first argument, as a decorator does."""
        return given[0] if given else self

    def __getitem__(self, _key: Any) -> Any:
        return self

    def __add__(self, other: Any) -> Any:
        return other

    def __or__(self, _other: Any) -> Any:
        return Any

    __ror__ = __or__

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, _bases: Any) -> tuple[type, ...]:
        return ()


class AbsentModules(MetaPathFinder, Loader):
    """Finds the absent modules, with every attribute."""

    def find_spec(self, name: str, *_given: Any) -> ModuleSpec | None:
        """Return the specification of an absent module, which may have submodules."""
        is_absent = f"{name}.".startswith(ABSENT)
        return ModuleSpec(name, self, is_package=True) if is_absent else None

    def create_module(self, _spec: ModuleSpec) -> Any:
        """Return the module."""
        return Unused()

    def exec_module(self, module: Any) -> None:
        """Run nothing."""


sys.meta_path.insert(0, AbsentModules())

import msgspec  # noqa: E402
import torch  # noqa: E402

for module, name in ((torch, "compile"), (msgspec.msgpack, "Decoder")):
    setattr(module, name, Unused())

from sglang.srt.managers import scheduler as release  # noqa: E402
from sglang.srt.managers.schedule_batch import Req  # noqa: E402
from sglang.srt.mem_cache import allocator as allocators  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.registry import default_radix_cache_factory  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

PARTS = """batch_result_processor dp_attn_adapter grammar_manager load_inquirer metrics_collector
metrics_reporter ngram_embedding_manager output_streamer request_receiver"""


class ReplayedScheduler(release.Scheduler):  # type: ignore[misc]
    """SGLang's scheduler without its processes: requests arrive and batches end on a clock."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.clock, self.job = VirtualClock(job), job
        block, seqs = job["block_size"], job["max_num_seqs"]
        for name in PARTS.split():
            setattr(self, name, Unused())
        self.server_args = ServerArgs(
            model_path="dummy",
            device="cpu",
            attention_backend="torch_native",
            page_size=block,
            max_running_requests=seqs,
            pp_max_micro_batch_size=seqs,
        )
        set_global_server_args_for_scheduler(self.server_args)
        self.page_size, self.max_running_requests, self.device = block, seqs, "cpu"
        self.chunked_prefill_size = job["max_num_batched_tokens"]
        self.max_prefill_tokens = job["max_prefill_tokens"]
        self.enable_overlap = job["async_scheduling"]
        self.schedule_policy, self.is_generation = "fcfs", True
        self.priority_scheduling_preemption_threshold = self.processed_tokens_counter = 0
        self.prefill_decode_interval = self._prefill_decode_interval_remaining = 0
        self.disaggregation_mode = release.DisaggregationMode.NULL
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.model_config = Unused()
        vars(self.model_config)["vocab_size"] = 1 << 62
        self.tp_worker = SimpleNamespace(model_runner=Unused())
        self.beam_coordinator = SimpleNamespace(
            pending_member_rows=lambda _batch: 0, commit_decode=lambda _batch: set()
        )
        self.init_beam_coordinator = Unused()
        self._set_caches(job["blocks"] * block)
        self.init_running_status()
        self.init_schedule_policy()
        self.init_batch_result_processor()
        self.unfinished, self.idle_loops = set[int](), 0

    def __getattr__(self, name: str) -> Any:
        """Return None for an attribute of a feature that is off."""
        return None

    def _set_caches(self, tokens: int) -> None:
        block, disable = self.page_size, not self.job["enable_prefix_caching"]
        self.req_to_token_pool = ReqToTokenPool(
            self.max_running_requests, self.job["max_model_len"], self.device, False
        )
        kind = "Paged" if block > 1 else ""
        self.token_to_kv_pool_allocator = getattr(allocators, f"{kind}TokenToKVPoolAllocator")(
            *(tokens, block)[: 1 + (block > 1)],
            dtype=torch.float16,
            device=self.device,
            kvcache=Unused(),
            need_sort=False,
        )
        context: Any = Unused()
        context.disable_radix_cache = disable
        context.params = CacheInitParams(
            disable=disable,
            req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
            page_size=block,
            chunked_prefill_size=self.chunked_prefill_size,
        )
        self.tree_cache = default_radix_cache_factory(context)

    def run(self) -> dict[str, Any]:
        """Serve all requests; return the records of iterations and requests."""
        (self.event_loop_overlap if self.enable_overlap else self.event_loop_normal)()
        return self.clock.records({})

    def ingest_requests(self) -> None:
        """Receive the requests that have arrived."""
        self.process_input_requests([])

    def process_input_requests(self, _recv_reqs: list[Any]) -> None:
        """Add the requests that have arrived to the queue."""
        for _, req in self.clock.arrived():
            sampling = SamplingParams(
                max_new_tokens=self.clock.requests["output_tokens"][req],
                ignore_eos=self.job["ignore_eos"],
            )
            sampling.normalize(None)
            prompt = array("q", self.clock.prompts[req])
            self._add_request_to_queue(Req(str(req), "", prompt, sampling, eos_token_ids=set()))
            self.unfinished.add(req)

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        self.clock.counts["preemptions"][int(req.rid)] += is_retracted
        super()._add_request_to_queue(req, is_retracted)

    def on_idle(self) -> None:
        """Advance the clock; a queue that stays as it is waits for an arrival.

        A queue may be looked at again in the next pass of the loop, which takes no time.
        """
        self.idle_loops += 1
        if self.unfinished and self.idle_loops < 3:
            return
        if not self.unfinished:
            self.new_token_ratio_tracker.reset()
        self.gracefully_exit = not self.clock.arriving
        if self.clock.arriving:
            self.clock.skip_to_arrival()

    def run_batch(self, batch: Any) -> Any:
        """Launch a batch on the clock; return its tokens."""
        self.idle_loops = 0
        is_prefill, held = batch.forward_mode.is_extend(), self.token_to_kv_pool_allocator.size
        tokens = batch.extend_num_tokens if is_prefill else batch.batch_size()
        held -= self.token_to_kv_pool_allocator.available_size()
        if self.job["enable_prefix_caching"]:
            held -= self.tree_cache.evictable_size()
        row = {"requests": batch.batch_size(), "tokens": tokens, "waiting": len(self.waiting_queue)}
        row |= {"prefill_tokens": is_prefill * tokens, "kv_blocks": held // self.page_size}
        end_s = self.clock.launch(int(batch.seq_lens.sum()), row)
        for req in batch.reqs:
            self.clock.scheduled(int(req.rid), req.cached_tokens)
        ids = [output_id(int(req.rid), len(req.output_ids)) for req in batch.reqs]
        batch.input_ids = batch.output_ids = torch.tensor(ids)
        result = release.GenerationBatchResult(next_token_ids=batch.input_ids)
        result.end_s = end_s
        return result

    def process_batch_result(self, batch: Any, result: Any) -> None:
        """Give the requests of a batch their tokens when it ends."""
        self.clock.now = max(self.clock.now, result.end_s)
        before = [len(req.output_ids) for req in batch.reqs]
        kind = "decode" if batch.forward_mode.is_decode() else "prefill"
        getattr(self.batch_result_processor, f"process_batch_result_{kind}")(batch, result)
        for req, known in zip(batch.reqs, before, strict=True):
            if len(req.output_ids) > known:
                self.clock.received(int(req.rid), is_last=req.finished())
                if req.finished():
                    self.unfinished.discard(int(req.rid))


if __name__ == "__main__":
    answer_jobs(lambda job: ReplayedScheduler(job).run())
