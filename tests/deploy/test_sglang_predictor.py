"""The example predictor of SGLang's simulator, with the simulator's base class written out."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from simulators.composition.point import CompositionPoint
from simulators.composition.simulator import SIMULATOR
from simulators.core.columns import batch_of

HERE = Path(__file__).parents[2] / "docs" / "examples" / "sglang_predictor"


@dataclass
class Request:
    extend_length: int
    past_kv_length: int


@dataclass
class Batch:
    reqs: list[Request] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not self.reqs


class Base:
    def __init__(self, model: Any, hw: Any, config: Any) -> None:
        self.model, self.hw, self.config = model, hw, config


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the example, imported beside modules with the simulator's names."""
    manager: Any = ModuleType("sglang_simulator.simulation.manager")
    manager.ConfigManager = type("ConfigManager", (), {})
    base: Any = ModuleType("sglang_simulator.time_predictor.base")
    base.InferTimePredictor = Base
    for name in (
        "sglang_simulator",
        "sglang_simulator.simulation",
        "sglang_simulator.time_predictor",
    ):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, manager.__name__, manager)
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.delitem(sys.modules, "sweeper_predictor", raising=False)
    import sweeper_predictor  # type: ignore[import-not-found]

    return sweeper_predictor


def predictor(plugin: Any, **sizes: int) -> Any:
    config = SimpleNamespace(**{"tp_size": 1, "pp_size": 1, "ep_size": 1, "dp_size": 1, **sizes})
    plugin.install(plugin.Deployment("llama3_1_8b", "h100_sxm"))
    made = plugin.ConfigManager.get_inference_time_predictor
    return made(SimpleNamespace(), SimpleNamespace(), config)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_passes_take_as_long_as_the_simulator_of_one_pass_says(plugin: Any, phase: str) -> None:
    ours = predictor(plugin, tp_size=2)
    request = Request(1, 999) if phase == "decode" else Request(1000, 0)
    point = CompositionPoint(
        model="llama3_1_8b",
        gpu="h100_sxm",
        tp=2,
        phase=phase,
        batch=4,
        context=1000,
        dtype="bf16",
        kv_dtype="bf16",
        runtime="sglang",
    )
    [answer] = SIMULATOR.evaluate(batch_of(CompositionPoint, vars(point))).to_pylist()
    assert ours.predict_infer_time(Batch([request] * 4)) == pytest.approx(answer["latency_s"])


def test_a_mixed_pass_takes_longer_than_each_part(plugin: Any) -> None:
    ours = predictor(plugin)
    chunk, decode = [Request(512, 1024)], [Request(1, 2000)] * 8
    whole, *parts = (
        ours.predict_infer_time(Batch(some)) for some in (chunk + decode, chunk, decode)
    )
    assert max(parts) < whole < 1.05 * sum(parts)
    assert ours.predict_infer_time(Batch()) == 0.0


def test_ranks_of_attention_are_refused(plugin: Any) -> None:
    with pytest.raises(ValueError, match="dp_size must be 1"):
        predictor(plugin, dp_size=2)
