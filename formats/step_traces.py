"""Read the parts of a training step from a trace of PyTorch's profiler (Kineto's JSON).

A step is a `ProfilerStep#N` range (`torch.profiler.schedule`, `profiler.step()`); without one, the
time from the first kernel to the last. Kernels of NCCL and RCCL are messages, and the description
of their process group states which ranks they connect. A message is exposed while no kernel
computes. Kernels within a range `Optimizer.step` on the GPU are the optimizer.

All kernels of a trace are divided by its number of steps, because kernels run later than the range
on the host that launched them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import read_toml

NAMES = read_toml(Path(__file__).with_suffix(".toml"))
KINDS = ("tp", "ep", "cp", "pp", "dp")
"""Ranks that messages connect; where messages of two kinds overlap, the first kind is exposed."""
US_S = 1e-6
Span = tuple[float, float]
"""Start and end of an event in microseconds."""


@dataclass(frozen=True)
class TracedStep:
    """Mean parts of the steps of one rank, and where the trace was recorded."""

    steps: int
    step_s: float
    compute_s: float  # kernels that compute, without the optimizer
    optimizer_s: float | None  # kernels of the optimizer; None: no range states them
    exposed_s: Mapping[str, float]  # messages that no kernel hides, by the ranks they connect
    message_s: Mapping[str, float]  # the same messages, hidden or not
    gpu: str  # the driver's name; empty if the trace states none
    ranks: int  # 0 if the trace states none

    @property
    def idle_s(self) -> float:
        """Time without any kernel."""
        busy_s = self.compute_s + (self.optimizer_s or 0.0) + sum(self.exposed_s.values())
        return max(self.step_s - busy_s, 0.0)


def read_step(text: str, source: str) -> TracedStep:
    """Return the parts of a step in the text of a trace.

    Raises:
        UserError: the text is not a trace of PyTorch's profiler, or has no kernels.
    """
    trace = _trace(text, source)
    events = [event for event in trace["traceEvents"] if _is_timed(event)]
    kernels = [event for event in events if event["cat"] in NAMES["gpu_events"]]
    if not kernels:
        raise UserError(f"{source} has no kernels; record it with ProfilerActivity.CUDA")
    spans = [
        _span(event)
        for event in events
        if event["cat"] == "user_annotation" and str(event["name"]).startswith("ProfilerStep#")
    ]
    whole = [(min(s for s, _ in map(_span, kernels)), max(e for _, e in map(_span, kernels)))]
    count = max(len(spans), 1)
    updates = [
        _span(event)
        for event in events
        if event["cat"] == "gpu_user_annotation" and str(event["name"]).startswith("Optimizer.step")
    ]
    messages: dict[str, list[Span]] = {}
    computing: list[Span] = []
    for event in kernels:
        if any(word in str(event["name"]).lower() for word in NAMES["messages"]):
            messages.setdefault(_ranks_of(event), []).append(_span(event))
        else:
            computing.append(_span(event))
    busy = _union(computing)
    update = _common(busy, _union(updates))
    exposed, hidden_by = {}, busy
    for kind in sorted(messages, key=KINDS.index):
        own = _union(messages[kind])
        exposed[kind] = (_length(own) - _length(_common(own, hidden_by))) * US_S / count
        hidden_by = _union([*hidden_by, *own])
    return TracedStep(
        steps=count,
        step_s=median(end - start for start, end in spans or whole) * US_S,
        compute_s=(_length(busy) - _length(update)) * US_S / count,
        optimizer_s=_length(update) * US_S / count if updates else None,
        exposed_s=exposed,
        message_s={kind: _length(_union(m)) * US_S / count for kind, m in messages.items()},
        gpu=_gpu_of(trace),
        ranks=_ranks_in(trace),
    )


def _trace(text: str, source: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is not a trace of PyTorch's profiler: {error}") from error
    found = {"traceEvents": found} if isinstance(found, list) else found
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise UserError(f"{source} is not a trace of PyTorch's profiler: it has no traceEvents")
    return found


def _is_timed(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and isinstance(event.get("cat"), str)
        and "name" in event
        and all(isinstance(event.get(key), int | float) for key in ("ts", "dur"))
    )


def _span(event: Mapping[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _ranks_of(event: Mapping[str, Any]) -> str:
    """Return the kind of ranks that a message connects, from its process group's description."""
    about = event.get("args")
    said = about if isinstance(about, dict) else {}
    words = set(re.split(r"[^a-z]+", str(said.get("Process Group Description", "")).lower()))
    for kind, names in NAMES["ranks"].items():
        if words & set(names):
            return str(kind)
    return "pp" if "sendrecv" in str(event["name"]).lower() else "dp"


def _gpu_of(trace: Mapping[str, Any]) -> str:
    devices = trace.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else {}
    return str(first.get("name", "")) if isinstance(first, dict) else ""


def _ranks_in(trace: Mapping[str, Any]) -> int:
    about = trace.get("distributedInfo")
    found = about.get("world_size", 0) if isinstance(about, dict) else 0
    return found if isinstance(found, int) else 0


def _union(spans: Iterable[Span]) -> list[Span]:
    """Return disjoint spans that cover the same time.

    >>> _union([(4.0, 6.0), (0.0, 2.0), (1.0, 3.0)])
    [(0.0, 3.0), (4.0, 6.0)]
    """
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _common(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """Return the time that two lists of disjoint spans have in common.

    >>> _common([(0.0, 3.0), (4.0, 6.0)], [(2.0, 5.0)])
    [(2.0, 3.0), (4.0, 5.0)]
    """
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        i, j = (i + 1, j) if one[i][1] < other[j][1] else (i, j + 1)
    return found


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)
