"""State of a run of the event loop: network, phases, the ranks' chunks and messages under way."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from simulators.collectives.events import event_queue
from simulators.core.jit import FloatMatrix, Floats, IntMatrix, Ints, struct

STAGE, INSERTED, SENT, FREE, TO_SEND, HEARD, PLAIN, CHARGED, TOGGLE = range(9)
"""What a rank knows of one of its streams; of one that waits for its turn TO_SEND is WAITING."""
STREAM_FIELDS: Final = 9
WAITING: Final = -1
HERE, TO, STREAM, AXIS, BYTES, HOPS_LEFT, TRACK, SLOT, STEP, STARTED = range(10)
"""What is known of a message under way; TRACK is its link, STEP which of its route."""
MESSAGE_FIELDS: Final = 10
LEFT, RATE, ELAPSED = range(3)
"""Of a message that shares its links: bytes left, bytes per ns, and ns since it started."""
FINISH_NS, SENT_MESSAGES, DELIVERED, LINK_EVENTS, UNFINISHED = range(5)
"""What a run counts; UNFINISHED are streams."""
NO_CAPACITY: Final = -1
"""Unfinished streams of a run whose events exceed its arrays."""
SPARES, FLYING, STALE, STREAMS_LEFT = range(event_queue.COUNTERS, event_queue.COUNTERS + 4)
"""What a clock counts besides events: free places for messages, messages that share links, whether
their rates are out of date, and streams that have not ended."""
COUNTERS: Final = event_queue.COUNTERS + 4
IN_TURN, SHARED, ALONE = range(3)
"""How messages meet on links: one after the other, each at its fair share, or not at all."""
EVEN, ALL, NONE = range(3)
HOP, READY, HEAR = range(3)
"""Kinds of event: a message is at the next device, a packet is ready, an early message is heard."""
KIND_BITS: Final = 2
KINDS: Final = 1 << KIND_BITS


class Settings(NamedTuple):
    """What does not change."""

    ranks: int  # simulated
    streams: int  # chunks of a rank
    phases: int  # of a chunk
    servers: int  # chunks a queue serves at once
    queues: int  # of a dimension
    endpoint_ns: int
    owned: int  # links of a rank
    reserve: int  # slots that one event may take up
    mode: int  # how messages meet on links
    memory_bytes_per_s: float


class PhaseTable(NamedTuple):
    """What is looked up about phases."""

    algorithm: Ints
    op: Ints
    ranks: Ints
    axis: Ints
    sends: Ints  # messages of each rank
    charged: Ints  # receives in a row that are charged for adding
    flight: Ints  # messages sent before any is heard
    shape: Ints  # of the tree, if it is one
    is_uniform: Ints  # all messages are of one size
    is_steady: Ints  # and all go to the same neighbour
    mirror: Ints  # which chunks take the mirror image of a tree: EVEN, ALL or NONE
    bytes_of: IntMatrix  # per phase and step
    offset_of: IntMatrix
    turn_of: IntMatrix  # per phase and stream: the queue it joins


class State(NamedTuple):
    """Arrays of one run. Streams are numbered rank by rank, links by the rank that owns them."""

    settings: Settings
    phases: PhaseTable
    whole: IntMatrix  # per dimension, columns as of `blocks`
    rates: FloatMatrix  # the same of other numbers
    strides: Ints  # between neighbours of a dimension, in simulated ranks
    is_alike: Ints  # per dimension: a single rank is simulated for all
    uplinks: Ints  # per dimension, of a leaf switch
    first_link: Ints  # of a dimension, among those a rank owns
    first_slot: Ints  # of a dimension, among the peers a stream hears from
    stream: IntMatrix  # per rank and stream
    matched: IntMatrix  # per rank and stream, and peer: messages heard less those waited for
    head: Ints  # per rank, dimension and queue: the first stream that waits
    tail: Ints
    running: Ints  # streams a queue serves
    follower: Ints  # per rank and stream: who waits behind it
    messages: IntMatrix
    spare: Ints  # free places among them
    shares: FloatMatrix  # per message, of a fair network
    routes: IntMatrix  # per message: the links it crosses
    flying: Ints  # messages that share links, oldest first
    shared_until_ns: Floats  # one number
    capacity: Floats  # per link, bytes per ns
    free_bandwidth: Floats  # per link: scratch of the fair shares
    load: Ints
    used: Ints
    free_at: Ints  # per link
    busy_ns: Floats
    queue: IntMatrix  # of events
    event: Ints  # the one that happens: its time and what it is
    clock: Ints
    report: Ints


SETTINGS: Any = struct(Settings)
PHASES: Any = struct(PhaseTable)
STATE: Any = struct(State)
