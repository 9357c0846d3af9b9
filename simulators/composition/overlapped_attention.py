"""Attention of prompt chunks beside that of decodes on the same SMs, instead of after it.

One is bound by arithmetic and the other by memory, so together they take little longer than the
longer of the two (Kamath et al., "POD-Attention", ASPLOS 2025). The less of two kernels is hidden
until what either sustains of a rate is used up by both:

    seconds = max(chunks, decodes, FLOPs of both / best FLOP/s, bytes of both / best bytes/s)

where the best of a rate is what the better of both reaches alone. That is never more than one after
the other. Such a kernel was timed by nobody whose rows are here: the time is bounded by both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulators.composition.operator_prices import Row
from simulators.composition.replica import Replica
from simulators.core.columns import EXTRAPOLATED
from simulators.core.jit import Floats
from simulators.kernels.price import moved_bytes, padded_flops
from simulators.workload.operators import Attention


def overlapped_rows(chunks: Sequence[Row], decodes: Sequence[Row], replica: Replica) -> list[Row]:
    """Return the attention of a mixed batch, one kind of layers after the other.

    States are updated apart even so.
    """
    rows: list[Row] = []
    for one, other in zip(chunks, decodes, strict=True):
        chunk, single = one.operator, other.operator
        if isinstance(chunk, Attention) and isinstance(single, Attention):
            shared_s = _shared_s(chunk, single, np.asarray(one.seconds), np.asarray(other.seconds))
            rows.append(_beside(one, other, shared_s, replica.active_idle_w))
        else:
            rows += [one, other]
    return rows


def _beside(one: Row, other: Row, shared_s: Floats, active_idle_w: float) -> Row:
    """Return two kernels side by side: their work is the same, clocks and leakage run less long."""
    in_turn_s = np.asarray(one.seconds + other.seconds, np.float64)
    seconds = np.clip(shared_s, np.maximum(one.seconds, other.seconds), in_turn_s)
    return replace(
        one,
        operator=replace(one.operator, name=one.operator.name.replace("prefill", "mixed")),
        seconds=seconds,
        joules=one.joules + other.joules - active_idle_w * (in_turn_s - seconds),
        lo_s=np.maximum(one.lo_s, other.lo_s),
        hi_s=one.hi_s + other.hi_s,
        level=np.maximum(np.maximum(one.level, other.level), EXTRAPOLATED),
    )


def _shared_s(one: Attention, other: Attention, one_s: Floats, other_s: Floats) -> Floats:
    """Return the seconds until the better of both rates has served both, of work and of bytes."""
    taken = []
    for of in (padded_flops, moved_bytes):
        mine, theirs = of(one), of(other)
        taken.append((mine + theirs) / np.maximum(mine / one_s, theirs / other_s))
    return np.asarray(np.maximum(*taken))
