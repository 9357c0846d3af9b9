"""A measured deployment and the point that simulates it: an engine under a number of clients.

Lengths and the number of requests are those of the benchmark's client. With lengths that are all
the same, requests that start together end together: under an engine that runs prompts first a
closed loop stays locked in waves then, which drawn lengths dissolve. Limits of engines are the
frameworks' defaults on data-centre GPUs.

How an engine was started is known of some rows (`Launch`); of others its defaults are taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.composition.replica import FRAMEWORKS
from simulators.core.errors import UnknownNameError, UserError
from simulators.serving.point import AUTO, WHOLE, ServingPoint
from simulators.workload.llm.parallelism import Parallelism

MEMORY_FRACTION = 0.9

BUDGETS = {"vllm": 8192, "trtllm": 8192}
"""Tokens of an iteration, by the frameworks' defaults on data-centre GPUs."""

CHUNKS, LARGE = (8192, 16384), 160e9
"""Tokens of a batch of prompts that SGLang cuts at, on GPUs of up to so many bytes and of more
(`server_args.py`)."""

RESERVED, OF_LARGE = ((35e9, 2.8, 0.1), (90e9, 9.5, 0.5), (160e9, 12.0, 0.5)), 32.0
"""GiB that SGLang leaves beside weights and cache: on GPUs of up to so many bytes, so many and so
many more for each GPU of a replica; on larger ones (`server_args.py`, releases 0.4.8 to 0.5.2)."""

STREAM_INTERVALS = {"trtllm": 10}
"""Iterations between messages of an answer, where recipes do not leave engines to send each token
(InferenceX, `stream_interval` of `dsr1_*_trt*.sh`; of gpt-oss it is 20). Those of SGLang ask for
10 to 50, but of nothing here whose ranks attend apart."""

BEYOND_PROMPT = 256
"""Tokens that TensorRT-LLM's recipes leave room for beside the longest prompt."""


@dataclass(frozen=True)
class Client:
    """A closed loop: each client asks again as soon as it is answered, the first all at once."""

    name: str
    length_spread: float  # drawn evenly from the stated ones down to this share less; 0: fixed
    requests: int  # of each client; those that warm an engine up are over before they start
    source: str  # who says so
    inferred: tuple[str, ...] = ()  # what nobody says, and why it is believed
    frontend: str = AUTO
    budgets: dict[str, int] = field(default_factory=dict, hash=False)  # unlike the usual, by engine
    # Tokens of an iteration beyond a prompt and a token of every client, by engine, where told so.
    beside_prompt: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def mean_length(self) -> float:
        """Of lengths over the stated ones."""
        return 1.0 - self.length_spread / 2.0


INFERENCEX = Client(
    name="InferenceX",
    length_spread=0.2,
    requests=10,
    source="github.com/SemiAnalysisAI/InferenceX, benchmarks/single_node: --random-range-ratio "
    "0.8, --request-rate inf, --max-concurrency C, 10 C prompts, 2 C to warm up, --ignore-eos",
)
"""Also of what is not known to be measured otherwise."""


@dataclass(frozen=True)
class Launch:
    """How an engine was started; 0 where nobody says, which stands for its default."""

    budget: int = 0  # tokens of an iteration
    poll_interval: int = 0  # decode iterations between looks for new requests
    memory_fraction: float = 0.0


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
    launch: Launch = Launch()
    release: str = ""  # the runtime of an older release that ran; empty: today's

    @property
    def runtime(self) -> str:
        """The runtime that it is simulated under."""
        return self.release or self.framework

    @property
    def stream_interval(self) -> int:
        """Iterations between messages of an answer."""
        return STREAM_INTERVALS.get(self.framework, 1)

    @property
    def budget(self) -> int:
        """Tokens of an iteration."""
        if self.launch.budget:
            return self.launch.budget
        if self.framework in self.client.beside_prompt:
            return self.clients + self.prompt + self.client.beside_prompt[self.framework]
        if self.framework == "sglang":
            usual = CHUNKS[load_gpu(self.gpu).hbm_bytes > LARGE]
            return self.client.budgets.get("sglang", usual)
        beyond = self.prompt + BEYOND_PROMPT if self.framework == "trtllm" else 0
        return max(self.client.budgets.get(self.framework, BUDGETS[self.framework]), beyond)

    @property
    def memory_fraction(self) -> float:
        """Share of the memory for weights and cache."""
        if self.launch.memory_fraction or self.framework != "sglang":
            return self.launch.memory_fraction or MEMORY_FRACTION
        size = load_gpu(self.gpu).hbm_bytes
        gib = next(
            (base + each * self.cut.tp for most, base, each in RESERVED if size <= most), OF_LARGE
        )
        return round(1.0 - gib * 2**30 / size, 3)


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
        runtime=runtime or deployed.runtime,
        chunk_size=deployed.budget,
        poll_interval=deployed.launch.poll_interval,
        stream_interval=deployed.stream_interval,
        max_batch=deployed.clients if deployed.crowded else engine.max_sequences,
        memory_fraction=deployed.memory_fraction,
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
    "tp": 1,
    "ep": 1,
    "attention_dp": 1,
    "dtype": "bf16",
    "kv_dtype": "bf16",
    "ttft_s": None,
}
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
