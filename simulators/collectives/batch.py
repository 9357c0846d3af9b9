"""Rows of a batch become the arrays that kernels take; what cannot be meant is refused here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.collectives.algorithms import ALL_GATHER, SEND_RECV
from simulators.collectives.analytic import (
    ACTIVE,
    BASELINE,
    ENDPOINT_NS,
    OP,
    PLAN,
    QUEUES,
    SIZE,
    SPLITS,
)
from simulators.collectives.plan import Plan, busbw_factor, op_of, plan_of, whole_ns
from simulators.core.columns import categories, numbers
from simulators.core.errors import UnknownNameError, UserError

EVENTFUL = ("event", "flow")
"""Fidelities of the event loop: links that serve in turn, links that are shared."""
FIDELITIES = ("analytic", *EVENTFUL, "measured")
ORDERS = ("bandwidth_aware", "baseline")
MAX_CHUNKS = 1 << 16
WORDS = ("collective", "topology", "algorithm", "fidelity", "order", "gpu", "library", "dtype")


@dataclass(frozen=True)
class Rows:
    """A batch as the arrays that kernels take."""

    words: dict[str, tuple[NDArray[np.int64], list[Any]]]
    plans: tuple[Plan, ...]
    plan: NDArray[np.int64]
    requests: NDArray[np.int64]
    memory_bytes_per_s: NDArray[np.float64]
    size_bytes: NDArray[np.int64]

    @staticmethod
    def of(batch: pa.RecordBatch) -> Rows:
        """Read a batch.

        Raises:
            UserError: a word that means nothing, or a number that cannot be.
        """
        words = {name: categories(batch, name) for name in WORDS}
        for name, known in (("fidelity", FIDELITIES), ("order", ORDERS)):
            for value in words[name][1]:
                if value not in known:
                    raise UnknownNameError(name, str(value), known)
        plans, plan = _plans(batch, words)
        ops = np.array([op_of(c) for c in words["collective"][1]], np.int64)
        size = numbers(batch, "size_bytes").astype(np.int64)
        ranks = np.array([p.ranks for p in plans], np.int64)[plan]
        op = ops[words["collective"][0]]
        delays, which = np.unique(numbers(batch, "endpoint_delay_s"), return_inverse=True)
        memory = numbers(batch, "local_memory_bytes_per_s").astype(np.float64)
        if memory.size and not np.all(memory > 0.0):
            raise UserError(f"local_memory_bytes_per_s is {np.min(memory):g}; it must be positive")
        requests = np.zeros((batch.num_rows, 8), np.int64)
        requests[:, PLAN] = plan
        requests[:, OP] = op
        requests[:, SIZE] = np.maximum(np.where(op == ALL_GATHER, size // ranks, size), 1)
        for column, name in ((SPLITS, "splits"), (ACTIVE, "active_chunks"), (QUEUES, "queues")):
            given = numbers(batch, name).astype(np.int64)
            if given.size and not 1 <= given.min() <= given.max() <= MAX_CHUNKS:
                worst = given.min() if given.min() < 1 else given.max()
                raise UserError(f"{name} is {worst}; it must be between 1 and {MAX_CHUNKS:,}")
            requests[:, column] = given
        requests[:, ENDPOINT_NS] = np.array([whole_ns(float(s)) for s in delays], np.int64)[which]
        codes, orders = words["order"]
        requests[:, BASELINE] = np.array([o == "baseline" for o in orders], np.int64)[codes]
        return Rows(words, plans, plan, requests, memory, size)

    def named_at(self, name: str, row: int) -> str:
        """Return the word of one row."""
        codes, values = self.words[name]
        return str(values[codes[row]])

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

    def is_word(self, name: str, value: str) -> NDArray[np.bool_]:
        """Say which rows have a word."""
        codes, values = self.words[name]
        found: NDArray[np.bool_] = np.array([v == value for v in values], bool)[codes]
        return found

    @property
    def whole(self) -> NDArray[np.int64]:
        """The plans' whole numbers."""
        return np.stack([p.whole for p in self.plans])

    @property
    def rates(self) -> NDArray[np.float64]:
        """The plans' rates."""
        return np.stack([p.rates for p in self.plans])

    @property
    def energy_j_per_bit(self) -> NDArray[np.float64]:
        """Joules per bit and link, by plan and dimension."""
        return np.stack([p.energy_j_per_bit for p in self.plans])

    def reasons(self) -> NDArray[Any]:
        """Return why rows cannot exist, where that is known from sizes."""
        ranks = self.ranks
        reasons = np.full(self.size_bytes.size, "", object)
        reasons[ranks < 2] = "one_rank: a collective needs at least two"
        small = (self.size_bytes < ranks) & (self.requests[:, OP] != SEND_RECV)
        for i in np.flatnonzero(small | (self.size_bytes < 1)):
            reasons[i] = f"size_below_ranks: {self.size_bytes[i]} bytes for {ranks[i]} ranks"
        return reasons


def _plans(
    batch: pa.RecordBatch, words: dict[str, tuple[NDArray[np.int64], list[Any]]]
) -> tuple[tuple[Plan, ...], NDArray[np.int64]]:
    """Return the distinct plans of a batch, and which of them each row has."""
    # _NULL stands for null: NaNs would all be distinct.
    links = [
        np.nan_to_num(numbers(batch, name).astype(np.float64), nan=_NULL)
        for name in ("link_bytes_per_s", "latency_s")
    ]
    keys = [words[name][0].astype(np.float64) for name in ("topology", "algorithm")] + links
    distinct, plan = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    plans = tuple(
        plan_of(
            words["topology"][1][int(t)],
            words["algorithm"][1][int(a)],
            None if rate == _NULL else float(rate),
            None if latency == _NULL else float(latency),
        )
        for t, a, rate, latency in distinct
    )
    return plans, plan.reshape(-1).astype(np.int64)


_NULL = -(2.0**60)
