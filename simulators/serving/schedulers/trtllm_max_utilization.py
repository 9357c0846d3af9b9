"""In-flight batching with preemption: prompts are admitted while blocks are free.

TensorRT-LLM's in-flight batching under its other capacity policy, MAX_UTILIZATION: a request enters
when the blocks of its prompt are free, and a decode without a block pauses the request that started
last, which is recomputed (`MaxUtilizationScheduler` in `capacityScheduler.cpp`). The token budget
is that of `sarathi`, the memory fraction and the queue of ranks are those of `trtllm`.
"""

from __future__ import annotations

from simulators.serving.schedulers import sarathi

CHUNKED = FRACTION_OF_FREE = SHARED_RANK_QUEUE = CACHES_PREFIXES = KV_TRANSFER = True

schedule = sarathi.schedule
