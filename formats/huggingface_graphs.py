"""Read the sizes of encoders, image models and denoisers from a `config.json`.

`huggingface_graphs.toml` maps key names; this module derives the remaining sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from formats.huggingface import read_config
from simulators.core.errors import UserError
from simulators.core.folder import read_toml

Config = dict[str, Any]

SPELLINGS = Path(__file__).with_suffix(".toml")

CLIP_LAYERS = {768: 12, 1024: 23}
"""Layers of the text encoder by width: CLIP ViT-L/14, and OpenCLIP ViT-H/14 but its
last (configs of stable-diffusion-v1-5 and stable-diffusion-2)."""

DECODER_WIDTHS = [512, 512, 256, 128]
"""Sizes of the autoencoder shared by all denoisers."""


def is_graph_config(path: Path) -> bool:
    """Return whether a config describes one of these families; other configs are decoders.

    Raises:
        UserError: the file is not a JSON object.
    """
    return bool(_family_of(read_config(path)))


def graph_sheet_of_config(path: Path) -> dict[str, Any]:
    """Return the family and sizes a config states.

    Raises:
        UserError: a size is missing.
    """
    config = read_config(path)
    family = _family_of(config)
    name = str(config.get("_name_or_path") or path.parent.name or path.stem)
    words = read_toml(SPELLINGS)[family].items()
    try:
        sheet = {ours: _first(config, theirs) for ours, theirs in words if ours != "kinds"}
        sheet |= FOLLOWS[family](config, sheet)
    except KeyError as missing:
        raise UserError(f"{path}: the config does not state {missing}") from missing
    return {"name": name, "source": str(path), "family": family, **sheet}


def _family_of(config: Config) -> str:
    """Return the family whose kind a config describes, as its library calls it; else nothing."""
    kind, known = config.get("model_type") or config.get("_class_name"), read_toml(SPELLINGS)
    return next((family for family, words in known.items() if kind in words["kinds"]), "")


def _first(config: Config, words: list[str]) -> Any:
    """Return the value of the first key present.

    Raises:
        KeyError: no key is present.
    """
    return next((config[word] for word in words if config.get(word)), None) or config[words[-1]]


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


FOLLOWS: dict[str, Callable[[Config, Config], Config]] = {
    "encoder": lambda config, _: {"segments": config.get("type_vocab_size", 0)},
    "vit": _classes,
    "resnet": _resnet,
    "diffusion_transformer": _dit,
    "latent_diffusion": _unet,
}
"""Derived sizes by family."""
