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
            algorithm, block, n = network[d, ALGORITHM], network[d, BLOCK], network[d, RANKS]
            count = sends(algorithm, ops[p], n)
            if shape_of(algorithm, ops[p]) != NO_TREE:
                both_ways = 2.0 if ops[p] == ALL_REDUCE else 1.0
                sent = both_ways * payload[p] * (n - 1) / n
                out[i, MESSAGES] += cut[1] * everyone * both_ways * (n - 1) / n
                crossed = 0.0
                for position in range(n):
                    for turn in range(children(shape_of(algorithm, ops[p]), n, position)):
                        to = child(shape_of(algorithm, ops[p]), n, position, turn)
                        crossed += hops(block, n, network[d, LEAF], abs(to - position))
                crossed *= both_ways * payload[p] / n
            else:
                sent, crossed, distinct = 0.0, 0.0, min(count, 2 * n)
                for step in range(distinct):
                    message = message_of(algorithm, ops[p], n, payload[p], step)
                    offset = offset_of(algorithm, ops[p], n, step)
                    sent += message
                    crossed += message * hops(block, n, network[d, LEAF], offset)
                if distinct > 0:
                    sent, crossed = sent * count / distinct, crossed * count / distinct
                out[i, MESSAGES] += cut[1] * everyone * float(max(count, 0))
            out[i, RANK_BYTES] += cut[1] * sent
            joules = 8.0 * crossed * energy_j_per_bit[row[PLAN], d]
            out[i, ENERGY_J] += cut[1] * everyone * joules
            on_one_link = crossed if block == RING_BLOCK else sent
            out[i, BUSY_NS + d] += cut[1] * on_one_link / rates[row[PLAN], d, BYTES_PER_NS]
