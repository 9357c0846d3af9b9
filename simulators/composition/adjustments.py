"""How kernels inside a model differ from kernels timed alone: fusion, padding, lower clocks.

Fusion: workloads fuse all operators between two products. Experts were timed with the gathering of
their rows. TensorRT-LLM adds residual, norm and quantization to the all-reduce, in models whose
code asks for it; in other models, and without fusion, each of these is a kernel.

Padding: sparse attention kernels read whole lists of keys and whole tiles of heads. An indexer
fills a list of as many keys as it may choose for each query (DeepSeek-V3.2, GLM-5). In a short
context the rest of the list is empty and still computed, except by TensorRT-LLM's kernels, whose
measured blocks are faster in short contexts. FlashMLA's kernels take 64 heads or more
per rank, so tensor-parallel engines pad (TensorRT-LLM's collector for these kernels;
sgl-project/sglang, pull request 13646; vllm-project/recipes, pull request 234). In prompts shorter
than the list SGLang attends to all keys (pull request 11892), vLLM has no such path
(`SparseMLAAttentionImpl`), and TensorRT-LLM's is off by default
(`TRTLLM_MLA_SHORT_SEQ_MHA_THRESHOLD`).

Clocks: kernels were timed alone on rested GPUs; whole models keep GPUs at their power limit. A GPU
that was measured both ways takes a fitted share of the roofline time longer. For another GPU, power
rises with the clock and twice with the voltage that follows it, so the clock under a power limit
goes with the cube root of FLOPs per joule, relative to the measured GPU of the nearest process
node; a GeForce at half the matrix rate never reaches its limit. The slowdown is capped at the mean
of the measured GPUs; long loops on an H200 and a B200 show no more (0.17 to 0.23 of their roofline
time).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulators.catalog.gpu import Gpu, base_gpu, load_gpu
from simulators.catalog.model import LanguageModel
from simulators.composition.replica import Replica
from simulators.core.calibration import read_calibration
from simulators.core.folder import once
from simulators.kernels.price import flops, is_fitted
from simulators.workload.operators import (
    Attention,
    Column,
    Compute,
    Elementwise,
    Gemm,
    GroupedGemm,
    Norm,
    Quantisation,
)
from simulators.workload.precision import BYTES, QUANTISED, QUANTISED_IN_CALL, precision

AROUND_EXPERTS = ("gather_by_expert", "experts_activation", "weighted_sum")
"""Operators that frameworks run in one call with the products of experts, as in measurements."""

RESIDUAL_NORMS = ("attention_norm", "ffn_norm")


def launched(operators: Sequence[Compute], replica: Replica) -> Sequence[Compute]:
    """Return the kernels that the replica launches for operators."""
    if not replica.is_fused:
        return unfused(operators, replica.model)
    if replica.library in replica.model.apart_in and not replica.accelerator:
        return quantised_apart(operators, replica)
    return operators


def inside_others(operators: Sequence[Compute], replica: Replica) -> Sequence[str]:
    """Return the names of operators that are part of another kernel or message."""
    inside = replica.kernel_choices.fused_into_attention
    layout, asked = replica.layout, replica.runtime.norms_in_sums
    asked = asked and replica.library not in replica.model.apart_in
    if replica.is_fused and asked and layout.tp > 1 and layout.attention_dp == 1:
        inside = (*inside, *RESIDUAL_NORMS)  # in the all-reduce after each block
    experts = next((one for one in operators if isinstance(one, GroupedGemm)), None)
    if experts is None or not is_fitted(experts, replica.gpu, replica.library, replica.level):
        return inside
    return (*inside, *AROUND_EXPERTS)  # measured layers include these


def quantised_apart(operators: Sequence[Compute], replica: Replica) -> tuple[Compute, ...]:
    """Return the operators with a separate quantization kernel after each norm."""
    how = precision(replica.dtype)
    if how.compute not in QUANTISED or how.weights in QUANTISED_IN_CALL:
        return tuple(operators)
    found: list[Compute] = []
    for operator in operators:
        found.append(operator)
        if isinstance(operator, Elementwise) and operator.name in RESIDUAL_NORMS:
            hidden, name = replica.model.hidden, f"{operator.name}_quantise"
            size: dict[str, Any] = {"rows": operator.elements / hidden, "cols": hidden}
            size |= {"to": how.compute, "dtype": how.activations, "repeat": operator.repeat}
            found.append(Quantisation(name=name, **size))
    return tuple(found)


def unfused(operators: Sequence[Compute], model: LanguageModel) -> tuple[Compute, ...]:
    """Return the operators with every fused chain split into its kernels.

    A fused kernel moves its inputs and its result once. Separate kernels also write and read the
    intermediate results: a residual sum and its norm, a rotary embedding and the cache write.
    Activations stay fused with their gate, as in all engines.

    >>> from simulators.catalog.model import load_model
    >>> chain = Elementwise(name="ffn_norm", elements=8192.0, reads=2.0, writes=2.0)
    >>> [o.name for o in unfused((chain,), load_model("llama2_70b"))]
    ['ffn_norm_residual', 'ffn_norm']
    """
    return tuple(step for operator in operators for step in _steps(operator, model))


def _steps(operator: Compute, model: LanguageModel) -> tuple[Compute, ...]:
    """Return the unfused kernels of an operator."""
    if isinstance(operator, Elementwise) and operator.name.endswith("_norm"):
        return (
            replace(operator, name=f"{operator.name}_residual", reads=2.0, writes=1.0),
            Norm(
                name=operator.name,
                rows=operator.elements / model.hidden,
                cols=model.hidden,
                kind=model.norm,
                dtype=operator.dtype,
                repeat=operator.repeat,
            ),
        )
    if operator.name == "rotary_cache_write":
        return (replace(operator, name="rotary"), replace(operator, name="cache_write"))
    return (operator,)


TILE_HEADS = 64.0


def whole_lists(
    operators: Sequence[Compute],
    model: LanguageModel,
    *,
    skips_empty_keys: bool = False,
    as_pages: bool = False,
) -> tuple[Compute, ...]:
    """Return operators with decode attention padded to whole lists of keys and tiles of heads.

    `skips_empty_keys`: the kernel reads no empty places of a list. Lists of compressed keys
    (DeepSeek-V4) have the length that a query needs. `as_pages`: the kernel of whole contexts reads
    16-bit keys of a list as pages of one token, without padding.

    >>> from simulators.catalog.model import load_model
    >>> few = Attention(
    ...     name="decode_attention", phase="decode", requests=2.0, query_tokens=2.0, pairs=600.0,
    ...     kv_tokens=600.0, heads=16.0, kv_heads=1.0, head_dim=544.0, latent=True,
    ...     dtype="bf16", kv_dtype="bf16",
    ... )
    >>> [whole] = whole_lists((few,), load_model("deepseek_v3_2"))
    >>> whole.heads, whole.kv_tokens, whole_lists((few,), load_model("deepseek_v3")) == (few,)
    (64.0, 4096.0, True)
    """
    top_k = model.index_top_k

    def padded(one: Attention) -> Attention:
        if as_pages and not model.compress_ratios and BYTES[one.kv_dtype] == BYTES["bf16"]:
            return replace(one, listed=False, context_tokens=0.0)
        tiles = replace(one, heads=max(one.heads, TILE_HEADS))
        if skips_empty_keys or model.compress_ratios:
            return tiles
        return replace(tiles, pairs=one.query_tokens * top_k, kv_tokens=one.query_tokens * top_k)

    return tuple(
        padded(one)
        if top_k
        and isinstance(one, Attention)
        and one.latent
        and (one.listed or one.phase == "decode")
        else one
        for one in operators
    )


CLOCKS_CALIBRATION = Path(__file__).parent / "calibration" / "clocks.toml"
OTHER = "other"
SOURCES = {
    **dict.fromkeys(("ampere", "ampere_ga10x"), "a100_sxm"),
    **dict.fromkeys(("ada", "hopper", "blackwell", "blackwell_rtx"), "h100_sxm"),
}
"""Measured GPU of the nearest process node, by architecture: TSMC's 7 nm for Samsung's 8 nm; TSMC's
4N, of which Blackwell's 4NP is a variant. Older architectures and other vendors have no entry."""


def slowdown(gpu: Gpu) -> float:
    """Return the slowdown of matrix units under the power limit, as a share of roofline time.

    A GPU that runs at a lower clock has a smaller slowdown.
    """
    if not gpu.validated:
        return 0.0
    fitted, name = _calibration(), gpu.measured_as or gpu.name
    full = fitted[name] if name in fitted else transferred_slowdown(gpu)
    return full if gpu.clock_share == 1.0 else max(0.0, gpu.clock_share * (1.0 + full) - 1.0)


def transferred_slowdown(gpu: Gpu) -> float:
    """Return the slowdown of an unmeasured GPU, at most the mean of the measured ones."""
    fitted = _calibration()
    if gpu.architecture not in SOURCES:
        return fitted[OTHER]
    source = SOURCES[gpu.architecture]
    pressed = flops_per_j(base_gpu(gpu)) / flops_per_j(load_gpu(source))
    clock = (1.0 - fitted[source]) * float(np.cbrt(1.0 / pressed))
    return min(max(1.0 - clock, 0.0), fitted[OTHER])


def flops_per_j(gpu: Gpu) -> float:
    """Return the 16-bit peak FLOP/s over the power limit in watts."""
    return gpu.peak("fp16") / gpu.tdp_w


def throttled_s(operator: Compute, gpu: Gpu, share: float) -> Column:
    """Return the seconds that a lower clock adds to one operator."""
    if not isinstance(operator, Gemm | GroupedGemm | Attention):
        return 0.0
    return share * np.asarray(flops(operator), np.float64) / gpu.peak(operator.dtype)


def _calibration() -> dict[str, float]:
    fitted: dict[str, float] = once(read_calibration, CLOCKS_CALIBRATION)["slowdown"]
    return fitted
