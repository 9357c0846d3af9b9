"""No run is better than what its beginning proves, and designs served alike begin once."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from simulators.core.columns import numbers
from simulators.serving import beginnings, begun_runs
from simulators.serving.beginnings import BOUNDED
from simulators.serving.begun_runs import WENT_ON
from simulators.serving.deployment import deployment_of
from simulators.serving.engine import replica as at
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import iteration_table
from simulators.serving.prices.least_iteration import least_iteration
from simulators.serving.prices.lookup import table_price
from simulators.serving.simulator import SIMULATOR
from sweeper.query.pareto import pareto_front
from sweeper.space.design_space import DesignSpace
from sweeper.sweep import Sweep

SPACE = DesignSpace.of(
    "serving",
    model="llama3_1_8b",
    gpu=["h100_sxm", "l4"],
    requests=[60, 300],
    seed=[0, 1, 2],
    workload=["chat", "code"],
    tp=[1, 4],
    pp=[1, 2],
    replicas=[1, 3],
    max_batch=[2, 8, 128],
    qps=[0.5, 3.0, 12.0, 100.0],
    scheduler=["vllm", "vllm_v1", "sarathi", "sglang", "lightllm", "trtllm"],
    chunk_size=[100, 512],
    frontend=["auto", "none"],
    window=["steady", "whole"],
    memory_fraction=[0.9, 0.8],
)


SMALL = SPACE.at({"gpu": "h100_sxm", "tp": 1, "requests": 60})


@pytest.mark.parametrize(
    ("space", "designs", "share"),
    [
        (SMALL, 25, 0.1),
        *(pytest.param(SPACE, 400, share, marks=pytest.mark.slow) for share in (0.0, 0.1, 0.6)),
    ],
)
def test_no_run_is_better_than_its_beginning_proves(
    space: DesignSpace, designs: int, share: float
) -> None:
    some = np.random.default_rng(int(10 * share)).integers(len(space), size=designs)
    batch = space.batch(some)
    answers = SIMULATOR.evaluate(batch)
    limit = np.nanmedian(numbers(answers, "ttft_p99_s").astype(np.float64))
    wanted = numbers(answers, "ttft_p99_s").astype(np.float64) <= limit
    assert wanted.sum() > designs / 4
    for limits, rows in (({}, slice(None)), ({"ttft_p99_s": limit}, wanted)):
        beginnings.forget()
        least = SIMULATOR.begun(batch, share, limits)
        for name in BOUNDED:
            found = numbers(answers, name).astype(np.float64)
            assert not (found < least[name])[rows].any(), name
    assert (least["cost_usd_per_mtok"] > 0.4 * numbers(answers, "cost_usd_per_mtok"))[wanted].any()


@pytest.mark.parametrize(("gpu", "pp"), [("h100_sxm", 1), ("l4", 2)])
def test_no_iteration_is_quicker_than_the_least(gpu: str, pp: int) -> None:
    hardware = deployment_of(ServingPoint(model="llama3_1_8b", gpu=gpu, pp=pp)).hardware
    found = iteration_table(hardware)
    least = least_iteration(found, pp, table_price)
    random = np.random.default_rng(0)
    tokens = np.unique(np.rint(np.geomspace(1, 9000, 300)).astype(np.int64))
    bound, price = least.of(tokens, rows=1.0), np.zeros(2 * at.PRICE_COLUMNS)
    for count, bound_s in zip(tokens.tolist(), bound.tolist(), strict=True):
        step = np.zeros(at.STEP_COLUMNS)
        more = int(count * random.choice([1.0, 1.0, 1.01, 1.5]))
        step[at.TOKENS] = step[at.EVERYWHERE] = step[at.PREFILL_TOKENS] = more
        step[at.PREFILLS] = step[at.LOGITS_ROWS] = 1.0
        step[at.PREFILL_PAIRS], step[at.PREFILL_KV] = more * (more + 1) / 2.0, more
        table_price(step, found.shape, found.table, price)
        passed_s = (pp - 1) * price[at.STAGE_S] + price[at.LAST_STAGE_S]
        assert passed_s >= bound_s * (1.0 - 1e-12)
        assert passed_s < 3.0 * bound_s


def test_a_run_that_ended_is_its_own_bound_and_that_of_designs_served_alike() -> None:
    space = DesignSpace.of(
        "serving", model="llama3_1_8b", gpu="h100_sxm", requests=100, qps=2.0, max_batch=[64, 96]
    )
    both, first = space.batch(np.arange(2)), space.batch(np.zeros(1, np.int64))
    weak = SIMULATOR.begun(both, 0.1, {})["ttft_p99_s"]
    assert weak[0] == weak[1]
    exact = numbers(SIMULATOR.evaluate(first), "ttft_p99_s")[0]
    assert weak[0] < exact
    assert (SIMULATOR.begun(both, 0.1, {})["ttft_p99_s"] == exact).all()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["ttft_p99_s <= 0.6 AND NOT saturated", None])
def test_the_front_of_runs_is_that_of_all_of_them(where: str | None, tmp_path: Path) -> None:
    space = DesignSpace.of(
        "serving",
        model="llama3_1_8b",
        gpu=["h100_sxm", "l4"],
        tp=[1, 2, 4],
        replicas=[1, 2],
        scheduler=["vllm", "sarathi"],
        max_batch=[8, 32, 128],
        qps=[2.0, 10.0],
        requests=400,
    )
    goals = {"ttft_p99_s": "min", "tpot_p99_s": "min", "cost_usd_per_mtok": "min"}
    found = []
    for name in ("grid", "bounds"):
        outputs = str(tmp_path / name / "rows")
        rows = Sweep.of(space, outputs=outputs, objectives=goals, where=where, sampler=name).run()
        front = pareto_front(rows, goals, where=where, per=["qps"])
        found.append((set(front.select("qps", *goals).rows()), len(rows.collect())))
    (whole, all_points), (proved, few) = found
    assert proved == whole
    assert few < (0.6 if where else 1.0) * all_points


@pytest.mark.parametrize("pp", [1, 2])
def test_runs_that_halted_go_on_as_if_they_never_had(pp: int) -> None:
    space = DesignSpace.of(
        "serving",
        model="llama3_1_8b",
        gpu="l4",
        requests=200,
        qps=2.0,
        pp=pp,
        tp=2,
        scheduler=["vllm", "sarathi", "vllm_v1"],
        replicas=[1, 2],
        max_batch=[4, 8, 16, 64],
    )
    beginnings.forget()
    batch = space.batch(np.arange(len(space)))
    whole = SIMULATOR.evaluate(batch)
    for share in (0.05, 0.1, 0.3, 0.7):
        SIMULATOR.begun(batch, share, {})
    looked_at = [seen.simulated for seen in itertools.chain(*beginnings.SEEN.values())]
    assert sum(looked_at) < 0.7 * len(space)  # what is alike runs once, and nothing runs again
    assert max(looked_at) <= 0.4
    assert SIMULATOR.evaluate(batch).equals(whole)
    assert 0 < len(WENT_ON) <= len(space)


def test_runs_that_were_forgotten_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun_runs, "ROOM_BYTES", 0)
    space = DesignSpace.of("serving", model="llama3_1_8b", gpu="h100_sxm", requests=90, qps=3.0)
    beginnings.forget()
    batch = space.batch(np.zeros(1, np.int64))
    for share in (0.2, 0.6):
        SIMULATOR.begun(batch, share, {})
    assert [seen.simulated for seen in next(iter(beginnings.SEEN.values()))] == [0.2, 0.6]
    assert SIMULATOR.evaluate(batch).num_rows == 1
    assert not WENT_ON


def test_what_is_not_plain_has_no_bounds() -> None:
    space = DesignSpace.of(
        "serving", model="llama3_1_8b", gpu="h100_sxm", requests=50, arrivals="closed"
    )
    least = SIMULATOR.begun(space.batch(np.zeros(1, np.int64)), 0.3, {})
    assert all(not column.any() for column in least.values())
