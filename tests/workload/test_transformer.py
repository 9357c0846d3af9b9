"""Transformer operators: FLOPs and bytes equal hand counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.catalog.model import load_model
from simulators.core.errors import UserError
from simulators.workload.llm.attention import decode_operators, prefill_operators
from simulators.workload.llm.parallelism import Parallelism, stage_of
from simulators.workload.llm.step import Shard, Step, decode_step, prefill_step
from simulators.workload.llm.transformer import busiest_share, forward
from simulators.workload.operators import (
    Attention,
    CausalConvolution,
    Collective,
    Column,
    Elementwise,
    Gemm,
    GroupedGemm,
    IndexScores,
    Norm,
    Operator,
    Quantisation,
    StateUpdate,
)

DENSE = ("llama2_7b", "llama2_70b", "llama3_1_8b", "qwen3_32b", "gpt2_xl", "gpt3_175b")


def matrix_flops(operators: tuple[Operator, ...]) -> float:
    total = 0.0
    for o in operators:
        if isinstance(o, Gemm):
            total += 2.0 * o.repeat * float(o.m * o.n * o.k * o.batch)
        if isinstance(o, GroupedGemm):
            total += 2.0 * o.repeat * float(o.tokens * o.top_k * o.n * o.k)
    return total


@pytest.mark.parametrize("name", DENSE)
def test_token_costs_two_flops_per_weight(name: str) -> None:
    # Kaplan et al., Scaling laws (2020): 2N per token forward, embeddings aside.
    model = load_model(name)
    tokens = 512.0
    got = matrix_flops(forward(model, Parallelism(), prefill_step(1.0, tokens), "fp16", "fp16"))
    tables = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    weights = model.parameters - tables - model.learned_positions * model.hidden
    head = 2.0 * model.vocab * model.hidden
    assert got == pytest.approx(2.0 * weights * tokens + head, rel=0.002)


@pytest.mark.parametrize("name", ["mixtral_8x7b"])
def test_moe_token_costs_two_flops_per_active_weight(name: str) -> None:
    model = load_model(name)
    tokens = 512.0
    got = matrix_flops(forward(model, Parallelism(), prefill_step(1.0, tokens), "fp16", "fp16"))
    weights = model.active_parameters - 2 * model.vocab * model.hidden
    head = 2.0 * model.vocab * model.hidden
    assert got == pytest.approx(2.0 * weights * tokens + head, rel=0.002)


@pytest.mark.parametrize(("tokens", "parts"), [(4, 4), (64, 8), (2048, 2)])
def test_busiest_expert_rank_matches_random_draws(tokens: int, parts: int) -> None:
    model, rng = load_model("qwen3_235b"), np.random.default_rng(7)
    most = []
    for _ in range(400):
        keys = rng.random((tokens, model.experts))
        chosen = np.argpartition(keys, model.top_k, axis=1)[:, : model.top_k]
        rows = np.bincount(chosen.ravel() * parts // model.experts, minlength=parts)
        most.append(rows.max() / rows.mean())
    assert busiest_share(model, parts, float(tokens)) == pytest.approx(np.mean(most), rel=0.04)


@given(
    name=st.sampled_from(["llama2_7b", "llama2_70b", "mixtral_8x7b", "deepseek_v3"]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 3, 4]),
    batch=st.integers(1, 64),
    context=st.integers(1, 4096),
)
def test_shards_do_the_work_of_the_whole_model(
    name: str, tp: int, pp: int, batch: int, context: int
) -> None:
    model, layout = load_model(name), Parallelism(tp, pp)
    step = decode_step(float(batch), float(context))
    whole = matrix_flops(forward(model, Parallelism(), step, "fp16", "fp16"))
    parts = [matrix_flops(forward(model, layout, step, "fp16", "fp16", s)) for s in range(pp)]
    # Routers and latent down-projections run whole on every rank, so the parts may do more.
    assert sum(parts) * tp >= whole * (1 - 1e-12)
    if name.startswith("llama"):
        assert sum(parts) * tp == pytest.approx(whole, rel=1e-12)


@given(chunks=st.lists(st.integers(1, 2000), min_size=1, max_size=6))
def test_prefill_chunks_score_the_pairs_of_the_whole_prompt(chunks: list[int]) -> None:
    past, pairs = 0, 0.0
    for chunk in chunks:
        pairs += chunk * past + chunk * (chunk + 1) / 2
        past += chunk
    assert pairs == prefill_step(1.0, float(past)).prefill_pairs


def test_qk_norm_is_per_head_or_over_all_heads() -> None:
    step = decode_step(10.0, 1024.0)
    rows: dict[str, list[tuple[Column, Column, float]]] = {}
    for name in ("qwen3_32b", "minimax_m2_5", "llama3_1_8b"):
        operators = forward(load_model(name), Parallelism(tp=2), step, "fp16", "fp16")
        rows[name] = [
            (o.rows, o.cols, o.repeat)
            for o in operators
            if isinstance(o, Norm) and o.name == "qk_norm"
        ]
    assert rows["qwen3_32b"] == [(10 * (32 + 4), 128, 64)]
    assert rows["minimax_m2_5"] == [(10 * 2, (24 + 4) * 128 / 2, 62)]
    assert rows["llama3_1_8b"] == []


def test_all_reduce_follows_every_attention_and_feed_forward() -> None:
    model = load_model("llama2_70b")
    operators = forward(model, Parallelism(tp=8), decode_step(16.0, 100.0), "fp16", "fp16")
    sums = [o for o in operators if isinstance(o, Collective) and o.kind == "all_reduce"]
    assert [(o.repeat, o.ranks) for o in sums] == [(2 * 80 + 1, 8)]
    assert sums[0].size_bytes == 16 * 8192 * 2


def test_only_parallel_models_communicate() -> None:
    step = decode_step(1.0, 1.0)
    alone = forward(load_model("llama2_7b"), Parallelism(), step, "fp16", "fp16")
    assert not [o for o in alone if isinstance(o, Collective)]
    first = forward(load_model("llama2_7b"), Parallelism(pp=2), step, "fp16", "fp16", 0)
    assert [o.kind for o in first if isinstance(o, Collective)] == ["send_recv"]


def test_fused_chains_move_the_bytes_of_one_fused_layer() -> None:
    # Per layer and T tokens: residual and norm 8Th in all, activation of a plain block 2Tf.
    model = load_model("gpt3_175b")
    tokens = 100.0
    operators = forward(model, Parallelism(), prefill_step(1.0, tokens), "fp16", "fp16")
    moved = {
        o.name: float(o.elements) * (o.reads + o.writes)
        for o in operators
        if isinstance(o, Elementwise)
    }
    assert moved["attention_norm"] + moved["ffn_norm"] == 8 * tokens * model.hidden
    assert moved["ffn_activation"] == 2 * tokens * model.ffn


def test_mla_decode_reads_one_latent_per_key() -> None:
    # DeepSeek-V3: 512 + 64 numbers a token and layer, whatever the heads.
    model = load_model("deepseek_v3")
    operators = forward(model, Parallelism(tp=8), decode_step(4.0, 1000.0), "bf16", "bf16")
    (attention,) = [o for o in operators if isinstance(o, Attention) and o.phase == "decode"]
    numbers = 2 * attention.kv_heads * attention.head_dim * float(attention.kv_tokens)
    assert numbers == pytest.approx(4 * 1000 * 576)
    flops = 4 * attention.heads * attention.head_dim * float(attention.pairs)
    assert flops == pytest.approx(2 * 16 * 4000 * (576 + 512))


def test_sparse_attention_limits_a_query_to_the_top_keys() -> None:
    model = load_model("glm_5")
    for context, seen in ((1500.0, 1500.0), (9000.0, 2048.0)):
        shard = Shard(model, Parallelism(tp=8), stage_of(model, Parallelism(), 0), "fp8", "fp8")
        operators = decode_operators(shard, decode_step(4.0, context))
        (attention,) = [o for o in operators if isinstance(o, Attention)]
        (scores,) = [o for o in operators if o.name == "index_scores"]
        assert isinstance(scores, IndexScores)
        assert attention.kv_tokens == pytest.approx(4.0 * seen)
        assert scores.pairs == pytest.approx(4.0 * context)


def test_short_prompts_use_dense_attention_in_sparse_models() -> None:
    model, pairs = load_model("glm_5"), []
    for tokens in (2048.0, 8192.0):
        shard = Shard(model, Parallelism(), stage_of(model, Parallelism(), 0), "fp8", "fp8")
        operators = prefill_operators(shard, prefill_step(2.0, tokens))
        dense, sparse = (o for o in operators if isinstance(o, Attention))
        pairs.append((float(np.asarray(dense.pairs)), float(np.asarray(sparse.pairs))))
    assert pairs[0] == (2.0 * 2048 * 2049 / 2, 1.0)
    assert pairs[1] == (1.0, 2.0 * 8192 * 2048)


def test_engine_without_a_dense_path_indexes_short_prompts() -> None:
    model = load_model("glm_5")
    shard = Shard(model, Parallelism(), stage_of(model, Parallelism(), 0), "fp8", "fp8")
    operators = prefill_operators(shard, prefill_step(2.0, 100.0), chooses=True)
    dense, sparse = (o for o in operators if isinstance(o, Attention))
    assert (float(np.asarray(dense.pairs)), float(np.asarray(sparse.pairs))) == (1.0, 10_100.0)


@pytest.mark.parametrize("tp", [1, 8])
def test_state_space_layers_convolve_and_update_states(tp: int) -> None:
    # Qwen3.5: 45 of 60 layers; 16 key and 64 value heads of 128 numbers, a state of 128 x 128 each.
    model, layout = load_model("qwen3_5_397b"), Parallelism(tp=tp)
    step = replace(prefill_step(2.0, 1000.0), decodes=4.0, decode_kv_tokens=4.0)
    operators = forward(model, layout, step, "bf16", "bf16")
    updates = {o.phase: o for o in operators if isinstance(o, StateUpdate)}
    mixed = {o.phase: o for o in operators if isinstance(o, CausalConvolution)}
    for phase, requests, tokens in (("prefill", 2.0, 2000.0), ("decode", 4.0, 4.0)):
        update, convolution = updates[phase], mixed[phase]
        assert update.repeat == convolution.repeat == 45
        assert (update.requests, update.tokens, update.rule) == (requests, tokens, "delta")
        assert (convolution.requests, convolution.tokens) == (requests, tokens)
        assert convolution.channels == (2 * 16 + 64) * 128 / tp
        assert update.value_heads * update.key_dim * update.value_dim == 64 * 128 * 128 / tp


def test_mamba_layer_uses_a_separate_update_rule(tmp_path: Path) -> None:
    # As Granite 4.0's hybrids: 64 heads of 64 numbers, states of 128, one group, 36 of 40 layers.
    file = tmp_path / "hybrid.toml"
    file.write_text(
        'source = "a test"\nlayers = 40\nhidden = 2048\nheads = 32\nkv_heads = 8\nhead_dim = 64\n'
        "ffn = 8192\nvocab = 100352\nmax_context = 131072\nattention_every = 10\n"
        'state_rule = "ssd"\nstate_key_heads = 1\nstate_value_heads = 64\nstate_head_dim = 128\n'
        "state_value_dim = 64\n"
    )
    model = load_model(str(file))
    operators = forward(model, Parallelism(), decode_step(4.0, 100.0), "bf16", "bf16")
    update = next(o for o in operators if isinstance(o, StateUpdate) and o.phase == "decode")
    convolution = next(o for o in operators if isinstance(o, CausalConvolution))
    projected = next(o for o in operators if o.name == "state_in_proj")
    assert (update.rule, update.repeat) == ("ssd", 36)
    assert (update.value_heads, update.value_dim, update.key_dim) == (64, 64, 128)
    assert convolution.channels == 64 * 64 + 2 * 128
    assert isinstance(projected, Gemm)
    assert projected.n == 2 * 64 * 64 + 2 * 128  # values and their gate, keys and queries
    file.write_text(file.read_text().replace("ssd", "rwkv"))
    with pytest.raises(UserError, match="delta or kda or ssd"):
        load_model(str(file))


@pytest.mark.parametrize(("dtype", "to"), [("fp8", "fp8"), ("fp4", "fp4"), ("w8a8", "int8")])
@pytest.mark.parametrize("name", ["llama3_1_8b", "deepseek_v3", "qwen3_5_397b"])
def test_attention_output_is_quantized_for_quantized_gemms(name: str, dtype: str, to: str) -> None:
    model, layout, step = load_model(name), Parallelism(tp=8), decode_step(4.0, 9.0)
    operators = forward(model, layout, step, dtype, "fp8")
    (quantise,) = [o for o in operators if isinstance(o, Quantisation)]
    (product,) = [o for o in operators if o.name == "o_proj" and isinstance(o, Gemm)]
    assert (quantise.rows, quantise.cols) == (product.m, product.k)
    assert (quantise.to, quantise.repeat) == (to, product.repeat)
    for wide in ("bf16", "w4a16"):
        operators = forward(model, layout, step, wide, "fp16")
        assert not any(isinstance(o, Quantisation) for o in operators)


def test_w4a16_models_store_four_bits_and_multiply_sixteen() -> None:
    operators = forward(
        load_model("llama2_7b"), Parallelism(), decode_step(1.0, 4.0), "w4a16", "fp16"
    )
    layers = [o for o in operators if isinstance(o, Gemm) and o.name != "lm_head"]
    assert {(o.dtype, o.weight_dtype) for o in layers} == {("fp16", "int4")}
    (head,) = [o for o in operators if o.name == "lm_head"]
    assert isinstance(head, Gemm)
    assert (head.dtype, head.weight_dtype) == ("fp16", "")


def test_operator_sizes_accept_columns() -> None:
    step = Step(
        decodes=np.array([1.0, 2.0]), decode_kv_tokens=np.array([5.0, 9.0]), logits_rows=1.0
    )
    operators = forward(load_model("gpt2"), Parallelism(), step, "fp16", "fp16")
    (qkv,) = [o for o in operators if o.name == "qkv_proj"]
    assert isinstance(qkv, Gemm)
    assert np.array_equal(qkv.m, [1.0, 2.0])
