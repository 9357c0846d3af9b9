"""Direct exchange: every rank sends to every other, with at most a window of messages in flight.

Without a window all messages leave at once and the farthest peer decides. With a window of one they
follow each other; the reference simulator then charges a reduction on every second receive only.
"""

from __future__ import annotations

from simulators.collectives import algorithms as codes
from simulators.collectives.algorithms import PHASE_NS, Phase
from simulators.collectives.topologies.blocks import RING_BLOCK, WIRE, Wire, delay_ns, reduction_ns
from simulators.core.jit import i8, kernel


@kernel(i8(WIRE, i8, i8, i8))
def _around_a_ring_ns(wire: Wire, message: int, endpoint_ns: int, reduce_ns: int) -> int:
    """Return the time of an all-reduce whose peers are at different distances.

    Messages of near peers arrive first. A rank sends its first results when all messages have
    arrived and one of them has been added; the k-th received message releases the k-th result,
    which goes to the k-th next rank.
    """
    slowest_ns = endpoint_ns + delay_ns(wire, wire.ranks // 2, message)
    gate_ns = slowest_ns + endpoint_ns + reduce_ns
    for distance in range(1, wire.ranks // 2 + 1):
        heard_ns = endpoint_ns + delay_ns(wire, distance, message)
        if heard_ns + endpoint_ns + reduce_ns >= slowest_ns:
            gate_ns = heard_ns + endpoint_ns + reduce_ns
            break
    finish_ns = 0
    for k in range(wire.ranks - 1):
        heard_ns = endpoint_ns + delay_ns(wire, k // 2 + 1, message)
        answer_ns = max(heard_ns + endpoint_ns + reduce_ns, gate_ns)
        finish_ns = max(finish_ns, answer_ns + delay_ns(wire, k + 1, message) + endpoint_ns)
    return finish_ns


@kernel(PHASE_NS)
def phase_ns(wire: Wire, phase: Phase) -> int:
    """Return the time of a phase in ns. Windows above one divide the steps evenly."""
    op, window, endpoint_ns = phase.op, phase.window, phase.endpoint_ns
    is_divided = op in (codes.ALL_REDUCE, codes.REDUCE_SCATTER, codes.ALL_TO_ALL)
    message = phase.payload // wire.ranks if is_divided else phase.payload
    reduce_ns = reduction_ns(message, phase.memory_bytes_per_s) if op != codes.ALL_TO_ALL else 0
    exchange_ns, charged = 0, 1
    if op in (codes.SEND_RECV, codes.BROADCAST) or window == 0 or window >= wire.ranks - 1:
        if op == codes.ALL_REDUCE and wire.block == RING_BLOCK:
            return _around_a_ring_ns(wire, message, endpoint_ns, reduce_ns)
        far = 1 if op == codes.SEND_RECV else max(wire.ranks // 2, 1)
        exchange_ns = endpoint_ns + delay_ns(wire, far, message)
    else:
        charged = (-(-(wire.ranks - 1) // window) + 1) // 2
        for offset in range(1, wire.ranks, window):
            exchange_ns += endpoint_ns + delay_ns(wire, offset, message)
    if op == codes.ALL_REDUCE:
        return endpoint_ns + 2 * exchange_ns + charged * reduce_ns
    if op == codes.REDUCE_SCATTER:
        return endpoint_ns + exchange_ns + charged * reduce_ns
    return endpoint_ns + exchange_ns
