"""Flags of `ask` for a serving deployment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulators.catalog.price import DEFAULT as PUBLIC_CLOUD
from simulators.core.folder import ENGINES, read_toml
from simulators.workload.llm.parallelism import BACKENDS, GATHERED
from sweeper.questions import flag

HELP = read_toml(Path(__file__).with_suffix(".toml"))
"""Help of the flags."""

POOLS = NO, ALSO, ONLY = "no", "also", "only"
"""Separate prefill and decode pools: not tried, tried besides one pool, or tried alone."""

BARE_TTFT_S, BARE_TPOT_S = 60.0, 1.0
"""Largest deadlines without a unit; larger numbers are usually meant in milliseconds."""

CHECKPOINT, ANY, NOTHING = "checkpoint", "any", "nothing"
"""Precisions of the published checkpoint; all engines; no speculation or draft model."""


@dataclass(frozen=True)
class ServingFlags:
    """Flags of `ask`: model, GPUs, load and SLO."""

    model: str = flag(HELP["model"])
    gpu: str = flag(HELP["gpu"])
    gpus: int = flag(HELP["gpus"], least=1, default=0)
    workload: str = flag(HELP["workload"], default="chat")
    system_prompt: int = flag(HELP["system_prompt"], least=0, default=0)
    isl: int = flag(HELP["isl"], least=1, default=0)
    osl: int = flag(HELP["osl"], least=1, default=0)
    qps: float | None = flag(HELP["qps"], unit="1/s", default=None)
    lanes: int = flag(HELP["lanes"], least=1, default=0)
    host_kv: float = flag(HELP["host_kv"], unit="B", default=0.0)
    nvme_kv: float = flag(HELP["nvme_kv"], unit="B", default=0.0)
    remote_kv: float = flag(HELP["remote_kv"], unit="B", default=0.0)
    concurrency: int = flag(HELP["concurrency"], least=1, default=0)
    traffic: str = flag(HELP["traffic"], default="1x")
    min_replicas: int = flag(HELP["min_replicas"], least=0, default=0)
    max_replicas: int = flag(HELP["max_replicas"], least=0, default=0)
    startup: float | None = flag(HELP["startup"], unit="s", default=None)
    cool_down: float | None = flag(HELP["cool_down"], unit="s", default=None)
    ttft: float | None = flag(HELP["ttft"], unit="s", bare=BARE_TTFT_S, default=None)
    tpot: float = flag(HELP["tpot"], unit="s", bare=BARE_TPOT_S, default=0.05)
    percentile: int = flag(HELP["percentile"], choices=(50, 90, 95, 99), default=99)
    budget: float | None = flag(HELP["budget"], unit="$", default=None)
    prices: str = flag(HELP["prices"], default=PUBLIC_CLOUD)
    price: str = flag(HELP["price"], default="")
    dtype: str = flag(HELP["dtype"], default=CHECKPOINT)
    engine: str = flag(HELP["engine"].format(", ".join(ENGINES.names())), default=ANY)
    router: str = flag(HELP["router"], default=ANY)
    chunk_size: str = flag(HELP["chunk_size"], default=ANY)
    pools: str = flag(HELP["pools"], choices=POOLS, default=NO)
    moe_backend: str = flag(HELP["moe_backend"].format(", ".join(BACKENDS)), default=GATHERED)
    speculation: str = flag(HELP["speculation"], default=NOTHING)
    drafter: str = flag(HELP["drafter"], default=NOTHING)
    acceptance: str = flag(HELP["acceptance"], default="")
    measured: str = flag(HELP["measured"], default="")
    requests: int = flag(HELP["requests"], least=0, default=0)


FLAGS = ServingFlags
