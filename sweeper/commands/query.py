"""The commands `pareto` and `query`: fronts and analyses of results.

Scenarios are analysed separately; the first columns of a table name the scenario.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from simulators.core.contract import Direction
from simulators.core.errors import UserError, unknown
from sweeper.commands import COMMANDS
from sweeper.commands.flags import parse
from sweeper.query.analysis import (
    best_per,
    cheapest,
    idle_axes,
    replicas_for,
    sensitivity,
    steps_from,
)
from sweeper.query.fronts import crowding_distance, dominated_shares, epsilon_front, rank_layers
from sweeper.query.pareto import knee, minimised, objective_matrix, pareto_front, unstated
from sweeper.query.uncertainty import probable_front
from sweeper.questions import CarriesLoad
from sweeper.report.answers import KNEE, Answers, latest, stacked
from sweeper.report.summary import at_example, print_front, print_knees
from sweeper.report.tables import as_json, print_table, print_words, write_table
from sweeper.space.sql import joined
from sweeper.store.keys import SHOWN
from sweeper.text import counted

_DIGITS, _MOST = 6, 4
"""Printed digits of a definition, and number of definitions printed."""


def opened(chosen: argparse.Namespace) -> Answers:
    """Return the results that options select, and print the progress of an unfinished run."""
    last = latest(chosen.name, chosen.outputs)
    warn_of_version(last)
    print_progress(last, quiet=getattr(chosen, "json", False))
    if last.others and "@" not in chosen.name:
        others = ", ".join(f"{last.name}@{digits[:_DIGITS]}" for digits in last.others[:_MOST])
        print(
            f"Showing the latest run of {last.name}; earlier ones with other axes are {others}",
            file=sys.stderr,
        )
    return last.in_prices(chosen.prices).at(chosen.at)


def print_progress(last: Answers, *, quiet: bool = False) -> None:
    """Print the progress of an unfinished run; `quiet` prints on standard error."""
    if progress := last.unfinished:
        text = f"This run of {last.name} has not finished: {progress}."
        print(text, file=sys.stderr) if quiet else print_words(text)


def warn_of_version(last: Answers) -> None:
    """Print a warning if the rows are of an older version of the simulator."""
    then, now = last.store.definition.version, last.simulator.version
    if then != now:
        name = last.space.simulator
        print(
            f"The rows of {last.name} come from version {then} of '{name}'; the installed version "
            f"is {now}. To simulate again: python -m sweeper +space={last.name}",
            file=sys.stderr,
        )


def main(words: list[str]) -> int:
    """Compute one analysis, and print or write the table."""
    chosen = parse("query", words)
    if chosen.kind not in KINDS:
        raise unknown(f"there is no query '{chosen.kind}'", chosen.kind, KINDS)
    last = opened(chosen)
    last = last.asking(last.wanted, joined(last.where, chosen.where))
    last = last.across(chosen.across) if chosen.across else last
    if last.asked:
        print(f"For {last.asked}", file=sys.stderr if chosen.json else sys.stdout)
    table = _answered(last, chosen)
    if chosen.write:
        write_table(table, Path(chosen.write))
        print(f"{len(table):,} rows written to {chosen.write}")
    elif chosen.json:
        print(as_json(table))
    else:
        _print(table, last, chosen.rows, title=COMMANDS["query"]["kinds"][chosen.kind])
        if chosen.prices:
            print("\n".join(last.notes))
    return 0


def _answered(last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    """Return the analysis of all scenarios, or of one design, as one table."""
    kind, chosen.count = KINDS[chosen.kind], 1 if last.given else chosen.rows
    if chosen.kind in _OF_A_DESIGN:
        return kind(last, chosen)
    if chosen.level in last.given:  # best-per already separates its values
        last = dataclasses.replace(last, given=tuple(n for n in last.given if n != chosen.level))
    found, refused = [], None
    for one in last.each():
        try:
            table = kind(one, chosen)
        except UserError as error:
            refused = error
            continue
        said = [pl.lit(one.scenario[name]).alias(name) for name in last.given]
        found.append((one, table.select(*said, pl.exclude(last.given))))
    if refused is not None and not found:
        raise refused
    if refused is not None:
        left = len(last.scenarios) - len(found)
        print(f"{left:,} scenarios have no result, for example: {refused}", file=sys.stderr)
    return stacked(found)


def _per_metric(table: str, last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    """Return the sensitivity of each metric: `indices` per axis, or `effects` per value."""
    axes, found = list(last.space.varied), []
    for metric in chosen.of or last.objectives:
        said: pl.DataFrame = getattr(
            sensitivity(last.results, metric, axes, where=last.where), table
        )
        found.append(said.insert_column(0, pl.lit(metric).alias("metric")))
    return pl.concat(found)


def _idle(last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    metrics = chosen.of or list(last.objectives)
    found = idle_axes(last.results, metrics, list(last.space.varied))
    return pl.DataFrame({"idle_axis": pl.Series(found, dtype=pl.String)})


def _cheapest(last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    in_dollars = (name for name in last.objectives if last.units.get(name) in ("$", "USD"))
    cost = chosen.of[0] if chosen.of else next(in_dollars, next(iter(last.objectives)))
    slo = chosen.slo or last.where
    if slo is None:
        first = next(iter(last.objectives))
        raise UserError(f"cheapest needs --slo, as in --slo '{first} <= 1'")
    best = cheapest(last.results, cost, slo, count=chosen.count)
    return _brief(last, last.named(best), cost)


def _best_per(last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    if not chosen.level:
        raise UserError(f"best-per needs --level, as in --level {last.space.varied[0]}")
    objective = chosen.of[0] if chosen.of else next(iter(last.objectives))
    direction: Direction = last.objectives.get(objective, "min")
    steps, rows = chosen.steps, last.results
    best = best_per(rows, chosen.level, objective, direction, where=last.where, steps=steps)
    return _brief(last, last.named(best), chosen.level, objective)


def _layers(last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    values, _ = objective_matrix(last.results, last.objectives, where=last.where)
    table = pl.DataFrame(values, list(last.objectives))
    table = table.with_columns(layer=pl.Series(rank_layers(values, chosen.layers)))
    best = [-pl.col(n).min() if d == "max" else pl.col(n).min() for n, d in last.objectives.items()]
    layers = table.filter(pl.col("layer") > 0).group_by("layer")
    return layers.agg(pl.len().alias("designs"), *best).sort("layer")


def _epsilon(last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    if not chosen.epsilon > 0:
        raise UserError(f"--epsilon {chosen.epsilon:g}: write a number above zero")
    values = minimised(last.front, last.objectives)
    if not (abs(values) > 0).all():
        raise UserError("an epsilon front uses relative steps, so no objective may be zero")
    signs = np.sign(values[0]) if len(values) else np.ones(values.shape[1])
    logs = signs * np.log(np.abs(values))
    kept = epsilon_front(logs, [float(np.log1p(chosen.epsilon))] * values.shape[1])
    return _brief(last, last.front[kept], *last.objectives)


def _crowding(last: Answers, _: argparse.Namespace) -> pl.DataFrame:
    distances = pl.Series("crowding", crowding_distance(minimised(last.front, last.objectives)))
    table = _brief(last, last.front, *last.objectives).with_columns(distances)
    return table.sort("crowding", descending=True)


def _likely(last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    bands = dict.fromkeys(last.objectives, chosen.band)
    found = probable_front(
        last.results, last.objectives, bands, where=last.where, shared=chosen.shared
    )
    return _brief(last, last.named(found), "p_front", "behind", *last.objectives)


def _hypervolume(last: Answers, _chosen: argparse.Namespace) -> pl.DataFrame:
    values, _ = objective_matrix(last.results, last.objectives, where=last.where)
    return pl.DataFrame({"designs": [len(values)], "dominated_share": dominated_shares(values)})


def _near(last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    _, row = last.design(chosen.of[0] if chosen.of else KNEE)
    last = last.within({name: row[name] for name in last.given})
    axes = {n: list(dict.fromkeys(last.space.axes[n])) for n in last.space.varied}
    return steps_from(last.results, row, axes, last.objectives)


def _fleet(last: Answers, chosen: argparse.Namespace) -> pl.DataFrame:
    if not chosen.load:
        raise UserError("fleet needs --load, as in --load 3,5,9,4 or a file of numbers")
    load = _numbers(chosen.load)
    key, row = last.design(chosen.of[0] if chosen.of else KNEE)
    simulator = last.simulator
    if not isinstance(simulator, CarriesLoad):
        raise UserError(
            f"fleet needs designs that serve a load; designs of '{last.space.simulator}' do not"
        )
    axis = simulator.load
    if not row.get(axis):
        raise UserError(f"fleet needs designs with a value of the load `{axis}`")
    one = float(row[axis]) / row[simulator.copies]
    fleet, each = replicas_for(load, one, spare=chosen.spare), simulator.replica_resources(row)
    if not (chosen.json or chosen.write):
        most = [_amount(unit, n * fleet.peak) for unit, n in each.items()]
        print(
            f"One replica serves {last.human(axis, one)}. The peak needs {fleet.peak:,} replicas "
            f"({', '.join(most)}), including {chosen.spare} spare; mean utilization "
            f"{100 * fleet.utilization:.0f} %."
        )
    taken = {unit: [n * count for count in fleet.replicas] for unit, n in each.items()}
    hours = range(len(load))
    return pl.DataFrame(
        {"key": key, "hour": hours, "load": load, "replicas": fleet.replicas, **taken}
    )


def _amount(unit: str, value: float) -> str:
    return f"${value:,.2f} an hour" if unit == "usd_per_hour" else f"{value:,.0f} {unit}"


def pareto(words: list[str]) -> int:
    """Print the Pareto front of each scenario."""
    chosen = parse("pareto", words)
    last = opened(chosen)
    asked: dict[str, Direction] = dict.fromkeys(chosen.min, "min") | dict.fromkeys(
        chosen.max, "max"
    )
    where = joined(None if chosen.every else last.where, chosen.where)
    last = last.asking(asked or last.objectives, where)
    objectives = last.wanted
    if chosen.across:
        last = last.across(chosen.across)
    per = list(dict.fromkeys([*last.given, *chosen.per]))
    front = pareto_front(last.results, objectives, where=last.where, per=per)
    if front.is_empty():
        if silent := unstated(last.results, objectives, where=where):
            raise UserError(
                f"no feasible design of '{chosen.name}' has a value for {', '.join(silent)}; "
                "choose other objectives by --min and --max"
            )
        raise UserError(
            f"no feasible design of '{chosen.name}'"
            + (f" meets {where}" if where else "")
            + (" in every scenario" if last.how else "")
        )
    front = last.named(front)
    if chosen.write:
        first = [n for n in ("key", *last.space.varied, *last.objectives) if n in front]
        order = list(dict.fromkeys([*first, *front.columns]))
        write_table(front.select(order), Path(chosen.write))
        print(f"{counted(len(front), 'design')} written to {chosen.write}", file=sys.stderr)
    if chosen.json:
        print(as_json(front))
        return 0
    if last.asked:
        print(f"For {last.asked}")
    if chosen.prices:
        for note in last.notes:
            print_words(note)
    groups = front.partition_by(per, maintain_order=True) if per else [front]
    if not chosen.per and len(groups) > 1 and len(front) > chosen.rows:
        print_knees(last, rows=chosen.rows)
        print_words(f"Front of one scenario: --at {at_example(last)}; one design for all: --across")
        return 0
    for group in groups:
        if per:
            print_words(", ".join(f"{c}={last.human(c, group[c][0])}" for c in per))
        print_front(group, last, objectives, where=where, rows=chosen.rows)
        print(f"Knee {group['key'][knee(group, objectives)][:SHOWN]}\n")
    return 0


KINDS: dict[str, Callable[[Answers, argparse.Namespace], pl.DataFrame]] = {
    "sensitivity": functools.partial(_per_metric, "indices"),
    "effects": functools.partial(_per_metric, "effects"),
    "idle": _idle,
    "cheapest": _cheapest,
    "best-per": _best_per,
    "layers": _layers,
    "epsilon": _epsilon,
    "crowding": _crowding,
    "likely": _likely,
    "hypervolume": _hypervolume,
    "near": _near,
    "fleet": _fleet,
}
_OF_A_DESIGN = ("near", "fleet")
"""Analyses of one design and its scenario."""


def _brief(last: Answers, named: pl.DataFrame, *first: str) -> pl.DataFrame:
    """Return the key, the `first` columns, the axes and the objectives of each design."""
    wanted = dict.fromkeys(["key", *first, *last.space.varied, *last.objectives])
    return named.select(n for n in wanted if n in named.columns)


def _numbers(text: str) -> list[float]:
    try:
        words = Path(text).read_text(encoding="utf-8") if Path(text).is_file() else text
        return [float(w) for w in words.replace(",", " ").split()]
    except (OSError, ValueError) as error:
        raise UserError(f"--load {text}: write numbers separated by commas: {error}") from error


def _print(table: pl.DataFrame, last: Answers, rows: int, title: str) -> None:
    if table.is_empty():
        print("none")
        return
    changes = {c for c in table.columns if c.endswith("_change")}
    lines = [
        [
            f"{v:+.1%}"
            if c in changes and v is not None
            else str(v)[:SHOWN]
            if c == "key"
            else last.human(row.get("metric", "") if c == "mean" else c, v)
            for c, v in row.items()
        ]
        for row in table.head(rows).to_dicts()
    ]
    print_table(title, table.columns, lines, differing=True)
    if len(table) > rows:
        print(f"{rows} of {len(table):,} rows")
