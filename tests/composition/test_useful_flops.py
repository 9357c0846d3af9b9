"""FLOPs saved by a cached prefix: GEMMs in proportion, attention by less."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.catalog.model import load_model
from simulators.composition.price import prompt_flops_saved
from tests.composition.test_iteration import replica


def saved(prompt: float, cached: float) -> float:
    return prompt_flops_saved(replica(), np.array([prompt]), np.array([cached]))


def test_empty_prefix_saves_no_flops() -> None:
    assert saved(1000.0, 0.0) == pytest.approx(0.0)


def test_half_prefix_saves_half_the_gemms_and_a_quarter_of_attention() -> None:
    model = load_model(replica().model.name)
    tables = 2 * model.vocab * model.hidden  # embeddings are looked up; the head has one answer
    products = 2.0 * (model.active_parameters - tables)
    pairs = 4.0 * model.layers * model.heads * model.head_dim
    prompt = 4096.0
    whole = products * prompt + pairs * prompt * (prompt + 1.0) / 2.0 + tables
    half = products * prompt / 2.0 + pairs * (prompt / 2.0) * (prompt / 2.0 + 1.0) / 2.0
    assert saved(prompt, prompt / 2.0) == pytest.approx(half / whole, rel=0.01)
