"""Measured deployments: their launch options, clients and times, and the points that simulate them.

Lengths and the number of requests are those of the benchmark's client. If all lengths are equal,
requests that start together end together, and a closed loop under an engine that prefers prefills
stays locked in waves; drawn lengths dissolve the waves. `EngineLaunch` holds the known launch
options of an engine; otherwise the defaults in the engine's file are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.composition.engine_defaults import later_rules
from simulators.composition.replica import FRAMEWORKS, NOTHING
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.fields import updated
from simulators.serving.options import (
    AUTO,
    DRAFT,
    FRESH,
    OFF,
    SPECULATIONS,
    WARM,
    WHOLE,
    ArrivalsConfig,
    CacheConfig,
    ClientConfig,
    LengthsConfig,
    MeasurementConfig,
    SchedulingConfig,
    SpeculationConfig,
)
from simulators.serving.point import ServingPoint
from simulators.workload.llm.parallelism import Parallelism


@dataclass(frozen=True)
class Client:
    """A closed-loop load: clients start together and send the next request after each answer."""

    name: str
    length_spread: float  # lengths are uniform down to this share below the longest; 0: fixed
    requests: int  # requests per client, after the warm-up
    source: str
    inferred: tuple[str, ...] = ()  # unpublished settings, with the reason for the assumed value
    frontend: str = AUTO
    # Token budgets other than the default, by engine.
    budgets: dict[str, int] = field(default_factory=dict, hash=False)
    # Token budget beyond a prompt and one token per client, by engine, if published.
    beside_prompt: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def mean_length(self) -> float:
        """Return the mean length over the stated length."""
        return 1.0 - self.length_spread / 2.0


INFERENCEX = Client(
    name="InferenceX",
    length_spread=0.2,
    requests=10,
    source="github.com/SemiAnalysisAI/InferenceX, benchmarks/single_node: --random-range-ratio "
    "0.8, --request-rate inf, --max-concurrency C, 10 C prompts, 2 C to warm up, --ignore-eos",
)
"""Default client of rows with an unknown client."""


@dataclass(frozen=True)
class EngineLaunch:
    """Launch options of an engine; 0 means the engine's default."""

    budget: int = 0  # tokens of an iteration
    poll_interval: int = 0  # decode iterations between polls of the queue
    memory_fraction: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """One measured deployment under one load."""

    framework: str
    model: str
    gpu: str
    layout: Parallelism
    dtype: str
    kv_dtype: str
    clients: int
    prompt: int  # longest lengths, in tokens
    output: int
    ttft_s: float
    tpot_s: float
    crowded: bool = False  # one client more than the maximum of running requests
    is_fresh: bool = False  # started for this load, without requests that warm it up
    client: Client = INFERENCEX
    launch: EngineLaunch = EngineLaunch()
    runtime: str = ""  # runtime of the measured release; empty: today's
    release: str = ""  # the measured release or its date; empty: the last of the runtime
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)

    @property
    def budget(self) -> int:
        """Return the token budget: as launched, as in the client's source, or the default."""
        if self.launch.budget:
            return self.launch.budget
        if self.framework in self.client.beside_prompt:
            return self.clients + self.prompt + self.client.beside_prompt[self.framework]
        defaults = load_engine(self.framework).defaults
        usual = defaults.batch_limits(load_gpu(self.gpu)).tokens
        beyond = defaults.tokens_beyond_prompt
        needed = self.prompt + beyond if beyond else 0
        return max(self.client.budgets.get(self.framework, usual), needed)


def point_of(deployed: Deployed, runtime: str = "") -> ServingPoint:
    """Return the point that simulates a measured deployment; `runtime` replaces its runtime."""
    framework, layout = deployed.framework, deployed.layout
    engine, gpu = load_engine(framework), load_gpu(deployed.gpu)
    memory_fraction = engine.defaults.memory_fraction(gpu.hbm_bytes, layout.tp)
    return ServingPoint(
        model=deployed.model,
        gpu=deployed.gpu,
        tp=layout.tp,
        ep=layout.ep,
        attention_dp=layout.attention_dp,
        scheduler=engine.schedulers[0],
        runtime=runtime or deployed.runtime or engine.today,
        chunk_size=deployed.budget,
        scheduling=scheduling_of(deployed, engine.schedulers[0]),
        client=ClientConfig(
            stream_interval=engine.defaults.stream_interval, frontend=deployed.client.frontend
        ),
        max_batch=deployed.clients if deployed.crowded else engine.running_requests(gpu),
        memory_fraction=deployed.launch.memory_fraction or memory_fraction,
        cache=CacheConfig(block_size=16, watermark=0.0, prefix_caching=False),
        dtype=deployed.dtype,
        kv_dtype=deployed.kv_dtype,
        speculation=deployed.speculation,
        arrivals=ArrivalsConfig(process="closed", clients=deployed.clients + deployed.crowded),
        measurement=MeasurementConfig(window=WHOLE, server=FRESH if deployed.is_fresh else WARM),
        requests=deployed.client.requests * deployed.clients,
        prompt_tokens=deployed.prompt,
        output_tokens=deployed.output,
        lengths=LengthsConfig(spread=deployed.client.length_spread),
    )


def scheduling_of(deployed: Deployed, scheduler: str) -> SchedulingConfig:
    """Return the scheduling options of a deployment, without rules of later releases."""
    later = later_rules(scheduler, deployed.release) if deployed.release else ()
    options = SchedulingConfig(poll_interval=deployed.launch.poll_interval)
    return updated(options, dict.fromkeys(later, OFF))


NEEDED = ("model", "gpu", "framework", "clients", "prompt_tokens", "output_tokens", "tpot_s")
DEFAULTS = {
    "tp": 1,
    "ep": 1,
    "attention_dp": 1,
    "dtype": "bf16",
    "kv_dtype": "bf16",
    "ttft_s": None,
    "speculation": NOTHING,
    "draft_tokens": 3,
}
"""Columns of a user's measured rows: required columns, and defaults of optional columns."""

COUNTS = ("clients", "prompt_tokens", "output_tokens", "tp", "ep", "attention_dp", "draft_tokens")
TIMES = ("tpot_s", "ttft_s")


def measured_deployment(row: Mapping[str, Any]) -> Deployed:
    """Return a user's measured row as a deployment; TTFT is NaN if missing.

    Raises:
        UnknownNameError: the framework has no fitted runtime, or the method of speculation is
            unknown.
        UserError: a count is below 1, or a time is not positive.
    """
    row = {**DEFAULTS, **{name: value for name, value in row.items() if value is not None}}
    if row["framework"] not in FRAMEWORKS:
        raise UnknownNameError("framework", str(row["framework"]), FRAMEWORKS)
    if row["speculation"] not in SPECULATIONS or row["speculation"] == DRAFT:
        known = [method for method in SPECULATIONS if method != DRAFT]
        raise UnknownNameError("speculation", str(row["speculation"]), known)
    _check(row)
    return Deployed(
        framework=row["framework"],
        model=row["model"],
        gpu=row["gpu"],
        layout=Parallelism(tp=row["tp"], ep=row["ep"], attention_dp=row["attention_dp"]),
        dtype=row["dtype"],
        kv_dtype=row["kv_dtype"],
        clients=int(row["clients"]),
        prompt=int(row["prompt_tokens"]),
        output=int(row["output_tokens"]),
        ttft_s=float("nan") if row["ttft_s"] is None else float(row["ttft_s"]),
        tpot_s=float(row["tpot_s"]),
        speculation=SpeculationConfig(
            method=row["speculation"], num_draft_tokens=int(row["draft_tokens"])
        ),
    )


def _check(row: Mapping[str, Any]) -> None:
    for name in (*COUNTS, *TIMES):
        value: Any = row.get(name)
        if name in DEFAULTS and value is None:
            continue
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if not is_number or value <= 0 or (name in COUNTS and value < 1):
            least = "at least 1" if name in COUNTS else "a number of seconds above zero"
            raise UserError(f"{name} of a measured row is {value}; it must be {least}")
