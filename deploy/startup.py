"""Start-up needs of engines: a context that fits the memory, and a checkpoint of the precision.

vLLM refuses a `--max-model-len` whose KV cache does not fit (`check_enough_kv_cache_memory` in
vllm/v1/core/kv_cache_utils.py of 0.32). SGLang and TensorRT-LLM start with a longer context, but
refuse requests that exceed the cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from simulators.catalog.model import LanguageModel
from simulators.serving.deployment import deployment_of
from simulators.serving.engine.limits import longest_request
from simulators.serving.point import ServingPoint
from simulators.serving.speculation import drafter_of

KV_MARGIN = 0.9
"""Share of the simulated KV cache that a request may fill where memory limits the context: engines
measure their memory at start, and the simulated remainder can be too large. A choice."""

CHECKPOINTS: Mapping[str, str] = {
    "fp8": r"-fp8(?:-|$)",
    "fp8_block": r"-fp8$",
    "fp4": r"-(?:nv)?fp4",
    "bf16+fp4": r"-(?:nv)?fp4",
    "bf16+w4a8": r"mxfp4",
    "w4a16": r"awq|gptq-int4|w4a16",
}
"""Patterns in the names of quantized checkpoints, by precision."""
QUANTIZED = "QUANTIZED_CHECKPOINT"
"""Placeholder in a command for a quantized checkpoint that the catalog does not know."""
UNQUANTIZED = ("bf16", "fp16", "fp32")
ONLINE = ("fp8",)
"""Precisions that an engine makes from a 16-bit checkpoint, if it has an option for them."""


def context_length(point: ServingPoint, model: LanguageModel) -> int:
    """Return the longest context that a design can be started with.

    The context is that of the point or the model, unless the KV cache of a replica is smaller.

    Raises:
        Infeasible: the model does not fit.
    """
    asked = point.max_context or model.max_context
    hardware = deployment_of(point).hardware
    capacity = longest_request(point, hardware, drafter_of(point, hardware))
    if asked <= KV_MARGIN * capacity:
        return asked
    blocks = max(1, int(KV_MARGIN * capacity) // point.block_size)
    return min(asked, blocks * point.block_size)


def checkpoint_in_dtype(
    model: LanguageModel, repository: str, dtype: str, options: Sequence[str]
) -> tuple[str, Sequence[str]]:
    """Return the repository of a precision's checkpoint, and the options that name the precision.

    A checkpoint that is quantized already states its precision itself.

    Args:
        model: the model.
        repository: its official checkpoint.
        dtype: the precision of the weights.
        options: the engine's options for the precision.
    """
    published = model.formats or UNQUANTIZED
    is_online = dtype in ONLINE and options and not model.formats
    if dtype in published or is_online:
        return repository, options
    pattern = CHECKPOINTS.get(dtype)
    named = (name for name in model.aliases if "/" in name)
    known = (name for name in named if pattern and re.search(pattern, name.lower()))
    return next(known, QUANTIZED), ()
