"""How models of the energy leaderboard are cut among their GPUs."""

from __future__ import annotations

import pytest

from lab.tables.kernels.served_energy import PROMPT_TOKENS, _budget, _cut, _dtype


def test_ranks_share_layers_unless_the_launch_says_otherwise() -> None:
    row = {"n_gpus": 8, "tp": 1, "ep": 8}
    assert _cut(row, "enable-expert-parallel: true\n") == {"tp": 8, "ep": 8}
    apart = "data-parallel-size: 8\n"
    assert _cut(row, apart) == {"tp": 1, "attention_dp": 8, "ep": 8}
    assert _cut(row | {"ep": 1}, apart) == {"tp": 1, "replicas": 8}


def test_an_iteration_has_as_many_tokens_as_the_launch_says() -> None:
    launched = "async-scheduling: true\nmax-num-batched-tokens: 8192\n"
    assert _budget(launched) == {"chunk_size": 8192, "max_batch_tokens": 8192}
    assert _budget("") == {}


@pytest.mark.parametrize(
    ("stored", "model", "dtype"),
    [
        ("bfloat16", "qwen3_8b", "bf16"), ("fp8", "llama3_1_405b", "fp8"),
        ("fp8", "qwen3_235b", "fp8_block"), ("mxfp4", "gpt_oss_20b", "bf16+w4a16"),
    ],
)  # fmt: skip
def test_a_checkpoint_says_its_precision(stored: str, model: str, dtype: str) -> None:
    assert _dtype({"weight_precision": stored}, model, "h100_sxm") == dtype


def test_tasks_of_text_have_prompts() -> None:
    assert all(tokens > 0 for tokens in PROMPT_TOKENS.values())
