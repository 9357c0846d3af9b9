"""Where the time of a collective goes: to phases, by what each takes when it is alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simulators.collectives.algorithms import ALGORITHMS, COLLECTIVES
from simulators.collectives.analytic import (
    ALGORITHM,
    BASELINE,
    BLOCK,
    ENDPOINT_NS,
    OP,
    RANKS,
    SIZE,
    SPLITS,
    phase_ns,
)
from simulators.collectives.phases import split
from simulators.collectives.plan import Plan
from simulators.collectives.single import laid_out
from simulators.collectives.traffic import ENERGY_J, RANK_BYTES, phase_traffic
from simulators.collectives.wires import BLOCKS
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

    Args:
        plan: the network.
        request: a row as of `analytic.collectives_ns`.
        memory_bytes_per_s: of the memory that reductions use.
        row: what `evaluate` says of the point, its fields included.
    """
    if row["fidelity"] == "measured":
        level = "extrapolated" if row["extrapolated"] else "fitted"
        note = f"{row['library']} on {row['gpu']}, {row['ranks']} ranks"
        return [
            Contribution(
                phase=row["topology"], name=row["collective"], time_s=row["time_s"],
                energy_j=row["energy_j"] or 0.0, moved_bytes=row["wire_bytes"] * row["ranks"],
                devices=row["ranks"], bound=_bound(row["utilisation"]), level=level, note=note,
            )
        ]  # fmt: skip
    cut = np.zeros(2, np.int64)
    split(int(request[OP]), int(request[SIZE]), int(request[SPLITS]), plan.ranks, cut)
    phases, _ = laid_out(plan, int(request[OP]), int(cut[0]), int(request[BASELINE]))
    alone_ns, sent = [], np.zeros((len(phases), 3))
    for i, (d, op, payload) in enumerate(phases.tolist()):
        alone_ns.append(
            phase_ns(
                op, payload, plan.whole[d], plan.rates[d], int(request[ENDPOINT_NS]),
                memory_bytes_per_s,
            )
        )  # fmt: skip
        phase_traffic(op, payload, plan.whole[d], sent[i])
    share = np.array(alone_ns) / max(1, sum(alone_ns))
    rows = []
    for i, (d, op, _) in enumerate(phases.tolist()):
        network, used = plan.whole[d], row[f"utilisation_{d + 1}"]
        everything = float(cut[1] * plan.ranks)
        joules = 8.0 * sent[i, ENERGY_J] * plan.energy_j_per_bit[d] * everything
        rows.append(
            Contribution(
                phase=f"dimension {d + 1}, {BLOCKS[network[BLOCK]]}:{network[RANKS]}",
                name=f"{COLLECTIVES[op]}, {ALGORITHMS[network[ALGORITHM]]}",
                count=float(cut[1]),
                time_s=float(share[i]) * row["time_s"],
                energy_j=0.0 if row["energy_j"] is None else joules,
                moved_bytes=float(sent[i, RANK_BYTES]) * everything,
                devices=plan.ranks,
                bound=_bound(used),
                level="unmodelled",
                note=f"links in use {100 * used:.0f} % of the time",
            )
        )
    return rows


def _bound(used: float) -> str:
    return "link" if used >= BUSY else "latency"
