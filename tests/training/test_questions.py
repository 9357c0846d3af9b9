"""A question about training by flags: its space, its words, and what cannot be asked."""

from __future__ import annotations

import pytest

from planning.questions.training import Flags, question_of
from simulators.core.errors import UserError
from simulators.training.simulator import SIMULATOR


def flags(**changes):
    return Flags(**{"model": "llama3_1_8b", "gpu": "h100_sxm", "gpus": 16} | changes)


def test_tokens_and_batches_become_sequences_and_a_limit():
    question = question_of(
        flags(tokens="2T", batch_tokens="4M", sequence=4096, days=30.0), SIMULATOR.evaluate
    )
    axes = question.space["axes"]
    assert axes["batch"] == 1024
    assert axes["tokens"] == 2e12
    assert axes["ep"] == [1]
    assert question.deadlines[0].limit == 30 * 86_400
    assert question.space["constraints"] == ["gpus == 16"]


def test_a_mixture_may_be_cut_over_expert_ranks():
    question = question_of(flags(model="mixtral_8x7b"), SIMULATOR.evaluate)
    assert question.space["axes"]["ep"] == [1, 2, 4, 8]


@pytest.mark.parametrize("changes", [{"tokens": "many"}, {"batch_tokens": "-4M"}, {"days": 0.0}])
def test_numbers_that_mean_nothing_are_told(changes):
    with pytest.raises(UserError, match="write a number"):
        question_of(flags(**changes), SIMULATOR.evaluate)
