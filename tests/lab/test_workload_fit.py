"""Fitted workloads have the lengths of their traces."""

from __future__ import annotations

import numpy as np

from lab.fits.workloads import held_out_error, workload_of
from simulators.serving.demand.workloads import Quantiles


def test_a_fitted_workload_has_the_quantiles_of_its_trace() -> None:
    draw = np.random.default_rng(0)
    prompt = draw.integers(1, 4000, 5000)
    output = draw.integers(1, 300, 5000) + prompt // 20
    found = workload_of(prompt, output, "mine")
    assert isinstance(found.prompt, Quantiles)
    assert found.prompt.probability[0] == 0.0
    assert found.prompt.tokens[-1] == prompt.max()
    assert len(found.output) == len(found.prompt_up_to)
    assert held_out_error(found, prompt, output) < 0.02
