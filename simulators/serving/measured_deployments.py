"""A measured deployment and the point that simulates it: an engine under a number of clients.

Lengths and the number of requests are those of the benchmark's client. With lengths that are all
the same, requests that start together end together: under an engine that runs prompts first a
closed loop stays locked in waves then, which drawn lengths dissolve. How an engine was started is
known of some rows (`EngineLaunch`); of others the defaults in its file are taken.
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
from simulators.serving.point import (
    AUTO,
    WHOLE,
    ArrivalsConfig,
    CacheConfig,
    ClientConfig,
    LengthsConfig,
    MeasurementConfig,
    SchedulingConfig,
    ServingPoint,
)
from simulators.workload.llm.parallelism import Parallelism


@dataclass(frozen=True)
class Client:
    """A closed-loop load: clients start together and send the next request after each answer."""

    name: str
    length_spread: float  # drawn evenly from the stated ones down to this share less; 0: fixed
    requests: int  # of each client; those that warm an engine up are over before they start
    source: str  # who says so
    inferred: tuple[str, ...] = ()  # what nobody says, and why it is believed
    frontend: str = AUTO
    budgets: dict[str, int] = field(default_factory=dict, hash=False)  # unlike the usual, by engine
    # Tokens of an iteration beyond a prompt and a token of every client, by engine, if stated.
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
class EngineLaunch:
    """Launch options of an engine; 0 means the engine's default."""

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
    launch: EngineLaunch = EngineLaunch()
    runtime: str = ""  # of the release that ran; empty: today's

    @property
    def budget(self) -> int:
        """Token budget: as launched, as in the client's source, or the engine's default."""
        if self.launch.budget:
            return self.launch.budget
        if self.framework in self.client.beside_prompt:
            return self.clients + self.prompt + self.client.beside_prompt[self.framework]
        defaults = load_engine(self.framework).defaults
        usual = defaults.tokens(load_gpu(self.gpu).hbm_bytes)
        beyond = defaults.tokens_beyond_prompt
        needed = self.prompt + beyond if beyond else 0
        return max(self.client.budgets.get(self.framework, usual), needed)


def point_of(deployed: Deployed, runtime: str = "") -> ServingPoint:
    """Return a measured deployment as a point, under its framework's runtime or another."""
    framework, cut = deployed.framework, deployed.cut
    engine = load_engine(framework)
    memory_fraction = engine.defaults.memory_fraction(load_gpu(deployed.gpu).hbm_bytes, cut.tp)
    return ServingPoint(
        model=deployed.model,
        gpu=deployed.gpu,
        tp=cut.tp,
        ep=cut.ep,
        attention_dp=cut.attention_dp,
        scheduler=engine.schedulers[0],
        runtime=runtime or deployed.runtime or engine.today,
        chunk_size=deployed.budget,
        scheduling=SchedulingConfig(poll_interval=deployed.launch.poll_interval),
        client=ClientConfig(
            stream_interval=engine.defaults.stream_interval, frontend=deployed.client.frontend
        ),
        max_batch=deployed.clients if deployed.crowded else engine.max_sequences,
        memory_fraction=deployed.launch.memory_fraction or memory_fraction,
        cache=CacheConfig(watermark=0.0),
        dtype=deployed.dtype,
        kv_dtype=deployed.kv_dtype,
        arrivals=ArrivalsConfig(process="closed", clients=deployed.clients + deployed.crowded),
        measurement=MeasurementConfig(window=WHOLE),
        requests=deployed.client.requests * deployed.clients,
        prompt_tokens=deployed.prompt,
        output_tokens=deployed.output,
        lengths=LengthsConfig(spread=deployed.client.length_spread),
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
    """Return a user's measured row; TTFT is NaN if the row has none.

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
