"""Measured deployments with separate prefill and decode pools, whose speculation is known.

InferenceX's rows do not say whether they ran with multi-token prediction, and a third did. Of the
rows that its database resolves, those without it are read whose workers make up the stated GPUs.
Largest batches and kernels are those of the recipes (`disaggregated.toml`): in a closed loop with
more clients than slots of decode workers, TTFT is the wait for a slot. Assumed: decodes reach
experts on all GPUs of data-parallel attention by DeepEP, or by kernels as fast; and experts whose
slices would be narrower than a block of scales are not sliced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.deployments import RESOLVED, SILICON, dtype_of, runtime_of
from lab.tables.records import is_gpu, is_model, model_name
from lab.tables.rows import Record, read_records
from simulators.catalog.model import load_model
from simulators.core.fields import updated
from simulators.core.folder import read_toml
from simulators.serving.measured_deployments import Deployed, point_of
from simulators.serving.point import OFF, ServingPoint
from simulators.workload.llm.parallelism import (
    GATHERED,
    HIGH_THROUGHPUT,
    LOW_LATENCY,
    Parallelism,
)

RECIPES = read_toml(Path(__file__).with_suffix(".toml"))
POOLS = ("prefill", "decode")
BLOCK = 128
"""Numbers along a side of a block of scales."""


@dataclass(frozen=True)
class PooledRun:
    """A measured run; times in seconds."""

    point: ServingPoint
    framework: str
    ttft_s: float
    tpot_s: float

    @property
    def has_unlike_pools(self) -> bool:
        """Whether only one pool has data-parallel attention."""
        pools = self.point.pools
        return (pools.prefill_attention_dp == 1) != (pools.decode_attention_dp == 1)


def read_pooled_runs(reference: Path) -> Iterator[PooledRun]:
    """Yield the runs without speculation; nothing without the tables."""
    files = [reference / name for name in (SILICON, RESOLVED)]
    if not all(file.is_file() for file in files):
        return
    known = {row.twin_of_silicon_id: row for row in read_records(files[1], disaggregated=True)}
    seen = set()
    for row in read_records(files[0], mode="disagg"):
        resolved = known.get(row.id)
        if (
            resolved is None
            or resolved.spec_decode
            or not (is_model(row.model) and is_gpu(row.gpu))
        ):
            continue
        run = _run(row, resolved)
        times = (row.gpu, round(row.ttft_ms, 1), round(row.tpot_ms, 1))
        if run is not None and times not in seen:
            seen.add(times)
            yield run


def _run(row: Record, resolved: Record) -> PooledRun | None:
    """Return a run; None where workers and degrees do not make up the GPUs of both pools."""
    layouts, options, model = {}, dict[str, Any](), model_name(row.model)
    for pool in POOLS:
        names = ("num_workers", "tp_size", "attention_dp_size", "moe_ep_size")
        workers, tp, dp, ep = (row[f"{pool}_{name}"] for name in names)
        if not workers or workers * tp * dp != resolved[f"{pool}_gpus"]:
            return None
        if load_model(model).expert_ffn * ep < tp * dp * BLOCK:
            ep = tp * dp
        layouts[pool] = Parallelism(tp=tp, ep=ep, attention_dp=dp)
        own = {"gpus": workers * tp * dp, "tp": tp, "ep": ep, "attention_dp": dp}
        if ep == tp * dp and dp > 1:
            own["moe_backend"] = _backend(row, pool)
        options |= {f"pools.{pool}_{name}": value for name, value in own.items()}
    if (most := _most_decodes(row)) is not None:
        options["pools.decode_max_batch"] = most
    deployed = Deployed(
        framework=row.framework,
        model=model,
        gpu=row.gpu,
        layout=layouts["prefill"],
        dtype=dtype_of(model, row.gpu, row.precision),
        kv_dtype="fp8",
        clients=row.concurrency,
        prompt=row.isl,
        output=row.osl,
        ttft_s=row.ttft_ms * 1e-3,
        tpot_s=row.tpot_ms * 1e-3,
        runtime=runtime_of(row.framework, "", row.measured_date or ""),
    )
    changes: dict[str, Any] = {"scheduling.async_scheduling": OFF, **options}
    point = updated(point_of(deployed), changes)
    return PooledRun(point, row.framework, deployed.ttft_s, deployed.tpot_s)


def _backend(row: Record, pool: str) -> str:
    """Return how tokens of a pool with data-parallel attention reach experts."""
    if pool == "decode":
        return LOW_LATENCY
    worker = f"{row.framework} {row.gpu} {row.precision}"
    return HIGH_THROUGHPUT if worker in RECIPES["deepep"] else GATHERED


def _most_decodes(row: Record) -> int | None:
    """Return the largest batch of a rank of decode workers, where the recipe states it."""
    found: Any = RECIPES
    for key in (row.framework, row.gpu, row.precision, f"{row.isl}_{row.osl}"):
        found = found.get(key, {})
    most: int | None = found.get(str(row.concurrency))
    return most
