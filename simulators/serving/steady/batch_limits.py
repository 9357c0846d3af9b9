"""What a replica may run: its seats, the tokens of an iteration, and the memory behind both.

Every running request holds KV memory for its whole life. Where a batch size was chosen and does not
fit, the row is infeasible; where the rate of arrivals decides, memory limits the seats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.composition.replica import Replica
from simulators.core.columns import categories, numbers
from simulators.core.errors import UserError, suggestion
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.arrivals import CLOSED, PROCESSES
from simulators.serving.deployment import Deployment
from simulators.serving.engine.policies import load_scheduler
from simulators.serving.steady.batch_cycle import Engine
from simulators.serving.steady.iteration_times import Family
from simulators.serving.steady.mean_lengths import Lengths, lengths_of
from simulators.workload.llm.memory import activation_bytes, kv_bytes_per_token, weight_bytes

WHOLE_PROMPTS = ("vllm",)
"""Schedulers that process whole prompts before any decode; those with chunks say so themselves."""

GAP_SCV = {"poisson": 1.0, "even": 0.0}
"""Squared coefficient of variation of the gaps between arrivals; of gamma gaps it is chosen."""

AT_LEAST_ONE = (
    "tp",
    "pp",
    "replicas",
    "chunk_size",
    "max_batch",
    "max_batch_tokens",
    "block_size",
    "clients",
)


class Verdicts:
    """Why rows cannot exist: the first reason found for each."""

    def __init__(self, rows: int) -> None:
        self.codes = np.zeros(rows, np.int32)
        self.texts: list[str | None] = [None]

    def add(self, condemned: NDArray[np.bool_], reason: str) -> None:
        """Condemn rows that were not condemned before."""
        if condemned.any():
            self.codes[condemned & (self.codes == 0)] = self._code(reason)

    def add_rows(self, rows: Ints, reason: str) -> None:
        """Condemn rows by number."""
        self.codes[rows] = self._code(reason)

    def _code(self, reason: str) -> int:
        if reason not in self.texts:
            self.texts.append(reason)
        return self.texts.index(reason)


@dataclass(frozen=True, kw_only=True)
class Design:
    """Of each row: the replica it asks for, and the load."""

    engine: Engine
    lengths: Lengths
    kind: Ints  # equal where lengths are
    kv_tokens: Floats  # that fit beside weights and activations
    kv_blocks: Floats
    gpus: Floats  # of one replica
    replicas: Floats
    usd_per_gpu_hour: Floats  # NaN: nobody knows
    flops_per_token: Floats
    peak_flops: Floats  # of one GPU

    def at(self, rows: Ints) -> Design:
        """Return some rows."""
        parts: dict[str, Any] = {
            name: column[rows] if isinstance(column, np.ndarray) else column.at(rows)
            for name, column in vars(self).items()
        }
        return Design(**parts)


def design_of(batch: pa.RecordBatch, families: list[Family], verdicts: Verdicts) -> Design:
    """Return what every row asks for, and condemn those that cannot be.

    Raises:
        UserError: a choice means nothing.
    """
    column = {name: numbers(batch, name).astype(np.float64) for name in _NUMBERS}
    _check(column)
    chunked = _schedulers(batch, column, verdicts)
    shared = _shared(families, batch.num_rows, verdicts)
    verdicts.add(column["pp"] > column["max_batch"], "batch_smaller_than_pipeline")
    asked = column["max_context"]
    context = np.where(asked > 0.0, asked, shared["context"])
    lengths, kind = lengths_of(batch, context)
    verdicts.add(np.isnan(lengths.prompt), "no_request_fits")
    free = shared["hbm"] * column["memory_fraction"] - shared["weights"]
    verdicts.add(free < 0.0, "weights_exceed_hbm")
    batch_tokens = np.maximum(column["max_batch_tokens"], lengths.longest)
    most_tokens = np.where(chunked, column["chunk_size"], batch_tokens)
    free -= most_tokens * shared["per_token"] + column["max_batch"] * shared["per_row"]
    blocks = np.floor(free / (column["block_size"] * shared["per_kv_token"]))
    verdicts.add(blocks < 1.0, "no_kv_memory")
    usable = blocks - np.floor(column["watermark"] * blocks)
    held = np.ceil((lengths.prompt + lengths.output) / column["block_size"])
    fit = np.floor(usable / held / column["pp"])
    closed, gap_scv = _arrivals(batch, column["burstiness"])
    rate = np.where(closed, np.nan, column["qps"] * lengths.fitting / column["replicas"])
    clients = np.where(closed, column["clients"] / column["replicas"], np.inf)
    seats = np.floor(column["max_batch"] / column["pp"])
    chosen = np.isnan(rate) & ~closed
    verdicts.add((fit < 1.0) | (chosen & (fit < seats)), "kv_exceeds_hbm")
    usd = column["usd_per_gpu_hour"]
    return Design(
        engine=Engine(
            stages=column["pp"],
            seats=np.minimum(seats, fit),
            chunked=chunked,
            tokens=np.where(chunked, column["chunk_size"], column["max_batch_tokens"]),
            rate=rate,
            arrival_scv=gap_scv,
            clients=clients,
            think_s=np.where(closed, column["think_s"], 0.0),
        ),
        lengths=lengths,
        kind=kind,
        kv_tokens=blocks * column["block_size"],
        kv_blocks=blocks,
        gpus=column["tp"] * column["pp"],
        replicas=column["replicas"],
        usd_per_gpu_hour=np.where(np.isnan(usd), shared["usd"], usd),
        flops_per_token=shared["flops_per_token"],
        peak_flops=shared["peak"],
    )


_NUMBERS = (
    *AT_LEAST_ONE, "qps", "burstiness", "think_s", "memory_fraction", "watermark", "max_context",
    "prompt_tokens", "output_tokens", "usd_per_gpu_hour",
)  # fmt: skip


def _check(column: dict[str, Floats]) -> None:
    """Raise `UserError` for a choice that no engine could be given."""
    for name in AT_LEAST_ONE:
        if column[name].min() < 1.0:
            raise UserError(f"{name} is {column[name].min():g}; it must be at least 1")
    for name in ("max_context", "prompt_tokens", "output_tokens", "think_s"):
        if column[name].min() < 0.0:
            raise UserError(f"{name} is {column[name].min():g}; it must not be negative")
    fraction, watermark = column["memory_fraction"], column["watermark"]
    if fraction.min() <= 0.0 or fraction.max() > 1.0:
        raise UserError("memory_fraction must be within 0..1")
    if watermark.min() < 0.0 or watermark.max() >= 1.0:
        raise UserError("watermark must be within 0..1")
    for name in ("qps", "burstiness"):
        if (column[name] <= 0.0).any() or np.isinf(column[name]).any():
            raise UserError(f"{name} must be positive")


def _schedulers(
    batch: pa.RecordBatch, column: dict[str, Floats], verdicts: Verdicts
) -> NDArray[np.bool_]:
    """Return which rows cut prompts in chunks; condemn policies without a closed form."""
    codes, names = categories(batch, "scheduler")
    chunked = np.zeros(len(names), bool)
    for code, name in enumerate(names):
        policy = load_scheduler(str(name))
        chunked[code] = policy.chunked
        if not policy.chunked and name not in WHOLE_PROMPTS:
            verdicts.add(codes == code, f"{name}_needs_fidelity_event")
        for field, needed in policy.requires.items():
            wrong = (codes == code) & (column[field] != needed)
            verdicts.add(wrong, f"{name}_needs_{field}_{needed}")
    return chunked[codes]


def _arrivals(batch: pa.RecordBatch, burstiness: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """Return which rows have closed clients, and the variation of the gaps of the others."""
    codes, names = categories(batch, "arrivals")
    for name in names:
        if name not in PROCESSES:
            raise UserError(
                f"arrivals are '{name}'{suggestion(str(name), PROCESSES)}\n"
                f"Known: {', '.join(PROCESSES)}"
            )
    closed = np.array([name == CLOSED for name in names], bool)[codes]
    known = np.array([GAP_SCV.get(str(name), np.nan) for name in names])[codes]
    return closed, np.where(np.isnan(known), burstiness * burstiness, known)


def _shared(families: list[Family], rows: int, verdicts: Verdicts) -> dict[str, Floats]:
    """Return as columns what the rows of one replica have in common."""
    number = np.empty(rows, np.int64)
    table: list[tuple[float, ...]] = []
    for family in families:
        for pipeline in family.pipelines:
            number[pipeline.rows] = len(table)
            if pipeline.replica is None or family.deployment is None:
                verdicts.add_rows(pipeline.rows, pipeline.verdict)
                table.append((np.nan,) * len(_SHARED))
            else:
                table.append(_facts(pipeline.replica, family.deployment))
    columns = np.array(table, np.float64).reshape(-1, len(_SHARED))
    return {name: columns[number, i] for i, name in enumerate(_SHARED)}


def _facts(replica: Replica, deployment: Deployment) -> tuple[float, ...]:
    """Return what the rows of a replica share, in the order of `_SHARED`."""
    model, cut, dtype = replica.model, replica.cut, replica.dtype
    usd = deployment.usd_per_gpu_hour
    return (
        float(replica.gpu.hbm_bytes),
        weight_bytes(model, cut, dtype),
        kv_bytes_per_token(model, cut, replica.kv_dtype),
        float(activation_bytes(model, cut, dtype, 1.0, 0.0)),
        float(activation_bytes(model, cut, dtype, 0.0, 1.0)),
        float(model.max_context),
        np.nan if usd is None else usd,
        deployment.flops_per_token,
        deployment.peak_flops,
    )


_SHARED = (
    "hbm", "weights", "per_kv_token", "per_token", "per_row", "context", "usd", "flops_per_token",
    "peak",
)  # fmt: skip
