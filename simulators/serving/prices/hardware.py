"""The hardware of a replica, and the description by which price tables are shared."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulators.composition.replica import Replica


@dataclass(frozen=True)
class Hardware:
    """A replica; equal descriptions share their price tables."""

    description: str
    replica: Replica = field(compare=False, repr=False)
    kv_blocks: int = 0  # of a mixture of two designs; 0: as many as fit
