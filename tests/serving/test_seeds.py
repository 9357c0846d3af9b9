"""Several runs of one design, and what is known of their mean."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simulators.core.errors import UserError
from simulators.serving.answer.seed_average import half_width, student
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate

BASE = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", requests=60, qps=4.0)


def test_one_seed_has_no_interval() -> None:
    metrics = simulate(BASE)
    assert metrics.ttft_p99_s_ci is None
    assert metrics == simulate(
        dataclasses.replace(BASE, measurement=dataclasses.replace(BASE.measurement, seeds=1))
    )


def test_several_seeds_are_averaged() -> None:
    apart = [simulate(dataclasses.replace(BASE, seed=seed)) for seed in (3, 4, 5)]
    together = simulate(
        dataclasses.replace(
            BASE, seed=3, measurement=dataclasses.replace(BASE.measurement, seeds=3)
        )
    )
    assert together.completed_requests == 180
    assert together.gpus == 1
    for name in ("ttft_p99_s", "e2e_mean_s", "tokens_per_s"):
        values = [getattr(m, name) for m in apart]
        assert getattr(together, name) == pytest.approx(np.mean(values))
    # A token costs what the mean rate makes of an hour's price, as for every other row.
    costs = [m.cost_usd_per_mtok for m in apart]
    assert together.cost_usd_per_mtok == pytest.approx(len(costs) / np.sum(1.0 / np.array(costs)))
    values = [m.e2e_p99_s for m in apart]
    assert together.e2e_p99_s_ci == pytest.approx(4.303 * np.std(values, ddof=1) / 3**0.5)


def test_the_interval_covers_the_truth_nineteen_times_in_twenty() -> None:
    draws = np.random.default_rng(0).normal(7.0, 2.0, (4000, 5))
    covered = [abs(row.mean() - 7.0) <= half_width(row.tolist()) for row in draws]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize(("freedom", "tabled"), [(11, 2.201), (15, 2.131), (30, 2.042)])
def test_beyond_the_table_student_is_expanded(freedom: int, tabled: float) -> None:
    assert student(freedom) == pytest.approx(tabled, abs=6e-4)


def test_no_seed_is_no_run() -> None:
    with pytest.raises(UserError, match="seeds is 0"):
        simulate(
            dataclasses.replace(BASE, measurement=dataclasses.replace(BASE.measurement, seeds=0))
        )
