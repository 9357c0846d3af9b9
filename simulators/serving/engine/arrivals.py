"""Arrivals that other requests release: successors, closed loops, sessions, the API server.

Released requests wait on a heap, ordered by time. With a graph, edges release requests and gates; a
gate is a node without a request, whose edges are resolved when it opens.
"""

from __future__ import annotations

from simulators.core.jit import f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import OPTIONAL_FEATURES, STATE, ReplicaState, kernel


@kernel(i8(STATE, f8, i8))
def push_release(state: ReplicaState, time: float, req: int) -> int:
    """Push an arrival on the heap, ordered by time and request; return the size of the heap."""
    times, requests = state.released, state.released_req
    place = state.clock[at.HEAP_SIZE]
    state.clock[at.HEAP_SIZE] = place + 1
    while place > 0:
        parent = (place - 1) // 2
        if (times[parent], requests[parent]) <= (time, req):
            break
        times[place], requests[place] = times[parent], requests[parent]
        place = parent
    times[place], requests[place] = time, req
    return state.clock[at.HEAP_SIZE]  # type: ignore[no-any-return]


@kernel(i8(STATE))
def pop_release(state: ReplicaState) -> int:
    """Pop the earliest arrival from the heap."""
    times, requests = state.released, state.released_req
    first, size = requests[0], state.clock[at.HEAP_SIZE] - 1
    state.clock[at.HEAP_SIZE] = size
    time, req = times[size], requests[size]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and (times[child + 1], requests[child + 1]) < (
            times[child],
            requests[child],
        ):
            child += 1
        if (time, req) <= (times[child], requests[child]):
            break
        times[place], requests[place] = times[child], requests[child]
        place = child
    times[place], requests[place] = time, req
    return first  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, i8, f8))
def resolve_edges(state: ReplicaState, first: int, end: int, now: float) -> int:
    """Resolve edges at a time: nodes without unresolved edges arrive; return the edges resolved."""
    for edge in range(first, end):
        node = state.edges[edge]
        state.ready_s[node] = max(state.ready_s[node], now + state.edge_delay_s[edge])
        state.graph[node, at.PENDING] -= 1
        if state.graph[node, at.PENDING] == 0:
            if node < state.request.shape[0]:
                state.times[node, at.ARRIVAL] = state.ready_s[node]
            push_release(state, state.ready_s[node], node)
    return end - first


@kernel(i8(STATE, i8, f8))
def open_gate(state: ReplicaState, gate: int, now: float) -> int:
    """Open a gate: resolve its edges; return the edges resolved."""
    node, clock = state.graph[gate], state.clock
    if node[at.GATE] == at.NEXT_SESSION_GATE and clock[at.NEXT_SESSION] < clock[at.LAST_SESSION]:
        push_release(state, now, clock[at.NEXT_SESSION])
        clock[at.NEXT_SESSION] += 1
    if node[at.GATE] == at.WINDOW_GATE:
        state.sending[at.WINDOW_S] = now
        state.sending[at.SENDING_END_S] = now + state.sending[at.DURATION_S]
    return resolve_edges(state, node[at.DISPATCH_EDGES], node[at.EDGES_END], now)


@kernel(f8(STATE, i8))
def pass_frontend(state: ReplicaState, req: int) -> float:
    """Pass a request that is sent now through the frontend; return when it reaches the engine.

    The frontend serves requests in the order in which they are sent; the delay to the engine does
    not queue.
    """
    row, gauge = state.times[req], state.gauge[0]
    delay_s = row[at.SENT]
    row[at.SENT] = row[at.ARRIVAL]
    gauge[at.FRONTEND_FREE_S] = max(gauge[at.FRONTEND_FREE_S], row[at.SENT]) + row[at.SERVICE]
    row[at.ARRIVAL], row[at.SERVICE] = gauge[at.FRONTEND_FREE_S] + delay_s, -1.0
    if OPTIONAL_FEATURES and state.request[req, at.SUCCESSOR] == at.BY_GRAPH:
        node = state.graph[req]
        resolve_edges(state, node[at.DISPATCH_EDGES], node[at.ANSWER_EDGES], row[at.SENT])
    state.request[req, at.REPLICA] = at.NOT_RELEASED  # no longer on the list of arrivals
    push_release(state, row[at.ARRIVAL], req)
    return row[at.ARRIVAL]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def release_successor(state: ReplicaState, req: int, now: float) -> int:
    """Release the successor of a finished request and return the successor.

    The successor is sent a think time after the client has received the last token. In a closed
    loop the next unreleased request is the successor of the first client to receive its answer.
    """
    row, follower = state.times[req], state.request[req, at.SUCCESSOR]
    received = now + row[at.LAG_S]
    if follower >= 0:
        state.times[follower, at.ARRIVAL] += received
        push_release(state, state.times[follower, at.ARRIVAL], follower)
    elif follower == at.NEXT_UNRELEASED:
        push_release(state, received, at.NEXT_UNRELEASED)
    elif OPTIONAL_FEATURES and follower == at.BY_GRAPH:
        node = state.graph[req]
        resolve_edges(state, node[at.ANSWER_EDGES], node[at.EDGES_END], received)
    return follower  # type: ignore[no-any-return]


@kernel(i8(STATE, f8))
def release_next(state: ReplicaState, now: float) -> int:
    """Release the next unreleased request of a closed loop; return the number of released ones."""
    req = state.clock[at.NEXT_SUCCESSOR]
    if req < state.request.shape[0]:
        state.clock[at.NEXT_SUCCESSOR] += 1
        state.times[req, at.ARRIVAL] += now
        push_release(state, state.times[req, at.ARRIVAL], req)
    return state.clock[at.NEXT_SUCCESSOR]  # type: ignore[no-any-return]
