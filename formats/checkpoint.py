"""Describe a Hugging Face config: parameters, layers, cache, states and bytes by precision.

Weights are those of the text model; a vision tower, MTP modules and adapters are not counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Template

from formats.huggingface import decoder_config, graph_sheet_of_config, is_graph_config
from formats.quantization import BF16, precisions_of
from simulators.catalog.model import MXFP4, LanguageModel, load_model
from simulators.workload.llm.memory import kv_bytes_per_token, sequence_bytes, state_bytes
from simulators.workload.llm.parallelism import Parallelism, attentions, stage_of
from simulators.workload.precision import BYTES, MXFP4_SCALE, stored_bytes

TEMPLATE = Path(__file__).with_suffix(".jinja")
ONE = Parallelism()


def described(path: Path) -> str:
    """Return the description of a config's model on one GPU, with a bf16 cache, or of its graph."""
    if is_graph_config(path):
        return f"model config  ({path})\n{json.dumps(graph_sheet_of_config(path), indent=1)}"
    model = load_model(str(path))
    template = Template(TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, lstrip_blocks=True)
    text: str = template.render(
        model=model,
        path=path,
        within=kv_bytes_per_token(model, ONE, BF16, whole_windows=True),
        state_bytes=state_bytes(model, ONE),
        kept=lambda tokens: sequence_bytes(model, ONE, BF16, tokens),
        weights=list(_weights(model, path)),
    )
    return text


def _weights(model: LanguageModel, path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield group, precision and bytes of the weights in the checkpoint."""
    kinds = attentions(model, stage_of(model, ONE, 0))
    attention = sum(layers * sizes.attention_parameters for layers, sizes in kinds)
    output = sum(layers * sizes.output_parameters for layers, sizes in kinds)
    attending, experts = model.layers - model.state_layers, model.expert_layers
    dense = model.layers - model.bare_layers - experts
    groups = {
        "attention": (attending, attention - output),
        "output": (attending, output),
        "states": (model.state_layers, model.state_layers * model.state_parameters),
        "dense": (dense, dense * model.dense_ffn_parameters),
        "shared": (experts, experts * model.shared_parameters),
        "experts": (experts, experts * model.experts * model.expert_parameters),
    }
    layers = {group: count for group, (count, _) in groups.items()}
    shares = precisions_of(decoder_config(path)[0], path, layers)
    other = model.parameters - sum(numbers for _, numbers in groups.values())
    for group, (_, numbers) in {**groups, "other": (0, other)}.items():
        for name, share in shares.get(group, {BF16: 1.0}).items():
            each = BYTES["fp4"] + MXFP4_SCALE if name == MXFP4 else stored_bytes(name)
            if numbers * share:
                yield group, name, numbers * share * each
