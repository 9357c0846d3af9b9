"""Launch options of the engines of InferenceX, from the scripts beside the tables.

Read from github.com/SemiAnalysisAI/InferenceX, `benchmarks/` and `benchmarks/single_node/` (Apache
2.0), as they stood from the month named on: a row of that model, precision, GPU and engine is
believed to be started by the script of its date. What a script leaves out is the engine's default.
The scripts of TensorRT-LLM wait for more prompts under some loads (`batch_wait_timeout_iters`), and
under attention data parallelism until all ranks have one (`timeout_iters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from simulators.core.folder import read_toml
from simulators.serving.measured_deployments import EngineLaunch

RECIPES = Path(__file__).with_suffix(".toml")

MANY_CLIENTS = 16
"""From these on SGLang's scripts look for new requests less often."""

STEP = 64
"""Scripts of TensorRT-LLM round tokens up to multiples of it."""


class RecipeLoad(NamedTuple):
    """What a script knows of the run it starts an engine for."""

    prompt: int  # longest, in tokens
    output: int
    clients: int
    tp: int  # GPUs of the engine
    attention_dp: bool


def _one_prompt(load: RecipeLoad) -> int:
    """Return `(CONC + ISL + 64 + 63) / 64 * 64`: one prompt beside everybody's decodes."""
    return (load.clients + load.prompt + STEP + STEP - 1) // STEP * STEP


def _llama_waits(load: RecipeLoad) -> int:
    return 20 if load.prompt == load.output == 1024 and load.tp < 8 else 0


def _for_ranks(load: RecipeLoad) -> int:
    return 60 if load.attention_dp else 0


def _deepseek_waits(load: RecipeLoad) -> int:
    is_busy = load.prompt == load.output == 1024 and load.clients >= 64
    return 40 if is_busy and not load.attention_dp else _for_ranks(load)


BUDGETS: Mapping[str, Callable[[RecipeLoad], int]] = {
    "two_prompts": lambda load: 2 * load.prompt,
    "one_prompt": _one_prompt,
    "at_least_8k": lambda load: max(8192, _one_prompt(load)),
    "deepseek": lambda load: 8192 if load.tp == 4 else 32768,
}
WAITS: Mapping[str, Callable[[RecipeLoad], int]] = {
    "llama": _llama_waits,
    "ranks": _for_ranks,
    "deepseek": _deepseek_waits,
}
"""Rules by which scripts choose, as `launch_recipes.toml` names them."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One script's options, as `launch_recipes.toml` explains them."""

    script: str
    since: str = ""
    budget: int | str = 8192
    poll_interval: tuple[int, int] | str = (0, 0)
    memory_fraction: float = 0.0  # 0: the script is silent
    kv_dtype: str = ""

    def launch(self, load: RecipeLoad) -> EngineLaunch:
        """Return the options of a load."""
        budget, wait = self.budget, self.poll_interval
        return EngineLaunch(
            BUDGETS[budget](load) if isinstance(budget, str) else budget,
            WAITS[wait](load) if isinstance(wait, str) else wait[load.clients >= MANY_CLIENTS],
            self.memory_fraction,
        )


def recipe_of(
    framework: str, model: str, gpu: str, precision: str, date: str | None
) -> Recipe | None:
    """Return the script that started a row's engine, the oldest known where no date is stated."""
    models = read_toml(RECIPES).get(framework, {})
    known = [Recipe(**one) for one in models.get(model, {}).get(gpu, {}).get(precision, ())]
    found = [recipe for recipe in known if recipe.since <= (date or "")]
    return found[-1] if found else (known[0] if known else None)
