"""Several models on one budget: the plan is the best combination of their answers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from simulators.core.errors import UserError
from sweeper.commands.ask.question import answer_to, main
from sweeper.commands.ask.several import (
    BudgetLimits,
    Demand,
    Option,
    SharedPlan,
    plan_of,
    read_models,
)

INF = float("inf")


def models(folder: Path, text: str) -> Path:
    file = folder / "models.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def plan(usd_per_hour: float, devices: float) -> SharedPlan:
    """Return a plan of a large model and a small one, each of which may be served by half."""
    large = [Option(0.0), Option(0.5, 8.0, 4.0), Option(1.0, 16.0, 8.0), Option(1.0, 20.0, 5.0)]
    small = [Option(0.0), Option(0.5, 2.0, 1.0), Option(1.0, 3.0, 2.0)]
    demands = [Demand("large", 3.0, ()), Demand("small", 1.0, ())]
    return SharedPlan(demands, [], [large, small], BudgetLimits(usd_per_hour, devices))


@pytest.mark.parametrize(
    ("usd_per_hour", "devices", "shares", "cost"),
    [
        (INF, INF, [1.0, 1.0], 19.0),
        (INF, 7.0, [1.0, 1.0], 23.0),  # the dearer design has fewer devices
        (18.0, INF, [1.0, 0.5], 18.0),
        (15.0, INF, [0.5, 1.0], 11.0),
        (INF, 5.0, [1.0, 0.0], 20.0),
        (1.0, INF, [0.0, 0.0], 0.0),
    ],
)
def test_plan_serves_most_within_the_limits_at_the_least_cost(
    usd_per_hour: float, devices: float, shares: list[float], cost: float
) -> None:
    found = plan(usd_per_hour, devices)
    assert [option.share for option in found.chosen] == shares
    assert found.usd_per_hour == cost


def test_model_whose_absence_frees_most_binds_most() -> None:
    found = plan(15.0, INF)
    assert found.served_without(0) == 1.0
    assert found.served_without(1) == 0.5


def test_stated_least_limits_serve_all_loads() -> None:
    least = plan(15.0, 6.0).to_dict()["least"]
    assert least == {"usd_per_hour": None, "devices": None}  # neither limit alone suffices
    assert plan(15.0, INF).to_dict()["least"]["usd_per_hour"] == 19.0
    assert plan(19.0, INF).is_whole
    assert not plan(18.9, INF).is_whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "write a list of models"),
        ("- {qps: 4}", "has no `model`"),
        ("- {model: 'llama3_1_8b,llama3_1_70b'}", "several models"),
        ("- {model: llama3_1_8b, weight: 0}", "write a number above 0"),
        ("- {model: llama3_1_8b, budget: 9}", "not for one of several models"),
        ("- {model: llama3_1_8b}\n- {model: llama3_1_8b}", "give each a `name`"),
    ],
)
def test_file_that_states_no_models_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        read_models(models(tmp_path, text), [])


def test_flags_of_a_model_precede_those_of_all(tmp_path: Path) -> None:
    file = models(tmp_path, "- {model: llama3_1_8b, gpu: [l4, l40s], qps: 4}")
    (demand,) = read_models(file, ["--gpu", "h100_sxm"])
    assert demand.words[-6:] == ("--model", "llama3_1_8b", "--gpu", "l4,l40s", "--qps", "4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "llama3_1_8b"], "--model: not together"),
        (["--budget", "many"], "--budget many: write a number"),
        (["--shares", "0,50"], "write percents"),
    ],
)
def test_flags_that_do_not_apply_are_refused(words: list[str], said: str, tmp_path: Path) -> None:
    file = models(tmp_path, "- {model: llama3_1_8b}")
    with pytest.raises(UserError, match=said):
        main(["--models", str(file), *words])


@pytest.mark.slow
def test_plan_is_the_best_of_all_combinations_of_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "- {model: llama3_1_8b, qps: 6}\n- {name: other, model: llama3_1_8b, qps: 10, ttft: 1}"
    words = ["--models", str(models(tmp_path, text)), "--gpu", "h100_sxm,l40s", "--gpus", "6"]
    words += ["--requests", "100", "--run-with", "inline", "--outputs", str(tmp_path)]
    whole = plan_of(words, answer_to)
    sums = [
        (sum(o.cost for o in chosen), sum(o.devices for o in chosen))
        for chosen in product(*whole.options)
    ]
    assert whole.is_whole
    assert whole.usd_per_hour == pytest.approx(min(c for c, n in sums if n <= 6))
    assert whole.every.count == len(sums)

    tight = f"{0.9 * whole.usd_per_hour:.3f}"
    assert main([*words, "--budget", tight]) == 1
    said = capsys.readouterr().out
    assert "All loads need" in said
    assert "binds most" in said
