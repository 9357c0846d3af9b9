"""What the event loop knows: the network, the phases, the ranks' streams and what is under way."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from simulators.collectives import heap
from simulators.core.jit import Floats, Ints, array, arrays, f8, i8, matrix, named_tuple

RANKS_SIMULATED, STREAMS, PHASES, SERVERS, QUEUES, ENDPOINT, OWNED, WIDEST, IS_FAIR = range(9)
"""Settings: ranks and chunks, phases of a chunk, chunks a queue serves at once, queues of a
dimension, delay of an endpoint, links a rank owns, most messages it sends at one time, and whether
links are shared fairly instead of in turn."""
STAGE, INSERTED, SENT, FREE, TO_SEND, HEARD, PLAIN, CHARGED, TOGGLE = range(9)
"""What a rank knows of one of its streams; of one that waits for its turn TO_SEND is WAITING."""
FIELDS: Final = 9
WAITING: Final = -1
AT, TO, STREAM, AXIS, BYTES, HOPS_LEFT, TRACK, SLOT, STAGE_OF, STARTED = range(10)
"""What is known of a message under way."""
MESSAGE_FIELDS: Final = 10
LEFT, RATE, ELAPSED = range(3)
"""Of a message that shares its links: bytes left, bytes per ns, and ns since it started."""
(
    ALGORITHM_OF, OP_OF, RANKS_OF, AXIS_OF, SENDS_OF, CHARGED_OF, FLIGHT_OF, IS_UNIFORM,
    IS_STEADY, SHAPE_OF,
) = range(10)  # fmt: skip
"""What is looked up about a phase: of a uniform one all messages are of one size, of a steady one
all go to the same neighbour too."""
FACTS: Final = 10
FINISH_NS, SENT_MESSAGES, DELIVERED, LINK_EVENTS, BUSIEST_NS, UNFINISHED = range(6)
"""What a run reports; after these, the time the busiest link of each dimension is in use."""
BUSY_OF: Final = 6
NO_ROOM: Final = -1
"""Unfinished streams of a run that needs more room for events than it was given."""
SPARES, FLYING, STALE, STREAMS_LEFT = range(heap.COUNTERS, heap.COUNTERS + 4)
"""What a clock counts besides events: free places for messages, messages that share links, whether
their rates are out of date, and streams that have not ended."""
COUNTERS: Final = heap.COUNTERS + 4
MEMORY_RATE, FAIR_NOW = range(2)
"""Bytes per second of the memory that reductions use; until when messages have shared links."""
HOP, READY, HEAR = range(3)
"""Kinds of event: a message is at the next device, a packet is ready, an early message is heard."""
KIND_BITS: Final = 2
KINDS: Final = 1 << KIND_BITS


class World(NamedTuple):
    """Arrays of one run. Streams are numbered rank by rank, links by the rank that owns them."""

    settings: Ints
    reals: Floats
    whole: Ints  # per dimension, as of `analytic`
    latency_ns: Floats  # per dimension, of a link
    strides: Ints  # between neighbours of a dimension, in simulated ranks
    is_alike: Ints  # per dimension: one rank stands for all
    uplinks: Ints  # per dimension, of a leaf switch
    first_link: Ints  # of a dimension, among those a rank owns
    first_slot: Ints  # of a dimension, among the peers a stream hears from
    facts: Ints  # per phase
    bytes_of: Ints  # per phase and step
    offset_of: Ints
    turn_of: Ints  # per phase and stream: the queue it joins
    state: Ints  # per rank and stream
    matched: Ints  # per rank and stream, and peer: messages heard less those waited for
    head: Ints  # per rank, dimension and queue: the first stream that waits
    tail: Ints
    running: Ints  # streams a queue serves
    follower: Ints  # per rank and stream: who waits behind it
    messages: Ints
    spare: Ints  # free places among them
    shares: Floats  # per message, of a fair network
    routes: Ints  # per message: the links it crosses
    flying: Ints  # messages that share links, oldest first
    capacity: Floats  # per link, bytes per ns
    room: Floats  # per link: scratch of the fair shares
    load: Ints
    used: Ints
    free_at: Ints  # per link
    busy_ns: Floats
    queue: Ints  # of events
    event: Ints  # the one that happens: its time and what it is
    clock: Ints
    report: Ints


WORLD: Any = named_tuple(
    (
        array(i8), array(f8), matrix(i8), array(f8), *arrays(i8, 5), *(matrix(i8),) * 6,
        *arrays(i8, 4), matrix(i8), array(i8), matrix(f8), matrix(i8), array(i8), *arrays(f8, 2),
        *arrays(i8, 3), array(f8), matrix(i8), *arrays(i8, 3),
    ),
    World,
)  # fmt: skip
