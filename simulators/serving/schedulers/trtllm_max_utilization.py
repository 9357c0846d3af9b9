"""Prompts join the running decodes while blocks are free; who came last is put out where none is.

TensorRT-LLM's in-flight batching under its other capacity policy, MAX_UTILIZATION: a request enters
when the blocks of its prompt are free, and a decode without a block pauses the request that started
last, which is computed again (`MaxUtilizationScheduler` in `capacityScheduler.cpp`). Tokens are
shared as `sarathi` does, the memory fraction and the queue of ranks are as under `trtllm`.
"""

from __future__ import annotations

from simulators.serving.schedulers import sarathi

CHUNKED = OF_REST = DEALS_OUT = CACHES_PREFIXES = TAKES_UP = True

schedule = sarathi.schedule
