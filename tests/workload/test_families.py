"""Model families: published figures follow from the sizes in the catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from simulators.catalog.model import load_model
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import GRAPHS, MODELS
from simulators.workload.graphs.families import draw, is_graph_model
from simulators.workload.graphs.graph import Graph, Load
from simulators.workload.graphs.transformers import decoder_graph

# Weights as counted by the makers' own code: torchvision, Hugging Face, facebookresearch/dlrm.
PARAMETERS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg16": 138_357_544,
    "mobilenet_v2": 3_504_872,
    "vit_b16": 86_567_656,
    "vit_l16": 304_326_632,
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "opt_1_3b": 1_315_758_080,
    "dlrm_criteo": 540_677_217,
}
# Multiplications in 1e9 for one image: torchvision's model table.
GMACS = {
    "resnet50": 4.09,
    "resnet101": 7.80,
    "resnet152": 11.51,
    "vgg16": 15.47,
    "vit_b16": 17.56,
    "vit_l16": 61.55,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "bert_base": {
        "model_type": "bert",
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    },
    "vit_b16": {
        "model_type": "vit",
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "image_size": 224,
        "patch_size": 16,
    },
    "resnet50": {
        "model_type": "resnet",
        "depths": [3, 4, 6, 3],
        "hidden_sizes": [256, 512, 1024, 2048],
        "embedding_size": 64,
        "layer_type": "bottleneck",
    },
    "dit_xl_2": {
        "_class_name": "DiTTransformer2DModel",
        "num_layers": 28,
        "num_attention_heads": 16,
        "attention_head_dim": 72,
        "patch_size": 2,
        "sample_size": 32,
    },
    "stable_diffusion_1_5": {
        "_class_name": "UNet2DConditionModel",
        "block_out_channels": [320, 640, 1280, 1280],
        "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
        "layers_per_block": 2,
        "attention_head_dim": 8,
        "cross_attention_dim": 768,
        "sample_size": 64,
    },
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_family_weight_counts_match_published_counts(name: str) -> None:
    assert draw(name, Load(batch=1)).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", GMACS)
def test_family_macs_match_published_counts(name: str) -> None:
    assert draw(name, Load(batch=1)).flops / 2e9 == pytest.approx(GMACS[name], rel=2e-3)


def test_denoisers_have_their_published_sizes() -> None:
    images = draw("stable_diffusion_1_5", Load(batch=1, training=True))
    unet = sum(n.copies * n.parameters for n in images.nodes if n.name.startswith("step."))
    assert unet == 859_520_964  # diffusers' UNet2DConditionModel
    dit = draw("dit_xl_2", Load(batch=1, training=True))
    assert dit.parameters == pytest.approx(675e6, rel=1e-3)  # Peebles and Xie, table 4
    assert dit.flops / 2e9 == pytest.approx(118.64, rel=1e-3)


def test_guidance_doubles_the_denoiser_batch_and_steps_repeat_the_work() -> None:
    drawn = draw("dit_xl_2", Load(batch=2))
    (patches,) = [n for n in drawn.nodes if n.kind == "conv" and n.stride == 2]
    assert patches.shape[0] == 4
    assert patches.repeat == 250
    training = draw("dit_xl_2", Load(batch=2, training=True))
    assert all(node.repeat <= 28 for node in training.nodes)


@pytest.mark.parametrize("name", MODELS.names())
def test_decoder_graph_has_the_weights_of_the_model(name: str) -> None:
    model = load_model(name)
    if model.has_states or model.index_top_k or model.windowed != model:
        with pytest.raises(UserError, match="is not drawn"):
            decoder_graph(model, Load(batch=1, length=8))
        return
    assert decoder_graph(model, Load(batch=1, length=8)).parameters == model.parameters


@pytest.mark.parametrize("name", CONFIGS)
def test_family_config_matches_the_catalog(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS[name]))
    assert is_graph_model(str(file))
    ours, theirs = draw(name, Load(batch=1)), draw(str(file), Load(batch=1))
    assert theirs.parameters == ours.parameters
    assert theirs.flops == ours.flops


def test_config_without_a_size_names_the_key(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "vit", "hidden_size": 768}))
    with pytest.raises(UserError, match="num_hidden_layers"):
        draw(str(file), Load(batch=1))


def test_unknown_family_lists_known_families(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('family = "resent"\nsource = "mine"\n')
    with pytest.raises(UnknownNameError, match="did you mean 'resnet'"):
        draw(str(file), Load(batch=1))


def test_inconsistent_sizes_raise_a_user_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('family = "resnet"\nsource = "mine"\ndepths = [1, 1]\nwidths = [64]\n')
    with pytest.raises(UserError, match="do not fit together"):
        draw(str(file), Load(batch=1))


def test_misspelt_model_is_suggested_across_folders() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'resnet50'"):
        MODELS.find("resnet_5")


@settings(max_examples=20, deadline=None)
@given(name=sampled_from(GRAPHS.names()), batch=integers(1, 3))
def test_work_grows_with_the_batch_and_weights_do_not(name: str, batch: int) -> None:
    one, more = (draw(name, Load(batch=b, length=64 if "opt" in name else 0)) for b in (1, batch))
    assert more.parameters == one.parameters
    assert more.flops == pytest.approx(batch * one.flops, rel=1e-9)


@pytest.mark.parametrize("name", GRAPHS.names())
def test_graph_nodes_are_topologically_ordered(name: str) -> None:
    graph: Graph = draw(name, Load(batch=1))
    for position, node in enumerate(graph.nodes):
        assert all(source < position for source in node.inputs)


def test_graph_models_are_not_decoders() -> None:
    with pytest.raises(UserError, match="composition"):
        load_model("resnet50")


def test_whisper_encoder_has_the_weights_of_its_layers() -> None:
    """Convolutions of 3 frames, 1,500 positions, layers of 12 h^2 + 12 h, a norm; by hand."""
    for name, layers, hidden, weights in (
        ("whisper_tiny", 4, 384, 8_208_384),
        ("whisper_large_v2", 32, 1280, 636_784_640),
    ):
        cross = layers * (2 * hidden * hidden + 2 * hidden)
        drawn = draw(name, Load(batch=1)).parameters - cross - layers * hidden  # biases of keys
        assert drawn == pytest.approx(weights, rel=1e-4), name


def test_whisper_takes_at_most_thirty_seconds() -> None:
    with pytest.raises(UserError, match="up to 3000 frames"):
        draw("whisper_tiny", Load(batch=1, length=3002))
