"""State of a run of the event loop: network, phases, the ranks' chunks and messages under way."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from simulators.collectives.events import event_queue
from simulators.core.jit import FloatMatrix, Floats, IntMatrix, Ints, struct

STAGE, INSERTED, SENT, FREE, TO_SEND, RECEIVED, PLAIN, CHARGED, TOGGLE = range(9)
"""Columns of a stream; TO_SEND is WAITING while the stream is queued."""
STREAM_FIELDS: Final = 9
WAITING: Final = -1
HERE, TO, STREAM, AXIS, BYTES, HOPS_LEFT, TRACK, SLOT, STEP, STARTED = range(10)
"""Columns of a message in flight; TRACK is its link, STEP the position in its route."""
MESSAGE_FIELDS: Final = 10
LEFT, RATE, ELAPSED = range(3)
"""Columns of a message with shared links: remaining bytes, bytes per ns, ns since its start."""
FINISH_NS, SENT_MESSAGES, DELIVERED, LINK_EVENTS, UNFINISHED = range(5)
"""Columns of a report; UNFINISHED counts streams."""
NO_CAPACITY: Final = -1
"""Unfinished streams of a run whose events exceed its arrays."""
SPARES, FLYING, STALE, STREAMS_LEFT = range(event_queue.COUNTERS, event_queue.COUNTERS + 4)
"""Further counters of a clock: free message slots, messages with shared links, whether their rates
are out of date, and unfinished streams."""
COUNTERS: Final = event_queue.COUNTERS + 4
IN_TURN, SHARED, ALONE = range(3)
"""Modes of sharing links: one message after the other, fair shares, or no contention."""
EVEN, ALL, NONE = range(3)
HOP, READY, RECEIVE = range(3)
"""Kinds of events: a message reaches a device, a packet is ready, an early message is received."""
KIND_BITS: Final = 2
KINDS: Final = 1 << KIND_BITS


class Settings(NamedTuple):
    """Constants of a run."""

    ranks: int  # simulated
    streams: int  # chunks of a rank
    phases: int  # of a chunk
    servers: int  # chunks a queue serves at once
    queues: int  # of a dimension
    endpoint_ns: int
    owned: int  # links of a rank
    reserve: int  # slots that one event may use
    mode: int  # of sharing links
    memory_bytes_per_s: float


class PhaseTable(NamedTuple):
    """Tables of all phases."""

    algorithm: Ints
    op: Ints
    ranks: Ints
    axis: Ints
    sends: Ints  # messages of each rank
    charged: Ints  # consecutive receives that are charged for an addition
    flight: Ints  # messages sent before any is received
    shape: Ints  # of the tree, or NO_TREE
    is_uniform: Ints  # all messages have one size
    is_steady: Ints  # all messages have one size and one destination
    mirror: Ints  # chunks that use the mirror image of a tree: EVEN, ALL or NONE
    bytes_of: IntMatrix  # per phase and step
    offset_of: IntMatrix
    turn_of: IntMatrix  # per phase and stream: the queue it joins


class Flows(NamedTuple):
    """Messages that share links, and scratch arrays of their rates."""

    flying: Ints  # oldest first
    routes: IntMatrix  # per message: the links it crosses, padded with -1
    shares: FloatMatrix  # per message, of a fair network
    capacity: Floats  # per link, bytes per ns
    free_bandwidth: Floats  # per link
    load: Ints  # per link; zero before and after
    used: Ints


class State(NamedTuple):
    """Arrays of one run. Streams are numbered rank by rank, links by the rank that owns them."""

    settings: Settings
    phases: PhaseTable
    whole: IntMatrix  # per dimension, with the columns of `blocks`
    rates: FloatMatrix  # per dimension, with the columns of `blocks`
    strides: Ints  # between neighbors of a dimension, in simulated ranks
    is_alike: Ints  # per dimension: a single rank is simulated for all
    uplinks: Ints  # per dimension, of a leaf switch
    first_link: Ints  # of a dimension, among the links of a rank
    first_slot: Ints  # of a dimension, among the peers of a stream
    stream: IntMatrix  # per rank and stream
    matched: IntMatrix  # per rank and stream, and peer: messages received less those awaited
    head: Ints  # per rank, dimension and queue: the first waiting stream
    tail: Ints
    running: Ints  # streams a queue serves
    follower: Ints  # per rank and stream: the next waiting stream
    messages: IntMatrix
    spare: Ints  # free message slots
    flows: Flows
    shared_until_ns: Floats  # one number
    free_at: Ints  # per link
    busy_ns: Floats
    queue: IntMatrix  # of events
    event: Ints  # the current event: time and code
    clock: Ints
    report: Ints


SETTINGS: Any = struct(Settings)
PHASES: Any = struct(PhaseTable)
FLOWS: Any = struct(Flows)
STATE: Any = struct(State)
