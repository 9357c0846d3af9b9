"""Repeats of decode batches that the event loop postpones, and the replicas that can hold a prefix.

A completion can release an arrival anywhere, so a closed loop processes completions of all replicas
in the order of time. Repeats of a decode batch change their replica alone: they wait until the
batch can finish, a request arrives at the replica, or the router looks up its prefix cache. The
loop then visits a replica once per completion, not once per iteration (conservative lookahead;
Fujimoto, "Parallel discrete event simulation", 1990). Results are the same bits.

The router looks up a prefix only where a request with the same first node has been routed.
"""

from __future__ import annotations

from math import inf

import numpy as np

from simulators.core.jit import boolean, f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import STATE, ReplicaState, kernel, ranks_with

WORD = 32
"""Replicas per number of `holders`."""

SLACK = 1e-6
"""Share by which a bound of a time of repeats is lowered, for the rounding of its sum."""


@kernel(f8(STATE, i8))
def earliest_finish(state: ReplicaState, replica: int) -> float:
    """Return a time before which the batch of a replica neither ends a request nor lacks a block.

    The bound counts iterations of the current price, whose time grows with the keys.
    """
    pool, rounds, price = state.pool[replica], state.rounds[replica], state.price[replica]
    if pool[at.IN_FLIGHT] == 0:
        return inf
    end, growth, size = state.ends[replica, 0], rounds[at.KEYS_PER_REPEAT], state.sizes[replica]
    if rounds[at.REPEATS] == 0 or min(price[at.SLOPE_S], price[at.DRAFTS_SLOPE_S]) < 0.0:
        return end  # type: ignore[no-any-return]
    keys, block = state.priced[replica, at.DECODE_KV], state.limits[at.BLOCK]
    until_block = max(0, pool[at.FREE_BLOCKS] - 1) // size * block
    repeats = float(min(rounds[at.REPEATS], until_block))
    repeats = min(repeats, max(0.0, np.floor((price[at.UNTIL_KV] - keys) / growth) - 1.0))
    each = max(price[at.BASE_S] + price[at.SLOPE_S] * keys, price[at.MIN_S])
    each += price[at.ADDED_S] + price[at.DRAFTS_SLOPE_S] * keys
    return end + repeats * each * (1.0 - SLACK)  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def renew_finishes(state: ReplicaState, replica: int) -> int:
    """Renew the earliest finishes of all ranks of a replica; return their number."""
    first, ranks = ranks_with(state, replica)
    for rank in range(first, first + ranks):
        state.finishes[rank] = earliest_finish(state, rank)
    return ranks


@kernel(boolean(STATE, i8, i8))
def may_hold(state: ReplicaState, req: int, replica: int) -> bool:
    """Return whether a replica may have cached the beginning of a prompt."""
    if state.holders.shape[0] == 0:
        return True
    first = state.tree[state.request[req, at.PATH], at.HOLDERS_ROW]
    return state.holders[first, replica // WORD] >> (replica % WORD) & 1 > 0  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, i8))
def mark_holder(state: ReplicaState, req: int, replica: int) -> int:
    """Mark a replica as one that may cache the prompt of a request; return the replica."""
    if state.holders.shape[0] > 0:
        first = state.tree[state.request[req, at.PATH], at.HOLDERS_ROW]
        state.holders[first, replica // WORD] |= 1 << (replica % WORD)
    return replica
