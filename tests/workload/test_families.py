"""Families of models: what their makers published follows from the sizes in the catalog."""

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
from simulators.workload.graphs.decoder import decoder_graph
from simulators.workload.graphs.families import draw, is_graph_model
from simulators.workload.graphs.graph import Graph, Load

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
def test_weights_are_those_the_makers_count(name: str) -> None:
    assert draw(name, Load(batch=1)).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", GMACS)
def test_products_are_those_the_makers_count(name: str) -> None:
    assert draw(name, Load(batch=1)).flops / 2e9 == pytest.approx(GMACS[name], rel=2e-3)


def test_denoisers_have_their_published_sizes() -> None:
    images = draw("stable_diffusion_1_5", Load(batch=1, training=True))
    unet = sum(n.copies * n.parameters for n in images.nodes if n.name.startswith("step."))
    assert unet == 859_520_964  # diffusers' UNet2DConditionModel
    dit = draw("dit_xl_2", Load(batch=1, training=True))
    assert dit.parameters == pytest.approx(675e6, rel=1e-3)  # Peebles and Xie, table 4
    assert dit.flops / 2e9 == pytest.approx(118.64, rel=1e-3)


def test_guidance_doubles_what_a_denoiser_sees_and_steps_repeat_it() -> None:
    drawn = draw("dit_xl_2", Load(batch=2))
    (patches,) = [n for n in drawn.nodes if n.kind == "conv" and n.stride == 2]
    assert patches.shape[0] == 4
    assert patches.repeat == 250
    training = draw("dit_xl_2", Load(batch=2, training=True))
    assert all(node.repeat <= 28 for node in training.nodes)


@pytest.mark.parametrize("name", MODELS.names())
def test_a_decoder_as_a_graph_has_its_weights(name: str) -> None:
    model = load_model(name)
    if model.has_states or model.index_top_k:
        with pytest.raises(UserError, match="is not drawn"):
            decoder_graph(model, Load(batch=1, length=8))
        return
    assert decoder_graph(model, Load(batch=1, length=8)).parameters == model.parameters


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_what_the_catalog_says(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS[name]))
    assert is_graph_model(str(file))
    ours, theirs = draw(name, Load(batch=1)), draw(str(file), Load(batch=1))
    assert theirs.parameters == ours.parameters
    assert theirs.flops == ours.flops


def test_a_config_that_lacks_a_size_says_which(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "vit", "hidden_size": 768}))
    with pytest.raises(UserError, match="num_hidden_layers"):
        draw(str(file), Load(batch=1))


def test_an_unknown_family_says_what_is_known(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('family = "resent"\nsource = "mine"\n')
    with pytest.raises(UnknownNameError, match="did you mean 'resnet'"):
        draw(str(file), Load(batch=1))


def test_sizes_that_do_not_fit_together_are_the_users(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('family = "resnet"\nsource = "mine"\ndepths = [1, 1]\nwidths = [64]\n')
    with pytest.raises(UserError, match="do not fit together"):
        draw(str(file), Load(batch=1))


def test_a_misspelt_model_is_suggested_across_folders() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'resnet50'"):
        MODELS.find("resnet_5")


@settings(max_examples=20, deadline=None)
@given(name=sampled_from(GRAPHS.names()), batch=integers(1, 3))
def test_work_grows_with_the_batch_and_weights_do_not(name: str, batch: int) -> None:
    one, more = (draw(name, Load(batch=b, length=64 if "opt" in name else 0)) for b in (1, batch))
    assert more.parameters == one.parameters
    assert more.flops == pytest.approx(batch * one.flops, rel=1e-9)


@pytest.mark.parametrize("name", GRAPHS.names())
def test_inputs_stand_before_those_who_read_them(name: str) -> None:
    graph: Graph = draw(name, Load(batch=1))
    for position, node in enumerate(graph.nodes):
        assert all(source < position for source in node.inputs)


def test_a_graph_model_is_no_decoder() -> None:
    with pytest.raises(UserError, match="composition"):
        load_model("resnet50")
