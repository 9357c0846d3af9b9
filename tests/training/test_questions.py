"""Training questions by command-line flags: spaces, flags and errors."""

from __future__ import annotations

import pytest

from planning.questions.training import TrainingFlags, question_of
from simulators.core.errors import UserError


def flags(**changes):
    return TrainingFlags(**{"model": "llama3_1_8b", "gpu": "h100_sxm", "gpus": 16} | changes)


def test_token_and_batch_flags_become_sequences_and_a_limit():
    question = question_of(flags(tokens=2e12, batch_tokens=4e6, sequence=4096, days=30.0))
    axes = question.space["axes"]
    assert axes["batch"] == 1024
    assert axes["tokens"] == 2e12
    assert axes["ep"] == [1]
    assert question.deadlines[0].limit == 30 * 86_400
    assert question.space["constraints"] == ["gpus == 16"]


def test_moe_question_includes_expert_parallelism():
    question = question_of(flags(model="mixtral_8x7b"))
    assert question.space["axes"]["ep"] == [1, 2, 4, 8]


@pytest.mark.parametrize("changes", [{"tokens": 0.0}, {"batch_tokens": -4e6}, {"days": 0.0}])
def test_invalid_numbers_raise_a_user_error(changes):
    with pytest.raises(UserError, match="write a number"):
        question_of(flags(**changes))
