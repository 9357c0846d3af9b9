"""Where one design's time, energy and memory go, operator by operator, and what would help it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulators.core.columns import schema_of
from simulators.core.contract import (
    Contribution,
    Explains,
    Simulator,
    load_simulator,
)
from simulators.core.errors import Infeasible, UserError
from simulators.core.grouping import columns_of
from simulators.core.levels import LEVELS
from sweeper.commands.flags import results_flags
from sweeper.commands.opened import tell_age
from sweeper.report.answers import Answers, latest, point_of
from sweeper.report.shares import in_words, shares_of_row
from sweeper.report.tables import print_table, print_words, write_text
from sweeper.report.timeline import trace_events
from sweeper.store.keys import SHOWN
from sweeper.units import human

_FASTER = 1.25
"""By how much a part of the device is made faster to see what the design gains."""
_LEAST = 0.002
"""Share of a phase's time below which operators are taken together."""
_LEAST_ENERGY = 0.02
"""But not those that take such a share of its energy: of an array, the memories."""


def main(words: list[str]) -> int:
    """Print the contributions, and what a faster part would give."""
    parser = results_flags("explain", "where a design's time, energy and memory go")
    parser.add_argument("key", help="the first digits of a design's key, or `knee`")
    parser.add_argument("--all", action="store_true", help="also operators that hardly count")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trace", metavar="FILE", help="write a timeline that Perfetto opens")
    chosen = parser.parse_args(words)
    last = latest(chosen.name, chosen.outputs)
    tell_age(last)
    key, row = last.design(chosen.key)
    found = contributions(last.space.simulator, row)
    if chosen.trace:
        events = trace_events(found, f"{chosen.name} {key[:SHOWN]}")
        write_text(Path(chosen.trace), json.dumps(events))
    if chosen.json:
        print(json.dumps([dataclasses.asdict(c) for c in found], indent=1))
        return 0
    print_words(f"{chosen.name} {key[:SHOWN]}: {' '.join(last.choices(row))}")
    print()
    for phase in dict.fromkeys(c.phase for c in found):
        rows = [c for c in found if c.phase == phase]
        if any(c.time_s or c.energy_j or c.memory_bytes for c in rows):
            _print_phase(phase, rows if chosen.all else _together(rows))
        else:
            _print_notes(phase, rows)
    print_words(f"Evidence behind the time: {in_words(shares_of_row(row) or _shares(found))}")
    for line in _what_if(last, row):
        print_words(line, " " * 13)
    if chosen.trace:
        print(f"Timeline in {chosen.trace}: open it at ui.perfetto.dev or chrome://tracing")
    return 0


def contributions(name: str, row: Mapping[str, Any]) -> list[Contribution]:
    """Return what the simulator says of one design."""
    simulator = load_simulator(name)
    if not isinstance(simulator, Explains):
        raise UserError(f"the simulator '{name}' cannot say where a design's time goes")
    try:
        return list(simulator.explain(point_of(simulator, row)))
    except Infeasible as verdict:
        raise UserError(f"this design cannot exist: {verdict}") from verdict


def _print_phase(phase: str, rows: Sequence[Contribution]) -> None:
    time_s, energy_j = sum(c.time_s for c in rows), sum(c.energy_j for c in rows)
    memory = sum(c.memory_bytes for c in rows)
    totals = [f"{human(time_s, 's')}"] if time_s else []
    totals += [f"{human(energy_j, 'J')}"] if energy_j else []
    totals += [f"{human(memory, 'B')} resident"] if memory else []
    lines = [
        [
            "",
            c.name,
            f"{c.count:,.0f}" if c.count != 1 else "",
            human(c.time_s, "s") if c.time_s else "",
            f"{c.time_s / time_s:.1%}" if time_s and c.time_s else "",
            human(c.energy_j, "J") if c.energy_j else "",
            human(c.memory_bytes, "B") if c.memory_bytes else "",
            f"{c.flops / c.moved_bytes:,.1f}" if c.flops and c.moved_bytes else "",
            human(_rate(c, c.flops), "flops/s") if c.flops and c.time_s else "",
            human(_rate(c, c.moved_bytes), "B/s") if c.moved_bytes and c.time_s else "",
            c.bound,
            c.level if c.time_s else "",
        ]
        for c in rows
    ]
    header = [
        "",
        "operator",
        "times",
        "time",
        "share",
        "energy",
        "memory",
        "FLOP/B",
        "achieved",
        "moved",
        "bound by",
        "evidence",
    ]
    kept = [i for i in range(len(header)) if i < 2 or any(line[i] for line in lines)]
    print_table(
        f"{phase}: {', '.join(totals)}",
        [header[i] for i in kept],
        [[line[i] for i in kept] for line in lines],
    )
    print()


def _rate(c: Contribution, amount: float) -> float:
    """Return what one device does in a second, to be compared with its data sheet."""
    return amount / (c.devices * c.time_s)


def _print_notes(phase: str, rows: Sequence[Contribution]) -> None:
    """Print what is said in words alone."""
    print(f"{phase}:")
    width = max(len(c.name) for c in rows)
    for c in rows:
        print(f"  {c.name.ljust(width)}  {c.note}")
    print()


def _together(rows: Sequence[Contribution]) -> list[Contribution]:
    """Return the rows that count, longest first, and one for all the others."""
    whole_s, whole_j = sum(c.time_s for c in rows), sum(c.energy_j for c in rows)

    def counts(c: Contribution) -> bool:
        takes_time = c.time_s > 0.0 and c.time_s >= _LEAST * whole_s
        takes_energy = c.energy_j > 0.0 and c.energy_j >= _LEAST_ENERGY * whole_j
        return bool(c.memory_bytes) or takes_time or takes_energy

    large, small = [c for c in rows if counts(c)], [c for c in rows if not counts(c)]
    large.sort(key=lambda c: (-c.time_s, -c.energy_j))
    if len(small) < 2:
        return [*large, *small]
    return [
        *large,
        Contribution(
            phase=rows[0].phase,
            name=f"{len(small)} smaller ones",
            time_s=sum(c.time_s for c in small),
            energy_j=sum(c.energy_j for c in small),
            level=max((c.level for c in small), key=LEVELS.index),
        ),
    ]


def _shares(found: Sequence[Contribution]) -> dict[str, float]:
    """Return which share of the time of all contributions rests on what."""
    whole_s = sum(c.time_s for c in found)
    return {
        level: sum(c.time_s for c in found if c.level == level) / whole_s
        for level in LEVELS
        if whole_s
    }


def _what_if(last: Answers, row: Mapping[str, Any]) -> list[str]:
    """Return what the objectives gain from each part of the device made faster."""
    simulator = last.simulator
    scales = [n for n in last.space.schema.names if n.endswith("_scale") and row.get(n) is not None]
    metrics = schema_of(simulator.metrics).names
    wanted = [n for n in last.objectives if n in metrics]
    if not scales or not wanted:
        return []
    before = evaluated(simulator, row)
    lines = [f"A part {_FASTER - 1:.0%} faster or larger would give:"]
    for scale in scales:
        after = evaluated(simulator, {**row, scale: row[scale] * _FASTER})
        said = [
            f"{n} {last.human(n, after[n])} ({after[n] / before[n] - 1:+.1%})"
            for n in wanted
            if after[n] is not None and before[n]
        ]
        lines.append(f"  {scale.removesuffix('_scale'):10} {', '.join(said)}")
    return lines


def evaluated(simulator: Simulator, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of one design."""
    schema = schema_of(simulator.point)
    point = {c.name: c.default for c in columns_of(simulator.point)}
    point |= point_of(simulator, row)
    arrays = [pa.array([point[f.name]], f.type) for f in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    metrics: dict[str, Any] = simulator.evaluate(batch).to_pylist()[0]
    return metrics
