"""The least relaxation of a limit that changes a choice, of rows and of questions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.commands.ask.answer import Answer
from sweeper.commands.ask.question import answer_to, grown
from sweeper.query.relaxation import least_limit, rounded_up
from sweeper.report.relaxed import Relaxation, relaxations

TIMES = st.floats(1e-4, 1e3)


@given(st.lists(TIMES, max_size=20), st.floats(1.0, 3.0))
def test_the_least_limit_is_met_and_no_smaller_one_is(times: list[float], margin: float) -> None:
    rows = [{"s": time} for time in times]

    def meets(row: Any, limit: float) -> bool:
        return bool(limit >= margin * row["s"])

    found = least_limit(rows, lambda row: float(row["s"]), meets)
    assert math.isinf(found) == (not rows)
    if rows:
        assert any(meets(row, found * (1.0 + 1e-9)) for row in rows)
        assert not any(meets(row, found * (1.0 - 1e-9)) for row in rows)


@given(TIMES)
def test_printed_limits_are_at_most_one_percent_wider(limit: float) -> None:
    assert limit * (1.0 - 1e-9) <= rounded_up(limit) <= 1.0101 * limit
    assert float(f"{rounded_up(limit):g}") == rounded_up(limit)


def _words(number: int, folder: Path) -> list[str]:
    """Return a small question; some have an answer and some have none."""
    draw = np.random.default_rng(number)
    load = {
        "qps": draw.choice((2, 6, 12, 20)),
        "ttft": f"{draw.choice((30, 60, 120, 400))}ms",
        "tpot": f"{draw.choice((5, 8, 12, 25))}ms",
        "percentile": draw.choice((50, 90)),
        "isl": draw.choice((256, 1024)),
        "osl": draw.choice((32, 128)),
        "gpus": draw.choice((2, 4)),
        "gpu": draw.choice(("h100", "l40s")),
    }
    flags = {"model": "llama3_1_8b", "engine": "vllm", "requests": 60, "outputs": folder, **load}
    flags |= {"router": "round_robin", "chunk-size": 8192}
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def _cost(answer: Any) -> float:
    return math.inf if answer.design is None else float(answer.design["cost"])


def check_relaxations(number: int, folder: Path) -> int:
    """Check all relaxations of a question; return how many change its answer."""
    words = _words(number, folder)
    answer = answer_to(words)

    def ask(question: Any) -> Answer:
        return grown(question, answer.chosen)

    found = [one for one in relaxations(answer, ask) if one.relaxed is not None]
    for one in found:
        assert one.answer is not None
        assert _cost(answer_to([*words, *_with(one, one.relaxed)])) == _cost(one.answer)
        assert _cost(one.answer) < _cost(answer)
        assert one.relaxed is not None
        short = one.relaxed - 1 if one.name == "gpus" else one.relaxed * (1.0 - 0.03)
        if short > one.limit:
            assert _cost(answer_to([*words, *_with(one, short)])) == _cost(answer)
    return len(found)


def _with(one: Relaxation, limit: float | None) -> list[str]:
    assert limit is not None
    flag = one.name.partition("_")[0]
    return [f"--{flag}", f"{limit:.0f}" if flag == "gpus" else f"{limit:.6g}"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_relaxations_of_fifty_questions_change_their_answers_as_printed(
    number: int, tmp_path: Path
) -> None:
    check_relaxations(number, tmp_path)
