"""A `config.json` of an encoder, of an image model or of a denoiser says the sizes of its family.

Hugging Face names the kind in `model_type`, and diffusers in `_class_name`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulators.catalog.huggingface import read_config
from simulators.core.errors import UserError

Config = dict[str, Any]


def kind_of_config(path: Path) -> str:
    """Return what kind of model a config describes, as its library calls it.

    Raises:
        UserError: the file is no JSON object.
    """
    config = read_config(path)
    return str(config.get("model_type") or config.get("_class_name") or "")


def graph_sheet_of_config(path: Path) -> dict[str, Any]:
    """Return the family and sizes a config states.

    Raises:
        UserError: it lacks a size.
    """
    config = read_config(path)
    name = str(config.get("_name_or_path") or path.parent.name or path.stem)
    try:
        sheet = GRAPH_KINDS[kind_of_config(path)](config)
    except KeyError as missing:
        raise UserError(f"{path}: the config does not state {missing}") from missing
    return {"name": name, "source": str(path), **sheet}


def _encoder(config: Config) -> Config:
    return {
        "family": "encoder",
        "layers": config.get("num_hidden_layers") or config["n_layers"],
        "hidden": config.get("hidden_size") or config["dim"],
        "heads": config.get("num_attention_heads") or config["n_heads"],
        "ffn": config.get("intermediate_size") or config["hidden_dim"],
        "vocab": config["vocab_size"],
        "max_context": config["max_position_embeddings"],
        "segments": config.get("type_vocab_size", 0),
    }


def _vit(config: Config) -> Config:
    return {
        "family": "vit",
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "image": config["image_size"],
        "patch": config["patch_size"],
        "classes": len(config.get("id2label", ())) or 1000,
    }


def _resnet(config: Config) -> Config:
    if config.get("layer_type", "bottleneck") != "bottleneck":
        raise UserError("a resnet config with basic blocks is not drawn; use layer_type bottleneck")
    return {
        "family": "resnet",
        "depths": config["depths"],
        "widths": config["hidden_sizes"],
        "stem": config["embedding_size"],
        "classes": len(config.get("id2label", ())) or 1000,
    }


def _dit(config: Config) -> Config:
    heads = config["num_attention_heads"]
    return {
        "family": "diffusion_transformer",
        "layers": config["num_layers"],
        "hidden": heads * config["attention_head_dim"],
        "heads": heads,
        "patch": config["patch_size"],
        "classes": config.get("num_embeds_ada_norm", 1000),
        "image": 8 * config["sample_size"],
        "decoder_widths": [512, 512, 256, 128],  # of the autoencoder all of them share
    }


def _unet(config: Config) -> Config:
    width = config["cross_attention_dim"]
    if width not in CLIP_LAYERS:
        known = ", ".join(map(str, CLIP_LAYERS))
        raise UserError(f"a denoiser's text width of {width} is not known here; it may be {known}")
    return {
        "family": "latent_diffusion",
        "widths": config["block_out_channels"],
        "attends": ["Attn" in kind for kind in config["down_block_types"]],
        "depth": config["layers_per_block"],
        "heads": config["attention_head_dim"],  # as diffusers misnames it
        "text_layers": CLIP_LAYERS[width],
        "text_hidden": width,
        "text_heads": width // 64,
        "text_vocab": 49_408,
        "text_length": 77,
        "decoder_widths": [512, 512, 256, 128],
        "image": 8 * config["sample_size"],
    }


CLIP_LAYERS = {768: 12, 1024: 23}
"""Layers of the text encoder that belongs to a width: CLIP ViT-L/14, and OpenCLIP ViT-H/14 but its
last (configs of stable-diffusion-v1-5 and stable-diffusion-2)."""

GRAPH_KINDS: dict[str, Callable[[Config], Config]] = {
    "bert": _encoder,
    "roberta": _encoder,
    "distilbert": _encoder,
    "electra": _encoder,
    "vit": _vit,
    "deit": _vit,
    "resnet": _resnet,
    "UNet2DConditionModel": _unet,
    "DiTTransformer2DModel": _dit,
    "Transformer2DModel": _dit,
}
"""How each kind is read; all other kinds are read as decoders."""
