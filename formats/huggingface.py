"""Read the shape of a language model from a Hugging Face `config.json`.

`huggingface.toml` maps the key names of model families, and holds values implied by a family.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import read_toml

SPELLINGS = Path(__file__).with_suffix(".toml")


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a `config.json`.

    Raises:
        UserError: the file is not a JSON object.
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
    family, known = str(config.get("model_type", "")), read_toml(SPELLINGS)
    if family in known["other_models"] or config.get("is_encoder_decoder"):
        raise UserError(f"{path}: '{family}' is not a decoder-only transformer")
    words = known["words"]
    sheet = {ours: size for ours, theirs in words.items() if (size := _first(config, theirs))}
    if missing := [f"{n} ({words[n][0]})" for n in known["needed"] if n not in sheet]:
        raise UserError(f"{path}: the config does not state {', '.join(missing)}")
    name = str(config.get("_name_or_path") or path.parent.name or path.stem)
    return sheet | _implied(config, family, sheet) | {"name": name, "source": str(path)}


def _implied(config: dict[str, Any], family: str, sheet: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that follow from the family or from other fields."""
    known, hidden, heads = read_toml(SPELLINGS), sheet["hidden"], sheet["heads"]
    stated = {ours: _first(config, theirs) for ours, theirs in known["implied"].items()}
    holds = {trait: family in families for trait, families in known["families"].items()}
    one_or_all = 1 if config.get("multi_query") else heads
    implied = {
        "head_dim": stated["head_dim"] or hidden // heads,
        "kv_heads": stated["kv_heads"] or one_or_all,
        "ffn": stated["ffn"] or 4 * hidden,
        "gated_ffn": not holds["ungated"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", holds["tied_embeddings"])),
        "norm": "rms_norm" if "rms_norm_eps" in config else "layer_norm",
        "qk_norm": holds["qk_norm"],
        "whole_qk_norm": holds["whole_qk_norm"],
        "biases": holds["biases"],
        "qkv_biases": holds["qkv_biases"] or bool(config.get("attention_bias", False)),
        "learned_positions": sheet["max_context"] if holds["learned_positions"] else 0,
    }
    if sheet.get("experts") and "expert_ffn" not in sheet:
        implied["expert_ffn"] = implied["ffn"]
    if "kv_lora_rank" in sheet:
        implied["head_dim"] = sheet.get("qk_nope_head_dim", 0) + sheet.get("qk_rope_head_dim", 0)
        implied["kv_heads"] = heads
    return implied


def _first(config: dict[str, Any], words: Sequence[str]) -> int:
    """Return the first integer among several keys, or 0."""
    return next((int(config[word]) for word in words if isinstance(config.get(word), int)), 0)
