"""Two designs, two sweeps, or a design and a measurement, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.columns import schema_of
from simulators.core.contract import Explains, given_of
from simulators.core.errors import UserError
from sweeper.commands.explain import contributions
from sweeper.commands.flags import results_flags
from sweeper.commands.opened import tell_age
from sweeper.query.hypervolume import dominated_shares
from sweeper.query.pareto import minimised, pareto_front, qualifying
from sweeper.questions import LOAD_TESTS, CarriesLoad, ReadsLogs, known_beside
from sweeper.report.answers import Answers, latest
from sweeper.report.tables import print_table, print_words, read_text
from sweeper.store.keys import SHOWN
from sweeper.units import human

_MOST = 12
"""Contributions to a difference that are printed."""


def main(words: list[str]) -> int:
    """Print the comparison."""
    parser = results_flags("compare", "two designs, two sweeps, or a design and a measurement")
    parser.add_argument("keys", nargs="*", metavar="KEY", help="one or two designs, or `knee`")
    parser.add_argument("--log", metavar="FILE", help="a benchmark's result for the design")
    parser.add_argument("--against", metavar="NAME", help="another sweep of the same simulator")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    last = latest(chosen.name, chosen.outputs)
    tell_age(last)
    if chosen.log and len(chosen.keys) == 1:
        return _with_log(last, chosen.keys[0], Path(chosen.log), as_json=chosen.json)
    if chosen.against and not chosen.keys:
        return _sweeps(last, latest(chosen.against, chosen.outputs))
    if len(chosen.keys) == 2 and not chosen.log:
        return _designs(last, *chosen.keys)
    raise UserError(
        "compare takes two keys, one key with --log FILE, or --against NAME\n"
        f"As in: python -m sweeper compare {chosen.name} knee 260531b612"
    )


def _designs(last: Answers, first: str, second: str) -> int:
    (key_a, a), (key_b, b) = last.design(first), last.design(second)
    choices = [n for n in (*last.space.axes, *last.space.derived) if a.get(n) != b.get(n)]
    numbers = schema_of(last.simulator.metrics).names
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
    print_table("", ["", "", key_a[:SHOWN], key_b[:SHOWN], "change"], lines)
    for warning in _warnings(last, a, b):
        print_words(warning)
    if not lines:
        print("The two designs choose and measure the same.")
    if isinstance(last.simulator, Explains):
        _attributed(last.space.simulator, a, b)
    return 0


def _warnings(last: Answers, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Yield what makes two designs answers to different questions."""
    asked = [n for n in given_of(last.simulator.point) if n in a and a[n] != b.get(n)]
    if asked:
        said = ", ".join(f"{n} {last.human(n, a[n])} and {last.human(n, b[n])}" for n in asked)
        yield (
            f"They answer different questions ({said}): what changes is not the design's alone. "
            f"Compare at the same {', '.join(asked)}."
        )
    if isinstance(last.simulator, CarriesLoad) and a[n := last.simulator.copies] != b[n]:
        yield (
            f"They have {a[n]} and {b[n]} {n}, which share the load: rates, GPUs and energy are "
            "those of all of them."
        )


def _attributed(simulator: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Print which operators make the difference in time, the largest first."""
    before, after = (_times(simulator, row) for row in (a, b))
    differences = sorted(
        ((after.get(k, 0.0) - before.get(k, 0.0), k) for k in {**before, **after}),
        key=lambda d: -abs(d[0]),
    )
    lines = [
        [
            "",
            f"{phase}: {name}",
            human(before.get((phase, name), 0.0), "s"),
            human(after.get((phase, name), 0.0), "s"),
            _signed(d),
        ]
        for d, (phase, name) in differences[:_MOST]
        if d
    ]
    if lines:
        whole = sum(after.values()) - sum(before.values())
        print()
        print_table(
            f"Where the time differs ({_signed(whole)} in all)",
            ["", "operator", "first", "second", "difference"],
            lines,
        )


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{human(abs(seconds), 's')}"


def _times(simulator: str, row: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Return the time of each operator of a design, by phase and name."""
    times: dict[tuple[str, str], float] = {}
    for c in contributions(simulator, row):
        times[c.phase, c.name] = times.get((c.phase, c.name), 0.0) + c.time_s
    return times


def _with_log(last: Answers, prefix: str, file: Path, *, as_json: bool) -> int:
    key, row = last.design(prefix)
    text, reader = read_text(file), known_beside(last.simulator, LOAD_TESTS)
    logged = reader.read_log(text, str(file)) if isinstance(reader, ReadsLogs) else {}
    found = {n: v for n, v in logged.items() if row.get(n) is not None}
    if not found:
        raise UserError(f"{file} measured nothing that '{last.space.simulator}' predicts")
    errors = {n: row[n] / v - 1 for n, v in found.items() if v}
    if as_json:
        table = [
            {"metric": n, "measured": v, "predicted": row[n], "error": errors.get(n)}
            for n, v in found.items()
        ]
        print(json.dumps({"key": key, "metrics": table}, indent=1))
        return 0
    lines = [
        [
            "",
            n,
            last.human(n, v),
            last.human(n, float(row[n])),
            f"{errors[n]:+.1%}" if n in errors else "",
        ]
        for n, v in found.items()
    ]
    title = f"{key[:SHOWN]} beside {file}"
    print_table(title, ["", "metric", "measured", "predicted", "error"], lines)
    if isinstance(reader, ReadsLogs) and (lesson := reader.lesson(errors)):
        print(f"\n{lesson}")
    return 0


def _sweeps(a: Answers, b: Answers) -> int:
    """Print what two sweeps say of the designs they share, and how far their fronts reach."""
    if a.space.simulator != b.space.simulator:
        raise UserError(
            f"'{a.name}' is a sweep of '{a.space.simulator}', '{b.name}' of '{b.space.simulator}'"
        )
    for name in given_of(a.simulator.point):
        ours, theirs = (list(dict.fromkeys(x.space.axes[name])) for x in (a, b))
        if set(ours) != set(theirs):
            said = " and ".join(
                ", ".join(a.human(name, v) for v in one[:6]) for one in (ours, theirs)
            )
            print_words(f"They were asked for other {name}: {said}.")
    metrics = [n for n in a.objectives if n in b.objectives]
    axes = list(dict.fromkeys([*a.space.axes, *b.space.axes]))
    rows = [x.results.select(*axes, "status", *metrics).collect() for x in (a, b)]
    shared = rows[0].join(rows[1], on=axes, how="inner", suffix="_b", nulls_equal=True)
    print(f"{len(rows[0]):,} and {len(rows[1]):,} designs, {len(shared):,} of them in both")
    both = shared.filter(pl.all_horizontal(pl.col("status", "status_b").cast(pl.String) == "ok"))
    lines = []
    for n in metrics:
        ratio = (both[f"{n}_b"] / both[n]).drop_nulls().drop_nans()
        if len(ratio):
            quantiles = [ratio.quantile(q) or 0.0 for q in (0.05, 0.5, 0.95)]
            lines.append(["", n, *(f"{q - 1:+.1%}" for q in quantiles)])
    if lines:
        print_table(
            f"Change from {a.name} to {b.name} on shared designs",
            ["", "metric", "5 %", "median", "95 %"],
            lines,
        )
    wanted = {n: a.objectives[n] for n in metrics}
    fronts = [pareto_front(qualifying(x.results), wanted, where=x.where) for x in (a, b)]
    if all(len(f) for f in fronts) and len(wanted) > 1:
        shares = dominated_shares(*(minimised(f, wanted) for f in fronts))
        print(
            f"Fronts of {len(fronts[0])} and {len(fronts[1])} designs dominate {shares[0]:.1%} "
            f"and {shares[1]:.1%} of the box that holds both."
        )
    return 0


def _change(a: Any, b: Any) -> str:
    if isinstance(a, bool) or isinstance(b, bool) or not a:
        return ""
    numeric = isinstance(a, int | float) and isinstance(b, int | float)
    return f"{b / a - 1:+.1%}" if numeric else ""
