"""Memory of published configurations, and laws for every parallelism."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.catalog.model import load_model
from simulators.core.errors import Infeasible
from simulators.workload.llm.memory import (
    activation_bytes,
    kv_bytes_per_token,
    stage_weights,
    weight_bytes,
)
from simulators.workload.llm.parallelism import (
    Parallelism,
    attending_layers,
    check_blocks,
    check_layout,
    stage_of,
)

GB, GIB, KIB = 1e9, 2**30, 2**10

# model, tp, pp, dtype, bytes of weights on one GPU, and who says so.
WEIGHTS = [
    ("llama2_7b", 1, 1, "fp16", 13.48 * GB, "meta-llama/Llama-2-7b-hf, size of the checkpoint"),
    ("llama2_13b", 1, 1, "fp16", 26.03 * GB, "meta-llama/Llama-2-13b-hf, size of the checkpoint"),
    ("llama2_70b", 1, 1, "fp16", 138.0 * GB, "meta-llama/Llama-2-70b-hf, size of the checkpoint"),
    ("llama3_1_8b", 1, 1, "bf16", 14.99 * GIB, "vLLM log: model weights take 14.99 GiB"),
    ("llama3_1_70b", 4, 1, "bf16", 32.89 * GIB, "vLLM log at tp 4: model weights take 32.89 GiB"),
    ("mixtral_8x7b", 1, 1, "bf16", 93.4 * GB, "mistralai/Mixtral-8x7B-v0.1, size of checkpoint"),
    ("deepseek_v3", 1, 1, "fp8", 671 * GB, "DeepSeek-V3 README: 671 B parameters in FP8"),
    ("gpt_oss_120b", 1, 1, "bf16+w4a16", 64.38 * GIB, "vLLM log: model loading took 64.38 GiB"),
    ("gpt3_175b", 8, 1, "fp16", 346 * GB / 8, "vLLM paper, table 1: OPT-175B, 346 GB on 8 GPUs"),
]

# model, bytes of KV cache of one token, and who says so.
KV_CACHE = [
    ("llama2_7b", 512 * KIB, "2 x 32 layers x 4096 x 2 bytes; CacheGen and others: 0.5 MB a token"),
    ("llama2_13b", 800 * KIB, "vLLM paper, section 3: 800 KB a token for a 13B model"),
    ("llama2_70b", 320 * KIB, "GQA, Ainslie et al.: an eighth of 2.5 MiB"),
    ("llama3_1_8b", 128 * KIB, "Mooncake, FAST 2025: 8 KV heads of 128, 32 layers"),
    ("llama3_1_405b", 516_096, "Llama 3.1 blog of Hugging Face: 123 GB for 128k tokens, 2 bytes"),
    ("deepseek_v3", 70_272, "DeepSeek-V3 on one page, ISCA 2025, table 1: 70.272 KB a token"),
]


@pytest.mark.parametrize(("name", "tp", "pp", "dtype", "expected", "source"), WEIGHTS)
def test_weight_bytes_match_published_sizes(
    name: str, tp: int, pp: int, dtype: str, expected: float, source: str
) -> None:
    got = weight_bytes(load_model(name), Parallelism(tp, pp), dtype)
    assert got == pytest.approx(expected, rel=0.05), source


@pytest.mark.parametrize(("name", "expected", "source"), KV_CACHE)
def test_kv_bytes_per_token_match_published_sizes(name: str, expected: float, source: str) -> None:
    got = kv_bytes_per_token(load_model(name), Parallelism(), "bf16")
    assert got == pytest.approx(expected, rel=0.05), source


cuts = st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4, 8]))
untied = st.sampled_from(
    ["llama2_7b", "llama2_70b", "llama3_1_8b", "mixtral_8x7b", "qwen3_32b", "deepseek_v3"]
)


@given(name=untied, layout=cuts)
def test_shards_sum_to_the_whole_model(name: str, layout: tuple[int, int]) -> None:
    model, parallelism = load_model(name), Parallelism(*layout)
    shares = [stage_weights(model, parallelism, "fp16", s) for s in range(parallelism.pp)]
    whole = sum(parallelism.tp * share.split + share.copied for share in shares)
    assert whole == pytest.approx(2 * model.parameters, rel=1e-12)


@given(name=st.sampled_from(["gpt2", "gpt2_xl", "gpt3_175b"]))
def test_tied_embedding_is_stored_once_on_one_gpu_and_twice_in_a_pipeline(name: str) -> None:
    model = load_model(name)
    assert weight_bytes(model, Parallelism(), "fp16") == pytest.approx(2 * model.parameters)
    shares = [stage_weights(model, Parallelism(pp=2), "fp16", stage) for stage in range(2)]
    table = model.vocab * model.hidden
    assert sum(s.total for s in shares) == pytest.approx(2 * (model.parameters + table))


@given(name=untied, pp=st.integers(1, 32))
def test_pipeline_stages_hold_every_layer_once(name: str, pp: int) -> None:
    model = load_model(name)
    stages = [stage_of(model, Parallelism(pp=pp), stage) for stage in range(pp)]
    assert sum(s.layers for s in stages) == model.layers
    assert sum(s.expert_layers for s in stages) == model.expert_layers
    assert max(s.layers for s in stages) - min(s.layers for s in stages) <= 1
    assert [s.has_embedding for s in stages] == [i == 0 for i in range(pp)]
    assert [s.has_head for s in stages] == [i == pp - 1 for i in range(pp)]


def test_kv_heads_fewer_than_ranks_are_replicated() -> None:
    model = load_model("llama2_70b")
    eight, sixteen = (kv_bytes_per_token(model, Parallelism(tp), "fp16") for tp in (8, 16))
    assert eight == sixteen == kv_bytes_per_token(model, Parallelism(), "fp16") / 8


def test_mla_latents_are_replicated_on_every_rank() -> None:
    model = load_model("deepseek_v3")
    whole = kv_bytes_per_token(model, Parallelism(), "bf16")
    assert kv_bytes_per_token(model, Parallelism(tp=8), "bf16") == whole


def test_sparse_attention_indexer_stores_a_separate_key() -> None:
    model = load_model("glm_5")
    assert kv_bytes_per_token(model, Parallelism(), "bf16") == 78 * (2 * 576 + 128 + 4)
    four, eight = (weight_bytes(model, Parallelism(tp), "bf16") for tp in (4, 8))
    copied = 2.0 * eight - four
    assert copied > 78 * 2.0 * model.index_parameters


@given(tokens=st.integers(1, 10**6), rows=st.integers(0, 10**4), tp=st.sampled_from([1, 2, 4, 8]))
def test_workspace_grows_with_tokens_and_shrinks_with_tp(tokens: int, rows: int, tp: int) -> None:
    model = load_model("llama2_70b")
    here = activation_bytes(model, Parallelism(tp), "fp16", float(tokens), float(rows))
    more = activation_bytes(model, Parallelism(tp), "fp16", 2.0 * tokens, float(rows))
    alone = activation_bytes(model, Parallelism(), "fp16", float(tokens), float(rows))
    assert more > here > 0
    assert alone >= here >= alone / tp - 1e-6


def test_expert_workspace_holds_the_tokens_of_all_ranks() -> None:
    # Llama 4 Maverick: hidden 5,120, dense layers of 16,384, one expert of 8,192 for each token.
    model = load_model("llama4_maverick")
    own, ranks = 2 * 5120 * 2.0, 8
    dense = own + 3 * 16_384 * 2.0
    assert activation_bytes(model, Parallelism(), "bf16", 1000.0, 0.0) == 1000 * dense
    gathered = ranks * (5120 * (2.0 + 2.0) + 8192 * 2.0 + 2 * 8192 * 2.0)
    layout = Parallelism(ep=ranks, attention_dp=ranks)
    assert activation_bytes(model, layout, "bf16", 8192.0, 0.0) == 8192 * (own + gathered)
    less = activation_bytes(model, layout, "bf16", 16_384.0, 0.0)
    assert less < 2.0 * 8192 * (own + gathered)  # experts run in chunks


@pytest.mark.parametrize(
    ("name", "layout", "reason"),
    [
        ("gpt2", Parallelism(tp=8), "tp_does_not_divide_heads"),
        ("gpt2", Parallelism(pp=13), "pp_exceeds_layers"),
        ("gpt2", Parallelism(tp=0), "no_gpus"),
    ],
)
def test_impossible_parallelism_is_infeasible(name: str, layout: Parallelism, reason: str) -> None:
    with pytest.raises(Infeasible, match=reason):
        check_layout(load_model(name), layout)


SPLIT = [  # model, cut, precision, what vLLM says of the slice: refused because of it, or ""
    ("qwen3_235b", Parallelism(tp=4), "fp8_block", ""),  # 1536 / 4 = 3 x 128
    ("qwen3_235b", Parallelism(tp=8), "fp8_block", "expert_ffn 1536 over 8 GPUs is 192.*tp 4 is"),
    ("qwen3_235b", Parallelism(tp=8, ep=8), "fp8_block", ""),  # experts stay whole
    ("qwen3_235b", Parallelism(tp=8), "fp8", ""),  # a scale for the whole matrix
    ("minimax_m2_5", Parallelism(tp=8), "fp8_block", "expert_ffn .* is 192"),
    ("qwen3_coder_480b", Parallelism(tp=8), "fp8_block", "expert_ffn .* is 320.*tp 4 is"),
    ("deepseek_v3", Parallelism(tp=16), "fp8_block", ""),  # 2048 / 16 = 128, 18432 / 16 = 9 x 128
    ("deepseek_v3", Parallelism(tp=32), "fp8_block", "ffn 18432 over 32 GPUs is 576.*tp 16 is"),
    ("glm_4_7", Parallelism(tp=8), "fp8_block", ""),  # its checkpoint scales channels
    ("glm_4_7", Parallelism(tp=8), "w4a16", "shared expert_ffn 1536 over 8 GPUs is 192"),
    ("llama2_7b", Parallelism(tp=2), "w4a16", ""),  # 11008 / 2 = 43 x 128
    ("llama2_7b", Parallelism(tp=4), "w4a16", "ffn 11008 over 4 GPUs is 2752.*tp 2 is"),
    ("llama2_7b", Parallelism(tp=4), "fp16", ""),
    ("qwen2_5_72b", Parallelism(tp=8), "w4a16", ""),  # padded to 29696 = 8 x 29 x 128
    ("qwen3_30b", Parallelism(tp=4), "w4a16", ""),  # groups of experts are halved
    ("qwen3_30b", Parallelism(tp=4), "bf16+fp8_block", "expert_ffn 768 over 4 GPUs is 192"),
    ("llama3_2_1b", Parallelism(tp=8), "fp8_block", "kv_heads x head_dim 512 over 8 GPUs is 64"),
    ("llama3_2_1b", Parallelism(tp=8), "w4a16", ""),  # groups run along inputs only
    ("qwen2_5_0_5b", Parallelism(tp=2), "w4a16", "heads .* 896 over 2 GPUs is 448.*tp 1 is"),
    ("qwen2_5_0_5b", Parallelism(tp=7), "w4a16", "ffn 4864 over 7 GPUs .*tp 1 is"),
    ("gpt2_xl", Parallelism(tp=5), "w4a16", "heads .* 1600 over 5 GPUs is 320.*tp 1 is"),
    ("gpt2_xl", Parallelism(), "w4a16", ""),  # nothing is cut
    ("qwen3_235b", Parallelism(attention_dp=8), "fp8_block", ".* is 192.*no smaller tp works"),
]


@pytest.mark.parametrize(("name", "layout", "dtype", "refusal"), SPLIT)
def test_quantization_blocks_are_not_split_across_ranks(
    name: str, layout: Parallelism, dtype: str, refusal: str
) -> None:
    model = load_model(name)
    if not refusal:
        check_blocks(model, layout, dtype)
        return
    with pytest.raises(Infeasible, match=f"tp_cuts_blocks: {refusal}"):
        check_blocks(model, layout, dtype)


def test_hybrid_layers_are_spread_evenly_over_stages() -> None:
    model = load_model("llama2_7b")
    part = stage_of(model, Parallelism(pp=2), 0)
    shares = [attending_layers(replace(model, attention_every=n), part) for n in (1, 2, 3)]
    assert shares == [16, 8, 16 / 3]


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (Parallelism(tp=0), "no_gpus: tp 0, pp 1"),
        (Parallelism(pp=0), "no_gpus: tp 1, pp 0"),
        (Parallelism(ep=0), "ep_does_not_divide_gpus: ep 0, 1 GPUs"),
        (Parallelism(attention_dp=0), "ep_does_not_divide_gpus: ep 1, 0 GPUs"),
        (Parallelism(tp=2, ep=4), "ep_does_not_divide_gpus: ep 4, 2 GPUs"),
        (Parallelism(tp=3, ep=3), "ep_does_not_divide_experts: ep 3, mixtral_8x7b has 8"),
        (Parallelism(tp=3), "tp_does_not_divide_heads: tp 3, mixtral_8x7b has 32"),
        (Parallelism(pp=33), "pp_exceeds_layers: pp 33, mixtral_8x7b has 32"),
    ],
)
def test_impossible_parallelism_has_a_reason(layout: Parallelism, reason: str) -> None:
    with pytest.raises(Infeasible, match=reason):
        check_layout(load_model("mixtral_8x7b"), layout)


def test_valid_parallelism_is_accepted() -> None:
    check_layout(load_model("mixtral_8x7b"), Parallelism(pp=32))
    check_layout(load_model("mixtral_8x7b"), Parallelism(tp=4, attention_dp=2, ep=8))
    with pytest.raises(Infeasible, match="ep_does_not_divide_experts: ep 2, llama2_7b has 0"):
        check_layout(load_model("llama2_7b"), Parallelism(tp=2, ep=2))
