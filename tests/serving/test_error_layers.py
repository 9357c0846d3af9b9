"""Layers of errors add up to the stated intervals; measurements narrow them as expected."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from simulators.core.fields import point_from
from simulators.serving.answer.error_layers import (
    LAYERS,
    MOST,
    RATE,
    TPOT,
    TTFT,
    TypicalPass,
    error_budget,
    measurements_of,
    merged,
    relative_half_widths,
    typical_pass,
)
from simulators.serving.deployment import deployment_of
from simulators.serving.point import ServingPoint
from simulators.serving.run import prepare
from simulators.serving.simulator import SIMULATOR, simulate
from sweeper.report.errors import interval

DESIGNS: list[dict[str, Any]] = [
    {"model": model, "gpu": gpu, "tp": tp, "qps": qps, "runtime": runtime}
    for model, tp in (("llama3_1_8b", 1), ("llama3_1_70b", 4))
    for gpu, runtime in (("h100_sxm", "vllm"), ("b200_sxm", "trtllm"), ("mi300x", "sglang"))
    for qps in (1.0, 64.0)
]
DESIGNS += [
    {"model": "llama3_1_8b", "gpu": gpu, "arrivals.process": "closed", "arrivals.clients": clients}
    for gpu in ("a100_sxm", "l40s", "gaudi3")
    for clients in (1, 16)
]
DESIGNS += [
    {"model": "mixtral_8x7b", "gpu": "h100_sxm", "tp": 4, "ep": 4, "qps": 2.0},
    {"model": "llama3_1_8b", "gpu": "h100_sxm", "speculation.method": "ngram", "qps": 1.0},
]


def point_of(design: dict[str, Any]) -> ServingPoint:
    """Return a short run of a design."""
    lengths = {"requests": 24, "prompt_tokens": 512, "output_tokens": 32}
    return point_from(ServingPoint, {**lengths, **design})


def test_there_are_twenty_designs() -> None:
    assert len(DESIGNS) == 20


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: " ".join(map(str, d.values())))
def test_layers_sum_to_the_interval(design: dict[str, Any]) -> None:
    point = point_of(design)
    stated = simulate(point)
    prepared = prepare(point)
    prompt_tokens = float(np.mean(prepared.admitted.prompt_tokens))
    budget = error_budget(
        prepared.point,
        prepared.deployment,
        prepared.frontend,
        prompt_tokens,
        prepared.run().metrics(),
        most=0,
    )
    parts = budget.parts
    for metric in (TTFT, TPOT, RATE):
        value = getattr(stated, metric)
        ends = getattr(stated, f"{metric}_lo"), getattr(stated, f"{metric}_hi")
        mine = [part for part in parts if part.metric == metric]
        assert [part.layer for part in mine] == list(LAYERS)
        assert min(min(part.low, part.high) for part in mine) >= 0.0
        assert interval(mine) == pytest.approx([end / value for end in ends])
        for layer in LAYERS:
            low, high = interval([part for part in mine if part.layer != layer])
            assert ends[0] / value <= low * (1.0 + 1e-9)
            assert high * (1.0 - 1e-9) <= ends[1] / value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpu", "dtype"),
    [
        ("llama3_1_8b", "a100_sxm", "bf16"),
        ("llama3_1_8b", "rtx_4090", "fp16"),
        ("qwen3_32b", "rtx_pro_6000", "bf16"),
    ],
)
def test_expected_narrowing_is_found_once_kernels_are_measured(
    model: str, gpu: str, dtype: str
) -> None:
    """The kernels of a GPU are hidden, ten measurements chosen, and those of the GPU added."""
    known = deployment_of(ServingPoint(model=model, gpu=gpu, dtype=dtype)).hardware.replica
    hidden = dataclasses.replace(known, level="zero_shot")
    passes = {metric: typical_pass(hidden, metric) for metric in (TTFT, TPOT)}
    before = sum(log_width(one, {}) for one in passes.values())

    def gain(rows: Any) -> float:
        return before - sum(log_width(one, rows.get(m, {})) for m, one in passes.items())

    each = [rows for _, rows in measurements_of(passes)]
    chosen = merged(sorted(each, key=gain, reverse=True)[:MOST])
    found = {
        metric: {
            place: relative_half_widths(typical_pass(known, metric).rows[place]) for place in rows
        }
        for metric, rows in chosen.items()
    }
    assert gain(chosen) > 0.2
    assert gain(chosen) == pytest.approx(gain(found), rel=0.25)


def log_width(one: TypicalPass, narrowed: Any) -> float:
    """Return the logarithm of the ratio of a pass's ends."""
    low, high = one.reach(one.squares_s(narrowed))
    return math.log(high / low)


@pytest.mark.slow
def test_measurements_are_named_in_the_order_of_their_effect() -> None:
    budget = SIMULATOR.explain_errors(
        {"model": "llama3_1_8b", "gpu": "l4", "qps": 0.5, "requests": 24, "prompt_tokens": 512}
    )
    effects = [one.narrows[TTFT] + one.narrows[TPOT] for one in budget.measurements]
    assert 1 <= len(effects) <= MOST
    assert effects == pytest.approx(sorted(effects), abs=0.02)
    assert all(budget.together[m] <= 1.0 for m in (TTFT, TPOT))
