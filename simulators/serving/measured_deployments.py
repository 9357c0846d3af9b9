"""A measured deployment and the point that simulates it: an engine under a number of clients.

Lengths and the number of requests are those of the benchmark's client (`benchmark_clients.py`).
Limits of engines are the frameworks' defaults on data-centre GPUs.

SGLang is started with options that decide when a prompt is run, and with whom. InferenceX
(github.com/SemiAnalysisAI/InferenceX, `benchmarks/single_node/*.sh`, read 2026-11) asks it for
prompt batches of up to `--chunked-prefill-size` tokens, and on Blackwell to look for new requests
every `--scheduler-recv-interval` decode iterations only. Other frameworks look in each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UnknownNameError, UserError
from simulators.serving.benchmark_clients import INFERENCEX, Client
from simulators.serving.point import WHOLE, ServingPoint
from simulators.workload.llm.parallelism import Parallelism

FRAMEWORKS = ("vllm", "trtllm", "sglang")
MEMORY_FRACTION = 0.9

BUDGETS = {"vllm": 8192, "trtllm": 8192}
"""Tokens of an iteration, by the frameworks' defaults on data-centre GPUs."""

BEYOND_PROMPT = 256
"""Tokens that TensorRT-LLM's recipes leave room for beside the longest prompt."""

MANY_CLIENTS = 16
"""From these on a recipe of SGLang may look for requests less often."""


@dataclass(frozen=True)
class SglangOptions:
    """Tokens of a batch of prompts, and decode iterations between looks for new requests."""

    budget: int = 32768
    poll_interval: int = 1
    poll_interval_many: int = 1  # with many clients


BLACKWELL = SglangOptions(32768, 10, 30)
"""Most recipes of Blackwell GPUs (dsr1_fp8_b200.sh, qwen3.5_fp8_b200.sh), and so those assumed of
models that are not listed."""

LISTED = {
    ("deepseek_v3", "bf16+fp4", "b200_sxm"): SglangOptions(16384, 10, 30),  # dsr1_fp4_b200.sh
    ("glm_5", "fp8_block", "b200_sxm"): SglangOptions(),  # glm5_fp8_b200.sh
    ("glm_5", "fp8_block", "b300_sxm"): SglangOptions(),  # glm5_fp8_b300.sh
    ("glm_5", "bf16+fp4", "b200_sxm"): SglangOptions(32768, 10, 10),  # glm5_fp4_b200.sh
    ("qwen3_5_397b", "bf16+fp4", "b200_sxm"): SglangOptions(32768, 30, 30),  # qwen3.5_fp4_b200.sh
}
"""Recipes unlike the others of their GPUs: model, precision, GPU; with the script that says so.

Scripts change with time, and one per entry is assumed: qwen3.5_fp8_b300.sh has come to ask for
batches of 16384 tokens and a look every 10 iterations, while that of a B200 stands for it here.
"""


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """One measured deployment under one load."""

    framework: str
    model: str
    gpu: str
    cut: Parallelism
    dtype: str
    kv_dtype: str
    clients: int
    prompt: int  # longest lengths, in tokens
    output: int
    ttft_s: float
    tpot_s: float
    crowded: bool = False  # one client more than seats
    client: Client = INFERENCEX

    @property
    def mean_prompt(self) -> float:
        """Tokens of a prompt, on average."""
        return self.client.mean_length * self.prompt

    @property
    def mean_output(self) -> float:
        """Tokens of an answer, on average."""
        return self.client.mean_length * self.output

    @property
    def budget(self) -> int:
        """Tokens of an iteration."""
        if self.framework == "sglang":
            return self.client.budgets.get("sglang", self._sglang.budget)
        beyond = self.prompt + BEYOND_PROMPT if self.framework == "trtllm" else 0
        return max(self.client.budgets.get(self.framework, BUDGETS[self.framework]), beyond)

    @property
    def poll_interval(self) -> int:
        """Decode iterations between looks for new requests; 0: each."""
        if self.framework != "sglang":
            return 0
        many = self.clients >= MANY_CLIENTS
        return self._sglang.poll_interval_many if many else self._sglang.poll_interval

    @property
    def _sglang(self) -> SglangOptions:
        is_blackwell = load_gpu(self.gpu).architecture == "blackwell"
        usual = BLACKWELL if is_blackwell else SglangOptions()
        return LISTED.get((self.model, self.dtype, self.gpu), usual)


def point_of(deployed: Deployed, runtime: str = "") -> ServingPoint:
    """Return a measured deployment as a point, under its framework's runtime or another."""
    framework, cut = deployed.framework, deployed.cut
    engine = load_engine(framework)
    return ServingPoint(
        model=deployed.model,
        gpu=deployed.gpu,
        tp=cut.tp,
        ep=cut.ep,
        attention_dp=cut.attention_dp,
        scheduler=engine.schedulers[0],
        runtime=runtime or framework,
        chunk_size=deployed.budget,
        poll_interval=deployed.poll_interval,
        max_batch=deployed.clients if deployed.crowded else engine.max_sequences,
        memory_fraction=MEMORY_FRACTION,
        watermark=0.0,
        dtype=deployed.dtype,
        kv_dtype=deployed.kv_dtype,
        arrivals="closed",
        window=WHOLE,
        clients=deployed.clients + deployed.crowded,
        requests=deployed.client.requests * deployed.clients,
        prompt_tokens=deployed.prompt,
        output_tokens=deployed.output,
        frontend=deployed.client.frontend,
        length_spread=deployed.client.length_spread,
    )


NEEDED = ("model", "gpu", "framework", "clients", "prompt_tokens", "output_tokens", "tpot_s")
DEFAULTS = {
    "tp": 1, "ep": 1, "attention_dp": 1, "dtype": "bf16", "kv_dtype": "bf16", "ttft_s": None,
}  # fmt: skip
"""Columns of a user's own measured rows: those that must be there, and what others are else."""

COUNTS = ("clients", "prompt_tokens", "output_tokens", "tp", "ep", "attention_dp")
TIMES = ("tpot_s", "ttft_s")


def measured_deployment(row: Mapping[str, Any]) -> Deployed:
    """Return a user's measured row; its time to the first token is NaN where nobody measured it.

    Raises:
        UnknownNameError: its framework is not one of those fitted.
        UserError: a count is less than one, or a time not above zero.
    """
    row = {**DEFAULTS, **{name: value for name, value in row.items() if value is not None}}
    if row["framework"] not in FRAMEWORKS:
        raise UnknownNameError("framework", str(row["framework"]), FRAMEWORKS)
    _check(row)
    return Deployed(
        framework=row["framework"],
        model=row["model"],
        gpu=row["gpu"],
        cut=Parallelism(tp=row["tp"], ep=row["ep"], attention_dp=row["attention_dp"]),
        dtype=row["dtype"],
        kv_dtype=row["kv_dtype"],
        clients=int(row["clients"]),
        prompt=int(row["prompt_tokens"]),
        output=int(row["output_tokens"]),
        ttft_s=float("nan") if row["ttft_s"] is None else float(row["ttft_s"]),
        tpot_s=float(row["tpot_s"]),
    )


def _check(row: Mapping[str, Any]) -> None:
    """Raise an error at the first number of a row that cannot be one of a measurement."""
    for name in (*COUNTS, *TIMES):
        value: Any = row.get(name)
        if name in DEFAULTS and value is None:
            continue
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if not is_number or value <= 0 or (name in COUNTS and value < 1):
            least = "at least 1" if name in COUNTS else "a number of seconds above zero"
            raise UserError(f"{name} of a measured row is {value}; it must be {least}")
