"""How the engines of InferenceX were started: what its scripts say beyond what tables repeat.

Read from github.com/SemiAnalysisAI/InferenceX, `benchmarks/` and `benchmarks/single_node/` (Apache
2.0), as they stood from the month named on: a row of that model, precision, GPU and engine is
believed to be started by the script of its date. What a script leaves out is the engine's default.
The scripts of TensorRT-LLM wait for more prompts under some loads (`batch_wait_timeout_iters`), and
under attention data parallelism until all ranks have one (`timeout_iters`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from simulators.serving.measured_deployments import MEMORY_FRACTION, Launch

MANY_CLIENTS = 16
"""From these on SGLang's scripts look for new requests less often."""

STEP = 64
"""Scripts of TensorRT-LLM round tokens up to multiples of it."""


class Load(NamedTuple):
    """What a script knows of the run it starts an engine for."""

    prompt: int  # longest, in tokens
    output: int
    clients: int
    tp: int  # GPUs of the engine
    attention_dp: bool


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One script's options, of some load."""

    script: str
    since: str = ""  # the month from which on it was so
    budget: Callable[[Load], int]  # tokens of an iteration
    poll_interval: Callable[[Load], int] = lambda _: 0
    memory_fraction: float = MEMORY_FRACTION
    kv_dtype: str = ""  # if not fp8 where weights are narrow

    def launch(self, load: Load) -> Launch:
        """Return the options of a load."""
        return Launch(self.budget(load), self.poll_interval(load), self.memory_fraction)


def _tokens(number: int) -> Callable[[Load], int]:
    return lambda _: number


def _two_prompts(load: Load) -> int:
    return 2 * load.prompt


def _one_prompt(load: Load) -> int:
    """Return `(CONC + ISL + 64 + 63) / 64 * 64`: one prompt beside everybody's decodes."""
    return (load.clients + load.prompt + STEP + STEP - 1) // STEP * STEP


def _at_least_8k(load: Load) -> int:
    return max(8192, _one_prompt(load))


def _looks(few: int, many: int) -> Callable[[Load], int]:
    """Return the iterations between looks with few and with many clients."""
    return lambda load: many if load.clients >= MANY_CLIENTS else few


def _llama_waits(load: Load) -> int:
    return 20 if load.prompt == load.output == 1024 and load.tp < 8 else 0


def _for_ranks(load: Load) -> int:
    return 60 if load.attention_dp else 0


def _deepseek_waits(load: Load) -> int:
    is_busy = load.prompt == load.output == 1024 and load.clients >= 64
    return 40 if is_busy and not load.attention_dp else _for_ranks(load)


def _deepseek_budget(load: Load) -> int:
    return 8192 if load.tp == 4 else 32768


USUAL = _tokens(8192)
"""By the scripts of vLLM, or its default as a server on GPUs of 70 GB and more."""

RECIPES = {
    ("vllm", "llama3_1_70b", "h100_sxm", "fp8"): (
        Recipe(script="70b_fp8_h100_slurm.sh", budget=USUAL),
    ),
    ("vllm", "llama3_1_70b", "b200_sxm", "fp8"): (
        Recipe(script="70b_fp8_b200_docker.sh", budget=USUAL),
    ),
    ("vllm", "gpt_oss_120b", "h100_sxm", "fp4"): (
        Recipe(script="gptoss_fp4_h100.sh", budget=USUAL, kv_dtype="bf16"),
    ),
    ("vllm", "kimi_k2_5", "b200_sxm", "int4"): (
        Recipe(
            script="kimik2.5_int4_b200.sh", budget=USUAL, memory_fraction=0.95, kv_dtype="bf16"
        ),
    ),
    ("vllm", "kimi_k2_5", "b200_sxm", "fp4"): (
        Recipe(script="kimik2.5_fp4_b200.sh", budget=USUAL),
        Recipe(script="kimik2.5_fp4_b200.sh", since="2026-04", budget=_two_prompts),
    ),
    ("vllm", "minimax_m2_5", "h100_sxm", "fp8"): (
        Recipe(script="minimaxm2.5_fp8_h100.sh", budget=USUAL, kv_dtype="bf16"),
    ),
    ("vllm", "minimax_m2_5", "b200_sxm", "fp8"): (
        Recipe(
            script="minimaxm2.5_fp8_b200.sh", budget=USUAL, memory_fraction=0.95, kv_dtype="bf16"
        ),
        Recipe(script="minimaxm2.5_fp8_b200.sh", since="2026-04", budget=_two_prompts),
    ),
    ("vllm", "minimax_m2_5", "b300_sxm", "fp8"): (
        Recipe(script="minimaxm2.5_fp8_b300.sh", budget=_two_prompts),
    ),
    ("vllm", "minimax_m2_5", "b200_sxm", "fp4"): (
        Recipe(script="minimaxm2.5_fp4_b200.sh", budget=_two_prompts),
    ),
    ("vllm", "minimax_m2_5", "b300_sxm", "fp4"): (
        Recipe(script="minimaxm2.5_fp4_b300.sh", budget=_two_prompts),
    ),
    ("trtllm", "llama3_1_70b", "b200_sxm", "fp4"): (
        Recipe(
            script="70b_fp4_b200_trt_slurm.sh", budget=_tokens(16384), poll_interval=_llama_waits
        ),
    ),
    ("trtllm", "llama3_1_70b", "b200_sxm", "fp8"): (
        Recipe(
            script="70b_fp8_b200_trt_slurm.sh", budget=_tokens(16384), poll_interval=_llama_waits
        ),
    ),
    ("trtllm", "gpt_oss_120b", "b200_sxm", "fp4"): (
        Recipe(script="gptoss_fp4_b200_trt.sh", budget=_tokens(20000), memory_fraction=0.85),
    ),
    ("trtllm", "deepseek_v3", "b200_sxm", "fp8"): (
        Recipe(
            script="dsr1_fp8_b200_trt_slurm.sh", budget=_one_prompt, poll_interval=_for_ranks,
            memory_fraction=0.8,
        ),
        Recipe(
            script="dsr1_fp8_b200_trt.sh", since="2026-01", budget=_at_least_8k,
            poll_interval=_deepseek_waits, memory_fraction=0.8,
        ),
    ),
    ("trtllm", "deepseek_v3", "b200_sxm", "fp4"): (
        Recipe(
            script="dsr1_fp4_b200_trt_slurm.sh", budget=_one_prompt, poll_interval=_for_ranks,
            memory_fraction=0.8,
        ),
        Recipe(
            script="dsr1_fp4_b200_trt.sh", since="2026-01", budget=_at_least_8k,
            poll_interval=_for_ranks, memory_fraction=0.8,
        ),
    ),
    ("sglang", "deepseek_v3", "b200_sxm", "fp8"): (
        Recipe(
            script="dsr1_fp8_b200.sh", budget=_deepseek_budget, poll_interval=_looks(10, 30),
            memory_fraction=0.82,
        ),
    ),
    ("sglang", "deepseek_v3", "b300_sxm", "fp8"): (
        Recipe(
            script="dsr1_fp8_b300.sh", budget=_deepseek_budget, poll_interval=_looks(10, 30),
            memory_fraction=0.82,
        ),
    ),
    ("sglang", "deepseek_v3", "b200_sxm", "fp4"): (
        Recipe(
            script="dsr1_fp4_b200.sh", budget=_tokens(16384), poll_interval=_looks(10, 30),
            memory_fraction=0.85,
        ),
    ),
    ("sglang", "glm_5", "b200_sxm", "fp8"): (
        Recipe(script="glm5_fp8_b200.sh", budget=_tokens(32768), memory_fraction=0.85),
    ),
    ("sglang", "glm_5", "b300_sxm", "fp8"): (
        Recipe(script="glm5_fp8_b300.sh", budget=_tokens(32768), memory_fraction=0.85),
    ),
    ("sglang", "glm_5", "b200_sxm", "fp4"): (
        Recipe(script="glm5_fp4_b200.sh", budget=_tokens(32768), poll_interval=_looks(10, 10)),
    ),
    ("sglang", "qwen3_5_397b", "b200_sxm", "bf16"): (
        Recipe(
            script="qwen3.5_bf16_b200.sh", budget=_tokens(32768), poll_interval=_looks(10, 30),
            memory_fraction=0.82,
        ),
    ),
    ("sglang", "qwen3_5_397b", "b300_sxm", "bf16"): (
        Recipe(
            script="qwen3.5_bf16_b300.sh", budget=_tokens(32768), poll_interval=_looks(10, 30),
            memory_fraction=0.82,
        ),
    ),
    ("sglang", "qwen3_5_397b", "b200_sxm", "fp8"): (
        Recipe(
            script="qwen3.5_fp8_b200.sh", budget=_tokens(16384), poll_interval=_looks(10, 30),
            memory_fraction=0.82,
        ),
    ),
    ("sglang", "qwen3_5_397b", "b300_sxm", "fp8"): (
        Recipe(
            script="qwen3.5_fp8_b300.sh", budget=_tokens(16384), poll_interval=_looks(10, 10),
            memory_fraction=0.8,
        ),
    ),
    ("sglang", "qwen3_5_397b", "b200_sxm", "fp4"): (
        Recipe(
            script="qwen3.5_fp4_b200.sh", budget=_tokens(32768), poll_interval=_looks(30, 30),
            memory_fraction=0.85,
        ),
    ),
    ("sglang", "qwen3_5_397b", "b300_sxm", "fp4"): (
        Recipe(
            script="qwen3.5_fp4_b300.sh", budget=_tokens(32768), poll_interval=_looks(30, 30),
            memory_fraction=0.85,
        ),
    ),
}  # fmt: skip
"""By engine, model, GPU and precision, the older first; of Qwen3.5 in 4 bits on a B300 the options
are those of a B200."""


def recipe_of(
    framework: str, model: str, gpu: str, precision: str, date: str | None
) -> Recipe | None:
    """Return the script that started a row's engine, the oldest known where no date is stated."""
    known = RECIPES.get((framework, model, gpu, precision), ())
    found = [recipe for recipe in known if recipe.since <= (date or "")]
    return found[-1] if found else (known[0] if known else None)
