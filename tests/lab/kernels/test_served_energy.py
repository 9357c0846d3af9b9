"""How models of the energy leaderboard are cut among their GPUs."""

from __future__ import annotations

import pytest

from lab.tables.kernels.served_energy import PROMPT_TOKENS, _cut, _dtype


def test_ranks_share_layers_or_keep_attention_apart() -> None:
    whole = {"n_gpus": 4, "tp": 4, "ep": 1}
    assert _cut(whole, "llama3_1_70b") == {"tp": 4, "ep": 1}
    apart = {"n_gpus": 8, "tp": 1, "ep": 8}
    assert _cut(apart, "qwen3_235b") == {"tp": 1, "attention_dp": 8, "ep": 8}
    assert _cut(apart | {"ep": 1}, "qwen3_8b") == {"tp": 1, "replicas": 8}


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
