"""Draws the graph of a model by name; each family of models is a class.

A file in `catalog/graphs/` states `family` and the sizes that family asks for; a Hugging Face
`config.json` of one of the known kinds is read the same way. Adding a family is adding a class
with `draw` and a line below.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulators.catalog.model import load_model
from simulators.catalog.sheet import fill
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import MODELS, once, read_toml, reader
from simulators.workload.graphs.diffusion import DiffusionTransformer, LatentDiffusion
from simulators.workload.graphs.graph import Graph, Load, ModelFamily
from simulators.workload.graphs.recommendation import GraphConvolution, Recommender
from simulators.workload.graphs.speech import SpeechEncoder
from simulators.workload.graphs.transformers import Encoder, UnfusedTransformer, decoder_graph
from simulators.workload.graphs.vision import MobileNet, ResNet, Vgg, VisionTransformer

CONFIG = "huggingface"

FAMILIES: dict[str, type[ModelFamily]] = {
    "opt": UnfusedTransformer,
    "encoder": Encoder,
    "resnet": ResNet,
    "vgg": Vgg,
    "mobilenet": MobileNet,
    "vit": VisionTransformer,
    "latent_diffusion": LatentDiffusion,
    "diffusion_transformer": DiffusionTransformer,
    "recommender": Recommender,
    "graph_convolution": GraphConvolution,
    "speech_encoder": SpeechEncoder,
}


def is_graph_model(name: str) -> bool:
    """Return whether a model is a graph, not a language model simulated by iteration.

    Raises:
        UnknownNameError: the model is unknown.

    >>> is_graph_model("resnet50"), is_graph_model("llama2_7b")
    (True, False)
    """
    path = MODELS.find(name)
    if path.suffix == ".onnx":
        return True
    if path.suffix == ".json":
        return bool(reader(CONFIG, "is_graph_config")(path))
    return "family" in read_toml(path)


DECODER, UNKNOWN_FAMILY = "decoder", ""


def family_of(name: str) -> str:
    """Return the family of a model: `decoder` for language models, empty for ONNX files.

    >>> family_of("resnet50"), family_of("llama2_7b")
    ('resnet', 'decoder')
    """
    path = MODELS.find(name)
    if path.suffix == ".onnx":
        return UNKNOWN_FAMILY
    return str(_sheet(path)["family"]) if is_graph_model(name) else DECODER


def draw(name: str, load: Load) -> Graph:
    """Return the graph of a model by name, TOML, `config.json` or ONNX file.

    Raises:
        UnknownNameError: the model or its family is unknown.
        UserError: the file lacks a size, has an unknown one, or its sizes are inconsistent.

    >>> draw("resnet50", Load(batch=1)).parameters
    25557032
    """
    path = MODELS.find(name)
    if path.suffix == ".onnx":
        graph: Graph = reader("onnx_graph", "graph_of_onnx")(path, load)
        return graph
    if not is_graph_model(name):
        return decoder_graph(load_model(name), load)
    try:
        return once(_model, path).draw(load)
    except (ValueError, ZeroDivisionError, IndexError) as error:
        raise UserError(f"{path}: the model's sizes do not fit together: {error}") from error


def _sheet(path: Path) -> dict[str, Any]:
    is_config = path.suffix == ".json"
    return dict(reader(CONFIG, "graph_sheet_of_config")(path) if is_config else read_toml(path))


def _model(path: Path) -> ModelFamily:
    sheet = _sheet(path)
    family = str(sheet.pop("family"))
    if family not in FAMILIES:
        raise UnknownNameError("family", family, FAMILIES)
    return fill(FAMILIES[family], sheet, path, f"{family} model")
