"""Read the sizes of a model from a Hugging Face `config.json`: decoders, and families of graphs.

`huggingface.toml` maps the key names of model families, and holds values implied by a family.
Encoders, image models and denoisers are graphs; other configs are decoder-only transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import read_toml

Config = dict[str, Any]

KEYS = Path(__file__).with_suffix(".toml")

CLIP_LAYERS = {768: 12, 1024: 23}
"""Layers of the text encoder by width: CLIP ViT-L/14, and OpenCLIP ViT-H/14 but its
last (configs of stable-diffusion-v1-5 and stable-diffusion-2)."""

DECODER_WIDTHS = [512, 512, 256, 128]
"""Sizes of the autoencoder shared by all denoisers."""


def sheet_of_config(path: Path) -> Config:
    """Return the fields of a `LanguageModel` that a `config.json` states or implies.

    Raises:
        UserError: the file is not JSON, or not the configuration of a decoder-only transformer.
    """
    config = _read(path)
    config = config.get("text_config") or config
    family, known = str(config.get("model_type", "")), read_toml(KEYS)
    if family in known["other_models"] or config.get("is_encoder_decoder"):
        raise UserError(f"{path}: '{family}' is not a decoder-only transformer")
    words = known["words"]
    sheet = {ours: size for ours, theirs in words.items() if (size := _first_int(config, theirs))}
    if missing := [f"{n} ({words[n][0]})" for n in known["needed"] if n not in sheet]:
        raise UserError(f"{path}: the config does not state {', '.join(missing)}")
    return {**sheet, **_implied(config, family, sheet), **_origin(config, path)}


def is_graph_config(path: Path) -> bool:
    """Return whether a config describes a family of graphs.

    Raises:
        UserError: the file is not a JSON object.
    """
    return bool(_graph_family(_read(path)))


def graph_sheet_of_config(path: Path) -> Config:
    """Return the family of graphs and the sizes that a config states.

    Raises:
        UserError: a size is missing.
    """
    config = _read(path)
    family = _graph_family(config)
    words = read_toml(KEYS)["graphs"][family]
    try:
        sheet = {ours: _stated(config, theirs) for ours, theirs in words.items() if ours != "kinds"}
        sheet |= DERIVED[family](config, sheet)
    except KeyError as missing:
        raise UserError(f"{path}: the config does not state {missing}") from missing
    return {**_origin(config, path), "family": family, **sheet}


def _read(path: Path) -> Config:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a readable Hugging Face config: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: a Hugging Face config is a JSON object")
    return config


def _origin(config: Config, path: Path) -> dict[str, str]:
    name = str(config.get("_name_or_path") or path.parent.name or path.stem)
    return {"name": name, "source": str(path)}


def _implied(config: Config, family: str, sheet: Config) -> Config:
    """Return the fields that follow from the family or from other fields."""
    known, hidden, heads = read_toml(KEYS), sheet["hidden"], sheet["heads"]
    stated = {ours: _first_int(config, theirs) for ours, theirs in known["implied"].items()}
    has = {trait: family in families for trait, families in known["families"].items()}
    implied = {
        "head_dim": stated["head_dim"] or hidden // heads,
        "kv_heads": stated["kv_heads"] or (1 if config.get("multi_query") else heads),
        "ffn": stated["ffn"] or 4 * hidden,
        "gated_ffn": not has["ungated"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", has["tied_embeddings"])),
        "norm": "rms_norm" if "rms_norm_eps" in config else "layer_norm",
        "qk_norm": has["qk_norm"],
        "whole_qk_norm": has["whole_qk_norm"],
        "biases": has["biases"],
        "qkv_biases": has["qkv_biases"] or bool(config.get("attention_bias", False)),
        "learned_positions": sheet["max_context"] if has["learned_positions"] else 0,
    }
    if sheet.get("experts") and "expert_ffn" not in sheet:
        implied["expert_ffn"] = implied["ffn"]
    if "kv_lora_rank" in sheet:
        implied["head_dim"] = sheet.get("qk_nope_head_dim", 0) + sheet.get("qk_rope_head_dim", 0)
        implied["kv_heads"] = heads
    return implied


def _first_int(config: Config, keys: Sequence[str]) -> int:
    return next((int(config[key]) for key in keys if isinstance(config.get(key), int)), 0)


def _stated(config: Config, keys: Sequence[str]) -> Any:
    """Return the first value among several keys that is not zero. Raises KeyError without a key."""
    return next((config[key] for key in keys if config.get(key)), None) or config[keys[-1]]


def _graph_family(config: Config) -> str:
    """Return the family of graphs that a config describes; empty for a decoder."""
    kind, known = config.get("model_type") or config.get("_class_name"), read_toml(KEYS)["graphs"]
    return next((family for family, words in known.items() if kind in words["kinds"]), "")


def _classes(config: Config, _sheet: Config) -> Config:
    return {"classes": len(config.get("id2label", ())) or 1000}


def _resnet(config: Config, sheet: Config) -> Config:
    if config.get("layer_type", "bottleneck") != "bottleneck":
        raise UserError(
            "resnet configs with basic blocks are not supported; use layer_type bottleneck"
        )
    return _classes(config, sheet)


def _dit(config: Config, sheet: Config) -> Config:
    return {
        "hidden": sheet["heads"] * config["attention_head_dim"],
        "classes": config.get("num_embeds_ada_norm", 1000),
        "image": 8 * config["sample_size"],
        "decoder_widths": DECODER_WIDTHS,
    }


def _unet(config: Config, sheet: Config) -> Config:
    width = sheet["text_hidden"]
    if width not in CLIP_LAYERS:
        known = ", ".join(map(str, CLIP_LAYERS))
        raise UserError(f"unknown text width {width} of a denoiser; known widths: {known}")
    return {
        "attends": ["Attn" in kind for kind in config["down_block_types"]],
        "text_layers": CLIP_LAYERS[width],
        "text_heads": width // 64,
        "text_vocab": 49_408,
        "text_length": 77,
        "image": 8 * config["sample_size"],
        "decoder_widths": DECODER_WIDTHS,
    }


DERIVED: dict[str, Callable[[Config, Config], Config]] = {
    "encoder": lambda config, _: {"segments": config.get("type_vocab_size", 0)},
    "vit": _classes,
    "resnet": _resnet,
    "diffusion_transformer": _dit,
    "latent_diffusion": _unet,
}
"""Derived sizes by family of graphs."""
