"""Event loop of a multi-core chip: nodes on cores, transfers on links, tensors in memories.

A node is a tile of a layer on one core; its output is one tensor. A core runs one node at a time
and admits the next one while it runs: admission reserves memory for the output and for all missing
operands, and requests their transfers. Among the nodes whose producers have finished, a core admits
the one with the smallest rank. Weights of a core's next layer are loaded ahead. A transfer occupies
all links of its route at once, and links serve requests in their order. A node starts when its core
is free and its operands have arrived.

If a memory is full, weights that no admitted node uses are dropped, the least recently used first,
then tensors are written out, the oldest first: to the shared L2 while it has space, else to DRAM. A
node whose tensors cannot fit moves them through the DRAM port while it computes, and ends when both
have ended. A tensor leaves a core when all its readers there have ended; its first copy stays until
other cores have fetched it. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import f8, i8, kernel, void
from simulators.multicore.core_state import (
    BETWEEN,
    DONE,
    ENDED,
    FABRIC,
    HEAP,
    IN_DRAM,
    IN_L2,
    L2_PEAK,
    L2_USED,
    LATEST,
    NOWHERE,
    READ,
    SPILLED,
    STATE,
    TENSOR_LEFT,
    TENSORS_STAY,
    WEIGHTS,
    WEIGHTS_STAY,
    WORK,
    WRITTEN,
    CoreState,
    Fabric,
    NodeArrays,
    pop,
    push,
)


@kernel(f8(FABRIC, STATE, i8, i8, f8, f8), no_refcount=True)
def send(
    fabric: Fabric, state: CoreState, source: int, target: int, size: float, earliest: float
) -> float:
    """Reserve the links of a route for a transfer; return when it ends."""
    if size <= 0.0 or source == target:
        return earliest
    cores = fabric.tensor_bytes.size
    pair = source * (cores + 2) + target
    start, slowest = earliest, np.inf
    for place in range(fabric.route_start[pair], fabric.route_start[pair + 1]):
        link = fabric.route[place]
        start = max(start, state.free_s[link])
        slowest = min(slowest, fabric.bytes_per_s[link])
    end = start + size / slowest
    for place in range(fabric.route_start[pair], fabric.route_start[pair + 1]):
        link = fabric.route[place]
        state.free_s[link] = end
        state.link_bytes[link] += size
    if source == cores:
        state.sums[READ] += size
    elif target == cores:
        state.sums[WRITTEN] += size
    elif source < cores and target < cores:
        state.sums[BETWEEN] += size
    state.sums[LATEST] = max(state.sums[LATEST], end)
    return end


@kernel(void(STATE, i8, i8, f8), no_refcount=True)
def add_tensor(state: CoreState, tensor: int, core: int, time: float) -> None:
    """Note that a tensor is on a core from some time on."""
    count = state.held_count[core]
    state.here[tensor, core], state.here_s[tensor, core] = 1, time
    state.held[core, count], state.place[tensor, core] = tensor, count
    state.held_count[core] = count + 1


@kernel(void(STATE, i8, i8), no_refcount=True)
def remove_tensor(state: CoreState, tensor: int, core: int) -> None:
    """Note that a tensor is no longer on a core."""
    at, last = state.place[tensor, core], state.held_count[core] - 1
    other = state.held[core, last]
    state.here[tensor, core] = 0
    state.held[core, at], state.place[other, core] = other, at
    state.held_count[core] = last


@kernel(void(WORK, STATE, i8, i8, f8), no_refcount=True)
def release(work: NodeArrays, state: CoreState, tensor: int, core: int, now: float) -> None:
    """Free a tensor on a core if nobody needs it there."""
    if state.here[tensor, core] == 0 or state.needs[tensor, core] > 0:
        return
    if state.pins[tensor, core] > 0:
        return
    if core == work.core[tensor] and state.stored[tensor] == NOWHERE:
        for other in range(state.here.shape[1]):
            if state.needs[tensor, other] > 0 and state.here[tensor, other] == 0:
                return
    remove_tensor(state, tensor, core)
    if core == work.core[tensor] and state.busy_s[tensor] > now:
        push(state, state.busy_s[tensor], TENSOR_LEFT, tensor, core)
    else:
        state.tensor_used[core] -= work.out_bytes[tensor]


@kernel(void(WORK, FABRIC, STATE, i8, i8, i8, f8), no_refcount=True)
def store(
    work: NodeArrays,
    fabric: Fabric,
    state: CoreState,
    tensor: int,
    core: int,
    wanted: int,
    now: float,
) -> None:
    """Write a tensor to DRAM, or to the L2 if that is wanted and has space."""
    cores, size = fabric.tensor_bytes.size, work.out_bytes[tensor]
    target, place = cores, IN_DRAM
    if wanted == IN_L2 and state.sums[L2_USED] + size <= fabric.l2_bytes[0]:
        target, place = cores + 1, IN_L2
        state.sums[L2_USED] += size
        state.sums[L2_PEAK] = max(state.sums[L2_PEAK], state.sums[L2_USED])
    end = send(fabric, state, core, target, size, max(now, state.here_s[tensor, core]))
    state.stored[tensor], state.stored_s[tensor] = place, end
    if place == IN_DRAM:
        state.sums[SPILLED] += size


@kernel(i8(WORK, i8, i8), no_refcount=True)
def reads(work: NodeArrays, node: int, tensor: int) -> int:
    """Return whether a node reads a tensor."""
    for place in range(work.input_start[node], work.input_start[node + 1]):
        if work.inputs[place] == tensor:
            return 1
    return 0


@kernel(void(WORK, FABRIC, STATE, i8, i8, i8, f8, f8), no_refcount=True)
def evict(
    work: NodeArrays,
    fabric: Fabric,
    state: CoreState,
    core: int,
    node: int,
    of_weights: int,
    wanted: float,
    now: float,
) -> None:
    """Free memory of a core: weights that are not in use, then tensors, until enough leaves."""
    found = 0.0
    if of_weights == 1 or fabric.is_shared[core] == 1:
        while found < wanted:
            victim, oldest = -1, np.inf
            for layer in range(work.weight_bytes.shape[0]):
                if state.weights_here[layer, core] == 0 or state.weights_pins[layer, core] > 0:
                    continue
                if layer == work.layer[node]:
                    continue
                if state.weights_used_s[layer, core] < oldest:
                    victim, oldest = layer, state.weights_used_s[layer, core]
            if victim < 0:
                break
            state.weights_here[victim, core] = 0
            state.weight_used[core] -= work.weight_bytes[victim, core]
            found += work.weight_bytes[victim, core]
    if of_weights == 1 and fabric.is_shared[core] == 0:
        return
    keeps = work.stays[node] & TENSORS_STAY
    found += state.leaving[core]
    while found < wanted:
        victim, oldest = -1, np.inf
        for at in range(state.held_count[core]):
            tensor = state.held[core, at]
            if state.pins[tensor, core] > 0:
                continue
            if keeps != 0 and reads(work, node, tensor) == 1:
                continue
            end_s = state.end_s[tensor]
            if end_s < oldest or (end_s == oldest and tensor < victim):
                victim, oldest = tensor, end_s
        if victim < 0:
            return
        size = work.out_bytes[victim]
        remove_tensor(state, victim, core)
        found += size
        if state.stored[victim] == NOWHERE:
            store(work, fabric, state, victim, core, IN_L2, now)
            state.leaving[core] += size
            push(state, state.stored_s[victim], TENSOR_LEFT, victim, core + state.here.shape[1])
        else:
            state.tensor_used[core] -= size


@kernel(f8(WORK, FABRIC, STATE, i8, i8, f8), no_refcount=True)
def fetch_weights(
    work: NodeArrays, fabric: Fabric, state: CoreState, layer: int, core: int, now: float
) -> float:
    """Load the weights of a layer into a core; return when they have arrived."""
    cores, size = fabric.tensor_bytes.size, work.weight_bytes[layer, core]
    source = cores + 1 if state.weights_in_l2[layer] == 1 else cores
    end = send(fabric, state, source, core, size, now)
    if source == cores:
        state.sums[WEIGHTS] += size
        if size > 0.0 and state.sums[L2_USED] + size <= fabric.l2_bytes[0]:
            state.weights_in_l2[layer] = 1
            state.sums[L2_USED] += size
            state.sums[L2_PEAK] = max(state.sums[L2_PEAK], state.sums[L2_USED])
    state.weights_here[layer, core], state.weights_s[layer, core] = 1, end
    state.weights_wanted[layer, core] = 0
    state.weight_used[core] += size
    return end


@kernel(f8(WORK, FABRIC, STATE, i8, i8, f8), no_refcount=True)
def fetch(
    work: NodeArrays, fabric: Fabric, state: CoreState, tensor: int, core: int, now: float
) -> float:
    """Bring a tensor to a core; return when it has arrived."""
    cores, home = fabric.tensor_bytes.size, work.core[tensor]
    if home >= 0 and state.here[tensor, home] == 1:
        end = send(fabric, state, home, core, work.out_bytes[tensor], now)
        state.busy_s[tensor] = max(state.busy_s[tensor], end)
    else:
        source = cores + 1 if state.stored[tensor] == IN_L2 else cores
        earliest = max(now, state.stored_s[tensor])
        end = send(fabric, state, source, core, work.out_bytes[tensor], earliest)
    add_tensor(state, tensor, core, end)
    state.tensor_used[core] += work.out_bytes[tensor]
    if home >= 0:
        release(work, state, tensor, home, now)
    return end


@kernel(f8(WORK, FABRIC, STATE, i8, i8, i8, f8, f8), no_refcount=True)
def missing_bytes(
    work: NodeArrays,
    fabric: Fabric,
    state: CoreState,
    core: int,
    node: int,
    of_weights: int,
    tensors: float,
    weights: float,
) -> float:
    """Return the bytes of weights, or of tensors, that must leave a core before a node fits."""
    over = state.tensor_used[core] + tensors - fabric.tensor_bytes[core]
    if of_weights == 1:
        over = state.weight_used[core] + weights - fabric.weight_bytes[core]
    elif work.stays[node] & TENSORS_STAY == 0:
        return float(state.tensor_used[core])
    if fabric.is_shared[core] == 1:
        over += (
            state.tensor_used[core] + tensors if of_weights else state.weight_used[core] + weights
        )
    return float(over)


@kernel(i8(WORK, FABRIC, STATE, i8, f8), no_refcount=True)
def admit_node(work: NodeArrays, fabric: Fabric, state: CoreState, core: int, now: float) -> int:
    """Reserve memory for a core's next node and request its operands; return whether it could."""
    count = state.ready_count[core]
    if state.admitted[core] >= 0 or count == 0:
        return 0
    place = 0
    for other in range(1, count):
        if work.rank[state.ready[core, other]] < work.rank[state.ready[core, place]]:
            place = other
    node = state.ready[core, place]
    layer = work.layer[node]
    keeps_tensors = work.stays[node] & TENSORS_STAY != 0
    keeps_weights = work.stays[node] & WEIGHTS_STAY != 0
    if not keeps_tensors and state.running[core] >= 0:
        return 0
    weights = 0.0
    if keeps_weights and state.weights_here[layer, core] == 0:
        weights = work.weight_bytes[layer, core]
    tensors = 0.0
    if keeps_tensors:
        tensors = work.out_bytes[node]
        for k in range(work.input_start[node], work.input_start[node + 1]):
            if state.here[work.inputs[k], core] == 0:
                tensors += work.out_bytes[work.inputs[k]]
    for of_weights in range(2):
        lacking = missing_bytes(work, fabric, state, core, node, of_weights, tensors, weights)
        if lacking > 0.0:
            evict(work, fabric, state, core, node, of_weights, lacking, now)
            if missing_bytes(work, fabric, state, core, node, of_weights, tensors, weights) > 0.0:
                return 0
    state.ready[core, place] = state.ready[core, count - 1]
    state.ready_count[core] = count - 1
    arrival = now
    if keeps_weights:
        if state.weights_here[layer, core] == 0:
            fetch_weights(work, fabric, state, layer, core, now)
        arrival = max(arrival, state.weights_s[layer, core])
        state.weights_pins[layer, core] += 1
        if state.prefetched[core] == layer:
            state.prefetched[core] = -1
    for k in range(work.input_start[node], work.input_start[node + 1]):
        tensor = work.inputs[k]
        if keeps_tensors:
            if state.here[tensor, core] == 0:
                fetch(work, fabric, state, tensor, core, now)
            state.pins[tensor, core] += 1
            arrival = max(arrival, state.here_s[tensor, core])
        else:
            home = work.core[tensor]
            if state.stored[tensor] == NOWHERE:
                store(work, fabric, state, tensor, home, IN_DRAM, now)
                state.busy_s[tensor] = max(state.busy_s[tensor], state.stored_s[tensor])
                release(work, state, tensor, home, now)
            arrival = max(arrival, state.stored_s[tensor])
    if keeps_tensors:
        state.tensor_used[core] += work.out_bytes[node]
        add_tensor(state, node, core, arrival)
        state.pins[node, core] += 1
    used = state.tensor_used[core] + state.weight_used[core]
    state.peak[core] = max(state.peak[core], used)
    state.admitted[core], state.admitted_s[core] = node, arrival
    return 1


@kernel(void(WORK, FABRIC, STATE, i8, f8), no_refcount=True)
def prefetch(work: NodeArrays, fabric: Fabric, state: CoreState, core: int, now: float) -> None:
    """Load the weights of a core's next layer if they fit, once and one layer ahead."""
    if state.prefetched[core] >= 0:
        return
    for layer in range(work.weight_bytes.shape[0]):
        size = work.weight_bytes[layer, core]
        if state.weights_wanted[layer, core] == 0 or size == 0.0:
            continue
        used = state.weight_used[core] + size
        if fabric.is_shared[core] == 1:
            used += state.tensor_used[core]
        if used <= fabric.weight_bytes[core]:
            fetch_weights(work, fabric, state, layer, core, now)
            state.weights_used_s[layer, core] = now
            state.prefetched[core] = layer
            state.peak[core] = max(
                state.peak[core], state.tensor_used[core] + state.weight_used[core]
            )
        return


@kernel(i8(WORK, FABRIC, STATE, i8, f8), no_refcount=True)
def start_node(work: NodeArrays, fabric: Fabric, state: CoreState, core: int, now: float) -> int:
    """Start the admitted node of an idle core; return whether there was one."""
    node = state.admitted[core]
    if node < 0 or state.running[core] >= 0:
        return 0
    cores = fabric.tensor_bytes.size
    start = max(now, state.admitted_s[core])
    end = start + work.compute_s[node]
    end = max(end, send(fabric, state, cores, core, work.stream_reads[node], start))
    end = max(end, send(fabric, state, core, cores, work.stream_writes[node], start))
    state.start_s[node] = start
    state.running[core], state.admitted[core] = node, -1
    push(state, end, ENDED, node, core)
    return 1


@kernel(void(WORK, FABRIC, STATE, i8, i8, f8), no_refcount=True)
def end_node(
    work: NodeArrays, fabric: Fabric, state: CoreState, node: int, core: int, now: float
) -> None:
    """End a node: free its operands, and let its readers become ready."""
    cores, layer = fabric.tensor_bytes.size, work.layer[node]
    state.end_s[node] = now
    state.sums[LATEST] = max(state.sums[LATEST], now)
    state.sums[DONE] += 1.0
    state.running[core] = -1
    keeps_tensors = work.stays[node] & TENSORS_STAY != 0
    for k in range(work.input_start[node], work.input_start[node + 1]):
        tensor = work.inputs[k]
        state.needs[tensor, core] -= 1
        if keeps_tensors:
            state.pins[tensor, core] -= 1
        release(work, state, tensor, core, now)
        if state.stored[tensor] == IN_L2:
            left = 0
            for other in range(cores):
                left += state.needs[tensor, other]
            if left == 0:
                state.sums[L2_USED] -= work.out_bytes[tensor]
                state.stored[tensor] = IN_DRAM
    state.nodes_left[layer, core] -= 1
    if work.stays[node] & WEIGHTS_STAY != 0:
        state.weights_pins[layer, core] -= 1
        state.weights_used_s[layer, core] = now
        if state.nodes_left[layer, core] == 0 and state.weights_here[layer, core] == 1:
            state.weights_here[layer, core] = 0
            state.weight_used[core] -= work.weight_bytes[layer, core]
    if state.weights_in_l2[layer] == 1:
        left = 0
        for other in range(cores):
            left += state.nodes_left[layer, other]
        if left == 0:
            state.weights_in_l2[layer] = 0
            state.sums[L2_USED] -= work.weight_bytes[layer, core]
    if keeps_tensors:
        state.here_s[node, core] = now
        state.pins[node, core] -= 1
        if work.user_start[node] == work.user_start[node + 1]:
            end = send(fabric, state, core, cores, work.out_bytes[node], now)
            state.stored[node], state.stored_s[node] = IN_DRAM, end
            state.busy_s[node] = end
            release(work, state, node, core, now)
    else:
        state.stored[node], state.stored_s[node] = IN_DRAM, now
    for k in range(work.user_start[node], work.user_start[node + 1]):
        user = work.users[k]
        state.waits[user] -= 1
        if state.waits[user] == 0:
            where = work.core[user]
            state.ready[where, state.ready_count[where]] = user
            state.ready_count[where] += 1


@kernel(f8(WORK, FABRIC, STATE), no_refcount=True)
def run(work: NodeArrays, fabric: Fabric, state: CoreState) -> float:
    """Run all nodes; return the time of the last node or transfer, or -1 if some cannot run."""
    cores, nodes, real = fabric.tensor_bytes.size, work.core.size, 0
    for node in range(nodes):
        core = work.core[node]
        if core < 0:
            state.stored[node] = IN_DRAM
            continue
        real += 1
        state.nodes_left[work.layer[node], core] += 1
        if work.stays[node] & WEIGHTS_STAY != 0:
            state.weights_wanted[work.layer[node], core] = 1
        for k in range(work.input_start[node], work.input_start[node + 1]):
            state.needs[work.inputs[k], core] += 1
            if work.core[work.inputs[k]] >= 0:
                state.waits[node] += 1
        if state.waits[node] == 0:
            state.ready[core, state.ready_count[core]] = node
            state.ready_count[core] += 1
    now = 0.0
    while True:
        moved = 1
        while moved == 1:
            moved = 0
            for core in range(cores):
                if admit_node(work, fabric, state, core, now) == 1:
                    moved = 1
                if start_node(work, fabric, state, core, now) == 1:
                    moved = 1
        for core in range(cores):
            prefetch(work, fabric, state, core, now)
        if state.sums[HEAP] == 0.0:
            break
        pop(state)
        at = int(state.sums[HEAP])
        now = state.heap_s[at]
        kind, item, core = state.heap_event[at, 0], state.heap_event[at, 1], state.heap_event[at, 2]
        if kind == ENDED:
            end_node(work, fabric, state, item, core, now)
        else:
            if core >= cores:
                core -= cores
                state.leaving[core] -= work.out_bytes[item]
            state.tensor_used[core] -= work.out_bytes[item]
    return state.sums[LATEST] if int(state.sums[DONE]) == real else -1.0
