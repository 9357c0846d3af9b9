"""Kernels that were timed only inside blocks: fits, paths and rows that are left out."""

from __future__ import annotations

import numpy as np
import pytest

from lab.claims.operators import _Blocks, fitted_waits
from lab.fits.kernels.indexers import _seconds, fit_in_blocks
from lab.fits.kernels.kernel_calibration import form
from lab.tables.blocks import TimedBlock, is_left_out
from lab.tables.rows import Floats
from simulators.catalog.gpu import load_gpu
from simulators.kernels.families import attention, auxiliary_kernels
from simulators.kernels.tiling import four_norm
from simulators.workload.operators import Attention, IndexScores

SIZES = np.random.default_rng(1).integers([1, 1, 0], [64, 4096, 65_536], (400, 3)).T.astype(float)


def a_block(gpu: str = "h100_sxm") -> TimedBlock:
    requests, new, past = SIZES
    queries, ends = requests * new, requests * (past + new)
    sums = {"phase": "prefill", "requests": requests, "query_tokens": queries, "dtype": "bf16"}
    attention = Attention(
        name="prefill_sparse_attention",
        pairs=queries * np.minimum(past + new / 2.0, 2048.0),
        kv_tokens=ends,
        context_tokens=ends,
        heads=16.0,
        kv_heads=1.0,
        head_dim=128.0,
        kv_dtype="bf16",
        listed=True,
        **sums,
    )
    scores = IndexScores(
        name="index_scores",
        pairs=queries * (past + new / 2.0),
        kv_tokens=ends,
        heads=1.0,
        head_dim=128.0,
        block=128.0,
        **sums,
    )
    operators = (attention, scores)
    kind, held_out = "MiniMax-M3 sparse attention", np.arange(400) % 2 == 0
    return TimedBlock(
        gpu, "vllm", kind, "prompts", "bf16", "bf16", operators, np.ones(400), held_out
    )


def timed(block: TimedBlock, numbers: dict[str, float]) -> Floats:
    gpu = load_gpu(block.gpu)
    lists, scores = block.operators
    assert isinstance(lists, Attention)
    assert isinstance(scores, IndexScores)
    kernels = _seconds(lists, gpu, numbers) + _seconds(scores, gpu, numbers)
    return four_norm(kernels + numbers["gap_s"], numbers["host_s"])


def test_a_fit_to_blocks_finds_the_kernels_and_leaves_the_host_out() -> None:
    truth = form("blocks_in_block").start | {"compute": 0.2, "scores_chain_clocks": 40.0}
    truth |= {"host_s": 3e-4}
    block = a_block()
    block.seconds[:] = timed(block, truth)
    found = {one.name: one for one in fit_in_blocks([block], "blocks_in_block")}
    assert set(found) == {
        "vllm.sparse_blocks_prefill.bf16_bf16",
        "vllm.index_blocks_prefill.fp8",
    }
    assert all(one.error < 0.02 for one in found.values())
    gpu = load_gpu(block.gpu)
    for operator, one in zip(block.operators, found.values(), strict=True):
        assert not {"host_s", "gap_s"} & {*one.entry.numbers}
        assert isinstance(operator, Attention | IndexScores)
        if isinstance(operator, Attention):
            fitted_s = attention.form_seconds(operator, gpu, one.entry.numbers)
        else:
            fitted_s = auxiliary_kernels.fitted_seconds(operator, gpu, one.entry.numbers)
        true_s = _seconds(operator, gpu, truth)
        large = true_s > 1e-3
        assert fitted_s[large] == pytest.approx(true_s[large], rel=0.1)


def test_waits_of_a_gpu_left_out_are_those_of_others() -> None:
    one = _Blocks([a_block()])
    one.seconds = four_norm(one.kernels + 2e-5, 1e-3)
    gap_s, host_s = fitted_waits([one])
    assert host_s == pytest.approx(1e-3, rel=0.05)
    assert gap_s == pytest.approx(2e-5, abs=8e-6)
    assert fitted_waits([]) == (0.0, 0.0)


def test_fallbacks_in_pytorch_are_left_out() -> None:
    vllm = a_block()
    assert not is_left_out(vllm)
    fallback = TimedBlock(**{**vars(vllm), "framework": "trtllm"})
    assert is_left_out(fallback)
    decodes = {"gpu": "b200_sxm", "phase": "decodes"}
    assert not is_left_out(TimedBlock(**{**vars(fallback), **decodes}))
