"""Halving-doubling: partners exchange halves, then quarters: log2(n) steps instead of n-1.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
(2005). A reduce-scatter halves its message while the distance doubles, an all-gather reverses the
steps. The algorithm exists for powers of two, and as a binomial tree for a broadcast.
"""

from __future__ import annotations

from simulators.collectives import algorithms as codes
from simulators.collectives.algorithms import PHASE_NS, Phase
from simulators.collectives.topologies.blocks import Wire, delay_ns, log2, reduction_ns
from simulators.core.jit import kernel


@kernel(PHASE_NS)
def phase_ns(wire: Wire, phase: Phase) -> int:
    """Return the time of a phase; the first step reduces nothing, as in the reference simulator."""
    op, endpoint_ns = phase.op, phase.endpoint_ns
    steps = log2(wire.ranks)
    if steps < 0 or op == codes.ALL_TO_ALL:
        return codes.IMPOSSIBLE
    total_ns = endpoint_ns
    if op in (codes.ALL_GATHER, codes.BROADCAST, codes.SEND_RECV):
        message, offset = phase.payload, wire.ranks // 2
        for _ in range(1 if op == codes.SEND_RECV else steps):
            total_ns += endpoint_ns + delay_ns(wire, offset, message)
            message, offset = (2 * message if op == codes.ALL_GATHER else message), offset // 2
        return total_ns
    message, offset = phase.payload // 2, 1
    for step in range(steps):
        step_ns = endpoint_ns + delay_ns(wire, offset, message)
        total_ns += step_ns if op == codes.REDUCE_SCATTER else 2 * step_ns
        if step > 0:
            total_ns += reduction_ns(message, phase.memory_bytes_per_s)
        message, offset = message // 2, offset * 2
    return total_ns
