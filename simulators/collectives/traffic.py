"""What a collective puts on the wires is known before it is timed: messages, bytes, joules."""

from __future__ import annotations

from typing import Final

import numpy as np

from simulators.collectives.algorithms import ALL_REDUCE
from simulators.collectives.analytic import (
    ALGORITHM,
    BASELINE,
    BLOCK,
    BYTES_PER_NS,
    LEAF,
    OP,
    PLAN,
    RANKS,
    SIZE,
    SPLITS,
)
from simulators.collectives.phases import MAX_DIMENSIONS, MAX_PHASES, lay_out, split
from simulators.collectives.steps import message_of, offset_of, sends
from simulators.collectives.trees import NO_TREE, child, children, shape_of
from simulators.collectives.wires import RING_BLOCK, hops
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix, void

MESSAGES, RANK_BYTES, ENERGY_J, BUSY_NS = range(4)
"""Columns: messages of all ranks, bytes each sends on average, joules; and from the last on, time
the links of a rank in each dimension are in use."""
COLUMNS: Final = 3 + MAX_DIMENSIONS


@kernel(void(matrix(i8), array(i8, 3), array(f8, 3), matrix(f8), matrix(f8)))
def traffic(
    requests: Ints, whole: Ints, rates: Floats, energy_j_per_bit: Floats, out: Floats
) -> None:
    """Write the traffic of every request; arguments as of `analytic.collectives_ns`."""
    dimension = np.zeros(MAX_PHASES, np.int64)
    ops = np.zeros(MAX_PHASES, np.int64)
    payload = np.zeros(MAX_PHASES, np.int64)
    half = np.zeros(MAX_PHASES, np.int64)
    cut = np.zeros(2, np.int64)
    sent = np.zeros(3)
    for i in range(requests.shape[0]):
        row = requests[i]
        network = whole[row[PLAN]]
        ranks = network[:, RANKS].copy()
        everyone = np.prod(ranks)
        split(row[OP], row[SIZE], row[SPLITS], everyone, cut)
        phases = lay_out(row[OP], row[BASELINE], ranks, cut[0], dimension, ops, payload, half)
        out[i, :] = 0.0
        for p in range(phases):
            d = dimension[p]
            phase_traffic(ops[p], payload[p], network[d], sent)
            crossed = sent[ENERGY_J]
            out[i, MESSAGES] += cut[1] * everyone * sent[MESSAGES]
            out[i, RANK_BYTES] += cut[1] * sent[RANK_BYTES]
            joules = 8.0 * crossed * energy_j_per_bit[row[PLAN], d]
            out[i, ENERGY_J] += cut[1] * everyone * joules
            on_one_link = crossed if network[d, BLOCK] == RING_BLOCK else sent[RANK_BYTES]
            out[i, BUSY_NS + d] += cut[1] * on_one_link / rates[row[PLAN], d, BYTES_PER_NS]


@kernel(void(i8, i8, array(i8), array(f8)))
def phase_traffic(op: int, payload: int, network: Ints, out: Floats) -> None:
    """Write what a rank sends in a phase, on average: messages, bytes, bytes times links crossed.

    Args:
        op: which collective the phase is.
        payload: its bytes.
        network: the dimension, as of `analytic.collectives_ns`.
        out: columns MESSAGES, RANK_BYTES and, for the bytes times links, ENERGY_J.
    """
    algorithm, block, n, leaf = network[ALGORITHM], network[BLOCK], network[RANKS], network[LEAF]
    shape = shape_of(algorithm, op)
    out[:] = 0.0
    if shape != NO_TREE:
        both_ways = 2.0 if op == ALL_REDUCE else 1.0
        out[MESSAGES] = both_ways * (n - 1) / n
        out[RANK_BYTES] = payload * out[MESSAGES]
        for position in range(n):
            for turn in range(children(shape, n, position)):
                apart = abs(child(shape, n, position, turn) - position)
                out[ENERGY_J] += both_ways * payload / n * hops(block, n, leaf, apart)
        return
    count = sends(algorithm, op, n)
    distinct = min(count, 2 * n)
    for step in range(distinct):
        message = message_of(algorithm, op, n, payload, step)
        out[RANK_BYTES] += message
        out[ENERGY_J] += message * hops(block, n, leaf, offset_of(algorithm, op, n, step))
    if distinct > 0:
        out[RANK_BYTES] *= count / distinct
        out[ENERGY_J] *= count / distinct
    out[MESSAGES] = max(count, 0)
