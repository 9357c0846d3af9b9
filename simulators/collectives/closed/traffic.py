"""Messages, bytes, joules and link time of a collective, known before it is timed."""

from __future__ import annotations

from typing import Final

import numpy as np

from simulators.collectives.algorithms import ALL_REDUCE
from simulators.collectives.algorithms.steps import message_of, offset_of, sends
from simulators.collectives.algorithms.trees import NO_TREE, child, children, shape_of
from simulators.collectives.closed import phases as at
from simulators.collectives.closed.phases import chunk_bytes, chunks_of, lay_out
from simulators.collectives.topologies import blocks
from simulators.collectives.topologies.blocks import hops
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix, void

MESSAGES, RANK_BYTES, ENERGY_J, BUSY_NS = range(4)
"""Columns: messages of all ranks, bytes each sends on average, joules; and from the last on, time
the links of a rank in each dimension are in use."""
COLUMNS: Final = 3 + blocks.MAX_DIMENSIONS


@kernel(void(matrix(i8), array(i8, 3), array(f8, 3), matrix(f8), matrix(f8)))
def traffic(
    requests: Ints, whole: Ints, rates: Floats, energy_j_per_bit: Floats, out: Floats
) -> None:
    """Write the traffic of every request; arguments as of `phase_model.collectives_ns`."""
    phases, sent = np.zeros((at.MAX_PHASES, 4), np.int64), np.zeros(3)
    out[:] = 0.0
    for i in range(requests.shape[0]):
        row = requests[i]
        network = whole[row[at.PLAN]]
        everyone = np.prod(network[:, blocks.RANKS])
        chunks = chunks_of(row, everyone)
        count = lay_out(row[at.OP], row[at.BASELINE], network, chunk_bytes(row, everyone), phases)
        for p in range(count):
            d = phases[p, at.DIMENSION]
            phase_traffic(phases[p, at.PHASE_OP], phases[p, at.PAYLOAD], network[d], sent)
            crossed = sent[ENERGY_J]
            out[i, MESSAGES] += chunks * everyone * sent[MESSAGES]
            out[i, RANK_BYTES] += chunks * sent[RANK_BYTES]
            joules = 8.0 * crossed * energy_j_per_bit[row[at.PLAN], d]
            out[i, ENERGY_J] += chunks * everyone * joules
            is_ring = network[d, blocks.BLOCK] == blocks.RING_BLOCK
            on_one_link = crossed if is_ring else sent[RANK_BYTES]
            rate = rates[row[at.PLAN], d, blocks.BYTES_PER_NS]
            out[i, BUSY_NS + d] += chunks * on_one_link / rate


@kernel(void(i8, i8, array(i8), array(f8)))
def phase_traffic(op: int, payload: int, network: Ints, out: Floats) -> None:
    """Write what a rank sends in a phase, on average: messages, bytes, bytes times links crossed.

    `network` has the columns of `blocks`; `out` MESSAGES, RANK_BYTES and, for the bytes times
    links, ENERGY_J.
    """
    algorithm, block = network[blocks.ALGORITHM], network[blocks.BLOCK]
    n, leaf = network[blocks.RANKS], network[blocks.LEAF]
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
