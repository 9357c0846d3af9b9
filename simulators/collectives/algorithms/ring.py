"""Ring: an all-reduce moves 2(n-1)/n of the data over every link, in 2(n-1) steps.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009). Every rank sends to its right
neighbor the data last received from its left, after an endpoint delay and, in the reducing half,
after adding its own part. An all-to-all passes every block from neighbor to neighbor, one after
another: n(n-1)/2 steps, as in the reference simulator; no library does so.
"""

from __future__ import annotations

from simulators.collectives import algorithms as codes
from simulators.collectives.algorithms import PHASE_NS, Phase
from simulators.collectives.topologies.blocks import Wire, delay_ns, reduction_ns
from simulators.core.jit import kernel


@kernel(PHASE_NS)
def phase_ns(wire: Wire, phase: Phase) -> int:
    """Return the time of a phase: the sum of its steps."""
    op, n, endpoint_ns = phase.op, wire.ranks, phase.endpoint_ns
    is_divided = op in (codes.ALL_REDUCE, codes.REDUCE_SCATTER, codes.ALL_TO_ALL)
    message = phase.payload // n if is_divided else phase.payload
    step_ns = delay_ns(wire, 1, message) + endpoint_ns
    reduce_ns = reduction_ns(message, phase.memory_bytes_per_s)
    if op == codes.REDUCE_SCATTER:
        return endpoint_ns + (n - 1) * (step_ns + reduce_ns)
    if op == codes.ALL_REDUCE:
        return endpoint_ns + (n - 1) * (2 * step_ns + reduce_ns)
    if op == codes.ALL_TO_ALL:
        return endpoint_ns + n * (n - 1) // 2 * step_ns
    if op == codes.SEND_RECV:
        return endpoint_ns + step_ns
    return endpoint_ns + (n - 1) * step_ns  # all_gather and broadcast
