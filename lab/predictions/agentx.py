"""Predictions of published AgentX configurations, made before their results were looked at.

`python -m lab.predictions.agentx` writes `agentx.csv` from `agentx.toml`. The table stays as it was
on its date: a later release is scored against it, and against what it predicts itself.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulators.core.errors import Infeasible
from simulators.core.folder import read_toml
from simulators.serving.options import (
    CLOSED,
    ArrivalsConfig,
    CacheConfig,
    SessionsConfig,
    SpeculationConfig,
)
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate

CONFIGURATIONS = Path(__file__).with_suffix(".toml")
TABLE = Path(__file__).with_suffix(".csv")

METRICS = (
    *("ttft_p50_s", "ttft_p90_s", "ttft_mean_s", "ttft_mean_s_lo", "ttft_mean_s_hi"),
    *("tpot_p50_s", "tpot_p90_s", "tpot_mean_s", "tpot_mean_s_lo", "tpot_mean_s_hi"),
    *("e2e_per_token_p90_s", "prompt_tokens_per_s", "computed_prompt_tokens_per_s"),
    *("tokens_per_s", "tokens_per_s_lo", "tokens_per_s_hi", "prefix_hit_ratio"),
)


def points() -> Iterator[tuple[str, ServingPoint]]:
    """Yield the keys and points of all configurations."""
    sheet = read_toml(CONFIGURATIONS)
    for row in sheet["configurations"]:
        for lanes in row["lanes"]:
            yield row["key"], _point(sheet, row, lanes)


def _point(sheet: Mapping[str, Any], row: Mapping[str, Any], lanes: int) -> ServingPoint:
    drafts = row["speculation"]
    return ServingPoint(
        **row["point"],
        kv_dtype="fp8",
        workload="agentic",
        requests=0,
        qps=None,
        arrivals=ArrivalsConfig(process=CLOSED, clients=lanes),
        sessions=SessionsConfig(duration_s=float(sheet["duration_s"])),
        cache=CacheConfig(
            prefix_caching=True, prefix_host_bytes=row["dram"] * sheet["host_bytes_per_gpu"]
        ),
        speculation=SpeculationConfig(
            method=drafts["method"],
            num_draft_tokens=drafts["drafts"],
            acceptance=f"length={drafts['length']}",
        ),
    )


def main() -> None:
    """Write the table."""
    date = read_toml(CONFIGURATIONS)["date"]
    with TABLE.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("date", "configuration", "gpus", "lanes", "reason", *METRICS))
        for key, point in points():
            head = (date, key, point.tp * point.attention_dp, point.arrivals.clients)
            try:
                found = simulate(point)
            except Infeasible as reason:
                rows.writerow((*head, str(reason), *("" for _ in METRICS)))
                continue
            values = (getattr(found, name) for name in METRICS)
            rows.writerow((*head, "", *("" if v is None else f"{v:.4g}" for v in values)))


if __name__ == "__main__":
    main()
