"""A Hugging Face `config.json` says the shape of a model, in words that vary by family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError

WORDS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
    "max_context": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_groups": ("n_group",),
    "groups_per_token": ("topk_group",),
    "shared_experts": ("n_shared_experts",),
    "expert_ffn": ("moe_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
    "kv_lora_rank": ("kv_lora_rank",),
    "q_lora_rank": ("q_lora_rank",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "index_heads": ("index_n_heads",),
    "index_head_dim": ("index_head_dim",),
    "index_top_k": ("index_topk",),
}
"""Our word for a size, and the words of the families for it."""

UNGATED = ("gpt2", "gpt_neox", "gptj", "gpt_bigcode", "opt", "falcon", "bloom", "mpt", "phi")
"""Families whose feed-forward block has two matrices; all the others here have a gate."""

QK_NORM = ("qwen3", "qwen3_moe", "olmo2", "minimax_m2")
WHOLE_QK_NORM = ("olmo2", "minimax_m2")
QKV_BIASES = ("qwen2", "qwen2_moe")


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a `config.json`.

    Raises:
        UserError: the file is not JSON, or no object.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a readable Hugging Face config: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: a Hugging Face config is a JSON object")
    return config


def sheet_of_config(path: Path) -> dict[str, Any]:
    """Return the fields of a `LanguageModel` that a `config.json` states or implies.

    Raises:
        UserError: the file is not JSON, or not the configuration of a decoder-only transformer.
    """
    config = read_config(path)
    config = config.get("text_config") or config
    family = str(config.get("model_type", ""))
    if family in ("bert", "t5", "vit", "clip", "whisper") or config.get("is_encoder_decoder"):
        raise UserError(f"{path}: '{family}' is not a decoder-only transformer")
    sheet = {ours: size for ours, theirs in WORDS.items() if (size := _first(config, theirs))}
    if missing := [f"{n} ({WORDS[n][0]})" for n in list(WORDS)[:5] if n not in sheet]:
        raise UserError(f"{path}: the config does not state {', '.join(missing)}")
    name = str(config.get("_name_or_path") or path.parent.name or path.stem)
    return sheet | _implied(config, family, sheet) | {"name": name, "source": str(path)}


def _implied(config: dict[str, Any], family: str, sheet: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that follow from the family or from other fields."""
    hidden, heads = sheet["hidden"], sheet["heads"]
    ffn = _first(config, ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"))
    implied = {
        "head_dim": _first(config, ("head_dim",)) or hidden // heads,
        "kv_heads": _kv_heads(config, heads),
        "ffn": ffn or 4 * hidden,
        "gated_ffn": family not in UNGATED,
        "tied_embeddings": bool(config.get("tie_word_embeddings", family in ("gpt2", "opt"))),
        "norm": "rms_norm" if "rms_norm_eps" in config else "layer_norm",
        "qk_norm": family in QK_NORM,
        "whole_qk_norm": family in WHOLE_QK_NORM,
        "biases": family in ("gpt2", "opt", "gpt_bigcode", "bloom", "phi"),
        "qkv_biases": family in QKV_BIASES or bool(config.get("attention_bias", False)),
        "learned_positions": sheet["max_context"] if family in ("gpt2", "opt") else 0,
    }
    if sheet.get("experts") and "expert_ffn" not in sheet:
        implied["expert_ffn"] = implied["ffn"]
    if "kv_lora_rank" in sheet:
        implied["head_dim"] = sheet.get("qk_nope_head_dim", 0) + sheet.get("qk_rope_head_dim", 0)
        implied["kv_heads"] = heads
    return implied


def _kv_heads(config: dict[str, Any], heads: int) -> int:
    """Return the number of key-value heads; one for multi-query, all of them if unsaid."""
    if stated := _first(config, ("num_key_value_heads", "num_kv_heads", "n_head_kv")):
        return stated
    return 1 if config.get("multi_query") else heads


def _first(config: dict[str, Any], words: tuple[str, ...]) -> int:
    """Return the first of several words that the config gives a whole number for, or 0."""
    for word in words:
        if isinstance(config.get(word), int):
            return int(config[word])
    return 0
