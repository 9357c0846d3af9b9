"""Hugging Face configs of every layer type: parameters, cache and states worked out by hand.

The configs are small and invented. Products of small numbers are written as the layers hold them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from formats.checkpoint import described
from simulators.catalog.model import LanguageModel, load_model
from simulators.core.errors import UserError
from simulators.workload.llm.memory import (
    kv_bytes_per_token,
    sequence_bytes,
    stage_weights,
    state_bytes,
)
from simulators.workload.llm.parallelism import Parallelism, attentions, stage_of
from simulators.workload.llm.step import decode_step
from simulators.workload.llm.transformer import forward
from simulators.workload.operators import Attention, Gemm
from sweeper.commands.show import main as show

ONE, KIB = Parallelism(), 1024
CONTEXTS = (1 * KIB, 32 * KIB, 256 * KIB)

SHARED: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 1000,
    "max_position_embeddings": 300_000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
TABLES = 2 * 1000 * 64 + 64  # embedding, LM head, and the last norm
NORMS = 4 * 2 * 64
QKVO = 64 * (8 + 2 + 2 + 8) * 16  # projections of one layer with grouped queries
FFN = 3 * 64 * 96

WINDOWED = SHARED | {
    "model_type": "gpt_oss",
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 128,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
BIASES = 64 + (8 + 2 + 2) * 16  # of one layer's attention; those of experts are not counted
CHUNKED = SHARED | {
    "model_type": "llama4_text",
    "num_hidden_layers": 8,
    "attention_chunk_size": 8192,
    "interleave_moe_layer_step": 2,
    "intermediate_size": 32,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
}
EXPERT_32 = 3 * 64 * 32
GATED_DELTA = SHARED | {
    "model_type": "qwen3_5_text",
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "attn_output_gate": True,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
DELTA = (
    64 * (16 + 16 + 32 + 32 + 32) + 64 * 8 + 4 * (16 + 16 + 32)
)  # q, k, v, gate, out; b, a; conv
MAMBA = SHARED | {
    "model_type": "nemotron_h",
    "num_hidden_layers": 7,
    "hybrid_override_pattern": "MEM*EME",
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 32,
    "conv_kernel": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 48,
    "moe_latent_size": 20,
}
SSD = 64 * (128 + 128 + 64 + 64 + 8) + 128 * 64 + 4 * (128 + 64 + 64)  # z, x, B, C, dt; out; conv
LATENT_MIXTURE = 64 * 16 + 2 * 64 * 20 + 16 * 2 * 20 * 24 + 2 * 64 * 48  # router, latent, experts
TWO_SIZES = SHARED | {
    "model_type": "gemma4_text",
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "sliding_window": 1024,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "tie_word_embeddings": True,
}
VALUES = SHARED | {
    "model_type": "mimo_v2_flash",
    "hybrid_layer_pattern": [0, 1, 1, 1],
    "moe_layer_freq": [0, 1, 1, 1],
    "sliding_window": 128,
    "v_head_dim": 8,
    "swa_num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
LATENT = SHARED | {
    "model_type": "glm_moe_dsa",
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 16,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 64,
    "indexer_types": ["full", "shared", "full", "shared"],
}
MLA = 64 * 24 + 24 + 24 * 8 * 16 + 64 * 36 + 32 + 32 * 8 * (12 + 16) + 8 * 16 * 64
INDEXER = 24 * 2 * 16 + (64 + 2) * 16 + 64 * 2
COMPRESSED = {key: value for key, value in SHARED.items() if key != "intermediate_size"} | {
    "model_type": "deepseek_v4",
    "num_key_value_heads": 1,
    "compress_ratios": [0, 4, 128, 4],
    "sliding_window": 128,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 4,
    "o_groups": 2,
    "o_lora_rank": 12,
    "hc_mult": 2,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
}
COMPRESSED_QKVO = 64 * 24 + 24 + 24 * 128 + 64 * 16 + 16 + 128 * 12 + 2 * 12 * 64
BY_FOUR = 2 * (2 * 64 + 4) * 16 + 16  # two overlapping windows: values and gates, positions; norm
BY_128 = (2 * 64 + 128) * 16 + 16
COMPRESSED_INDEXER = 24 * 2 * 16 + BY_FOUR + 64 * 2
STREAMS = 4 * 2 * (2 * 2 + 2 * 2) * 2 * 64  # before, after and between two streams, per block
BLOCK_SPARSE = SHARED | {
    "model_type": "minimax_m3",
    "use_qk_norm": True,
    "dense_intermediate_size": 96,
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 1, 1, 1],
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 16,
        "sparse_topk_blocks": 2,
        "sparse_block_size": 32,
    },
}
KIMI_DELTA = LATENT | {
    "model_type": "kimi_linear",
    "linear_attn_config": {
        "full_attn_layers": [2, 4],
        "kda_layers": [1, 3],
        "head_dim": 8,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
    },
    "mla_use_output_gate": True,
    "attn_res_block_size": 2,
}
for key in ("index_n_heads", "index_head_dim", "index_topk", "indexer_types"):
    del KIMI_DELTA[key]
NARROW_GATES = KIMI_DELTA | {
    "linear_attn_config": KIMI_DELTA["linear_attn_config"] | {"use_full_rank_gate": False},
    "mla_use_output_gate": False,
    "attn_res_block_size": None,
}
KDA = 64 * 4 * 32 + 64 * 4 + 64 * 8 + 8 * 32 + 4 * 96  # q, k, v, out; beta; decays; convolution
SPARSE_INDEXER = 64 * 2 * 16 + (64 + 2) * 16 + 64 * 2

# config, parameters, those without unused experts, bytes of one token in layers without a window,
# of one token in layers with a window, the window, and bytes of states
BY_HAND = {
    "plain": (SHARED | {"model_type": "llama"}, TABLES + NORMS + 4 * (QKVO + FFN), 0, 512, 0, 0, 0),
    "windows": (
        WINDOWED,
        TABLES + NORMS + 4 * (QKVO + BIASES + 64 * 8 + 8 * FFN),
        4 * 6 * FFN,
        2 * 128,
        2 * 128,
        128,
        0,
    ),
    "chunks": (
        CHUNKED,
        TABLES + 2 * NORMS + 8 * QKVO + 4 * FFN + 4 * (64 * 4 + 5 * EXPERT_32),
        4 * 3 * EXPERT_32,
        2 * 128,
        6 * 128,
        8192,
        0,
    ),
    "gated delta": (
        GATED_DELTA,
        TABLES + NORMS + QKVO + 64 * 128 + 2 * 16 + 3 * DELTA + 4 * FFN,
        0,
        128,
        0,
        0,
        3 * (4 * 8 * 8 * 4 + 3 * (16 + 16 + 32) * 2),
    ),
    "Mamba-2": (
        MAMBA,
        TABLES + 7 * 64 + QKVO + 3 * SSD + 3 * LATENT_MIXTURE,
        3 * 12 * 2 * 20 * 24,
        128,
        0,
        0,
        3 * (8 * 16 * 32 * 4 + 3 * (128 + 64 + 64) * 2),
    ),
    "two head sizes": (
        TWO_SIZES,
        1000 * 64 + 64 + NORMS + 3 * (QKVO + 32) + 64 * (8 + 1 + 8) * 32 + 64 + 4 * FFN,
        0,
        2 * 32 * 2,
        3 * 128,
        1024,
        0,
    ),
    "narrow values": (
        VALUES,
        TABLES
        + NORMS
        + 64 * (8 * 16 + 2 * (16 + 8) + 8 * 8)
        + 3 * 64 * (8 * 16 + 4 * (16 + 8) + 8 * 8)
        + FFN
        + 3 * (64 * 8 + 8 * EXPERT_32),
        3 * 6 * EXPERT_32,
        2 * (16 + 8) * 2,
        3 * 4 * (16 + 8) * 2,
        128,
        0,
    ),
    "compressed keys": (
        COMPRESSED,
        TABLES
        + NORMS
        + STREAMS
        + 4 * COMPRESSED_QKVO
        + 2 * (BY_FOUR + COMPRESSED_INDEXER)
        + BY_128
        + 4 * (64 * 8 + 9 * EXPERT_32),
        4 * 6 * EXPERT_32,
        (2 / 4 + 1 / 128) * 16 * 2 + 2 * (16 + 4) / 4,
        4 * 16 * 2,
        128,
        0,
    ),
    "block-sparse": (
        BLOCK_SPARSE,
        TABLES + NORMS + 4 * (QKVO + 32 + FFN) + 3 * SPARSE_INDEXER,
        0,
        4 * 128 + 3 * (16 + 4),
        0,
        0,
        0,
    ),
    "Kimi delta": (
        KIMI_DELTA,
        TABLES + NORMS + 8 * 64 + 2 * (MLA + 64 * 8 * 16) + 2 * (KDA + 64 * 32) + 4 * FFN,
        0,
        2 * 36 * 2,
        0,
        0,
        2 * (4 * 8 * 8 * 4 + 3 * 96 * 2),
    ),
    "Kimi delta, narrow gates": (
        NARROW_GATES,
        TABLES + NORMS + 2 * MLA + 2 * (KDA + 64 * 8 + 8 * 32) + 4 * FFN,
        0,
        2 * 36 * 2,
        0,
        0,
        2 * (4 * 8 * 8 * 4 + 3 * 96 * 2),
    ),
    "shared indexers": (
        LATENT,
        TABLES + NORMS + 4 * MLA + 2 * INDEXER + 4 * FFN,
        0,
        4 * 36 * 2 + 2 * (16 + 4),
        0,
        0,
        0,
    ),
}


def _model(folder: Path, config: dict[str, Any]) -> LanguageModel:
    return load_model(str(_written(folder, config)))


def _written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", BY_HAND)
def test_parameters_and_cache_equal_the_hand_calculation(tmp_path: Path, name: str) -> None:
    config, parameters, unused, full, windowed, window, states = BY_HAND[name]
    model = _model(tmp_path, config)
    assert model.parameters == parameters
    assert model.active_parameters == parameters - unused
    assert state_bytes(model, ONE) == states
    whole = 0 if "compress_ratios" in config else windowed  # its windows are never kept whole
    assert kv_bytes_per_token(model, ONE, "bf16", whole_windows=True) == full + whole
    for context in CONTEXTS:
        by_hand = context * full + min(context, window) * windowed + states
        assert sequence_bytes(model, ONE, "bf16", float(context)) == by_hand


@pytest.mark.parametrize("name", BY_HAND)
def test_stages_hold_all_weights_of_a_config(tmp_path: Path, name: str) -> None:
    model = _model(tmp_path, BY_HAND[name][0])
    for pp in (1, 2):
        shares = [stage_weights(model, Parallelism(pp=pp), "bf16", stage) for stage in range(pp)]
        held = sum(share.total for share in shares)
        tied = 2 * model.vocab * model.hidden * (pp - 1) * model.tied_embeddings  # on both ends
        assert held == pytest.approx(2 * model.parameters + tied)


@pytest.mark.parametrize("name", BY_HAND)
def test_products_of_a_step_read_every_weight_around_attention(tmp_path: Path, name: str) -> None:
    model = _model(tmp_path, BY_HAND[name][0])
    operators = forward(model, ONE, decode_step(1.0, 64.0), "bf16", "bf16")
    read = {"qkv_proj": 0.0, "o_proj": 0.0, "state_in_proj": 0.0, "state_out_proj": 0.0}
    for one in operators:
        if isinstance(one, Gemm) and one.name in read:
            read[one.name] += one.n * one.k * one.repeat
    if not model.is_latent:
        kinds = attentions(model, stage_of(model, ONE, 0))
        beside = model.biases * BIASES + model.index_parameters
        small = sum(n * (m.qk_norm_parameters + beside) for n, m in kinds)
        weights = sum(n * m.attention_parameters for n, m in kinds) - small
        indexed = 0.0
        if model.index_top_k:  # queries and the key of an indexer, projected with the others
            numbers = (model.index_heads + 1) * model.index_head_dim * model.hidden
            indexed = model.layers * model.index_share * numbers
        assert read["qkv_proj"] + read["o_proj"] == pytest.approx(weights + indexed)
    gate = 0 if model.state_gate_rank else model.state_values
    projections = model.hidden * 2 * (model.state_keys + model.state_values) + model.hidden * gate
    states = model.state_layers * projections
    assert read["state_in_proj"] + read["state_out_proj"] == pytest.approx(states)


def test_compressed_layers_attend_to_the_window_and_to_chosen_keys(tmp_path: Path) -> None:
    model = _model(tmp_path, COMPRESSED)
    operators = forward(model, ONE, decode_step(1.0, 4096.0), "bf16", "bf16")
    seen = {
        one.name: (one.kv_tokens, one.repeat) for one in operators if isinstance(one, Attention)
    }
    assert seen["decode_attention"] == (128.0, 1.0)  # the window alone
    assert seen["decode_attention_4"] == (128.0 + 64.0, 2.0)  # and the indexer's choice
    assert seen["decode_attention_128"] == (128.0 + 4096.0 / 128.0, 1.0)


@pytest.mark.parametrize("name", ["compressed keys", "shared indexers", "block-sparse"])
@pytest.mark.parametrize("layers", [0, 1])
def test_drafting_module_of_a_model_has_at_most_one_indexer_a_layer(
    tmp_path: Path, name: str, layers: int
) -> None:
    module = replace(_model(tmp_path, BY_HAND[name][0]), layers=layers, dense_layers=0)
    assert module.index_share <= 1.0
    per_token = kv_bytes_per_token(module, ONE, "bf16")
    assert per_token <= layers * (512 + 16 + 4)


def test_block_sparse_layers_attend_to_the_chosen_blocks(tmp_path: Path) -> None:
    model = _model(tmp_path, BLOCK_SPARSE)
    operators = forward(model, ONE, decode_step(1.0, 4096.0), "bf16", "bf16")
    seen = {
        one.name: (one.kv_tokens, one.repeat) for one in operators if isinstance(one, Attention)
    }
    assert seen["decode_attention"] == (4096.0, 1.0)
    assert seen["decode_sparse_attention"] == (2.0 * 32.0, 3.0)


def test_compressed_layers_multiply_by_every_weight(tmp_path: Path) -> None:
    model = _model(tmp_path, COMPRESSED)
    operators = forward(model, ONE, decode_step(1.0, 4096.0), "bf16", "bf16")
    products = ("latent_down", "q_up", "compressor", "o_down", "o_proj", "index_query")
    names = (*products, "index_key", "index_weights")
    read = sum(
        one.n * one.k * one.batch * one.repeat
        for one in operators
        if isinstance(one, Gemm) and one.name in names
    )
    assert read == pytest.approx(4 * model.attention_parameters, rel=0.01)  # without norms


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compress_ratios", [4, 8, 4, 8]),
        ("linear_attn_config", {"kda_layers": [1, 2, 3]}),
        ("linear_attn_config", {"kda_layers": [1, 2, 3, 4], "short_conv_kernel_size": 8}),
        ("sparse_attention_config", {"sparse_memory_blocks": 16}),
        ("block_configs", [{}] * 4),
        ("num_kv_shared_layers", 2),
        ("hidden_size_per_layer_input", 8),
        ("cross_attention_layers", [1]),
        ("mlp_bias", True),
        ("index_topk_pattern", "FSFS"),
        ("conv_kernel", 8),
        ("swa_num_attention_heads", 4),
        ("sliding_window", 128),
        ("layer_types", ["full_attention", "spiral_attention"] * 2),
        ("layer_types", ["full_attention"]),
        ("layer_types", 2.5),
        ("attn_type_list", 4),
        ("quantization_config", [8]),
        ("hybrid_override_pattern", "MQ*-"),
        ("num_memory_layers", 12),
    ],
)
def test_key_that_is_not_modelled_is_refused_by_name(
    tmp_path: Path, key: str, value: object
) -> None:
    parts = {
        "sparse_attention_config": "sparse_memory_blocks",
        "linear_attn_config": "linear_attn_",
    }
    named = parts.get(key, key)
    with pytest.raises(UserError, match=named):
        _model(tmp_path, SHARED | {"model_type": "llama", key: value})


def test_layers_without_any_full_attention_are_refused(tmp_path: Path) -> None:
    config = WINDOWED | {"layer_types": ["sliding_attention"] * 4}
    with pytest.raises(UserError, match="without full attention"):
        _model(tmp_path, config)


def test_window_that_holds_every_request_is_no_window(tmp_path: Path) -> None:
    config = SHARED | {"model_type": "mistral", "sliding_window": 300_000}
    assert _model(tmp_path, config).window == 0


def test_text_part_of_a_vision_model_is_read(tmp_path: Path) -> None:
    text = {k: v for k, v in SHARED.items() if k != "tie_word_embeddings"}
    config = {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        "text_config": {**text, "model_type": "qwen3_vl_text"},
        "vision_config": {"depth": 27},
    }
    model = _model(tmp_path, config)
    assert model.tied_embeddings
    assert model.qk_norm


QUANTIZED = {
    "bf16": {},
    "fp8_block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "fp8": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    "fp4": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "mtp.layers.0*"]},
    "int4": {"format": "pack-quantized", "quant_method": "compressed-tensors"},
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_weights_are_shown_in_the_precision_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    config = SHARED | {"model_type": "llama", "quantization_config": QUANTIZED[name]}
    shown = described(_written(tmp_path, config))
    assert "model config" in shown
    assert f"attention {name} " in shown
    assert f"dense {name} " in shown
    assert "other bf16" in shown


def test_command_show_describes_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show([str(_written(tmp_path, SHARED | {"model_type": "llama"}))]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("model config")
    assert "512 bytes per token" in printed


def test_config_of_a_graph_is_described_by_its_sizes(tmp_path: Path) -> None:
    config = {"model_type": "vit", "num_hidden_layers": 2, "hidden_size": 64, "image_size": 32}
    more = {"num_attention_heads": 4, "intermediate_size": 96, "patch_size": 8}
    assert '"family": "vit"' in described(_written(tmp_path, config | more))


def test_modules_that_a_checkpoint_keeps_are_shown_in_16_bits(tmp_path: Path) -> None:
    kept = [f"model.layers.{n}.self_attn*" for n in range(4)]
    quantized = {"quant_algo": "NVFP4", "exclude_modules": [*kept, "model.layers.0.mlp*"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantized}))
    shown = described(_written(tmp_path, SHARED | {"model_type": "llama"}))
    assert "attention bf16" in shown
    assert "output bf16" in shown
    assert "dense fp4" in shown
    assert "dense bf16" in shown


def test_mixed_checkpoint_is_shown_by_its_list_of_layers(tmp_path: Path) -> None:
    layers = {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.0.mlp.down_proj": {"quant_algo": "W4A16_NVFP4"},
    }
    quantized = {"quant_algo": "MIXED_PRECISION", "quant_method": "modelopt"}
    config = SHARED | {"quantization_config": quantized | {"quantized_layers": layers}}
    shown = described(_written(tmp_path, config | {"model_type": "llama"}))
    assert "attention fp8" in shown
    assert "output bf16" in shown
    assert "dense fp4" in shown


def test_unknown_quantization_is_refused_by_name(tmp_path: Path) -> None:
    config = SHARED | {"model_type": "llama", "quantization_config": {"quant_method": "sixbit"}}
    with pytest.raises(UserError, match="sixbit"):
        described(_written(tmp_path, config))
