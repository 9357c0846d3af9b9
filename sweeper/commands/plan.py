"""What a sweep would do: points, what removes them, what is answered, how long, how many bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from simulators.core.columns import schema_of
from simulators.core.contract import load_simulator
from sweeper.chunks import split
from sweeper.commands.run import Question, question
from sweeper.engines.auto import hinted, probe
from sweeper.reuse import answered_elsewhere
from sweeper.space import DesignSpace
from sweeper.store import Batch
from sweeper.units import duration, human

_PATIENCE_S = 0.2
_AT_ONCE = 1 << 20
_BYTES = {"double": 8, "int64": 8, "bool": 1, "string": 2}
"""Bytes of a stored value by type, before compression (strings are stored as codes)."""


def main(composed: Mapping[str, Any]) -> int:
    """Print the plan."""
    asked = question(composed)
    space = asked.space
    removed = space.removed()
    allowed = space.size - sum(removed.values())
    picked = min(asked.sampler.size(space), allowed)
    todo = _to_do(asked, picked)
    elsewhere = min(answered_elsewhere(asked.store, space), todo)
    answered, todo = picked - todo, todo - elsewhere
    # A dear simulator guesses: trying it would cost more than a plan should.
    estimate = (hinted(space) or probe(space, patience_s=_PATIENCE_S)) if todo else None
    work_s = estimate.point_s * (space.size if picked == allowed else picked) if estimate else 0.0
    work_s *= todo / max(picked, 1)
    width = sum(_BYTES[str(f.type)] for f in schema_of(load_simulator(space.simulator).metrics))
    cores = os.cpu_count() or 1
    axes = {name: len(set(space.axes[name])) for name in space.varied}
    plan = {
        "space": asked.name,
        "points": space.size,
        "axes": axes,
        "removed": removed,
        "picked": picked,
        "answered": answered,
        "answered_elsewhere": elsewhere,
        "to_do": todo,
        "probes": estimate.probes if estimate else 0,
        "cpu_s": work_s,
        "wall_s": work_s / cores,
        "bytes": todo * width,
    }
    if composed["output"] == "json":
        print(json.dumps(plan, indent=1))
        return 0
    print(f"space {asked.name}: {space.size:,} points of the simulator '{space.simulator}'")
    for name, size in axes.items():
        print(f"  {name} × {size}")
    for text, count in removed.items():
        print(f"  {count:,} removed by {text}")
    by_others = f", {elsewhere:,} by sweeps of other spaces" if elsewhere else ""
    print(f"{picked:,} to be answered, {answered:,} answered already{by_others}, {todo:,} to do")
    if estimate:
        how = f"{estimate.probes} points tried" if estimate.probes else "the simulator's own guess"
        print(
            f"About {duration(work_s)} of CPU ({how}: {human(estimate.point_s, 's')} each), "
            f"{duration(work_s / cores)} on {cores} cores, "
            f"at most {human(float(todo * width), 'bytes')} of results"
        )
    return 0


def _to_do(asked: Question, picked: int) -> int:
    """Return how many of the points picked are not answered in this space's store."""
    space, store = asked.space, asked.store
    if not store.parts():
        return picked
    first = list(next(iter(asked.sampler.rounds(space, store.scan)), ()))
    if sum(len(batch) for batch in first) < picked:  # a search: what it asks next is not known yet
        settled = sum(_allowed(space, span) for span in store.finished())
        return max(picked - settled - len(store.answered(space)), 0)
    return sum(_allowed(space, batch) for batch in store.missing(space, first))


def _allowed(space: DesignSpace, batch: Batch) -> int:
    """Return how many points of a batch the constraints allow, looking at a few at a time."""
    if not space.constraints:
        return len(batch)
    count = 0
    for piece in split(batch, -(-len(batch) // _AT_ONCE)) if len(batch) else ():
        kept = space.kept(piece)
        count += len(piece) if kept is None else int(kept.sum())
    return count
