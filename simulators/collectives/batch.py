"""Rows of a batch as the arrays that kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.collectives.algorithms import ALL_GATHER, COLLECTIVES, SEND_RECV
from simulators.collectives.closed import phases as at
from simulators.collectives.measured import busbw_factor
from simulators.collectives.topologies.plan import NS, Plan, plan_among, plan_of
from simulators.collectives.traces.operators import Message
from simulators.core.columns import alike, categories, numbers

WORDS = (
    "collective",
    "topology",
    "algorithm",
    "fidelity",
    "order",
    "gpu",
    "library",
    "dtype",
    "trace",
    "issue",
)


@dataclass(frozen=True)
class CollectiveBatch:
    """A batch as the arrays that kernels take."""

    words: dict[str, tuple[NDArray[np.int64], list[Any]]]
    plans: tuple[Plan, ...]
    plan: NDArray[np.int64]
    requests: NDArray[np.int64]
    memory_bytes_per_s: NDArray[np.float64]
    size_bytes: NDArray[np.int64]

    @staticmethod
    def of(batch: pa.RecordBatch) -> CollectiveBatch:
        """Read a batch that keeps the rules of its fields.

        Raises:
            UserError: a topology or an algorithm that means nothing.
        """
        words = {name: categories(batch, name) for name in WORDS}
        plans, plan = _plans(batch)
        size = numbers(batch, "size_bytes").astype(np.int64)
        ranks = np.array([p.ranks for p in plans], np.int64)[plan]
        op = np.array([COLLECTIVES.index(c) for c in words["collective"][1]], np.int64)
        op = op[words["collective"][0]]
        memory = numbers(batch, "local_memory_bytes_per_s").astype(np.float64)
        requests = np.zeros((batch.num_rows, 8), np.int64)
        requests[:, at.PLAN], requests[:, at.OP] = plan, op
        requests[:, at.SIZE] = np.maximum(np.where(op == ALL_GATHER, size // ranks, size), 1)
        for column, name in (
            (at.SPLITS, "splits"),
            (at.ACTIVE, "active_chunks"),
            (at.QUEUES, "queues"),
        ):
            requests[:, column] = numbers(batch, name).astype(np.int64)
        requests[:, at.ENDPOINT_NS] = np.rint(numbers(batch, "endpoint_delay_s") * NS)
        codes, orders = words["order"]
        requests[:, at.BASELINE] = np.array([o == "baseline" for o in orders], np.int64)[codes]
        return CollectiveBatch(words, plans, plan, requests, memory, size)

    def of_messages(self, row: int, messages: Sequence[Message]) -> CollectiveBatch:
        """Return rows of messages of a step, each on its part of the network of one row."""
        whole, algorithm = self.plans[self.plan[row]], self.named_at("algorithm", row)
        plans = (*(plan_among(m.ranks, whole.topology, algorithm) for m in messages), whole)
        count = len(messages)
        words = {name: (np.zeros(count, np.int64), [self.named_at(name, row)]) for name in WORDS}
        op = np.array([COLLECTIVES.index(message.kind) for message in messages])
        words["collective"] = op, list(COLLECTIVES)
        size = np.array([max(message.size_bytes, 1) for message in messages])
        requests = np.tile(self.requests[row], (count, 1))
        requests[:, at.PLAN], requests[:, at.OP] = np.arange(count), op
        requests[:, at.SIZE] = size
        gathered = size * np.where(op == ALL_GATHER, [len(m.ranks) for m in messages], 1)
        memory = np.full(count, self.memory_bytes_per_s[row])
        return CollectiveBatch(words, plans, np.arange(count), requests, memory, gathered)

    def named_at(self, name: str, row: int) -> str:
        """Return the word of one row."""
        codes, values = self.words[name]
        return str(values[codes[row]])

    def is_word(self, name: str, value: str) -> NDArray[np.bool_]:
        """Say which rows have a word."""
        codes, values = self.words[name]
        found: NDArray[np.bool_] = np.array([v == value for v in values], bool)[codes]
        return found

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Ranks that take part."""
        ranks: NDArray[np.int64] = np.array([p.ranks for p in self.plans], np.int64)[self.plan]
        return ranks

    @property
    def busbw_factor(self) -> NDArray[np.float64]:
        """Busbw over algbw."""
        codes, collectives = self.words["collective"]
        table = np.array([[busbw_factor(c, p.ranks) for p in self.plans] for c in collectives])
        factor: NDArray[np.float64] = table[codes, self.plan]
        return factor

    def stacked(self, field: str) -> NDArray[Any]:
        """Return an array of all plans, one after the other."""
        return np.stack([getattr(p, field) for p in self.plans])

    def reasons(self) -> NDArray[Any]:
        """Return why rows cannot exist, where that is known from sizes."""
        ranks = self.ranks
        reasons = np.full(self.size_bytes.size, "", object)
        reasons[ranks < 2] = "one_rank: a collective needs at least two"
        small = (self.size_bytes < ranks) & (self.requests[:, at.OP] != SEND_RECV)
        for i in np.flatnonzero(small | (self.size_bytes < 1)):
            reasons[i] = f"size_below_ranks: {self.size_bytes[i]} bytes for {ranks[i]} ranks"
        return reasons


def _plans(batch: pa.RecordBatch) -> tuple[tuple[Plan, ...], NDArray[np.int64]]:
    """Return the distinct plans of a batch, and the position of the plan of each row."""
    groups = alike(batch, ("topology", "algorithm", "link_bytes_per_s", "latency_s"))
    plan = np.zeros(batch.num_rows, np.int64)
    for position, (rows, _) in enumerate(groups):
        plan[rows] = position
    return tuple(plan_of(*words.values()) for _, words in groups), plan
