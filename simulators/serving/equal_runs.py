"""Designs that differ only in a limit of running requests that none of them ever reaches.

Their runs are equal, event by event, so one of them is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.answer.summary import KVUse
from simulators.serving.deployment import Deployment, Frontend
from simulators.serving.engine.limits import ReplicaLimits
from simulators.serving.prices.iteration_table import IterationTable


@dataclass(frozen=True)
class RunConditions:
    """What decides a run of given requests."""

    deployment: Deployment
    frontend: Frontend
    table: IterationTable
    limits: ReplicaLimits
    rejected: int  # of the given requests, the longest
    longest_tokens: int  # of prompt and output of an admitted request

    def are_those_of(self, other: RunConditions) -> bool:
        """Return whether two runs differ at most in running requests and blocks."""
        return (
            self.deployment is other.deployment
            and self.frontend == other.frontend
            and self.table is other.table
            and self.rejected == other.rejected
            and _others(self.limits) == _others(other.limits)
        )


@dataclass(frozen=True)
class CompletedRun:
    """The conditions and the metrics of a run."""

    conditions: RunConditions
    most_running: int  # requests of a replica
    kv_use: KVUse
    metrics: ServingMetrics

    def holds_for(self, other: RunConditions) -> bool:
        """Return whether a run of the same requests under other conditions is equal.

        Neither limit of running requests was reached. Neither KV cache can run short, even if
        every running request grew to the longest request, another of that length arrived, and the
        watermark stayed free.
        """
        return self.conditions.are_those_of(other) and all(
            self.most_running < limits.max_num_seqs // limits.stages
            and int(self.kv_use.most.max()) + self._blocks_to_come(limits) < limits.blocks
            for limits in (self.conditions.limits, other.limits)
        )

    def metrics_under(self, limits: ReplicaLimits) -> ServingMetrics:
        """Return the metrics of an equal run under other limits: the KV cache may differ."""
        used: Mapping[str, Any] = self.kv_use.of(np.full(self.kv_use.most.size, limits.blocks))
        return replace(
            self.metrics, max_num_seqs=limits.max_num_seqs, kv_blocks=limits.blocks, **used
        )

    def _blocks_to_come(self, limits: ReplicaLimits) -> int:
        longest = self.conditions.longest_tokens // limits.block_size + 1
        return (self.most_running + 1) * longest + limits.watermark_blocks


def _others(limits: ReplicaLimits) -> ReplicaLimits:
    """Return the limits without those that equal runs may differ in."""
    return replace(limits, max_num_seqs=0, blocks=0)
