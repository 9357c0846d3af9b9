"""How public benchmarks start SGLang: the options that decide when a prompt is run, and with whom.

InferenceX (github.com/SemiAnalysisAI/InferenceX, `benchmarks/single_node/*.sh`, read 2026-11) asks
SGLang for prompt batches of up to `--chunked-prefill-size` tokens, and on Blackwell to look for new
requests every `--scheduler-recv-interval` decode iterations only. Other frameworks look in each.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.catalog.gpu import load_gpu

MANY_CLIENTS = 16
"""From these on a recipe may look for requests less often."""


@dataclass(frozen=True)
class Recipe:
    """Options of one engine: tokens of a batch of prompts, decode iterations between looks."""

    budget: int
    poll_interval: int
    poll_interval_many: int  # with many clients

    def poll(self, clients: int) -> int:
        """Return the decode iterations between looks for new requests."""
        return self.poll_interval_many if clients >= MANY_CLIENTS else self.poll_interval


BLACKWELL = Recipe(32768, 10, 30)
"""Most recipes of Blackwell GPUs (dsr1_fp8_b200.sh, qwen3.5_fp8_b200.sh), and so those assumed of
models that are not listed."""

OTHERS = Recipe(32768, 1, 1)

LISTED = {
    ("deepseek_v3", "bf16+fp4", "b200_sxm"): Recipe(16384, 10, 30),  # dsr1_fp4_b200.sh
    ("glm_5", "fp8_block", "b200_sxm"): Recipe(32768, 1, 1),  # glm5_fp8_b200.sh
    ("glm_5", "fp8_block", "b300_sxm"): Recipe(32768, 1, 1),  # glm5_fp8_b300.sh
    ("glm_5", "bf16+fp4", "b200_sxm"): Recipe(32768, 10, 10),  # glm5_fp4_b200.sh
    ("qwen3_5_397b", "bf16+fp4", "b200_sxm"): Recipe(32768, 30, 30),  # qwen3.5_fp4_b200.sh
}
"""Recipes unlike the others of their GPUs: model, precision, GPU; with the script that says so.

Scripts change with time, and one per entry is assumed: qwen3.5_fp8_b300.sh has come to ask for
batches of 16384 tokens and a look every 10 iterations, while that of a B200 stands for it here.
"""


def sglang_recipe(model: str, dtype: str, gpu: str) -> Recipe:
    """Return how a model is started on a GPU."""
    usual = BLACKWELL if load_gpu(gpu).architecture == "blackwell" else OTHERS
    return LISTED.get((model, dtype, gpu), usual)
