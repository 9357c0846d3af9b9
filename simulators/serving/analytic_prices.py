"""Rows of one replica are priced together: every distinct batch of a group in one column call.

A steady state needs two iterations of each row: one of decodes, and one with prompts in it. Linear
layers see the batch alone and attention of decodes sees batch and context, so a group whose rows
are combinations of both is priced as a table with a row per batch and a column per context. Of a
pipeline two stages are priced, as in the event simulation: the last one, and of those that send on
the slowest: the one with most expert layers, most layers, and the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.composition.iteration import Iteration, Replica, stage_iteration
from simulators.core.contract import categories
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints
from simulators.serving.deployment import Deployment, deployment_of
from simulators.serving.point import ServingPoint
from simulators.workload.cut import stage_of
from simulators.workload.memory import activation_bytes, kv_bytes_per_token, weight_bytes
from simulators.workload.step import Step

WORDS = ("model", "gpu", "cluster", "dtype", "kv_dtype", "runtime", "prices")
COUNTS = ("tp", "pp")
SCALES = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")


@dataclass(frozen=True)
class Group:
    """Rows of one replica, and what they share."""

    rows: Ints
    deployment: Deployment | None  # None: it cannot be built
    verdict: str  # why not

    @property
    def replica(self) -> Replica:
        """The model on its GPUs."""
        assert self.deployment is not None
        return self.deployment.hardware.replica


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The two iterations of each row: `decodes` single tokens alone, and one with prompts."""

    decodes: Floats
    keys: Floats  # that each decode reads
    prompt_decodes: Floats  # decodes beside the prompts
    prompts: Floats
    prompt_tokens: Floats
    prompt_pairs: Floats
    prompt_keys: Floats
    kind: Ints  # equal where `keys` are equal

    def at(self, rows: Ints) -> Iterations:
        """Return the iterations of some rows."""
        return Iterations(**{name: column[rows] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Of each row: seconds of the slowest stage and of all stages, joules of all GPUs."""

    decode_pace_s: Floats
    decode_pass_s: Floats
    decode_j: Floats
    prompt_pace_s: Floats
    prompt_pass_s: Floats
    prompt_j: Floats
    waiting_w: Any  # of the GPUs of one stage without work
    calibrated: Any
    extrapolated: Any

    def put(self, rows: Ints, part: Prices) -> None:
        """Write the prices of some rows."""
        for name, column in vars(self).items():
            column[rows] = getattr(part, name)


PRICES = ("pace_s", "pass_s", "j")


def no_prices(rows: int) -> Prices:
    """Return room for the prices of so many rows."""
    columns: dict[str, Any] = {f.name: np.empty(rows) for f in fields(Prices)}
    columns |= {name: np.empty(rows, bool) for name in ("calibrated", "extrapolated")}
    return Prices(**columns)


def groups_of(batch: pa.RecordBatch) -> list[Group]:
    """Return the rows of each replica."""
    coded = [categories(batch, name) for name in (*WORDS, *COUNTS, *SCALES)]
    code = np.zeros(batch.num_rows, np.int64)
    for codes, values in coded:
        code = code * len(values) + codes
    # Neighbours mostly share a replica: runs are sorted, not rows.
    starts = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
    ends = np.append(starts[1:], code.size)
    _, first, member = np.unique(code[starts], return_index=True, return_inverse=True)
    runs: list[list[Ints]] = [[] for _ in first]
    for start, end, group in zip(starts, ends, member.reshape(-1), strict=True):
        runs[group].append(np.arange(start, end))
    groups = []
    for run, which in zip(runs, starts[first], strict=True):
        rows = run[0] if len(run) == 1 else np.concatenate(run)
        deployment, verdict = _deployment(*(values[codes[which]] for codes, values in coded))
        groups.append(Group(rows, deployment, verdict))
    return groups


def _deployment(*key: Any) -> tuple[Deployment | None, str]:
    """Return the deployment rows share, or why it cannot be."""
    named = dict(zip((*WORDS, *COUNTS, *SCALES), key, strict=True))
    try:
        return deployment_of(ServingPoint(**named)), ""
    except Infeasible as verdict:
        return None, str(verdict)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU of a replica."""

    hbm: float
    weights: float
    per_kv_token: float
    per_token: float  # of activations, by tokens of an iteration
    per_row: float  # by rows of logits


def memory_of(replica: Replica) -> Memory:
    """Return what a replica's fullest GPU has and must hold."""
    model, cut, dtype = replica.model, replica.cut, replica.dtype
    return Memory(
        hbm=float(replica.gpu.hbm_bytes),
        weights=weight_bytes(model, cut, dtype),
        per_kv_token=kv_bytes_per_token(model, cut, replica.kv_dtype),
        per_token=float(activation_bytes(model, cut, dtype, 1.0, 0.0)),
        per_row=float(activation_bytes(model, cut, dtype, 0.0, 1.0)),
    )


def price(replica: Replica, asked: Iterations) -> Prices:
    """Return the prices of rows of one replica."""
    batches, batch = np.unique(asked.decodes, return_inverse=True)
    kinds, first, kind = np.unique(asked.kind, return_index=True, return_inverse=True)
    table = batches.size * kinds.size <= 2 * asked.decodes.size
    if not table or asked.prompt_decodes.any():
        return _price_rows(replica, asked)
    # One prompt iteration per kind and number of prompts; they fill the table's first column.
    pair = np.stack([kind, asked.prompts]).T
    _, alone, prompt = np.unique(
        pair[:, 0] * (1.0 + pair[:, 1].max()) + pair[:, 1], return_index=True, return_inverse=True
    )
    nothing, none = np.zeros(batches.size), np.zeros(alone.size)
    decodes = np.concatenate([batches, none])[:, None]
    step = Step(
        decodes=decodes,
        decode_kv_tokens=decodes * asked.keys[first],
        prefills=np.concatenate([nothing, asked.prompts[alone]])[:, None],
        prefill_tokens=np.concatenate([nothing, asked.prompt_tokens[alone]])[:, None],
        prefill_pairs=np.concatenate([nothing, asked.prompt_pairs[alone]])[:, None],
        prefill_kv_tokens=np.concatenate([nothing, asked.prompt_keys[alone]])[:, None],
        logits_rows=np.concatenate([batches, asked.prompts[alone]])[:, None],
    )
    columns, basis, outside = _stages(replica, step, (decodes.size, kinds.size))
    return Prices(
        **{f"decode_{name}": c[batch, kind] for name, c in zip(PRICES, columns, strict=True)},
        **{
            f"prompt_{name}": c[batches.size + prompt, kind]
            for name, c in zip(PRICES, columns, strict=True)
        },
        **basis,
        extrapolated=outside[batch, kind] | outside[batches.size + prompt, kind],
    )


def _price_rows(replica: Replica, asked: Iterations) -> Prices:
    """Price every row by itself, decodes first and prompts behind them."""
    rows = asked.decodes.size
    none = np.zeros(rows)
    decodes = np.concatenate([asked.decodes, asked.prompt_decodes])
    step = Step(
        decodes=decodes,
        decode_kv_tokens=decodes * np.concatenate([asked.keys, asked.keys]),
        prefills=np.concatenate([none, asked.prompts]),
        prefill_tokens=np.concatenate([none, asked.prompt_tokens]),
        prefill_pairs=np.concatenate([none, asked.prompt_pairs]),
        prefill_kv_tokens=np.concatenate([none, asked.prompt_keys]),
        logits_rows=np.concatenate([asked.decodes, asked.prompt_decodes + asked.prompts]),
    )
    columns, basis, outside = _stages(replica, step, (2 * rows,))
    return Prices(
        **{f"decode_{name}": c[:rows] for name, c in zip(PRICES, columns, strict=True)},
        **{f"prompt_{name}": c[rows:] for name, c in zip(PRICES, columns, strict=True)},
        **basis,
        extrapolated=outside[:rows] | outside[rows:],
    )


def _stages(
    replica: Replica, step: Step, shape: tuple[int, ...]
) -> tuple[list[Any], dict[str, Any], Any]:
    """Return seconds of the slowest stage, of all stages, joules of all; and what they rest on."""
    senders = replica.cut.pp - 1
    last = stage_iteration(replica, step, senders)
    pace = total = last.latency_s
    joules, calibrated, outside = last.energy_j, last.calibrated, last.extrapolated
    if senders:
        sender: Iteration = stage_iteration(replica, step, slowest_sender(replica))
        pace = np.maximum(sender.latency_s, pace)
        total = senders * sender.latency_s + total
        joules = senders * sender.energy_j + joules
        calibrated &= sender.calibrated
        outside = np.logical_or(sender.extrapolated, outside)
    columns = [np.broadcast_to(np.asarray(x, np.float64), shape) for x in (pace, total, joules)]
    basis = {"waiting_w": last.waiting_w, "calibrated": calibrated}
    return columns, basis, np.broadcast_to(outside, shape)


def slowest_sender(replica: Replica) -> int:
    """Return the stage that takes longest of those that send on."""
    stages = [stage_of(replica.model, replica.cut, s) for s in range(replica.cut.pp - 1)]
    return max(
        range(len(stages)),
        key=lambda s: (stages[s].expert_layers, stages[s].layers, stages[s].has_embedding),
    )
