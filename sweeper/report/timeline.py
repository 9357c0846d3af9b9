"""Convert a design's operators to a timeline in the Trace Event Format, for Perfetto.

Events have a start and a duration in microseconds. Phases are consecutive; the operators of a phase
are consecutive, and one event holds all repetitions of an operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulators.core.contract import Contribution


def trace_events(found: Sequence[Contribution], name: str) -> dict[str, Any]:
    """Return the timeline as the JSON object of a trace file.

    >>> events = trace_events([Contribution(phase="decode", name="qkv", time_s=2e-6)], "d")
    >>> [(e["name"], e["ts"], e["dur"]) for e in events["traceEvents"] if e["ph"] == "X"]
    [('decode', 0.0, 2.0), ('qkv', 0.0, 2.0)]
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": name}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "stream"}},
    ]
    now = 0.0
    for phase in dict.fromkeys(c.phase for c in found):
        rows = [c for c in found if c.phase == phase and c.time_s > 0]
        start, inside = now, []
        for c in rows:
            # Each start equals the previous end, so that events do not overlap.
            end = now + 1e6 * c.time_s
            inside.append(_event(c.name, now, end, c))
            now = end
        if inside:
            events += [_event(phase, start, now), *inside]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(name: str, start: float, end: float, c: Contribution | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {
        "ph": "X",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": end - start,
    }
    if c is not None:
        said = {"bound": c.bound, "level": c.level, "times": c.count, "note": c.note}
        numbers = {"flops": c.flops, "moved_bytes": c.moved_bytes, "energy_j": c.energy_j}
        event["args"] = {k: v for k, v in (said | numbers).items() if v}
    return event
