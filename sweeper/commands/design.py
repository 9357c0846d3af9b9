"""Views of one or two designs of a sweep: figures, operators, differences, deployment."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from simulators.core.columns import LEVELS, batch_of, schema_of
from simulators.core.contract import (
    Contribution,
    Explains,
    Records,
    Simulator,
    load_simulator,
)
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import columns_of
from sweeper.commands.flags import parse
from sweeper.commands.query import print_progress, warn_of_version
from sweeper.questions import (
    DEPLOYMENTS,
    LOAD_TESTS,
    Benchmarks,
    Deploys,
    Reports,
    WritesForwardTimes,
    plugin_of,
)
from sweeper.report.answers import Answers, latest, point_of
from sweeper.report.errors import print_errors
from sweeper.report.evidence import basis_in_words, shares_in_words, shares_of_row, spoken
from sweeper.report.summary import elsewhere
from sweeper.report.tables import print_table, print_words, write_text
from sweeper.store.keys import SHOWN
from sweeper.text import human

_FASTER = 1.25
"""Factor by which `explain` makes a part of the device faster."""
_LEAST_TIME, _LEAST_ENERGY = 0.002, 0.02
"""Shares of a phase's time and energy below which operators are summed."""


@dataclasses.dataclass(frozen=True)
class StoredDesign:
    """One row of a sweep."""

    last: Answers
    key: str
    row: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The sweep and the shown digits of the key."""
        return f"{self.last.name} {self.key[:SHOWN]}"

    @property
    def point(self) -> dict[str, Any]:
        """The inputs of the simulator."""
        return point_of(self.last.simulator, self.row)

    def operators(self) -> list[Contribution]:
        """Return the simulator's contributions."""
        return contributions(self.last.space.simulator, self.row)


def designs(name: str, outputs: str, *keys: str) -> tuple[Answers, list[StoredDesign]]:
    """Return the last run of a space and the designs with these keys."""
    last = latest(name, outputs)
    warn_of_version(last)
    return last, [StoredDesign(last, *last.design(key)) for key in keys]


def contributions(name: str, row: Mapping[str, Any]) -> list[Contribution]:
    """Return the contributions of operators to a design, by its simulator."""
    simulator = load_simulator(name)
    if not isinstance(simulator, Explains):
        raise UserError(f"the simulator '{name}' does not report the time of operators")
    try:
        return list(simulator.explain(point_of(simulator, row)))
    except Infeasible as verdict:
        raise UserError(f"this design is infeasible: {verdict}") from verdict


def show(name: str, key: str, outputs: str, records: str | None) -> int:
    """Print all columns of a design, and the run in the format of a load test."""
    last, [design] = designs(name, outputs, key)
    print_progress(last)
    space, simulator, row = last.space, last.simulator, design.row
    usual = {c.name: c.default for c in columns_of(simulator.point)}
    fixed = [n for n in space.axes if n not in space.varied]
    own = [n for n in fixed if usual.get(n, dataclasses.MISSING) != row.get(n)]
    _print_figures("design", [*space.varied, *space.derived], design)
    _print_figures("fixed", own, design)
    if len(own) < len(fixed):
        left = f"{len(fixed) - len(own)} further inputs have default values"
        print_words(f"  {left}; `show {space.simulator}` lists them", "    ")
    _print_figures("outcome", [n for n in row if n not in (*space.axes, *space.derived)], design)
    tests = plugin_of(simulator, LOAD_TESTS)
    if (
        isinstance(tests, Reports)
        and row["status"] == "ok"
        and (text := tests.report(design.point))
    ):
        print(f"\n{text}")
    if records is None:
        return 0
    if not isinstance(simulator, Records):
        raise UserError(f"the simulator '{space.simulator}' records no events")
    folder = Path(records)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for event, table in simulator.records(design.point).items():
            pq.write_table(table, folder / f"{event}.parquet")
            print(f"{folder / event}.parquet: {table.num_rows:,} rows")
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}") from error
    return 0


def _print_figures(title: str, names: Sequence[str], design: StoredDesign) -> None:
    print(title)
    last, row = design.last, design.row
    ends = {f"{name}_{end}" for name in names for end in ("lo", "hi")}
    for column in names:
        if row.get(column) is None or column in ends:
            continue
        mark = " *" if column in last.objectives else ""
        low, high = row.get(f"{column}_lo"), row.get(f"{column}_hi")
        if low is not None and high is not None and low < high:
            ends_said = f"{last.human(column, low)} to {last.human(column, high)}"
            mark += f"  (90 % interval {ends_said})"
        print(f"  {column:24} {last.human(column, row[column])}{mark}")


def export(words: list[str]) -> int:
    """Print the deployment of a design, or write it to a file."""
    chosen = parse("export", words)
    last, [design] = designs(chosen.name, chosen.outputs, chosen.key)
    writer = plugin_of(last.simulator, DEPLOYMENTS)
    if not isinstance(writer, Deploys):
        raise UserError(
            f"sweeper writes no deployments for designs of the simulator '{last.simulator.name}'"
        )
    try:
        if chosen.benchmark is not None:
            return _benchmark(design, writer, chosen)
        if chosen.target == FORWARD_TIMES:
            return _forward_times(design, writer, chosen.file)
        text = writer.deployment(design.point, chosen.target, design.name)
    except Infeasible as verdict:
        raise UserError(f"this design is infeasible: {verdict}") from verdict
    if chosen.file:
        write_text(chosen.file, text)
        print(f"written to {chosen.file}")
    else:
        print(text, end="")
    return 0


FORWARD_TIMES = "fpm"
"""Target that is a table of forward passes."""


def _forward_times(design: StoredDesign, writer: object, file: Path | None) -> int:
    """Write the forward passes of a design."""
    if not isinstance(writer, WritesForwardTimes):
        raise UserError(
            f"--target fpm is for designs of serving, not of '{design.last.simulator.name}'"
        )
    if not file:
        raise UserError("--target fpm needs --file fpm_forward_perf.parquet")
    rows = writer.forward_times(design.point, file)
    print(f"{rows:,} forward passes written to {file}")
    return 0


def _benchmark(design: StoredDesign, writer: object, chosen: Any) -> int:
    """Print the command that measures a design, and the figures to expect."""
    if not isinstance(writer, Benchmarks):
        raise UserError(f"no benchmark measures designs of '{design.last.simulator.name}'")
    last, name = design.last, design.name
    file = Path(chosen.file or f"{design.key[:SHOWN]}.sh")
    trace = file.with_suffix(".jsonl")
    command, rows, fields = writer.benchmark(design.point, chosen.benchmark, str(trace))
    if rows:
        write_text(trace, rows)
        print(f"# requests in {trace}")
    if chosen.file:
        write_text(file, command)
        print(f"written to {file}")
    else:
        print(command, end="")
    row = evaluated(last.simulator, {**design.row, **fields})
    lines = [
        ["", last.word(n), *(last.human(n, row[f"{n}{end}"]) for end in ("", "_lo", "_hi"))]
        for n in row
        if row.get(f"{n}_lo") is not None and last.units[n] in ("s", "1/s")
    ]
    print()
    print_table("To be expected", ["", "metric", "predicted", "90 % from", "to"], lines)
    print_words(f"Then   python -m sweeper compare {name} --log FILE{elsewhere(chosen.outputs)}")
    return 0


def explain(words: list[str]) -> int:
    """Print the operators of a design, and the effect of a faster part of the GPU."""
    chosen = parse("explain", words)
    last, [design] = designs(chosen.name, chosen.outputs, chosen.key)
    if chosen.errors:
        title = f"{design.name}: {' '.join(last.choices(design.row))}"
        return print_errors(last.simulator, design.row, title, as_json=chosen.json)
    found = design.operators()
    if chosen.trace:
        write_text(chosen.trace, json.dumps(trace_events(found, design.name)))
    if chosen.json:
        print(json.dumps([dataclasses.asdict(c) for c in found], indent=1))
        return 0
    print_words(f"{design.name}: {' '.join(last.choices(design.row))}")
    print()
    for phase in dict.fromkeys(c.phase for c in found):
        rows = [c for c in found if c.phase == phase]
        if any(c.time_s or c.energy_j or c.memory_bytes for c in rows):
            _print_phase(phase, rows if chosen.all else grouped(rows))
        else:
            width = max(len(c.name) for c in rows)
            print(f"{phase}:", *(f"  {c.name.ljust(width)}  {c.note}" for c in rows), "", sep="\n")
    whole_s = sum(c.time_s for c in found)
    of_operators = {
        level: sum(c.time_s for c in found if c.level == level) / whole_s
        for level in LEVELS
        if whole_s
    }
    print_words(f"Time by evidence: {shares_in_words(shares_of_row(design.row) or of_operators)}")
    if basis := basis_in_words(design.last.simulator, design.row):
        print_words(f"{basis}.")
    for line in _what_if(design):
        print_words(line, " " * 13)
    if chosen.trace:
        print(f"Timeline in {chosen.trace}: open it at ui.perfetto.dev or chrome://tracing")
    return 0


def _print_phase(phase: str, rows: Sequence[Contribution]) -> None:
    time_s, energy_j = sum(c.time_s for c in rows), sum(c.energy_j for c in rows)
    memory = sum(c.memory_bytes for c in rows)
    amounts = ((time_s, "s", ""), (energy_j, "J", ""), (memory, "B", " resident"))
    totals = [f"{human(amount, unit)}{word}" for amount, unit, word in amounts if amount]
    columns = {
        "": [""] * len(rows),
        "operator": [c.name for c in rows],
        "times": [f"{c.count:,.0f}" if c.count != 1 else "" for c in rows],
        "time": [_amount(c.time_s, "s") for c in rows],
        "share": [f"{c.time_s / time_s:.1%}" if c.time_s else "" for c in rows],
        "energy": [_amount(c.energy_j, "J") for c in rows],
        "memory": [_amount(c.memory_bytes, "B") for c in rows],
        "FLOP/B": [
            f"{c.flops / c.moved_bytes:,.1f}" if c.flops and c.moved_bytes else "" for c in rows
        ],
        # per device, to be compared with its data sheet
        "achieved": [_amount(_per_s(c, c.flops), "flops/s") for c in rows],
        "moved": [_amount(_per_s(c, c.moved_bytes), "B/s") for c in rows],
        "bound by": [c.bound for c in rows],
        "evidence": [spoken(c.level) if c.time_s else "" for c in rows],
    }
    kept = [name for name in columns if name in ("", "operator") or any(columns[name])]
    lines = [list(line) for line in zip(*(columns[name] for name in kept), strict=True)]
    print_table(f"{phase}: {', '.join(totals)}", kept, lines)
    print()


def _amount(value: float, unit: str) -> str:
    return human(value, unit) if value else ""


def _per_s(c: Contribution, amount: float) -> float:
    return amount / (c.devices * c.time_s) if c.time_s else 0.0


def grouped(rows: Sequence[Contribution]) -> list[Contribution]:
    """Return the largest operators, longest first, and one row for the remaining operators."""
    whole_s, whole_j = sum(c.time_s for c in rows), sum(c.energy_j for c in rows)

    def counts(c: Contribution) -> bool:
        takes_time = c.time_s > 0.0 and c.time_s >= _LEAST_TIME * whole_s
        takes_energy = c.energy_j > 0.0 and c.energy_j >= _LEAST_ENERGY * whole_j
        return bool(c.memory_bytes) or takes_time or takes_energy

    large, small = [c for c in rows if counts(c)], [c for c in rows if not counts(c)]
    large.sort(key=lambda c: (-c.time_s, -c.energy_j))
    if len(small) < 2:
        return [*large, *small]
    others = Contribution(
        phase=rows[0].phase,
        name=f"{len(small)} smaller operators",
        time_s=sum(c.time_s for c in small),
        energy_j=sum(c.energy_j for c in small),
        level=max((c.level for c in small), key=LEVELS.index),
    )
    return [*large, others]


def _what_if(design: StoredDesign) -> Iterator[str]:
    """Yield the change of the objectives if one part of the GPU is faster."""
    last, row = design.last, design.row
    scales = [n for n in last.space.schema.names if n.endswith("_scale") and row.get(n) is not None]
    metrics = schema_of(last.simulator.metrics).names
    wanted = [n for n in last.objectives if n in metrics]
    if not scales or not wanted:
        return
    before = evaluated(last.simulator, row)
    yield f"Effect of making one part of the GPU {100 * (_FASTER - 1):.0f} % faster or larger:"
    for scale in scales:
        after = evaluated(last.simulator, {**row, scale: row[scale] * _FASTER})
        gains = [
            f"{n} {last.human(n, after[n])} ({after[n] / before[n] - 1:+.1%})"
            for n in wanted
            if after[n] is not None and before[n]
        ]
        yield f"  {scale.removesuffix('_scale'):10} {', '.join(gains)}"


def evaluated(simulator: Simulator, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a design computed now; fields missing in the row have defaults."""
    batch = batch_of(simulator.point, point_of(simulator, row))
    metrics: dict[str, Any] = simulator.evaluate(batch).to_pylist()[0]
    return metrics


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
    event = {"ph": "X", "pid": 1, "tid": 1, "name": name, "ts": start, "dur": end - start}
    if c is None:
        return event
    said = {"bound": c.bound, "level": c.level, "times": c.count, "note": c.note}
    numbers = {"flops": c.flops, "moved_bytes": c.moved_bytes, "energy_j": c.energy_j}
    return event | {"args": {k: v for k, v in (said | numbers).items() if v}}
