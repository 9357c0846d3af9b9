"""The command `compare`: two designs, a design and a benchmark's log, or two sweeps.

`--explain` attributes a difference to groups of facts, and says what would confirm it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from simulators.core.columns import batch_of, schema_of
from simulators.core.contract import Explains, given_of
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import columns_of
from sweeper.commands.design import StoredDesign, designs, evaluated
from sweeper.commands.flags import parse
from sweeper.query.attribution import UNEXPLAINED, Attribution, Mixing, attributed
from sweeper.query.fronts import dominated_shares
from sweeper.query.pareto import minimised, pareto_front, qualifying
from sweeper.query.shapley import Values
from sweeper.questions import (
    LOAD_TESTS,
    CarriesLoad,
    ComparedPart,
    ComparesParts,
    Mixes,
    MixesDesigns,
    ReadsLogs,
    plugin_of,
)
from sweeper.report.answers import Answers, latest
from sweeper.report.tables import print_table, print_words, read_text
from sweeper.store.keys import SHOWN
from sweeper.text import human

_MOST = 12
"""Operators printed by `compare`."""


def compare(words: list[str]) -> int:
    """Compare two designs, a design with a benchmark's result, or two sweeps."""
    chosen = parse("compare", words)
    *own, other = chosen.keys if chosen.against and len(chosen.keys) == 2 else (*chosen.keys, "")
    last, found = designs(chosen.name, chosen.outputs, *own)
    if other:
        found += designs(chosen.against, chosen.outputs, other)[1]
        if found[0].last.space.simulator != found[1].last.space.simulator:
            raise UserError(f"{chosen.name} and {chosen.against} are of different simulators")
    if chosen.explain and found:
        return explain_difference(found, chosen.log, chosen.changed, as_json=chosen.json)
    if len(chosen.log) == 1 and len(found) == 1:
        return _compare_log(found[0], chosen.log[0], as_json=chosen.json)
    if chosen.against and not found:
        return _compare_sweeps(last, latest(chosen.against, chosen.outputs))
    if len(found) == 2 and not chosen.log:
        return _compare_designs(*found)
    raise UserError(
        "compare takes two keys, one key with --log FILE, or --against NAME\n"
        f"As in: python -m sweeper compare {chosen.name} knee 260531b612"
    )


def _compare_designs(first: StoredDesign, second: StoredDesign) -> int:
    last, a, b = first.last, first.row, second.row
    numbers = schema_of(last.simulator.metrics).names
    choices = [n for n in (*last.space.axes, *last.space.derived) if a.get(n) != b.get(n)]
    changed = [n for n in numbers if a.get(n) != b.get(n) and not n.endswith(("_lo", "_hi"))]
    lines = [
        [
            "*" if n in last.objectives else "",
            n,
            last.human(n, a[n]),
            last.human(n, b[n]),
            _change(a[n], b[n]) if n in numbers else "",
        ]
        for n in [*choices, *changed]
        if n in a
    ]
    print_table("", ["", "", first.key[:SHOWN], second.key[:SHOWN], "change"], lines)
    if asked := [n for n in given_of(last.simulator.point) if n in a and a[n] != b.get(n)]:
        values = ", ".join(f"{n} {last.human(n, a[n])} and {last.human(n, b[n])}" for n in asked)
        print_words(
            f"The inputs differ ({values}). Compare designs with the same {', '.join(asked)}."
        )
    simulator = last.simulator
    if isinstance(simulator, CarriesLoad) and a[n := simulator.copies] != b[n]:
        print_words(
            f"The designs have {a[n]} and {b[n]} {n}. Rates, GPUs and energy are sums over all {n}."
        )
    if not lines:
        print("The two designs are the same.")
    if isinstance(simulator, Explains):
        _compare_operators(first, second)
    return 0


def _compare_operators(first: StoredDesign, second: StoredDesign) -> None:
    times: dict[tuple[str, str], list[float]] = {}
    for place, design in enumerate((first, second)):
        for c in design.operators():
            times.setdefault((c.phase, c.name), [0.0, 0.0])[place] += c.time_s
    changed = sorted(times.items(), key=lambda one: (-abs(one[1][1] - one[1][0]), one[0]))
    lines = [
        ["", f"{phase}: {name}", human(a, "s"), human(b, "s"), _signed(b - a)]
        for (phase, name), (a, b) in changed[:_MOST]
        if a != b
    ]
    if lines:
        whole = sum(b - a for a, b in times.values())
        print()
        print_table(
            f"Operators whose time differs ({_signed(whole)} in total)",
            ["", "operator", "first", "second", "difference"],
            lines,
        )


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{human(abs(seconds), 's')}"


def _change(a: Any, b: Any) -> str:
    if isinstance(a, bool) or isinstance(b, bool) or not a:
        return ""
    numeric = isinstance(a, int | float) and isinstance(b, int | float)
    return f"{b / a - 1:+.1%}" if numeric else ""


def _compare_log(design: StoredDesign, file: Path, *, as_json: bool) -> int:
    last, row = design.last, design.row
    text, reader = read_text(file), plugin_of(last.simulator, LOAD_TESTS)
    logged: Mapping[str, float] = {}
    notes: Sequence[str] = ()
    if isinstance(reader, ReadsLogs):
        logged = reader.read_log(text, str(file))
        changes, notes = reader.at_log(design.point, text, str(file))
        known = {c.name for c in columns_of(last.simulator.point)}
        if changes := {n: v for n, v in changes.items() if n in known}:
            row = {**row, **changes, **evaluated(last.simulator, {**row, **changes})}
    found = {n: v for n, v in logged.items() if row.get(n) is not None}
    if not found and logged:
        said = " ".join(notes) or f"the design states none of {', '.join(logged)}"
        raise UserError(f"{file} cannot be compared with {design.key[:SHOWN]}: {said}")
    if not found:
        raise UserError(f"{file} contains no metric that '{last.space.simulator}' predicts")
    errors = {n: row[n] / v - 1 for n, v in found.items() if v}
    parts = reader.parts(design.point, text, str(file)) if isinstance(reader, ComparesParts) else ()
    if as_json:
        table = [
            {"metric": n, "measured": v, "predicted": row[n], "error": errors.get(n)}
            for n, v in found.items()
        ]
        answer = {"key": design.key, "notes": list(notes), "metrics": table}
        if parts:
            answer["parts"] = [dataclasses.asdict(one) | {"error": one.error} for one in parts]
        print(json.dumps(answer, indent=1))
        return 0
    lines = [
        ["", n, last.human(n, v), last.human(n, float(row[n])), f"{errors[n]:+.1%}" if v else ""]
        for n, v in found.items()
    ]
    title = f"{design.key[:SHOWN]} compared with {file}"
    print_table(title, ["", "metric", "measured", "predicted", "error"], lines)
    _print_parts(last, parts)
    for note in notes:
        print_words(note)
    if isinstance(reader, ReadsLogs) and (advice := reader.advice(errors)):
        print(f"\n{advice}")
    return 0


def _print_parts(last: Answers, parts: Sequence[ComparedPart]) -> None:
    """Print the longest parts, and the median error of all parts by metric."""
    for metric in dict.fromkeys(one.metric for one in parts):
        of_metric = sorted((p for p in parts if p.metric == metric), key=lambda p: -p.measured)
        lines = [
            [
                "",
                p.name,
                *(last.human(metric, v) for v in (p.measured, p.predicted)),
                f"{p.error:+.1%}",
            ]
            for p in of_metric[:_MOST]
        ]
        error = median(abs(p.error) for p in of_metric)
        print()
        print_table(
            f"{metric} of {len(of_metric)} parts, median error {error:.1%}",
            ["", "part", "measured", "predicted", "error"],
            lines,
        )


def _compare_sweeps(a: Answers, b: Answers) -> int:
    """Print the changes of designs in both sweeps, and the hypervolumes of the fronts."""
    if a.space.simulator != b.space.simulator:
        raise UserError(
            f"'{a.name}' is a sweep of '{a.space.simulator}', '{b.name}' of '{b.space.simulator}'"
        )
    for name in given_of(a.simulator.point):
        ours, theirs = (list(dict.fromkeys(x.space.axes[name])) for x in (a, b))
        if set(ours) != set(theirs):
            values = (", ".join(a.human(name, v) for v in one[:6]) for one in (ours, theirs))
            print_words(f"The sweeps use different {name}: {' and '.join(values)}.")
    metrics = [n for n in a.objectives if n in b.objectives]
    axes = list(dict.fromkeys([*a.space.axes, *b.space.axes]))
    rows = [x.results.select(*axes, "status", *metrics).collect() for x in (a, b)]
    shared = rows[0].join(rows[1], on=axes, how="inner", suffix="_b", nulls_equal=True)
    print(f"{len(rows[0]):,} and {len(rows[1]):,} designs, {len(shared):,} in both sweeps")
    both = shared.filter(pl.all_horizontal(pl.col("status", "status_b").cast(pl.String) == "ok"))
    lines = []
    for n in metrics:
        ratio = (both[f"{n}_b"] / both[n]).drop_nulls().drop_nans()
        if len(ratio):
            quantiles = [ratio.quantile(q) or 0.0 for q in (0.05, 0.5, 0.95)]
            lines.append(["", n, *(f"{q - 1:+.1%}" for q in quantiles)])
    if lines:
        title = f"Change from {a.name} to {b.name}, designs in both sweeps"
        print_table(title, ["", "metric", "5 %", "median", "95 %"], lines)
    wanted = {n: a.objectives[n] for n in metrics}
    fronts = [pareto_front(qualifying(x.results), wanted, where=x.where) for x in (a, b)]
    if all(len(f) for f in fronts) and len(wanted) > 1:
        shares = dominated_shares(*(minimised(f, wanted) for f in fronts))
        print(
            f"Fronts of {len(fronts[0])} and {len(fronts[1])} designs dominate {shares[0]:.1%} "
            f"and {shares[1]:.1%} of their common bounding box."
        )
    return 0


MOST_GROUPS = 10
"""Options that differ, of which all mixtures are evaluated at most: 2^10 designs."""
LEAST_SHARE = 0.005
"""Share of a difference below which a group is not printed."""
MOST_OPERATORS = 3
"""Operators whose profile is suggested."""
_HOST, _LINK = "host", "link"
"""Bounds of operators that are no kernels."""
_PROFILED = {"kernels": False, "communication": True}
"""Groups whose operators are named, and whether the operators are messages."""


@dataclasses.dataclass(frozen=True)
class Side:
    """A point of a difference, and the metrics that a log measured of it."""

    name: str
    point: Mapping[str, Any]
    measured: Mapping[str, float]
    notes: Sequence[str]


def explain_difference(
    found: Sequence[StoredDesign], logs: Sequence[Path], changed: Sequence[str], *, as_json: bool
) -> int:
    """Print the shares of groups of facts in a difference of two designs, or of a design and logs.

    Two logs are of the first and of the second design. A single log of a single design is compared
    with its prediction. `changed`: options that differ, though the designs do not show it.

    Raises:
        UserError: the designs cannot be mixed, or a log has no known metric.
    """
    old, new = _sides(found, logs)
    both = _mixes(found[0], old.point, new.point, changed)
    if not both.groups and not new.measured:
        print("The simulator knows no difference between the two designs.")
        return 0
    try:
        shares = list(attributed(both, [old.measured, new.measured]))
    except Infeasible as verdict:
        raise UserError(
            f"the difference cannot be attributed: a mixture of both is infeasible: {verdict}"
        ) from verdict
    operators = _operators(found) if len(found) == 2 else {}
    measurements = _measurements(shares, both.confirmed_by, operators)
    if not measurements and (longest := _longest(found[-1])):
        measurements = [{"group": "longest parts of the prediction", "measurement": longest}]
    if as_json:
        rows = [dataclasses.asdict(one) | {"difference": one.difference} for one in shares]
        print(json.dumps({"metrics": rows, "confirm": measurements}, indent=1))
        return 0
    _print(found[0], old, new, shares, measurements)
    return 0


def _sides(found: Sequence[StoredDesign], logs: Sequence[Path]) -> tuple[Side, Side]:
    if len(found) == 1 and len(logs) == 1:
        return _predicted(found[0]), _logged(found[0], logs[0])
    if len(logs) == 2:
        return _logged(found[0], logs[0]), _logged(found[-1], logs[1])
    if len(found) == 2 and not logs:
        return _predicted(found[0]), _predicted(found[1])
    raise UserError(
        "compare --explain takes two keys, with --log OLD --log NEW or without; or one key with "
        "one or two logs"
    )


def _predicted(design: StoredDesign) -> Side:
    return Side(f"{design.key[:SHOWN]} predicted", design.point, {}, ())


def _logged(design: StoredDesign, file: Path) -> Side:
    """Return a design under the load of a log, with the log's metrics."""
    reader = plugin_of(design.last.simulator, LOAD_TESTS)
    if not isinstance(reader, ReadsLogs):
        raise UserError(f"{file}: the simulator '{design.last.space.simulator}' reads no logs")
    text = read_text(file)
    measured = reader.read_log(text, str(file))
    changes, notes = reader.at_log(design.point, text, str(file))
    known = {column.name for column in columns_of(design.last.simulator.point)}
    point = {**design.point, **{n: v for n, v in changes.items() if n in known}}
    return Side(str(file), point, measured, notes)


def _mixes(
    design: StoredDesign, old: Mapping[str, Any], new: Mapping[str, Any], changed: Sequence[str]
) -> Mixes:
    """Return the mixtures of two points: the simulator's own, or those of fields that differ."""
    simulator = design.last.simulator
    mixer = plugin_of(simulator, LOAD_TESTS)
    if isinstance(mixer, MixesDesigns):
        try:
            return mixer.mixtures(old, new, changed)
        except Infeasible as verdict:
            raise UserError(f"a design is infeasible: {verdict}") from verdict
    if changed:
        raise UserError(
            f"the simulator '{design.last.space.simulator}' knows no shares of --changed options"
        )
    groups = [name for name in old if old[name] != new[name]]
    if len(groups) > MOST_GROUPS:
        raise UserError(
            f"{len(groups)} options differ ({', '.join(groups)}); the differences of at most "
            f"{MOST_GROUPS} are attributed"
        )
    rows = [evaluated(simulator, point) for point in (old, new)]
    units = design.last.units
    numbers = [
        n for n in schema_of(simulator.metrics).names if isinstance(rows[0][n], float) and units[n]
    ]
    wanted = [n for n in design.last.objectives if n in numbers] or numbers[:1]
    wanted = [n for n in wanted if rows[1][n] is not None]

    def run(taken: Collection[str]) -> Values:
        point = {**old, **{name: new[name] for name in taken}}
        [row] = simulator.evaluate(batch_of(simulator.point, point)).to_pylist()
        if missing := [n for n in wanted if row[n] is None]:
            raise Infeasible(row.get("reason") or "no_metric", f"no {missing[0]}")
        return {n: row[n] for n in wanted}

    return Mixing(groups=groups, run=run, half_widths=_half_widths(wanted, rows))


def _half_widths(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return half-widths of ln(new / old) as if both errors were independent."""
    found = {}
    for name in names:
        ends = [(row.get(f"{name}_lo") or 0.0, row.get(f"{name}_hi") or 0.0) for row in rows]
        if all(low and high for low, high in ends):
            found[name] = math.hypot(*(math.log(high / low) / 2.0 for low, high in ends))
    return found


def _operators(found: Sequence[StoredDesign]) -> dict[bool, str]:
    """Return the messages (key True) and the kernels whose times differ most, in words."""
    if not isinstance(found[0].last.simulator, Explains):
        return {}
    times: dict[tuple[bool, str], list[float]] = {}
    for place, design in enumerate(found):
        for one in design.operators():
            if one.bound != _HOST:
                name = one.bound == _LINK, f"{one.phase} {one.name}"
                times.setdefault(name, [0.0, 0.0])[place] += one.time_s
    largest = sorted(times, key=lambda name: -abs(times[name][1] - times[name][0]))
    said = {name: " to ".join(human(end, "s") for end in ends) for name, ends in times.items()}
    changed = [name for name in largest if times[name][0] != times[name][1]]
    words = {
        kind: [f"{n[1]} ({said[n]})" for n in changed if n[0] == kind] for kind in (True, False)
    }
    return {kind: ", ".join(ones[:MOST_OPERATORS]) for kind, ones in words.items() if ones}


def _longest(design: StoredDesign) -> str:
    """Return the longest operators of a design, with their evidence, in words."""
    if not isinstance(design.last.simulator, Explains):
        return ""
    longest = sorted(design.operators(), key=lambda one: -one.time_s)[:MOST_OPERATORS]
    return ", ".join(f"{c.phase} {c.name} ({human(c.time_s, 's')}, {c.level})" for c in longest)


def _measurements(
    shares: Sequence[Attribution], confirmed_by: Mapping[str, str], operators: Mapping[bool, str]
) -> list[dict[str, Any]]:
    """Return measurements, the one of the group with the largest uncertain share first.

    Without intervals, groups are in the order of their shares. Shares of several metrics are
    relative to the whole difference of each.
    """
    weight: dict[str, float] = {}
    for one in shares:
        sizes = one.half_widths or one.shares
        whole = max(map(abs, one.shares.values()), default=0.0)
        for group, size in sizes.items():
            if group != UNEXPLAINED and whole:
                weight[group] = max(weight.get(group, 0.0), abs(size) / whole)
    ranked = sorted(weight, key=lambda group: -weight[group])
    found = []
    for group in ranked:
        if weight[group] < LEAST_SHARE:
            continue
        said = confirmed_by.get(group, f"measure both values of {group} with all else equal")
        if group in _PROFILED and _PROFILED[group] in operators:
            said += f". Largest differences: {operators[_PROFILED[group]]}"
        found.append({"group": group, "measurement": said})
    return found


def _print(
    design: StoredDesign,
    old: Side,
    new: Side,
    shares: Sequence[Attribution],
    measurements: Sequence[Mapping[str, Any]],
) -> None:
    names = dict.fromkeys(name for one in shares for name in one.shares)
    order = [name for name in names if name != UNEXPLAINED]
    order.sort(key=lambda name: -max(_part(one, name) for one in shares))
    kept = [n for n in order if max(_part(one, n) for one in shares) >= LEAST_SHARE]
    lines = {name: ["", name] for name in ("old", *kept, UNEXPLAINED, "new")}
    header = ["", "facts"]
    for one in shares:
        shown = partial(design.last.human, one.metric)
        header += [one.metric, *(["90 % interval"] if one.half_widths else [])]
        both = zip(one.measured, one.predicted, strict=True)
        ends = [predicted if known is None else known for known, predicted in both]
        for name, cells in lines.items():
            share, half = one.shares.get(name), one.half_widths.get(name)
            if name in ("old", "new"):
                cells.append(shown(ends[name == "new"]))
            else:
                cells.append("" if share is None else _with_sign(shown, share))
            if one.half_widths and (share is None or half is None):
                cells.append("")
            elif share is not None and half is not None:
                cells.append(" to ".join(_with_sign(shown, share + x) for x in (-half, half)))
    title = f"From {old.name} (old) to {new.name} (new)"
    if UNEXPLAINED not in names:
        del lines[UNEXPLAINED]
    print_table(title, header, [*lines.values()])
    if left := [n for n in order if n not in kept]:
        print_words(f"Without effect: {', '.join(left)}.")
    of = shares[0].remainder if shares else {}
    if of and any(_part(one, UNEXPLAINED) >= LEAST_SHARE for one in shares):
        parts = sorted(of.items(), key=lambda part: -part[1])
        said = ", ".join(f"{name} {part:.0%}" for name, part in parts)
        print_words(f"Where the unexplained part most likely lies: {said}.")
    for note in dict.fromkeys((*old.notes, *new.notes)):
        print_words(note)
    if measurements:
        print()
        print("Measurements that would confirm the shares, most uncertain share first:")
        for number, each in enumerate(measurements, 1):
            print_words(f"{number}. {each['group']}: {each['measurement']}.", "   ")


def _part(one: Attribution, group: str) -> float:
    whole = max(map(abs, one.shares.values()), default=0.0)
    return abs(one.shares.get(group, 0.0)) / whole if whole else 0.0


def _with_sign(shown: Any, value: float) -> str:
    return f"{'-' if value < 0.0 else '+'}{shown(abs(value))}"
