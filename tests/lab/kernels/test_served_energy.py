"""How models of the energy leaderboard are cut among their GPUs."""

from __future__ import annotations

import pytest

from lab.tables.published import PROMPT_TOKENS, _budget, _cut, _dtype, _served
from lab.tables.rows import Record


def test_ranks_share_layers_unless_the_launch_says_otherwise() -> None:
    row = {"n_gpus": 8, "tp": 1, "ep": 8}
    assert _cut(row, "enable-expert-parallel: true\n") == {"tp": 8, "ep": 8}
    apart = "data-parallel-size: 8\n"
    assert _cut(row, apart) == {"tp": 1, "attention_dp": 8, "ep": 8}
    assert _cut(row | {"ep": 1}, apart) == {"tp": 1, "replicas": 8}


def test_an_iteration_has_as_many_tokens_as_the_launch_says() -> None:
    launched = "async-scheduling: true\nmax-num-batched-tokens: 8192\n"
    assert _budget(launched) == {"chunk_size": 8192, "scheduling.max_batch_tokens": 8192}
    assert _budget("") == {}


@pytest.mark.parametrize(
    ("stored", "model", "dtype"),
    [
        ("bfloat16", "qwen3_8b", "bf16"),
        ("fp8", "llama3_1_405b", "fp8"),
        ("fp8", "qwen3_235b", "fp8_block"),
        ("mxfp4", "gpt_oss_20b", "bf16+w4a16"),
    ],
)
def test_a_checkpoint_says_its_precision(stored: str, model: str, dtype: str) -> None:
    assert _dtype({"weight_precision": stored}, model, "h100_sxm") == dtype


def test_a_group_has_the_names_of_the_catalog() -> None:
    row = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "gpu": "H100",
        "task": "lm-arena-chat",
        "avg_batch_size": 8.0,
        "max_num_seqs": 8,
        "avg_output_tokens": 400.0,
        "n_gpus": 4,
        "ep": 1,
        "weight_precision": "bfloat16",
        "avg_power_W": 1800.0,
        "output_tokens_per_s": 400.0,
        "energy_J_per_output_token": 4.5,
        "itl_median_s": 0.02,
    }
    assert _served(Record(row), "").group == "llama3_1_70b.h100_sxm"


def test_tasks_of_text_have_prompts() -> None:
    assert all(tokens > 0 for tokens in PROMPT_TOKENS.values())
