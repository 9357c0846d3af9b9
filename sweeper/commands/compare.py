"""Two designs, two sweeps, or a design and a measurement, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.contract import Explains, load_simulator, schema_of
from simulators.core.errors import UserError
from sweeper.benchmark_logs import measured
from sweeper.commands.designs import design
from sweeper.commands.explain import contributions
from sweeper.commands.flags import flags
from sweeper.commands.record import Answered, latest
from sweeper.commands.summary import print_table, units_of
from sweeper.keys import SHOWN
from sweeper.query import minimised, pareto_front, qualifying
from sweeper.units import human
from sweeper.volume import hypervolume

_MOST = 12
"""Contributions to a difference that are printed."""


def main(words: list[str]) -> int:
    """Print the comparison."""
    parser = flags("compare", "two designs, two sweeps, or a design and a measurement")
    parser.add_argument("name", help="a space that has been run")
    parser.add_argument("keys", nargs="*", metavar="KEY", help="one or two designs, or `knee`")
    parser.add_argument("--log", metavar="FILE", help="a benchmark's result for the design")
    parser.add_argument("--against", metavar="NAME", help="another sweep of the same simulator")
    parser.add_argument("--outputs", default="outputs")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    last = latest(chosen.name, chosen.outputs)
    if chosen.log and len(chosen.keys) == 1:
        return _with_log(last, chosen.keys[0], Path(chosen.log), as_json=chosen.json)
    if chosen.against and not chosen.keys:
        other = latest(chosen.against, chosen.outputs)
        return _sweeps((chosen.name, last), (chosen.against, other))
    if len(chosen.keys) == 2 and not chosen.log:
        return _designs(last, *chosen.keys)
    raise UserError(
        "compare takes two keys, one key with --log FILE, or --against NAME\n"
        "As in: python -m sweeper compare llama70b_h100 knee 260531b612"
    )


def _designs(last: Answered, first: str, second: str) -> int:
    (key_a, a), (key_b, b) = design(last, first), design(last, second)
    units, space = units_of(last.space), last.space
    choices = [n for n in (*space.axes, *space.derived) if a.get(n) != b.get(n)]
    numbers = schema_of(load_simulator(space.simulator).metrics).names
    changed = [n for n in numbers if a.get(n) != b.get(n)]
    lines = [
        [
            "*" if n in last.objectives else "",
            n,
            human(a[n], units.get(n, "")),
            human(b[n], units.get(n, "")),
            _change(a[n], b[n]) if n in numbers else "",
        ]
        for n in [*choices, *changed]
        if n in a
    ]
    print_table("", ["", "", key_a[:SHOWN], key_b[:SHOWN], "change"], lines)
    if not lines:
        print("The two designs choose and measure the same.")
    if isinstance(load_simulator(space.simulator), Explains):
        _attributed(space.simulator, a, b)
    return 0


def _attributed(simulator: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Print which operators make the difference in time, the largest first."""
    before, after = (_times(simulator, row) for row in (a, b))
    both = {**before, **after}
    differences = sorted(
        ((after.get(k, 0.0) - before.get(k, 0.0), k) for k in both), key=lambda d: -abs(d[0])
    )
    lines = [
        [
            "",
            f"{phase}: {name}",
            human(before.get((phase, name), 0.0), "s"),
            human(after.get((phase, name), 0.0), "s"),
            f"{'+' if d > 0 else '-'}{human(abs(d), 's')}",
        ]
        for d, (phase, name) in differences[:_MOST]
        if d
    ]
    if lines:
        whole = sum(after.values()) - sum(before.values())
        sign = "+" if whole > 0 else "-"
        print()
        print_table(
            f"Where the time differs ({sign}{human(abs(whole), 's')} in all)",
            ["", "operator", "first", "second", "difference"],
            lines,
        )


def _times(simulator: str, row: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Return the time of each operator of a design, by phase and name."""
    times: dict[tuple[str, str], float] = {}
    for c in contributions(simulator, row):
        times[c.phase, c.name] = times.get((c.phase, c.name), 0.0) + c.time_s
    return times


def _with_log(last: Answered, prefix: str, file: Path, *, as_json: bool) -> int:
    key, row = design(last, prefix)
    found = {n: v for n, v in measured(file).items() if row.get(n) is not None}
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
    units = units_of(last.space)
    lines = [
        [
            "",
            n,
            human(v, units.get(n, "")),
            human(float(row[n]), units.get(n, "")),
            f"{errors[n]:+.1%}" if n in errors else "",
        ]
        for n, v in found.items()
    ]
    title = f"{key[:SHOWN]} beside {file}"
    print_table(title, ["", "metric", "measured", "predicted", "error"], lines)
    if (tpot := errors.get("tpot_mean_s", errors.get("tpot_p50_s"))) is not None:
        print(
            f"\nMeasured tokens take {1 / (1 + tpot):.2f} times the predicted time. Three such "
            "measurements of a family of deployments calibrate it:\n"
            "  python -m lab.fits engines --measured FILE"
        )
    return 0


def _sweeps(first: tuple[str, Answered], second: tuple[str, Answered]) -> int:
    """Print what two sweeps say of the designs they share, and how far their fronts reach."""
    (name_a, a), (name_b, b) = first, second
    if a.space.simulator != b.space.simulator:
        raise UserError(
            f"'{name_a}' is a sweep of '{a.space.simulator}', '{name_b}' of '{b.space.simulator}'"
        )
    metrics = [n for n in a.objectives if n in b.objectives]
    axes = list(dict.fromkeys([*a.space.axes, *b.space.axes]))
    rows = [x.store.scan().select(*axes, "status", *metrics).collect() for x in (a, b)]
    shared = rows[0].join(rows[1], on=axes, how="inner", suffix="_b", nulls_equal=True)
    print(f"{len(rows[0]):,} and {len(rows[1]):,} designs, {len(shared):,} of them in both")
    both = shared.filter(
        (pl.col("status").cast(pl.String) == "ok") & (pl.col("status_b").cast(pl.String) == "ok")
    )
    lines = []
    for n in metrics:
        ratio = (both[f"{n}_b"] / both[n]).drop_nulls().drop_nans()
        if len(ratio):
            quantiles = [ratio.quantile(q) or 0.0 for q in (0.05, 0.5, 0.95)]
            lines.append(["", n, *(f"{q - 1:+.1%}" for q in quantiles)])
    if lines:
        print_table(
            f"Change from {name_a} to {name_b} on shared designs",
            ["", "metric", "5 %", "median", "95 %"],
            lines,
        )
    wanted = {n: a.objectives[n] for n in metrics}
    fronts = [pareto_front(qualifying(x.store.scan()), wanted, where=x.where) for x in (a, b)]
    if all(len(f) for f in fronts) and len(wanted) > 1:
        volumes = _volumes([minimised(f, wanted) for f in fronts])
        print(
            f"Fronts of {len(fronts[0])} and {len(fronts[1])} designs dominate {volumes[0]:.1%} "
            f"and {volumes[1]:.1%} of the box that holds both."
        )
    return 0


def _volumes(fronts: list[Any]) -> list[float]:
    """Return the share of the box around two fronts that each dominates."""
    together = pl.concat([pl.DataFrame(f) for f in fronts]).to_numpy()
    low, high = together.min(axis=0), together.max(axis=0)
    width = high - low
    width[width == 0] = 1.0
    return [hypervolume((f - low) / width, [1.0] * f.shape[1]) for f in fronts]


def _change(a: object, b: object) -> str:
    numeric = isinstance(a, int | float) and isinstance(b, int | float)
    if not numeric or isinstance(a, bool) or isinstance(b, bool) or not a:
        return ""
    assert isinstance(a, int | float)
    assert isinstance(b, int | float)
    return f"{b / a - 1:+.1%}"
