"""Flags of `ask design`."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.questions import flag

OBJECTIVES = ("usd_per_mtok", "tokens_per_s", "tokens_per_j")


@dataclass(frozen=True)
class DesignFlags:
    """Flags of `ask design`: load, model, and the budget of a device."""

    model: str = flag("a model of the catalog, or a config.json")
    process: str = flag("process of the dies: n7, n5 or n3")
    area: str = flag("silicon of a device, as in 1600mm2; several dies above 858 mm2")
    tdp: str = flag("power limit of a device, as in 1800W")
    workload: str = flag(
        "chat, code, sharegpt or summarization, by mean lengths (default chat)", default="chat"
    )
    isl: float = flag("prompt tokens of a request, instead of --workload", default=0.0)
    osl: float = flag("output tokens of a request, instead of --workload", default=0.0)
    hit: float = flag("share of the prompt in the prefix cache (default 0)", default=0.0)
    tpot: float = flag(
        "time per output token at most, as in 50ms (default 50ms)", default=0.05, unit="s", bare=9.0
    )
    memory: str = flag("kind of stacks: hbm3e or hbm4 (default hbm4)", default="hbm4")
    objective: str = flag(
        "usd_per_mtok, tokens_per_s or tokens_per_j (default usd_per_mtok)",
        choices=OBJECTIVES,
        default=OBJECTIVES[0],
    )


FLAGS = DesignFlags
