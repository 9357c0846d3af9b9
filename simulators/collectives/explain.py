"""Where the time of a collective goes: to phases, by what each takes when it is alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simulators.collectives.algorithms import ALGORITHMS, COLLECTIVES
from simulators.collectives.closed import phases as at
from simulators.collectives.closed.phase_model import phase_ns
from simulators.collectives.closed.traffic import ENERGY_J, RANK_BYTES, phase_traffic
from simulators.collectives.topologies import blocks
from simulators.collectives.topologies.plan import Plan
from simulators.core.columns import LEVELS
from simulators.core.contract import Contribution
from simulators.core.jit import Ints

BUSY = 0.5
"""Share of the time links are in use from which a phase is bound by them, not by its latency."""


def explained(
    plan: Plan, request: Ints, memory_bytes_per_s: float, row: Mapping[str, Any]
) -> list[Contribution]:
    """Return the phases of a modelled collective, or a measured one as a whole.

    Phases of different chunks overlap; the whole time is divided as their times alone are. Energies
    and bytes are those of all ranks.
    `row` is what `evaluate` says of the point, its fields included.
    """
    if row["fidelity"] == "measured":
        level = max(LEVELS, key=lambda level: row[f"{level}_share"])
        note = f"{row['library']} on {row['gpu']}, {row['ranks']} ranks"
        return [
            Contribution(
                phase=row["topology"],
                name=row["collective"],
                time_s=row["time_s"],
                energy_j=row["energy_j"] or 0.0,
                moved_bytes=row["wire_bytes"] * row["ranks"],
                devices=row["ranks"],
                bound=_bound(row["utilisation"]),
                level=level,
                note=note,
            )
        ]
    chunk = at.chunk_bytes(request, plan.ranks)
    phases = at.phases_of(
        plan.whole, int(request[at.OP]), chunk, baseline=bool(request[at.BASELINE])
    )
    endpoint_ns, chunks = int(request[at.ENDPOINT_NS]), at.chunks_of(request, plan.ranks)
    alone_ns = [
        phase_ns(op, payload, plan.whole[d], plan.rates[d], endpoint_ns, memory_bytes_per_s)
        for d, op, payload, _ in phases.tolist()
    ]
    share = np.array(alone_ns) / max(1, sum(alone_ns))
    everything = float(chunks * plan.ranks)
    rows = []
    for i, (d, op, payload, _) in enumerate(phases.tolist()):
        sent, network = np.zeros(3), plan.whole[d]
        phase_traffic(op, payload, network, sent)
        used = row[f"utilisation_{d + 1}"] or 0.0
        joules = 8.0 * sent[ENERGY_J] * plan.energy_j_per_bit[d] * everything
        block, ranks = blocks.BLOCKS[network[blocks.BLOCK]], network[blocks.RANKS]
        rows.append(
            Contribution(
                phase=f"dimension {d + 1}, {block}:{ranks}",
                name=f"{COLLECTIVES[op]}, {ALGORITHMS[network[blocks.ALGORITHM]]}",
                count=float(chunks),
                time_s=float(share[i]) * row["time_s"],
                energy_j=0.0 if row["energy_j"] is None else joules,
                moved_bytes=float(sent[RANK_BYTES]) * everything,
                devices=plan.ranks,
                bound=_bound(used),
                level="unmodelled",
                note=f"links in use {100 * used:.0f} % of the time",
            )
        )
    return rows


def _bound(used: float) -> str:
    return "link" if used >= BUSY else "latency"
