"""Least traffic of a group of layers that run tile by tile, for a given buffer.

A group of layers that follow each other runs depth first: the output of the last layer is split
into tiles of some rows, and for each tile all layers run in turn. Tensors between them never leave
the chip. A buffer holds, for each of these tensors, the rows that the current tile and later tiles
still need (rows that tiles share are kept, never computed twice), or only a part of its channels,
if producer and consumer alternate part by part. Layers before a window first make the rows that the
first tile needs besides its own. Weights stay for all tiles, or are read once per pass: for those
rows, and per tile. Chunks that only pass through take one word per multiplier.

    words = inputs x repeats + outputs x (2 x repeats - 1) + weights x (1 if kept, else passes)  (1)

An outside tensor of a group is repeated once per part of the tensor at the other side of its layer,
unless the rows of its tile are held. Alwani et al., "Fused-layer CNN accelerators" (MICRO 2016);
Gilbert et al., "LoopTree" (2024). A single layer without any tensor on chip has the least traffic
of all tiles that fit (`bounds.least_traffic`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from simulators.core.jit import IntMatrix, Ints, array, i8, kernel, matrix

WHOLE, PART, STREAM = range(3)
"""What a buffer holds of a tensor's tile: all rows, a part of the channels, a chunk."""

ON_CHIP, FROM_DRAM, TO_DRAM, BETWEEN = range(4)
"""Where a tensor of a group lives: wholly on chip, outside, or only between layers of the group."""

MOST_PARTS = 32
"""Parts of a tensor up to which all numbers are tried where the last part may be smaller."""

MOST_SUBSETS = 10
"""Layers of a group up to which all subsets of kept weights are tried."""


@dataclass(frozen=True)
class Operand:
    """A tensor of a group: place, words, and the members that produce and read it."""

    place: int
    words: int
    producer: int  # member; -1: outside of the group
    readers: tuple[int, ...]
    adders: tuple[int, ...]  # readers that add the tensor to their output
    rows: int = 1  # rows that tiles may split


@dataclass(frozen=True)
class Member:
    """A layer of a group: the number of its input and output tensors, and its sizes."""

    source: int  # tensor
    result: int  # tensor
    weight_words: int  # read from DRAM; 0: on chip
    rows: int  # of the output, which tiles may split
    channels: int  # of the output, which may be computed in parts
    taps: int = 1  # rows of the input that a row of the output needs
    has_pixels: bool = False
    is_depthwise: bool = False
    can_keep_weights: bool = True


@dataclass(frozen=True)
class Group:
    """Layers that may run tile by tile, and words of the buffer that they share."""

    members: tuple[Member, ...]
    tensors: tuple[Operand, ...]
    capacity: int
    lanes: int  # multipliers: the words of a chunk
    remainders: bool = False  # whether the last tile may be smaller


@dataclass(frozen=True)
class Tiling:
    """The schedule of a group: tile of the last layer, what the buffer holds, and traffic."""

    rows: int  # of a tile of the last layer
    tiles: int
    parts: int  # of the channels of tensors that are held in part
    holds: tuple[int, ...]  # by tensor: WHOLE, PART or STREAM
    keeps_weights: tuple[bool, ...]  # by member
    buffer_words: int  # largest use of the buffer, without chunks of streamed weights
    input_words: int  # read from DRAM
    weight_words: int  # read from DRAM
    output_words: int  # written to DRAM, and partial sums read back
    member_rows: tuple[int, ...]  # rows of each member's tile
    rows_ahead: tuple[int, ...]  # that each member makes before its first tile

    @property
    def dram_words(self) -> int:
        """Words that cross the outermost level."""
        return self.input_words + self.weight_words + self.output_words


@functools.lru_cache(maxsize=200_000)
def best_tiling(group: Group) -> Tiling | None:
    """Return the tiling with the least traffic of a group, or None if none fits."""
    members, tensors = group.members, group.tensors
    table = np.array([_row(member) for member in members], np.int64)
    operands = np.array([_columns(tensor) for tensor in tensors], np.int64)
    count = len(members)
    found = np.zeros(RESULTS + 2 * count + len(tensors), np.int64)
    scratch = np.zeros((5, max(count, len(tensors))), np.int64)
    sizes = np.array([group.capacity, group.lanes], np.int64)
    rows = _tile_rows(members[-1].rows, group.remainders)
    if len(members) == 1:
        rows = rows[:1]
    parts = _parts(max(member.channels for member in members), group.remainders)
    if not search(table, operands, sizes, rows, parts, found, scratch):
        return None
    rest = found[RESULTS:].tolist()
    kept = int(found[KEPT])
    return Tiling(
        rows=int(found[TILE]),
        tiles=int(found[TILES]),
        parts=int(found[PARTS]),
        holds=tuple(rest[2 * count :]),
        keeps_weights=tuple(bool(kept >> k & 1) for k in range(count)),
        buffer_words=int(found[USED]),
        input_words=int(found[INPUTS]),
        weight_words=int(found[WEIGHTS]),
        output_words=int(found[OUTPUTS]),
        member_rows=tuple(rest[:count]),
        rows_ahead=tuple(rest[count : 2 * count]),
    )


def _row(member: Member) -> tuple[int, ...]:
    return (
        member.source,
        member.result,
        member.weight_words,
        int(member.can_keep_weights),
        int(member.is_depthwise),
        member.rows,
        member.taps,
        int(member.has_pixels),
    )


def _columns(tensor: Operand) -> tuple[int, ...]:
    only_next = tensor.readers == (tensor.producer + 1,) and not tensor.adders
    other = {ON_CHIP: WHOLE, BETWEEN: PART if only_next else WHOLE}.get(tensor.place, STREAM)
    return (
        tensor.place,
        tensor.words,
        tensor.producer,
        tensor.rows,
        sum(1 << k for k in tensor.readers),
        sum(1 << k for k in tensor.adders),
        other,
    )


@functools.lru_cache(maxsize=4096)
def _tile_rows(rows: int, remainders: bool) -> Ints:
    """Return rows of a tile of the last layer, largest first."""
    if not remainders:
        return np.array([n for n in range(rows, 0, -1) if rows % n == 0])
    tiles = set(range(1, min(rows, 64) + 1)) | {1 << k for k in range(rows.bit_length())}
    return np.array(sorted({-(-rows // n) for n in tiles} | {1}, reverse=True))


@functools.lru_cache(maxsize=4096)
def _parts(channels: int, remainders: bool) -> Ints:
    """Return numbers of parts of the channels between two layers; 1 is first."""
    most = min(channels, MOST_PARTS) if remainders else 0
    return np.array([n for n in range(1, channels + 1) if channels % n == 0 or n <= most])


SOURCE, RESULT, WEIGHT_WORDS, CAN_KEEP, DEPTHWISE, ROWS, TAPS, PIXELS = range(8)
"""Columns of members."""
PLACE, WORDS, PRODUCER, TENSOR_ROWS, READERS, ADDERS, OTHER = range(7)
"""Columns of tensors; OTHER is what the buffer may hold instead of the whole tile."""
TILE, TILES, PARTS, KEPT, USED, INPUTS, WEIGHTS, OUTPUTS, RESULTS = range(9)
"""Columns of the result, before rows by member and what is held by tensor."""
FRONT, STEP, WINDOW, REST, PASSES = range(5)
"""Rows of scratch: rows of a member's output that exist after the first tile, and of each tile;
words of a tensor while its readers run, and between tiles; how often a member runs."""


@kernel(i8(i8, i8, i8), no_refcount=True)
def stride_of(total: int, rows: int, added: int) -> int:
    """Return the rows of an operand per row of the result; 0 if they do not match."""
    if added:
        return 1 if rows == total else 0
    return total // rows if total % rows == 0 else 0


@kernel(i8(i8, i8, i8), no_refcount=True)
def rows_needed(rows: int, stride: int, taps: int) -> int:
    """Return the rows of an operand that the first `rows` rows of a result need, with padding."""
    taps = max(taps, stride)
    pad = (taps - 1) // 2 if taps > stride else 0
    return (rows - 1) * stride + taps - pad


@kernel(i8(matrix(i8), matrix(i8), i8, matrix(i8)), no_refcount=True)
def shape(members: Ints, tensors: Ints, rows: int, scratch: Ints) -> int:
    """Fill in rows and words of a tile; return 0 where rows of neighbours do not match."""
    count = members.shape[0]
    last = count - 1
    is_whole = rows >= members[last, ROWS]
    for k in range(count):
        scratch[FRONT, k] = members[k, ROWS] if is_whole else 0
        scratch[STEP, k] = members[k, ROWS] if is_whole else 0
    for i in range(tensors.shape[0]):
        scratch[WINDOW, i] = tensors[i, WORDS]
        scratch[REST, i] = 0
    if is_whole:
        return 1
    scratch[FRONT, last] = scratch[STEP, last] = rows
    for k in range(last - 1, -1, -1):
        tensor = members[k, RESULT]
        total = members[k, ROWS]
        users = tensors[tensor, READERS] | tensors[tensor, ADDERS]
        if users == 0:
            return 0
        for reader in range(k + 1, count):
            if not users >> reader & 1:
                continue
            added = not tensors[tensor, READERS] >> reader & 1
            stride = stride_of(total, members[reader, ROWS], added)
            if stride == 0:
                return 0
            taps = 1 if added else members[reader, TAPS]
            ahead = rows_needed(scratch[FRONT, reader], stride, taps)
            scratch[FRONT, k] = max(scratch[FRONT, k], ahead)
            scratch[STEP, k] = max(scratch[STEP, k], scratch[STEP, reader] * stride)
        scratch[FRONT, k] = min(scratch[FRONT, k], total)
        scratch[STEP, k] = min(scratch[STEP, k], total)
    for i in range(tensors.shape[0]):
        if tensors[i, PLACE] == ON_CHIP:
            continue
        users = tensors[i, READERS] | tensors[i, ADDERS]
        producer = tensors[i, PRODUCER]
        total = tensors[i, TENSOR_ROWS]
        ahead = each = 0
        if producer >= 0:
            total, ahead, each = (
                members[producer, ROWS],
                scratch[FRONT, producer],
                scratch[STEP, producer],
            )
        else:
            for reader in range(count):
                if users >> reader & 1:
                    added = not tensors[i, READERS] >> reader & 1
                    stride = stride_of(total, members[reader, ROWS], added)
                    if stride == 0:
                        return 0
                    taps = 1 if added else members[reader, TAPS]
                    ahead = max(ahead, rows_needed(scratch[FRONT, reader], stride, taps))
                    each = max(each, scratch[STEP, reader] * stride)
            ahead, each = min(ahead, total), min(each, total)
        oldest = ahead
        if users == 0:
            oldest = ahead - each
        for reader in range(count):
            if users >> reader & 1:
                added = not tensors[i, READERS] >> reader & 1
                stride = stride_of(total, members[reader, ROWS], added)
                taps = 1 if added else max(members[reader, TAPS], stride)
                pad = (taps - 1) // 2 if taps > stride else 0
                done = (scratch[FRONT, reader] - scratch[STEP, reader]) * stride - pad
                oldest = min(oldest, done)
        kept = min(total, ahead - oldest)
        scratch[WINDOW, i] = -(-tensors[i, WORDS] * kept // total)
        scratch[REST, i] = -(-tensors[i, WORDS] * max(0, kept - each) // total)
    return 1


@kernel(i8(matrix(i8), matrix(i8), array(i8), i8, i8, i8, matrix(i8)), no_refcount=True)
def buffer_words(
    members: Ints, tensors: Ints, holds: Ints, parts: int, tiles: int, lanes: int, scratch: Ints
) -> int:
    """Return the largest use of the buffer over the layers of a tile, without kept weights.

    Layers joined by a tensor that is held in part alternate: they need their tensors together.
    """
    most = 0
    count = members.shape[0]
    first = 0
    while first < count:
        final = first
        while final + 1 < count and holds[members[final, RESULT]] == PART:
            final += 1
        used = 0
        for i in range(tensors.shape[0]):
            begin = max(tensors[i, PRODUCER], 0)
            end = begin
            users = tensors[i, READERS] | tensors[i, ADDERS]
            for k in range(count):
                if users >> k & 1:
                    end = max(end, k)
            window = scratch[WINDOW, i]
            if tensors[i, PLACE] == ON_CHIP:
                if not (tensors[i, PRODUCER] > final and tiles == 1):
                    used += tensors[i, WORDS]
            elif begin <= final and first <= end:
                if holds[i] == WHOLE:
                    used += window
                elif holds[i] == PART:
                    rest = scratch[REST, i]  # rows that the next tile needs, of all parts
                    used += min(window, rest + max(lanes, -(-(window - rest) // parts)))
                else:
                    used += min(window, lanes)
            elif holds[i] != STREAM:
                used += scratch[REST, i]
        for k in range(first, final + 1):
            used += min(members[k, WEIGHT_WORDS], lanes)
        most = max(most, used)
        first = final + 1
    return most


@kernel(i8(matrix(i8), matrix(i8), array(i8), i8, i8), no_refcount=True)
def input_words(members: Ints, tensors: Ints, holds: Ints, parts: int, tiles: int) -> int:
    """Return words of tensors, not weights, that are read from DRAM."""
    inputs = 0
    for i in range(tensors.shape[0]):
        words, place = tensors[i, WORDS], tensors[i, PLACE]
        if place != FROM_DRAM and place != TO_DRAM:
            continue
        if holds[i] == WHOLE:
            inputs += words if place == FROM_DRAM else 0
            continue
        for k in range(members.shape[0]):
            if tensors[i, ADDERS] >> k & 1:
                inputs += words
            if tensors[i, READERS] >> k & 1:
                repeats = 1
                if holds[members[k, RESULT]] == PART and not members[k, DEPTHWISE]:
                    repeats = parts
                shared = 0
                if tiles > 1 and members[k, PIXELS]:
                    rows = tensors[i, TENSOR_ROWS]
                    stride = max(1, rows // members[k, ROWS])
                    halo = max(0, members[k, TAPS] - stride)
                    shared = words * halo * (tiles - 1) // rows
                inputs += repeats * (words + shared)
    return inputs


@kernel(i8(matrix(i8), matrix(i8), array(i8), i8), no_refcount=True)
def output_words(members: Ints, tensors: Ints, holds: Ints, parts: int) -> int:
    """Return words that are written to DRAM, and partial sums that are read back."""
    outputs = 0
    for i in range(tensors.shape[0]):
        if tensors[i, PLACE] == TO_DRAM:
            k = tensors[i, PRODUCER]
            is_split = holds[i] == STREAM and holds[members[k, SOURCE]] == PART
            is_split = is_split and not members[k, DEPTHWISE]
            outputs += tensors[i, WORDS] * (2 * parts - 1 if is_split else 1)
    return outputs


@kernel(i8(i8, i8, i8), no_refcount=True)
def passes(rows: int, step: int, ahead: int) -> int:
    """Return how often a member runs: for the rows ahead, at most a tile at once, and per tile."""
    return (rows - ahead + step - 1) // step + (ahead + step - 1) // step


@kernel(i8(matrix(i8), i8, matrix(i8)), no_refcount=True)
def kept_weights(members: Ints, free: int, scratch: Ints) -> int:
    """Return the mask of the weights that stay for all tiles and save the most words.

    All subsets are tried for up to `MOST_SUBSETS` layers, the largest weights first for more.
    """
    count = members.shape[0]
    best, mask = -1, 0
    if count <= MOST_SUBSETS:
        for subset in range(1 << count):
            words = saved = 0
            for k in range(count):
                if subset >> k & 1:
                    words += members[k, WEIGHT_WORDS] if members[k, CAN_KEEP] else free + 1
                    saved += members[k, WEIGHT_WORDS] * scratch[PASSES, k]
            if words <= free and best < saved:
                best, mask = saved, subset
        return mask
    left = free
    for _ in range(count):
        largest, at = -1, -1
        for k in range(count):
            words = members[k, WEIGHT_WORDS]
            if not mask >> k & 1 and members[k, CAN_KEEP] and largest < words <= left:
                largest, at = words, k
        if at < 0:
            break
        mask |= 1 << at
        left -= largest
    return mask


@kernel(i8(matrix(i8), array(i8)), no_refcount=True)
def is_valid(members: Ints, holds: Ints) -> int:
    """Return whether the buffer holds the input, the output or the weights of each layer's tile.

    Depthwise layers work channel by channel.
    """
    for k in range(members.shape[0]):
        source, result = holds[members[k, SOURCE]], holds[members[k, RESULT]]
        if members[k, DEPTHWISE] or members[k, WEIGHT_WORDS] == 0:
            continue
        if source == PART and result == PART:
            return 0
        if source == STREAM and result == STREAM:
            return 0
    return 1


@kernel(
    i8(matrix(i8), matrix(i8), array(i8), array(i8), array(i8), array(i8), matrix(i8)),
)
def search(
    members: Ints,
    tensors: Ints,
    sizes: Ints,
    tile_rows: Ints,
    part_numbers: Ints,
    found: Ints,
    scratch: IntMatrix,
) -> int:
    """Fill in the tiling with the least traffic; return whether one fits."""
    capacity, lanes = sizes[0], sizes[1]
    count, many = members.shape[0], tensors.shape[0]
    holds = np.zeros(many, np.int64)
    all_weights = least = 0
    for k in range(count):
        all_weights += members[k, WEIGHT_WORDS]
    least = all_weights
    for i in range(many):
        if tensors[i, PLACE] == FROM_DRAM or tensors[i, PLACE] == TO_DRAM:
            least += tensors[i, WORDS]
    best = -1
    for rows in tile_rows:
        if not shape(members, tensors, rows, scratch):
            continue
        tiles = (members[count - 1, ROWS] + rows - 1) // rows
        for k in range(count):
            ahead = scratch[FRONT, k] - scratch[STEP, k]
            scratch[PASSES, k] = passes(members[k, ROWS], scratch[STEP, k], ahead)
        for pattern in range(1 << many):
            is_parted, skip = False, False
            for i in range(many):
                other = pattern >> i & 1
                if other and tensors[i, OTHER] == WHOLE:
                    skip = True
                    break
                holds[i] = tensors[i, OTHER] if other else WHOLE
                is_parted = is_parted or holds[i] == PART
            if skip or not is_valid(members, holds):
                continue
            for parts in part_numbers:
                if is_parted != (parts > 1):
                    if not is_parted:
                        break
                    continue
                inputs = input_words(members, tensors, holds, parts, tiles)
                outputs = output_words(members, tensors, holds, parts)
                if best >= 0 and inputs + outputs + all_weights >= best:
                    continue
                used = buffer_words(members, tensors, holds, parts, tiles, lanes, scratch)
                free = capacity - used
                if free < 0:
                    continue
                kept, weights, held = (1 << count) - 1, all_weights, 0
                if tiles > 1:
                    kept, weights = kept_weights(members, free, scratch), 0
                    for k in range(count):
                        words = members[k, WEIGHT_WORDS]
                        weights += words if kept >> k & 1 else words * scratch[PASSES, k]
                        held += words if kept >> k & 1 else 0
                if best < 0 or inputs + outputs + weights < best:
                    best = inputs + outputs + weights
                    found[TILE], found[TILES], found[PARTS] = rows, tiles, parts
                    found[KEPT], found[USED] = kept, used + held
                    found[INPUTS], found[WEIGHTS], found[OUTPUTS] = inputs, weights, outputs
                    for k in range(count):
                        found[RESULTS + k] = scratch[STEP, k]
                        found[RESULTS + count + k] = scratch[FRONT, k] - scratch[STEP, k]
                    for i in range(many):
                        found[RESULTS + 2 * count + i] = holds[i]
        if 0 <= best <= least:
            break
    return int(best >= 0)
