"""Models: the shapes in the catalog count up to what their makers published."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from simulators.catalog.model import load_model
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import MODELS, folded, read_toml
from simulators.workload.llm.parallelism import Parallelism, attending_layers, stage_of

# Parameters as the model's paper or model card gives them.
PUBLISHED = {
    "llama2_7b": 6.74e9,
    "llama2_13b": 13.02e9,
    "llama2_70b": 68.98e9,
    "llama3_1_8b": 8.03e9,
    "llama3_1_70b": 70.6e9,
    "llama3_1_405b": 405.9e9,
    "gpt2": 124.4e6,
    "gpt2_medium": 354.8e6,
    "gpt2_large": 774.0e6,
    "gpt2_xl": 1557.6e6,
    "gpt3_175b": 174.6e9,
    "mixtral_8x7b": 46.7e9,
    "qwen3_32b": 32.8e9,
    "deepseek_v3": 671e9,
    "gpt_oss_120b": 116.8e9,
    "qwen3_235b": 235e9,
    "qwen3_30b": 30.5e9,
    "qwen3_5_397b": 397e9,
    "minimax_m2_5": 229e9,
    "kimi_k2_5": 1.03e12,
    "glm_5": 744e9,
    "mistral_7b": 7.24e9,
    "gpt_oss_20b": 20.9e9,
    "llama4_scout": 107.8e9,
    "llama4_maverick": 400e9,
    "gptj_6b": 6.05e9,
    "llama3_2_1b": 1.24e9,
    "llama3_2_3b": 3.21e9,
    "qwen2_5_0_5b": 0.494e9,
    "qwen2_5_1_5b": 1.54e9,
    "qwen2_5_3b": 3.09e9,
    "qwen2_5_7b": 7.61e9,
    "qwen2_5_14b": 14.7e9,
    "qwen2_5_32b": 32.5e9,
    "qwen2_5_72b": 72.7e9,
    "qwen3_0_6b": 0.6e9,
    "qwen3_1_7b": 1.72e9,
    "qwen3_4b": 4.02e9,
    "qwen3_8b": 8.2e9,
    "qwen3_14b": 14.8e9,
    "qwen3_coder_480b": 480e9,
    "qwen3_next_80b": 80e9,
    "qwen_7b": 7.72e9,
    "gemma2_27b": 27.2e9,
    "gemma3_1b": 1.0e9,
    "gemma3_4b": 3.88e9,
    "gemma3_12b": 11.77e9,
    "gemma3_27b": 27.0e9,
    "phi_4": 14.66e9,
    "phi_4_mini": 3.84e9,
    "mistral_nemo_12b": 12.25e9,
    "mistral_small_24b": 23.57e9,
    "mistral_large_123b": 123e9,
    "ministral_8b": 8.02e9,
    "ministral3_14b": 13.5e9,
    "mixtral_8x22b": 140.6e9,
    "deepseek_v3_2": 671.9e9,
    "deepseek_v2_lite": 15.7e9,
    "glm_4_7": 355e9,
    "glm_4_5_air": 106e9,
    "glm_4_7_flash": 30e9,
    "ernie_4_5_21b": 21.8e9,
    "seed_oss_36b": 36.2e9,
    "hy3": 295e9,
    "nemotron_4_340b": 341e9,
    "qwen3_5_9b": 8.95e9 - 8 * 4096 * 4096,  # the gates of its attention are not counted
    "qwen3_5_27b": 27e9,
    "qwen3_5_35b": 35e9,
    "qwen3_5_122b": 122e9,
    "minimax_m2_7": 229e9,
    "qwen3_vl_2b": 1.72e9,
    "qwen3_vl_4b": 4.02e9,
    "glm_5_2": 744e9,
    "mimo_v2_flash": 309e9,
    "gemma4_26b": 25.2e9,
    "gemma4_31b": 30.7e9,
    "nemotron3_nano_30b": 31.6e9,
    "nemotron3_super_120b": 120.6e9,
    "nemotron3_ultra_550b": 550e9,
    "nemotron_h_56b": 56e9,
    "minimax_m3": 428e9,
    "deepseek_v4_flash": 284e9,
    "deepseek_v4_pro": 1.6e12,
    "kimi_k3": 2.8e12,
}
TWO_DIGITS = ("deepseek_v4_pro",)  # published as 1.6T
ACTIVE = {
    "mixtral_8x7b": 12.9e9,
    "deepseek_v3": 37e9,
    "llama2_7b": 6.74e9,
    "qwen3_235b": 22e9,
    "qwen3_5_397b": 17e9,
    "glm_4_7": 32e9 + 1.6e9,  # and the embeddings
    "hy3": 21e9,
    "mixtral_8x22b": 39e9,
    "qwen3_coder_480b": 35e9,
    "kimi_k3": 104e9,  # model card
}
IN_NAMES = {
    "kimi_k2_5": 32e9,
    "glm_5": 40e9,
    "qwen3_5_35b": 3e9,
    "qwen3_5_122b": 10e9,
    "mimo_v2_flash": 15e9,
    "gemma4_26b": 4e9,
    "nemotron3_nano_30b": 3.6e9,  # model card
    "nemotron3_super_120b": 12e9,
    "nemotron3_ultra_550b": 55e9,
    "deepseek_v4_flash": 13e9,
    "deepseek_v4_pro": 49e9,
}


@pytest.mark.parametrize("name", MODELS.names())
def test_parameter_counts_match_published_counts(name: str) -> None:
    rel = 0.02 if name in TWO_DIGITS else 0.01
    assert load_model(name).parameters == pytest.approx(PUBLISHED[name], rel=rel)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameter_counts_match_published_counts(name: str) -> None:
    assert load_model(name).active_parameters == pytest.approx(ACTIVE[name], rel=0.02)


@pytest.mark.parametrize("name", IN_NAMES)
def test_active_parameters_agree_with_the_name_of_the_model(name: str) -> None:
    # Names state whole billions, some of them without the embeddings.
    assert load_model(name).active_parameters == pytest.approx(IN_NAMES[name], rel=0.1, abs=5e8)


def test_hugging_face_config_loads_as_a_model(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert load_model(str(path)).parameters == load_model("llama3_1_8b").parameters


def test_hugging_face_config_with_experts_and_mla_loads_as_a_model(
    tmp_path: Path,
) -> None:
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert load_model(str(path)).parameters == load_model("deepseek_v3").parameters


def test_hugging_face_config_of_gpt2_loads_as_a_model(tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "n_positions": 1024,
        "n_ctx": 1024,
        "vocab_size": 50257,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert load_model(str(path)).parameters == load_model("gpt2").parameters


def test_config_without_layers_names_the_missing_key(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    with pytest.raises(UserError, match="num_hidden_layers"):
        load_model(str(path))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3_1_8b"),
        ("META-LLAMA/llama-3.1-8b-instruct", "llama3_1_8b"),
        ("Llama-3.3-70B-Instruct", "llama3_1_70b"),
        ("Qwen3-32B", "qwen3_32b"),
        ("DeepSeek-V3.1", "deepseek_v3"),
        ("DeepSeek-R1", "deepseek_v3"),
        ("Kimi-K2.6", "kimi_k2_5"),
        ("GLM-4.6", "glm_4_7"),
        ("GLM-5.1", "glm_5"),
        ("Qwen3.6-27B", "qwen3_5_27b"),
        ("Qwen3.6 35B A3B", "qwen3_5_35b"),
        ("MiniMax-M2.7", "minimax_m2_7"),
        ("GLM-5.3", "glm_5_2"),
        ("gemma-4-31B-it", "gemma4_31b"),
        ("GPT-OSS 120B", "gpt_oss_120b"),
    ],
)
def test_model_is_found_by_repository_name(written: str, name: str) -> None:
    assert MODELS.has(written)
    assert load_model(written).name == name


def test_model_names_are_unique() -> None:
    shipped = {name: read_toml(MODELS.shipped / f"{name}.toml") for name in MODELS.names()}
    variants = [one for sheet in shipped.values() for one in sheet.get("variants", {}).items()]
    spelt = [
        {folded(word) for word in (name, *facts.get("aliases", ()))}
        for name, facts in (*shipped.items(), *variants)
    ]
    both = Counter(itertools.chain.from_iterable(spelt))
    assert [name for name, times in both.items() if times > 1] == []


def test_context_length_comes_from_the_config() -> None:
    assert load_model("llama4_scout").max_context == 10 * 2**20
    assert load_model("llama4_maverick").max_context == 2**20


def test_a_variant_has_its_own_checkpoint_and_the_shapes_of_its_file() -> None:
    older, newer = load_model("meta-llama/Meta-Llama-3-8B"), load_model("llama3_1_8b")
    assert (older.name, older.hidden, older.max_context) == ("llama3_1_8b", newer.hidden, 8192)
    assert older.source == "meta-llama/Meta-Llama-3-8B config.json"


def test_unknown_repository_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown model 'nobody/nothing-9b'"):
        load_model("nobody/nothing-9b")


def test_misspelt_model_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'llama2_70b'"):
        load_model("lama2_70b")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("laiers = 3", "did you mean 'layers'"),
        ("kv_heads = 5", "cannot share"),
        ('hidden = "wide"', "must be of type int"),
        ("vocab = 0", "must be positive"),
        ('published_experts = "fp4"', "and not mxfp4"),
        ("attention_every = 6", "6.4 gives 5"),
    ],
)
def test_error_in_a_model_file_names_the_key(tmp_path: Path, line: str, said: str) -> None:
    key = line.split(" = ")[0]
    text = (MODELS.find("llama2_7b")).read_text()
    kept = [old for old in text.splitlines() if not old.startswith(f"{key} =")]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join([*kept, line]))
    with pytest.raises(UserError, match=said):
        load_model(str(path))


@pytest.mark.parametrize(
    ("name", "layers"),
    # Layers i with (i + 1) % 6 == 0, in Hugging Face's modeling_gemma3.py.
    [("gemma3_1b", 4), ("gemma3_4b", 5), ("gemma3_12b", 8), ("gemma3_27b", 10)],
)
def test_every_sixth_layer_of_gemma_3_sees_all_tokens(name: str, layers: int) -> None:
    model = load_model(name)
    assert model.full_layers == layers
    assert attending_layers(model, stage_of(model, Parallelism(), 0)) == pytest.approx(layers)
