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
    assert question.space["constraints"] == ["gpus == 16", "chunks == 1 OR pp > 1"]


def test_batches_are_near_the_tokens_asked_and_divide_well():
    axes = question_of(flags(batch_tokens=63e6, sequence=4096)).space["axes"]
    assert axes["batch"] == 15_360  # DeepSeek-V3's, not 16,384
    assert all(axes["batch"] % dp == 0 for dp in axes["dp"])
    assert question_of(flags(batch=1500)).space["axes"]["batch"] == 1500


def test_question_asks_for_a_memory_margin_and_adapters():
    axes = question_of(flags(lora=16)).space["axes"]
    assert axes["lora_rank"] == 16
    assert axes["oom_limit"] == 0.05
    with pytest.raises(UserError, match="write a probability"):
        question_of(flags(oom=5.0))


def test_moe_question_includes_expert_parallelism():
    question = question_of(flags(model="mixtral_8x7b"))
    assert question.space["axes"]["ep"] == [1, 2, 4, 8]


@pytest.mark.parametrize("changes", [{"tokens": 0.0}, {"batch_tokens": -4e6}, {"days": 0.0}])
def test_invalid_numbers_raise_a_user_error(changes):
    with pytest.raises(UserError, match="write a number"):
        question_of(flags(**changes))
