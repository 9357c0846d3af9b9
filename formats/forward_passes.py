"""Read and write tables of forward passes (FPM, `fpm_forward_perf.parquet`) of AISimulate.

A row is the time of one pass of requests of equal size: `prefill` passes compute
`total_prefill_tokens` new tokens after `total_kv_read_tokens` earlier ones, `decode` passes one
token per request, whose past is `total_kv_read_tokens` without the token itself. Totals are sums
over `batch_size` requests. Source: AISimulate, docs/perf-model/methods/whole-forward.md (2026),
schema `aic_fpm_forward_perf` version 6.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from simulators.catalog.model import load_model
from simulators.core.errors import UserError
from simulators.core.folder import GPUS, MODELS, read_toml
from simulators.core.jit import Floats
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import Step, decode_step

PREFILL, DECODE = "prefill", "decode"
PREDICTED = "sweeper_prediction_v1"
"""Measurement policy of predicted passes."""
COORDINATES = ("batch_size", "total_prefill_tokens", "total_kv_read_tokens")
IDENTITY = ("model_path", "system", "backend", "gemm_quant_mode", "kv_cache_dtype")
DEGREES = ("tp", "pp", "dp", "moe_tp", "moe_ep", "cp")
NEEDED = (*IDENTITY, *DEGREES, "workload_kind", *COORDINATES, "latency_ms")
WORDS = read_toml(Path(__file__).with_suffix(".toml"))


@dataclass(frozen=True, kw_only=True)
class PassEngine:
    """What ran the passes of a table."""

    model: str
    gpu: str
    framework: str
    release: str
    dtype: str
    kv_dtype: str
    layout: Parallelism


@dataclass(frozen=True)
class TimedPasses:
    """Passes of one kind on one engine; each array has an entry per pass."""

    kind: str
    batch: Floats
    new_tokens: Floats  # of all requests; 0 of decodes
    past_tokens: Floats  # of all requests
    seconds: Floats

    @property
    def step(self) -> Step:
        """The work of each pass as columns."""
        if self.kind == DECODE:
            return decode_step(self.batch, self.past_tokens / self.batch + 1.0)
        past, new = self.past_tokens / self.batch, self.new_tokens / self.batch
        return Step(
            prefills=self.batch,
            prefill_tokens=self.new_tokens,
            prefill_pairs=self.new_tokens * (past + (new + 1.0) / 2.0),
            prefill_kv_tokens=self.past_tokens + self.new_tokens,
            logits_rows=self.batch,
        )


def is_pass_table(columns: Sequence[str]) -> bool:
    """Return whether a table with these columns has forward passes."""
    return {"workload_kind", "latency_ms"} <= {*columns}


def passes_of(path: Path) -> tuple[PassEngine, list[TimedPasses]]:
    """Return the engine of a table of forward passes, and its passes by kind.

    Raises:
        UserError: the file is not such a table, its metadata beside it do not match, it has several
            engines, or a layout, precision or value that is not modelled.
    """
    try:
        table = pa.parquet.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: {error}") from error
    if missing := [name for name in NEEDED if name not in table.column_names]:
        raise UserError(f"{path} is not a table of forward passes: it lacks {', '.join(missing)}")
    _check_metadata(path, table.num_rows)
    rows = table.to_pylist()
    if not rows:
        raise UserError(f"{path} has no rows")
    named = [*IDENTITY, *DEGREES, *(n for n in ("moe_quant_mode",) if n in table.column_names)]
    engines = {tuple(str(row[n]) for n in named) for row in rows}
    if len(engines) > 1:
        raise UserError(f"{path} has passes of {len(engines)} engines; write one file per engine")
    engine = _engine(rows[0], path)
    kinds = dict.fromkeys(row["workload_kind"] for row in rows)
    if unknown := [kind for kind in kinds if kind not in (PREFILL, DECODE)]:
        raise UserError(f"{path}: workload_kind '{unknown[0]}' is neither prefill nor decode")
    return engine, [_passes(kind, rows, path) for kind in kinds]


def _passes(kind: str, rows: Sequence[Mapping[str, Any]], path: Path) -> TimedPasses:
    same = [row for row in rows if row["workload_kind"] == kind]
    try:
        batch, new_tokens, past, milliseconds = (
            np.array([row[n] for row in same], np.float64) for n in (*COORDINATES, "latency_ms")
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: a size or time is not a number: {error}") from error
    found = TimedPasses(kind, batch, new_tokens, past, 1e-3 * milliseconds)
    new = found.new_tokens if kind == PREFILL else found.past_tokens + found.batch
    for name, column in (("batch_size", found.batch), ("latency_ms", found.seconds)):
        if not np.all((column > 0.0) & (column < np.inf)):
            raise UserError(f"{path}: {name} must be above zero in every row")
    if not np.all(new > 0.0) or not np.all(found.past_tokens >= 0.0):
        raise UserError(f"{path}: a {kind} pass has no tokens")
    return found


def _engine(row: Mapping[str, Any], path: Path) -> PassEngine:
    for folder, name in ((MODELS, "model_path"), (GPUS, "system")):
        if not folder.has(str(row[name])):
            raise UserError(f"{path}: the {folder.kind} '{row[name]}' is not in the catalog")
    for name in DEGREES:
        if not isinstance(row[name], int) or row[name] < 1:
            raise UserError(f"{path}: {name} is {row[name]!r}, not a whole number above zero")
    tp, pp, dp, moe_tp, ep, cp = (row[name] for name in DEGREES)
    if load_model(str(row["model_path"])).experts and moe_tp * ep != tp * dp:
        raise UserError(f"{path}: moe_tp {moe_tp} x moe_ep {ep} is not tp {tp} x dp {dp}")
    if cp != 1 or dp != 1:
        raise UserError(f"{path}: passes with {'cp' if cp != 1 else 'dp'} above 1 are not modelled")
    gemm, experts = str(row["gemm_quant_mode"]), str(row.get("moe_quant_mode") or "")
    dtype = _ours("precisions", gemm, path)
    if experts and experts != gemm:
        dtype += f"+{_ours('precisions', experts, path)}"
    return PassEngine(
        model=MODELS.name_of(str(row["model_path"])),
        gpu=GPUS.name_of(str(row["system"])),
        framework=str(row["backend"]),
        release=str(row.get("backend_version") or ""),
        dtype=dtype,
        kv_dtype=_ours("kv_precisions", str(row["kv_cache_dtype"]), path),
        layout=Parallelism(tp=tp, pp=pp, ep=ep),
    )


def _ours(kind: str, word: str, path: Path) -> str:
    for ours, theirs in WORDS[kind].items():
        if word in theirs:
            return str(ours)
    raise UserError(f"{path}: the precision '{word}' is not modelled")


def _check_metadata(path: Path, rows: int) -> None:
    """Check the metadata beside a table, if there are any."""
    beside = path.with_suffix(".metadata.json")
    if not beside.is_file():
        return
    try:
        about = json.loads(beside.read_text(encoding="utf-8"))
        schema, count, seal = (about[n] for n in ("schema_name", "row_count", "parquet_sha256"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{beside} is not readable metadata of forward passes: {error}") from error
    if schema != "aic_fpm_forward_perf":
        raise UserError(f"{beside}: the schema '{schema}' is not aic_fpm_forward_perf")
    if count != rows or seal != hashlib.sha256(path.read_bytes()).hexdigest():
        raise UserError(f"{path} is not the table that {beside.name} describes")


def write_passes(
    path: Path, engine: PassEngine, passes: Sequence[TimedPasses], repository: str
) -> int:
    """Write predicted passes with metadata beside them, and return the number of rows.

    `repository`: the model's name on Hugging Face. The measurement policy says that the passes are
    predicted.

    Raises:
        UserError: the file cannot be written, or the table has no word for a precision.
    """
    linear, _, experts = engine.dtype.partition("+")
    gemm = _theirs("precisions", linear)
    layout = engine.layout
    moe_tp = max(1, layout.tp * layout.attention_dp // layout.ep)
    degrees = (layout.tp, layout.pp, layout.attention_dp, moe_tp, layout.ep, 1)
    identity: dict[str, Any] = {
        "cell_id": f"sweeper-{engine.model}-{engine.gpu}-tp{layout.tp}pp{layout.pp}ep{layout.ep}",
        "model_path": repository,
        "system": engine.gpu,
        "backend": engine.framework,
        "backend_version": engine.release,
        "weight_quantization": gemm,
        "gemm_quant_mode": gemm,
        "moe_quant_mode": _theirs("precisions", experts) if experts else None,
        "fmha_quant_mode": None,
        "comm_quant_mode": "half",
        "kv_cache_dtype": _theirs("kv_precisions", engine.kv_dtype),
        **dict(zip(DEGREES, degrees, strict=True)),
        "moe_backend": "auto",
        "attention_backend": "auto",
        "enable_wideep": False,
        "enable_eplb": False,
        "partition_policy": "balanced_v1",
        "measurement_policy": PREDICTED,
    }
    rows = [
        {
            **identity,
            "workload_kind": one.kind,
            **dict(zip(COORDINATES, map(round, coordinates), strict=True)),
            "latency_ms": 1e3 * seconds,
        }
        for one in passes
        for *coordinates, seconds in zip(
            *(a.tolist() for a in (one.batch, one.new_tokens, one.past_tokens, one.seconds)),
            strict=True,
        )
    ]
    try:
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
        about = {
            "schema_name": "aic_fpm_forward_perf",
            "schema_version": 6,
            "coordinate_system": "iteration_totals_balanced_v1",
            "measurement_policy": PREDICTED,
            "row_count": len(rows),
            "parquet_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "system": engine.gpu,
            "backend": engine.framework,
            "backend_version": engine.release,
        }
        beside = path.with_suffix(".metadata.json")
        beside.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    return len(rows)


def _theirs(kind: str, dtype: str) -> str:
    known = WORDS[kind]
    if dtype not in known:
        raise UserError(f"tables of forward passes cannot state {dtype}, only {', '.join(known)}")
    return str(known[dtype][0])
