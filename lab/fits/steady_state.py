"""Steady-state time per token of closed-loop clients, as a weighted sum over two steps.

While a request generates its `O` tokens, each other client's next prompt is prefilled once. An
engine that mixes prefill and decode has `p = (n - 1) / O` prompts in each iteration; one that runs
them apart is interrupted as often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.tables.records import replica_of
from simulators.catalog.engine import load_engine
from simulators.composition.replica import Replica, Runtime
from simulators.core.jit import Floats
from simulators.serving.measured_deployments import Deployed
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.step import Step

APART = ("sglang",)
"""Engines with prefill-only iterations."""

OF_REST = ("trtllm",)
"""Engines whose memory fraction applies to what the weights leave."""


@dataclass(frozen=True)
class ServingMean:
    """Two steps and their weights, with a column per load of one replica."""

    decode: Step
    prefill: Step  # with the decodes that share the iteration, if they do
    decode_weight: Floats
    prefill_weight: Floats

    @property
    def steps(self) -> tuple[tuple[Step, Floats], tuple[Step, Floats]]:
        """Both steps with their weights."""
        return (self.decode, self.decode_weight), (self.prefill, self.prefill_weight)


def by_replica(rows: Sequence[Deployed]) -> Mapping[tuple[object, ...], list[int]]:
    """Return the positions of the rows of each replica."""
    found: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        key = (row.model, row.gpu, row.cut, row.dtype, row.kv_dtype, row.runtime)
        found.setdefault(key, []).append(i)
    return found


def deployed_replica(row: Deployed, runtime: Runtime) -> Replica:
    """Return the replica of a deployment, under a runtime."""
    return replica_of(
        row.model,
        row.gpu,
        cut=row.cut,
        dtype=row.dtype,
        kv_dtype=row.kv_dtype,
        runtime=runtime,
        stream_interval=load_engine(row.framework).defaults.stream_interval,
    )


def steady_state(replica: Replica, loads: Sequence[Deployed]) -> ServingMean:
    """Return the steps of loads of one replica, with their weights in the time per token."""
    longest, most, clients, budget = (
        np.array([getattr(d, name) for d in loads], np.float64)
        for name in ("prompt", "output", "clients", "budget")
    )
    mean = np.array([d.client.mean_length for d in loads])
    prompt, output = mean * longest, mean * most
    poll = np.array([max(1, d.launch.poll_interval) for d in loads], np.float64)
    context = prompt + output / 2.0
    framework = loads[0].framework
    seats = np.maximum(1.0, kv_tokens(replica, of_rest=framework in OF_REST) / context)
    running = np.minimum(clients, seats)
    prompts = np.maximum(running - 1.0, 0.0) / output
    at_once = np.maximum(1.0, prompts)
    apart = framework in APART
    if apart:  # those that came since the last look, as far as the budget goes
        at_once = np.clip(prompts * poll, 1.0, np.maximum(budget / prompt, 1.0))
    elif any(d.launch.poll_interval for d in loads):  # until every rank has one
        ranks = np.array([d.cut.attention_dp for d in loads], np.float64)
        at_once = np.maximum(at_once, np.where(poll > 1.0, np.minimum(ranks, running), 1.0))
    beside = 0.0 if apart else running
    return ServingMean(
        decode=Step(decodes=running, decode_kv_tokens=running * context, logits_rows=running),
        prefill=Step(
            prefills=at_once,
            prefill_tokens=at_once * prompt,
            prefill_pairs=at_once * prompt * (prompt + 1.0) / 2.0,
            prefill_kv_tokens=at_once * prompt,
            decodes=beside * np.ones_like(prompts),
            decode_kv_tokens=beside * context,
            logits_rows=beside + at_once,
        ),
        decode_weight=np.ones_like(prompts) if apart else 1.0 - prompts / at_once,
        prefill_weight=prompts / at_once,
    )


MEMORY_FRACTION = 0.9
"""Share of a GPU's memory for weights and KV cache, engines' usual default."""


def kv_tokens(replica: Replica, *, of_rest: bool) -> float:
    """Return the tokens that the KV cache of a replica holds beside the weights."""
    weights = weight_bytes(replica.model, replica.cut, replica.dtype)
    usable = MEMORY_FRACTION * replica.gpu.hbm_bytes - weights
    if of_rest:
        usable += (1.0 - MEMORY_FRACTION) * weights
    per_token = replica.kv_token_bytes
    return max(1.0, usable / per_token)
