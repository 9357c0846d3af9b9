"""Indexers and attention to lists of keys: laws and known answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from simulators.catalog.engine import kernel_choices
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.adjustments import whole_lists
from simulators.kernels.families.attention import kernel_of
from simulators.kernels.price import flops, moved_bytes, price
from simulators.workload.llm.attention import decode_operators
from simulators.workload.llm.parallelism import Parallelism, stage_of
from simulators.workload.llm.step import Shard, decode_step
from simulators.workload.operators import Attention, IndexChoice, IndexScores

GPUS = ("h100_sxm", "b200_sxm", "a100_sxm", "l40s")


def scores(requests: float, new: float, past: float, phase: str = "prefill") -> IndexScores:
    return IndexScores(
        name="s",
        phase=phase,
        requests=requests,
        query_tokens=requests * new,
        pairs=requests * (new * past + new * (new + 1.0) / 2.0),
        kv_tokens=requests * (past + new),
        heads=32.0,
        head_dim=128.0,
        dtype="bf16",
    )


def choice(requests: float, new: float, past: float, top_k: float = 2048.0) -> IndexChoice:
    s = scores(requests, new, past)
    sums = {name: getattr(s, name) for name in ("requests", "query_tokens", "pairs", "kv_tokens")}
    return IndexChoice(name="c", top_k=top_k, **sums)


def listed(queries: float, requests: float, context: float) -> Attention:
    return Attention(
        name="a",
        phase="decode",
        requests=requests,
        query_tokens=queries,
        pairs=queries * 2048.0,
        kv_tokens=queries * 2048.0,
        context_tokens=requests * context,
        heads=64.0,
        kv_heads=576.0 / 1088.0,
        head_dim=544.0,
        dtype="bf16",
        kv_dtype="bf16",
        latent=True,
        listed=True,
    )


def seconds(operator: IndexScores | IndexChoice | Attention, gpu: str) -> float:
    return float(price(operator, load_gpu(gpu), framework="sglang").latency_s)


@given(
    gpu=sampled_from(GPUS),
    requests=integers(1, 64),
    past=integers(0, 200_000),
    more=integers(2, 8),
)
def test_time_never_falls_with_more_requests(gpu: str, requests: int, past: int, more: int) -> None:
    for make in (scores, choice):
        few, many = (
            seconds(make(float(n), 64.0, float(past)), gpu) for n in (requests, more * requests)
        )
        assert many >= few


def test_a_tile_of_queries_of_several_requests_scores_the_keys_of_all() -> None:
    # A tile has 128 rows: 4 queries of 32 heads. One new token each: 4 requests share a tile.
    one, four = (float(flops(scores(8.0, new, 1000.0))) for new in (1.0, 4.0))
    assert one == pytest.approx(four, rel=0.01)


def test_queries_with_few_keys_are_not_chosen_among() -> None:
    assert float(flops(choice(4.0, 1.0, 2000.0))) == 0.0
    # Of 4,096 queries the last 2,048 see more than 2,048 keys, 3,072 in the mean.
    walked = float(flops(choice(1.0, 4096.0, 0.0))) / 32.0
    assert walked == pytest.approx(2048 * 3072, rel=0.01)


def test_lists_of_one_prompt_read_its_keys_once() -> None:
    prompt = listed(4096.0, 1.0, 8192.0)
    read = 8192 * 576 * 2 + 4096 * 64 * 544 * 2 * 2
    assert float(moved_bytes(prompt)) == pytest.approx(read)
    decodes = listed(4096.0, 4096.0, 8192.0)
    assert float(moved_bytes(decodes)) > 10 * float(moved_bytes(prompt))


def test_indexer_of_glm_5_on_a_b200_takes_the_measured_times() -> None:
    # SGLang 0.5.14: 16,384 tokens after 1,024, without other kernels around.
    prompt = replace(scores(1.0, 16384.0, 1024.0), in_loop=True)
    assert seconds(prompt, "b200_sxm") == pytest.approx(645e-6, rel=0.15)
    # 16,384 queries of 16 requests that see 10,240 keys and more.
    chosen = replace(choice(16.0, 1024.0, 10240.0), in_loop=True)
    assert seconds(chosen, "b200_sxm") == pytest.approx(398e-6, rel=0.2)


def test_kernels_that_skip_empty_keys_are_faster_in_short_contexts() -> None:
    # 1,024 decodes of 128 keys each: whole lists have 2,048.
    short = replace(listed(1024.0, 1024.0, 128.0), pairs=1024.0 * 128.0, kv_tokens=1024.0 * 128.0)
    model = load_model("deepseek_v3_2")
    [skipping], [whole] = (
        whole_lists((short,), model, skips_empty_keys=skips) for skips in (True, False)
    )
    gpu = load_gpu("b200_sxm")
    skipping_s, whole_s = (price(o, gpu, framework="trtllm").latency_s for o in (skipping, whole))
    assert skipping_s < 0.3 * whole_s


def test_only_measured_gpus_are_calibrated() -> None:
    assert price(choice(4.0, 1.0, 9000.0), load_gpu("gb200"), framework="sglang").calibrated
    assert not price(choice(4.0, 1.0, 9000.0), load_gpu("h200_sxm"), framework="sglang").calibrated
    assert price(listed(64.0, 64.0, 9000.0), load_gpu("h100_sxm"), framework="sglang").calibrated


def test_an_indexer_of_blocks_chooses_among_blocks() -> None:
    model = load_model("minimax_m3")
    shard = Shard(model, Parallelism(), stage_of(model, Parallelism(), 0), "bf16", "bf16")
    operators = decode_operators(shard, decode_step(4.0, 65_536.0))
    [scored] = [o for o in operators if isinstance(o, IndexScores)]
    [chosen] = [o for o in operators if isinstance(o, IndexChoice)]
    assert (scored.pairs, chosen.pairs, chosen.top_k) == (4 * 65_536, 4 * 512, 16)
    # 128-byte keys with a scale, a score per 128 keys, 4 heads of 128 numbers per query.
    assert float(moved_bytes(scored)) == 4 * (65_536 * 132 + 512 * 4 + 4 * 128)


def test_compressed_attention_computes_a_whole_tile_of_heads() -> None:
    # vLLM runs 8 to 64 heads of a rank as 64 (`local_num_heads` of the tables).
    model = load_model("deepseek_v4_flash")
    few = replace(listed(64.0, 64.0, 4096.0), heads=8.0, kv_tokens=9000.0, pairs=9000.0)
    [tile] = whole_lists((few,), model)
    assert isinstance(tile, Attention)
    assert (tile.heads, tile.pairs) == (64.0, 9000.0)


def blocks_of(
    heads: float, new: float, *, past: float = 8192.0, requests: float = 4.0, kv_dtype: str = "bf16"
) -> Attention:
    """Return attention to 16 blocks of 128 keys per query: a decode or a chunk of a prompt."""
    queries, ends = requests * new, requests * (past + new)
    return Attention(
        name="a",
        phase="decode" if new == 1.0 else "prefill",
        requests=requests,
        query_tokens=queries,
        pairs=queries * 2048.0,
        kv_tokens=ends if new > 1.0 else queries * 2048.0,
        context_tokens=ends,
        heads=heads,
        kv_heads=max(1.0, heads / 16.0),
        head_dim=128.0,
        dtype="bf16",
        kv_dtype=kv_dtype,
        listed=True,
    )


def vllm_seconds(operator: Attention, gpu: str = "h100_sxm") -> float:
    return float(price(operator, load_gpu(gpu), framework="vllm").latency_s)


def test_attention_of_minimax_m3_gathers_lists_of_blocks() -> None:
    model = load_model("minimax_m3")
    shard = Shard(model, Parallelism(), stage_of(model, Parallelism(), 0), "bf16", "bf16")
    [sparse] = [
        o
        for o in decode_operators(shard, decode_step(4.0, 65_536.0))
        if isinstance(o, Attention) and o.listed
    ]
    assert (sparse.pairs, sparse.context_tokens) == (4 * 2048, 4 * 65_536)
    assert kernel_of(sparse) == "sparse_blocks_decode"


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm", "gb200", "l40s", "rtx_pro_6000"])
def test_lists_of_blocks_are_measured_on(gpu: str) -> None:
    for new in (1.0, 512.0):
        assert price(blocks_of(16.0, new), load_gpu(gpu), framework="vllm").calibrated


def test_query_heads_are_padded_to_a_matrix_instruction() -> None:
    # Triton multiplies 16 rows: a lone query head of a key head is as slow as 16.
    one, all_ = (vllm_seconds(blocks_of(heads, 4096.0)) for heads in (1.0, 16.0))
    assert 0.8 * all_ < one <= all_


def test_widening_of_8_bit_keys_takes_time() -> None:
    wide, narrow = (vllm_seconds(blocks_of(16.0, 4096.0, kv_dtype=d)) for d in ("bf16", "fp8"))
    assert narrow > 1.2 * wide


def test_lists_of_blocks_have_no_kernel_for_prompts_and_decodes_at_once() -> None:
    prompt, decodes = blocks_of(16.0, 512.0, requests=1.0), blocks_of(16.0, 1.0, requests=64.0)
    both = {
        name: getattr(prompt, name) + getattr(decodes, name)
        for name in ("requests", "query_tokens", "pairs", "kv_tokens", "context_tokens")
    }
    mixed = replace(prompt, phase="mixed", decodes=64.0, decode_kv_tokens=decodes.kv_tokens, **both)
    apart = vllm_seconds(prompt) + vllm_seconds(decodes)
    assert vllm_seconds(mixed) == pytest.approx(apart, rel=0.05)


def test_a_lone_indexer_head_of_tensorrt_llm_is_slow() -> None:
    # 256 decodes at 131,072 tokens: 14.5 ms per block with one head, 1.6 ms with four.
    one, four = (
        replace(scores(256.0, 1.0, 131_071.0, "decode"), heads=heads, block=128.0)
        for heads in (1.0, 4.0)
    )
    gpu = load_gpu("b200_sxm")
    one_s, four_s = (float(price(o, gpu, framework="trtllm").latency_s) for o in (one, four))
    assert one_s == pytest.approx(14.4e-3, rel=0.1)
    assert four_s < 0.15 * one_s


def test_scores_of_blocks_walk_the_keys_of_a_request_in_order() -> None:
    # SGLang on a B200: 18.0 ms per block for one new token after 1,048,575 tokens.
    one = replace(scores(1.0, 16.0, 1_048_560.0), heads=1.0, block=128.0)
    assert seconds(one, "b200_sxm") == pytest.approx(18.0e-3, rel=0.15)
    two = replace(scores(2.0, 16.0, 1_048_560.0), heads=1.0, block=128.0)
    assert seconds(two, "b200_sxm") == pytest.approx(seconds(one, "b200_sxm"), rel=0.15)


def test_lists_read_as_pages_are_not_padded() -> None:
    short = replace(listed(8.0, 8.0, 2048.0), pairs=800.0, kv_tokens=800.0, heads=8.0)
    model = load_model("deepseek_v3_2")
    [pages] = whole_lists((short,), model, as_pages=True)
    assert isinstance(pages, Attention)
    assert (pages.heads, pages.kv_tokens, pages.listed) == (8.0, 800.0, False)
    [narrow] = whole_lists((replace(short, kv_dtype="fp8"),), model, as_pages=True)
    assert isinstance(narrow, Attention)
    assert (narrow.heads, narrow.listed) == (64.0, True)


def test_sglang_decodes_lists_on_an_h100_in_the_measured_time() -> None:
    # 128 decodes with 8 heads: a block takes 153 us at 1,024 tokens and 93 us at 8.
    keys = 128.0 * 1024.0
    decodes = replace(listed(128.0, 128.0, 1024.0), heads=8.0, pairs=keys, kv_tokens=keys)
    as_pages = load_gpu("h100_sxm").architecture in kernel_choices("sglang").lists_as_pages
    [pages] = whole_lists((decodes,), load_model("deepseek_v3_2"), as_pages=as_pages)
    assert isinstance(pages, Attention)
    assert seconds(pages, "h100_sxm") == pytest.approx(60e-6, rel=0.3)
