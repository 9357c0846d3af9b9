"""Deployments measured in public, and what a token takes in them in the steady state.

InferenceMAX and NVIDIA's gap analyses serve a model to a fixed number of clients: lengths are drawn
evenly between 0.8 and 1 of the stated ones, and each client asks again when it is answered. Mean
times to the first and per later token are printed.

What the tables leave open is assumed alike for all rows: see `_deployed`. Rows are left out by the
documented rules of `excluded` alone, none of which looks at a prediction.

While a request writes its `O` tokens, each other client's next prompt is prefilled once. An engine
that mixes them into decode iterations has `p = (n - 1) / O` prompts in each; one that runs prompts
apart stops that often. So the time per token of `n` requests is a sum over two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, load_model
from simulators.composition.recipes import Recipe, sglang_recipe
from simulators.composition.replica import Replica, Runtime, load_runtime
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import Step

Floats = NDArray[np.float64]

FRAMEWORKS = ("vllm", "trtllm", "sglang")
APART = ("sglang",)
"""Engines that run prompts in iterations of their own."""

OF_REST = ("trtllm",)
"""Engines whose memory fraction is one of what the weights leave."""

SPREAD = 0.2
MEAN = 1.0 - SPREAD / 2.0
"""Lengths are drawn evenly from this share below the stated ones."""

MEMORY_FRACTION = 0.9

BUDGETS = {"vllm": 8192, "trtllm": 8192}
"""Tokens of an iteration, by the frameworks' defaults on data-centre GPUs."""

BEYOND_PROMPT = 256
"""Tokens that TensorRT-LLM's recipes leave room for beside the longest prompt."""


@dataclass(frozen=True)
class Deployed:
    """One measured deployment under one load."""

    name: str
    family: tuple[str, ...]  # what a factor of a user's own calibrates
    framework: str
    model: str
    gpu: str
    cut: Parallelism
    dtype: str
    kv_dtype: str
    clients: int
    prompt: int  # longest lengths, in tokens
    output: int
    crowded: bool  # one client more than seats
    ttft_s: float
    tpot_s: float
    peer_ttft_s: float | None
    peer_tpot_s: float | None
    excluded: str  # why it is left out of what is held to a limit; empty: it is not

    @property
    def group(self) -> str:
        """A model on a GPU: what is held out together."""
        return f"{self.model}.{self.gpu}"

    @property
    def mean_prompt(self) -> float:
        """Tokens of a prompt, on average."""
        return MEAN * self.prompt

    @property
    def budget(self) -> int:
        """Tokens of an iteration."""
        if self.framework == "sglang":
            return self._recipe.budget
        beyond = self.prompt + BEYOND_PROMPT if self.framework == "trtllm" else 0
        return max(BUDGETS[self.framework], beyond)

    @property
    def poll_interval(self) -> int:
        """Decode iterations between looks for new requests; 0: each."""
        return self._recipe.poll(self.clients) if self.framework == "sglang" else 0

    @property
    def _recipe(self) -> Recipe:
        return sglang_recipe(self.model, self.dtype, self.gpu)

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return load_model(self.model).experts == 0

    def replica(self, runtime: Runtime | None = None) -> Replica:
        """Return the deployment under a runtime; without one, under its framework's."""
        gpu = load_gpu(self.gpu)
        return Replica(
            model=load_model(self.model),
            gpu=gpu,
            cluster=cluster_for("auto", gpu),
            cut=self.cut,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            runtime=runtime or load_runtime(self.framework),
        )


def four_bit_experts(model: str, gpu: str) -> str:
    """Return the precision of a mixture whose experts alone have 4 bits.

    Engines multiply those published in MXFP4 by 8 bits.
    """
    if "fp4" not in load_gpu(gpu).peak_flops:
        return "bf16+w4a16"
    return "bf16+w4a8" if load_model(model).published_experts == MXFP4 else "bf16+fp4"


@dataclass(frozen=True)
class SteadyState:
    """What a token takes: weights of two steps, each a column over loads of one replica."""

    decode: Step
    prefill: Step  # with the decodes that share the iteration, if they do
    decode_weight: Floats
    prefill_weight: Floats


def steady_state(replica: Replica, loads: Sequence[Deployed], *, apart: bool) -> SteadyState:
    """Return the steps of loads of one replica, and how often a token waits for each."""
    prompt, output = (
        MEAN * np.array([getattr(d, name) for d in loads], np.float64)
        for name in ("prompt", "output")
    )
    context = prompt + output / 2.0
    seats = np.maximum(1.0, kv_tokens(replica, of_rest=loads[0].framework in OF_REST) / context)
    running = np.minimum(np.array([d.clients for d in loads], np.float64), seats)
    prompts = np.maximum(running - 1.0, 0.0) / output
    at_once = np.maximum(1.0, prompts)
    if apart:  # those that came since the last look, as far as the budget goes
        gathered = prompts * np.array([d.poll_interval for d in loads])
        fit = np.array([d.budget for d in loads]) / prompt
        at_once = np.clip(gathered, 1.0, np.maximum(fit, 1.0))
    beside = 0.0 if apart else running
    return SteadyState(
        decode=Step(decodes=running, decode_kv_tokens=running * context, logits_rows=running),
        prefill=Step(
            prefills=at_once,
            prefill_tokens=at_once * prompt,
            prefill_pairs=at_once * prompt * (prompt + 1.0) / 2.0,
            prefill_kv_tokens=at_once * prompt,
            decodes=beside * np.ones_like(prompts),
            decode_kv_tokens=beside * context,
            logits_rows=beside + at_once,
        ),
        decode_weight=np.ones_like(prompts) if apart else 1.0 - np.minimum(1.0, prompts),
        prefill_weight=prompts / at_once if apart else np.minimum(1.0, prompts),
    )


def kv_tokens(replica: Replica, *, of_rest: bool) -> float:
    """Return the tokens that the KV cache of a replica holds beside the weights."""
    weights = weight_bytes(replica.model, replica.cut, replica.dtype)
    usable = MEMORY_FRACTION * replica.gpu.hbm_bytes - weights
    if of_rest:
        usable += (1.0 - MEMORY_FRACTION) * weights
    per_token = kv_bytes_per_token(replica.model, replica.cut, replica.kv_dtype)
    return max(1.0, usable / per_token)


def by_replica(rows: Sequence[Deployed]) -> dict[tuple[object, ...], list[int]]:
    """Return the rows of each replica, by its description."""
    found: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        key = (row.model, row.gpu, row.cut, row.dtype, row.kv_dtype, row.framework)
        found.setdefault(key, []).append(i)
    return found
