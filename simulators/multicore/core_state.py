"""State of the event loop of a multi-core chip: nodes, memories, links and the heap of events.

Times are seconds, sizes bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulators.core.jit import FloatMatrix, Floats, IntMatrix, Ints, f8, i8, kernel, struct, void

TENSORS_STAY, WEIGHTS_STAY = 1, 2
"""Bits of `NodeArrays.stays`: what the core's memory holds during a node."""

ENDED, TENSOR_LEFT = 0, 1
"""Kinds of events: a node has ended, the memory of a tensor is free again."""

NOWHERE, IN_DRAM, IN_L2 = 0, 1, 2
"""Where a tensor is stored besides cores."""

READ, WRITTEN, WEIGHTS, SPILLED, BETWEEN = range(5)
HEAP, ORDER, L2_USED, L2_PEAK, LATEST, DONE = range(5, 11)
SUMS = 11
"""Columns of `CoreState.sums`: bytes of each kind, and scalars of the loop."""


class NodeArrays(NamedTuple):
    """Nodes, in topological order, and their tensors. A node of core -1 is a tensor in DRAM."""

    core: Ints
    layer: Ints
    rank: Ints
    stays: Ints
    compute_s: Floats
    out_bytes: Floats
    stream_reads: Floats  # bytes through the DRAM port while the node runs
    stream_writes: Floats
    input_start: Ints
    inputs: Ints
    user_start: Ints
    users: Ints
    weight_bytes: FloatMatrix  # by layer and core


class Fabric(NamedTuple):
    """Memories and links. Ends of a route are the cores, then DRAM, then L2."""

    tensor_bytes: Floats  # capacity by core
    weight_bytes: Floats
    is_shared: Ints  # whether weights and tensors share a core's capacity
    l2_bytes: Floats  # one number
    bytes_per_s: Floats  # by link
    route_start: Ints  # by source end * ends + target end
    route: Ints


class CoreState(NamedTuple):
    """Arrays of the loop."""

    sums: Floats
    start_s: Floats  # by node
    end_s: Floats
    waits: Ints  # producers of a node that have not ended
    stored: Ints  # by tensor: `NOWHERE`, `IN_DRAM`, `IN_L2`
    stored_s: Floats
    busy_s: Floats  # by tensor: end of the last transfer from its first core
    here: IntMatrix  # by tensor and core
    here_s: FloatMatrix
    place: IntMatrix  # position of a tensor in `held`
    held: IntMatrix  # by core: the tensors that it has
    held_count: Ints
    needs: IntMatrix  # readers that have not ended
    pins: IntMatrix
    weights_here: IntMatrix  # by layer and core
    weights_s: FloatMatrix
    weights_used_s: FloatMatrix
    weights_pins: IntMatrix
    nodes_left: IntMatrix
    weights_in_l2: Ints  # by layer
    weights_wanted: IntMatrix  # by layer and core: whether they stay and were never requested
    prefetched: Ints  # by core: a layer whose weights were requested before its first node
    running: Ints  # by core
    admitted: Ints
    admitted_s: Floats
    ready: IntMatrix
    ready_count: Ints
    tensor_used: Floats
    weight_used: Floats
    leaving: Floats  # bytes being written out
    peak: Floats
    free_s: Floats  # by link
    link_bytes: Floats
    heap_s: Floats
    heap_order: Floats
    heap_event: IntMatrix  # kind, node or tensor, core


WORK, FABRIC, STATE = struct(NodeArrays), struct(Fabric), struct(CoreState)


def state_of(work: NodeArrays, fabric: Fabric) -> CoreState:
    """Return the arrays of a loop before its first event."""
    nodes, cores = work.core.size, fabric.tensor_bytes.size
    layers, links = work.weight_bytes.shape[0], fabric.bytes_per_s.size
    heap = nodes * cores + 2 * cores + 16
    ints = np.zeros(nodes, np.int64)
    return CoreState(
        sums=np.zeros(SUMS),
        start_s=np.full(nodes, -1.0),
        end_s=np.full(nodes, -1.0),
        waits=ints.copy(),
        stored=ints.copy(),
        stored_s=np.zeros(nodes),
        busy_s=np.zeros(nodes),
        here=np.zeros((nodes, cores), np.int64),
        here_s=np.zeros((nodes, cores)),
        place=np.zeros((nodes, cores), np.int64),
        held=np.zeros((cores, max(nodes, 1)), np.int64),
        held_count=np.zeros(cores, np.int64),
        needs=np.zeros((nodes, cores), np.int64),
        pins=np.zeros((nodes, cores), np.int64),
        weights_here=np.zeros((layers, cores), np.int64),
        weights_s=np.zeros((layers, cores)),
        weights_used_s=np.zeros((layers, cores)),
        weights_pins=np.zeros((layers, cores), np.int64),
        nodes_left=np.zeros((layers, cores), np.int64),
        weights_in_l2=np.zeros(layers, np.int64),
        weights_wanted=np.zeros((layers, cores), np.int64),
        prefetched=np.full(cores, -1, np.int64),
        running=np.full(cores, -1, np.int64),
        admitted=np.full(cores, -1, np.int64),
        admitted_s=np.zeros(cores),
        ready=np.zeros((cores, max(nodes, 1)), np.int64),
        ready_count=np.zeros(cores, np.int64),
        tensor_used=np.zeros(cores),
        weight_used=np.zeros(cores),
        leaving=np.zeros(cores),
        peak=np.zeros(cores),
        free_s=np.zeros(links),
        link_bytes=np.zeros(links),
        heap_s=np.zeros(heap),
        heap_order=np.zeros(heap),
        heap_event=np.zeros((heap, 3), np.int64),
    )


@kernel(i8(STATE, i8, i8), no_refcount=True)
def is_before(state: CoreState, a: int, b: int) -> int:
    """Return whether an entry of the heap comes before another one."""
    if state.heap_s[a] != state.heap_s[b]:
        return 1 if state.heap_s[a] < state.heap_s[b] else 0
    return 1 if state.heap_order[a] < state.heap_order[b] else 0


@kernel(void(STATE, i8, i8), no_refcount=True)
def swap(state: CoreState, a: int, b: int) -> None:
    """Exchange two entries of the heap."""
    time, order = state.heap_s[a], state.heap_order[a]
    state.heap_s[a], state.heap_order[a] = state.heap_s[b], state.heap_order[b]
    state.heap_s[b], state.heap_order[b] = time, order
    for k in range(3):
        value = state.heap_event[a, k]
        state.heap_event[a, k] = state.heap_event[b, k]
        state.heap_event[b, k] = value


@kernel(void(STATE, f8, i8, i8, i8), no_refcount=True)
def push(state: CoreState, time: float, kind: int, item: int, core: int) -> None:
    """Add an event to the heap."""
    at = int(state.sums[HEAP])
    state.heap_s[at], state.heap_order[at] = time, state.sums[ORDER]
    state.heap_event[at, 0], state.heap_event[at, 1], state.heap_event[at, 2] = kind, item, core
    state.sums[HEAP] += 1.0
    state.sums[ORDER] += 1.0
    while at > 0 and is_before(state, at, (at - 1) // 2) == 1:
        swap(state, at, (at - 1) // 2)
        at = (at - 1) // 2


@kernel(void(STATE), no_refcount=True)
def pop(state: CoreState) -> None:
    """Move the first event behind the end of the heap."""
    last = int(state.sums[HEAP]) - 1
    state.sums[HEAP] -= 1.0
    swap(state, 0, last)
    at = 0
    while True:
        least = at
        for child in (2 * at + 1, 2 * at + 2):
            if child < last and is_before(state, child, least) == 1:
                least = child
        if least == at:
            return
        swap(state, at, least)
        at = least
