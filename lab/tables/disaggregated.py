"""Measured deployments with separate prefill and decode pools, whose speculation is known.

InferenceX's rows do not say whether they ran with multi-token prediction, and a third did. Rows are
read whose set-up is known: from the only definition of a sweep that has the row's lengths, clients
and workers (`sweep_lines`), or from the workers that the row states and InferenceX's database,
which resolves some. Where the database resolves a row, the definition must agree with it; without
the database's help definitions name the speculation of 69 of 71 resolved rows rightly. In a closed
loop with more clients than slots of decode workers, TTFT is the wait for a slot. Assumed: decodes
reach experts on all GPUs of data-parallel attention by DeepEP, or by kernels as fast; and experts
whose slices would be narrower than a block of scales are not sliced.

Sweeps are InferenceX's `.github/configs/*-master.yaml`, snapshots of 2025-12 to 2026-08. Names of
recipes state the largest batch of a rank (`batch32`) and the number of draft tokens (`mtp3`). Texts
in the table end after 4,000 characters: definitions up to there are read.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.deployments import RESOLVED, SILICON, SWEEPS, dtype_of, runtime_of
from lab.tables.records import is_gpu, is_model, model_name
from lab.tables.rows import Record, read_records
from simulators.catalog.model import load_model
from simulators.core.fields import updated
from simulators.core.folder import read_toml
from simulators.serving.measured.deployments import Deployed, point_of
from simulators.serving.options import MTP, OFF, SpeculationConfig
from simulators.serving.point import ServingPoint
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


SWEPT_FRAMEWORKS = {"dynamo-trt": "trtllm", "dynamo-sglang": "sglang", "dynamo-vllm": "vllm"}
"""Names of frameworks in the sweeps, and in tables of measured rows."""

SWEPT_LENGTHS = re.compile(r'"isl": (\d+), "osl": (\d+), "search-space": \[')
RECIPE = re.compile(r"CONFIG_FILE=\S*/(\S+)\.yaml")
BATCH, DRAFTS = re.compile(r"_batch(\d+)"), re.compile(r"_mtp([1-9])")


@dataclass(frozen=True)
class PooledWorkers:
    """Workers of one pool."""

    count: int
    width: int  # GPUs of a worker
    ep: int
    attention_dp: bool


@dataclass(frozen=True)
class PooledSetup:
    """How a deployment with two pools runs."""

    prefill: PooledWorkers
    decode: PooledWorkers
    drafts: bool
    draft_tokens: int  # 0: not stated
    most_decodes: int  # the largest batch of a rank of decode workers; 0: not stated


@dataclass(frozen=True)
class PooledSweepLine:
    """The loads that one snapshot of the sweeps lists for a set-up."""

    date: str
    engine: tuple[str, ...]  # framework, model, GPU, precision
    lengths: tuple[int, int]  # longest prompt and answer, in tokens
    clients: frozenset[int]
    setup: PooledSetup


@functools.lru_cache(maxsize=2)
def sweep_lines(reference: Path) -> tuple[PooledSweepLine, ...]:
    """Return the lines of all snapshots; none without the table."""
    table = reference / SWEEPS
    return tuple(_lines(table)) if table.is_file() else ()


def _lines(table: Path) -> Iterator[PooledSweepLine]:
    for row in read_records(table, disagg=True):
        if row.framework not in SWEPT_FRAMEWORKS or not is_model(row.model):
            continue
        name = re.match(r"(?:cluster:)?(\w+)", row.runner)
        assert name is not None
        gpu = name[1] if name[1].startswith("gb") else f"{name[1]}_sxm"
        engine = (SWEPT_FRAMEWORKS[row.framework], model_name(row.model), gpu, row.precision)
        for lengths, one in _definitions(row.search_space):
            clients = frozenset(one.get("conc-list", ()))
            yield PooledSweepLine(row.date, engine, lengths, clients, _setup(one))


def _definitions(text: str) -> Iterator[tuple[tuple[int, int], Mapping[str, Any]]]:
    """Yield lengths and definition of each complete entry of a text that may be cut off."""
    decoder = json.JSONDecoder()
    for start in SWEPT_LENGTHS.finditer(text):
        at = start.end()
        while at < len(text) and text[at] == "{":
            try:
                one, at = decoder.raw_decode(text, at)
            except json.JSONDecodeError:
                return
            yield (int(start[1]), int(start[2])), one
            at += len(text[at:]) - len(text[at:].lstrip(", "))


def _setup(one: Mapping[str, Any]) -> PooledSetup:
    pools = {}
    for name in ("prefill", "decode"):
        pool = one[name]
        pools[name] = PooledWorkers(
            int(pool["num-worker"]), int(pool["tp"]), int(pool["ep"]), bool(pool["dp-attn"])
        )
    stated = [
        m[1] for text in one["prefill"].get("additional-settings", ()) if (m := RECIPE.match(text))
    ]
    recipe = stated[0] if stated else ""
    batch, drafts = BATCH.search(recipe), DRAFTS.search(recipe)
    is_drafting = one.get("spec-decoding", "none") != "none"
    return PooledSetup(
        pools["prefill"],
        pools["decode"],
        is_drafting,
        int(drafts[1]) if drafts and is_drafting else 0,
        int(batch[1]) if batch else 0,
    )


@dataclass(frozen=True)
class PooledRun:
    """A measured run; times in seconds."""

    row: str  # identifier in the measured table
    date: str
    point: ServingPoint
    framework: str
    ttft_s: float
    tpot_s: float
    is_resolved: bool  # whether InferenceX's database names the speculation
    draft_tokens: int  # 0: no speculation

    @property
    def has_unlike_pools(self) -> bool:
        """Whether only one pool has data-parallel attention."""
        pools = self.point.pools
        return (pools.prefill_attention_dp == 1) != (pools.decode_attention_dp == 1)


def read_pooled_runs(reference: Path) -> Iterator[PooledRun]:
    """Yield the runs whose set-up is known, without copies; nothing without the tables."""
    files = [reference / name for name in (SILICON, RESOLVED)]
    if not all(file.is_file() for file in files):
        return
    known = {row.twin_of_silicon_id: row for row in read_records(files[1], disaggregated=True)}
    seen = set()
    for row in read_records(files[0], mode="disagg"):
        if not (is_model(row.model) and is_gpu(row.gpu)):
            continue
        resolved = known.get(row.id)
        setup = defined_setup(reference, row, resolved) or stated_setup(row, resolved)
        times = (row.gpu, round(row.ttft_ms, 1), round(row.tpot_ms, 1))
        if setup is None or times in seen or (setup.drafts and not setup.draft_tokens):
            continue
        seen.add(times)
        yield _run(row, setup, is_resolved=resolved is not None)


def drawn_runs(reference: Path, most_clients: int, runs: int) -> list[PooledRun]:
    """Return runs with at most `most_clients` clients, at most `runs` by the hashes of their names.

    A simulation of the hundred thousand requests of more clients takes minutes.
    """
    known = [
        run for run in read_pooled_runs(reference) if run.point.arrivals.clients <= most_clients
    ]
    known.sort(key=lambda run: hashlib.sha256(run.row.encode()).hexdigest())
    return known[:runs]


def defined_setup(reference: Path, row: Record, resolved: Record | None) -> PooledSetup | None:
    """Return the only set-up that the sweeps define for a row; None if there are none or several.

    Where snapshots differ, the first one from the row's day on counts.
    """
    engine = row.framework, model_name(row.model), row.gpu, row.precision
    widths = tuple(_width(row, pool) for pool in POOLS)
    same = [
        line
        for line in sweep_lines(reference)
        if (line.engine, line.lengths) == (engine, (row.isl, row.osl))
        and row.concurrency in line.clients
        and (line.setup.prefill.width, line.setup.decode.width) == widths
        and row.prefill_num_workers in (None, line.setup.prefill.count)
        and row.decode_num_workers in (None, line.setup.decode.count)
        and (resolved is None or _agrees(line.setup, resolved))
    ]
    if len(setups := {line.setup for line in same}) > 1:
        dates, day = sorted({line.date for line in same}), row.measured_date or ""
        asked = next((date for date in dates if date >= day), dates[-1])
        setups = {line.setup for line in same if line.date == asked}
    return setups.pop() if len(setups) == 1 else None


def _width(row: Record, pool: str) -> int:
    return int(row[f"{pool}_tp_size"] or 1) * int(row[f"{pool}_attention_dp_size"] or 1)


def _agrees(setup: PooledSetup, resolved: Record) -> bool:
    gpus = [pool.count * pool.width for pool in (setup.prefill, setup.decode)]
    stated = [resolved.prefill_gpus, resolved.decode_gpus]
    return setup.drafts == bool(resolved.spec_decode) and gpus == stated


def stated_setup(row: Record, resolved: Record | None) -> PooledSetup | None:
    """Return the set-up of a row without speculation whose workers make up the resolved GPUs."""
    if resolved is None or resolved.spec_decode:
        return None
    pools = []
    for pool in POOLS:
        workers, width = row[f"{pool}_num_workers"], _width(row, pool)
        if not workers or workers * width != resolved[f"{pool}_gpus"]:
            return None
        ep, dp = row[f"{pool}_moe_ep_size"], row[f"{pool}_attention_dp_size"]
        pools.append(PooledWorkers(workers, width, ep, dp > 1))
    return PooledSetup(pools[0], pools[1], drafts=False, draft_tokens=0, most_decodes=0)


def _run(row: Record, setup: PooledSetup, *, is_resolved: bool) -> PooledRun:
    layouts, options, model = {}, dict[str, Any](), model_name(row.model)
    for pool, workers in zip(POOLS, (setup.prefill, setup.decode), strict=True):
        tp, dp = (1, workers.width) if workers.attention_dp else (workers.width, 1)
        ep = workers.ep
        if load_model(model).expert_ffn * ep < tp * dp * BLOCK:
            ep = tp * dp
        layouts[pool] = Parallelism(tp=tp, ep=ep, attention_dp=dp)
        own: dict[str, Any] = {
            "gpus": workers.count * tp * dp,
            "tp": tp,
            "ep": ep,
            "attention_dp": dp,
        }
        if ep == tp * dp and dp > 1:
            own["moe_backend"] = _backend(row, pool)
        options |= {f"pools.{pool}_{name}": value for name, value in own.items()}
    if most := setup.most_decodes or _most_decodes(row):
        options["pools.decode_max_batch"] = most
    drafts = SpeculationConfig(MTP, num_draft_tokens=setup.draft_tokens)
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
        speculation=drafts if setup.drafts else SpeculationConfig(),
    )
    changes: dict[str, Any] = {"scheduling.async_scheduling": OFF, **options}
    point = updated(point_of(deployed), changes)
    return PooledRun(
        row=row.id,
        date=row.measured_date or "",
        point=point,
        framework=row.framework,
        ttft_s=deployed.ttft_s,
        tpot_s=deployed.tpot_s,
        is_resolved=is_resolved,
        draft_tokens=setup.draft_tokens,
    )


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
