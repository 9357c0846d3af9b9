"""Steps of a run that can be told apart by when its requests were scheduled and answered."""

from __future__ import annotations

import numpy as np

from lab.claims.serving.vllm import lone_prompts

RUN = {
    "scheduled_s": np.array([0.0, 0.0, 10.0, 20.0, 20.01]),
    "first_token_s": np.array([1.0, 1.0, 10.1, 20.2, 20.2]),
    "last_token_s": np.array([101.0, 101.0, 11.0, 99.0, 99.0]),
    "input_toks": np.array([100, 300, 50, 60, 70]),
    "output_toks": np.array([1001, 1001, 5, 200, 200]),
}
"""Two that decode ten tokens a second; one prompt alone beside them; two at once."""


def test_a_prompt_that_meets_no_other_has_a_step_of_its_own() -> None:
    [seen] = [one for one in lone_prompts(RUN, tokens=2048) if one.decodes == 2.0]
    assert (seen.prompt, round(seen.seconds, 9)) == (50.0, 0.1)
    assert seen.context == 200 + 1 + 90  # of 100 and 300 tokens, after nine seconds


def test_a_prompt_that_needs_two_steps_is_none() -> None:
    assert not list(lone_prompts(RUN, tokens=51))
