"""Questions to results beyond the front: what matters, what is cheapest, what is nearly as good."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from simulators.core.contract import Direction
from simulators.core.errors import UserError, suggestion
from sweeper import effects
from sweeper.commands.designs import KNEE, design
from sweeper.commands.flags import at_least, flags
from sweeper.commands.record import Answered, latest
from sweeper.commands.summary import print_table, units_of
from sweeper.keys import SHOWN, keys
from sweeper.layers import crowding, epsilon_front, rank_layers
from sweeper.neighbours import steps_from
from sweeper.planning import best_per, cheapest, replicas_for
from sweeper.query import minimised, objective_matrix, pareto_front
from sweeper.tables import as_json, write_table
from sweeper.uncertainty import probable_front
from sweeper.units import human
from sweeper.volume import hypervolume

_ROWS = 30


def main(words: list[str]) -> int:
    """Answer one question and print the table, or write it."""
    parser = flags("query", "questions to the results of a sweep")
    parser.add_argument("name", help="a space that has been run")
    parser.add_argument("kind", help=f"one of: {', '.join(KINDS)}")
    parser.add_argument("of", nargs="*", help="what the question is about: metrics, or a key")
    parser.add_argument("--where", metavar="SQL", help="a condition besides the space's own")
    parser.add_argument("--slo", metavar="SQL", help="of cheapest: the deadlines to meet")
    parser.add_argument("--level", metavar="COLUMN", help="of best-per: whose levels")
    parser.add_argument(
        "--steps", type=at_least(1), help="of best-per: cut real numbers into so many"
    )
    parser.add_argument("--epsilon", type=float, default=0.05, help="of epsilon: relative step")
    parser.add_argument("--band", type=float, default=0.1, help="of likely: 90 %% half-width")
    parser.add_argument("--shared", type=float, default=0.0, help="of likely: shared error share")
    parser.add_argument("--layers", type=at_least(1), default=3, help="of layers: how many")
    parser.add_argument("--load", help="of fleet: requests per second, by commas, or a file")
    parser.add_argument(
        "--spare", type=at_least(0), default=1, help="of fleet: replicas that may fail"
    )
    parser.add_argument("--rows", type=at_least(1), default=_ROWS, help="rows to print")
    parser.add_argument("--write", metavar="FILE", help=".csv, .parquet, .md or .json")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--outputs", default="outputs")
    chosen = parser.parse_args(words)
    if chosen.kind not in KINDS:
        raise UserError(
            f"there is no query '{chosen.kind}'{suggestion(chosen.kind, KINDS)}\n"
            f"Known: {', '.join(KINDS)}"
        )
    last = latest(chosen.name, chosen.outputs)
    table = KINDS[chosen.kind](last, chosen)
    if chosen.write:
        write_table(table, Path(chosen.write))
        print(f"{len(table):,} rows written to {chosen.write}")
    elif chosen.json:
        print(as_json(table))
    else:
        _print(table, last, chosen.rows)
    return 0


def _sensitivity(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """Share of a metric's variance that each axis explains alone."""
    return pl.concat(
        s.indices.insert_column(0, pl.lit(s.metric).alias("metric"))
        for s in _explained(last, chosen)
    )


def _effects(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """Mean of a metric at each value of each axis."""
    return pl.concat(
        s.effects.insert_column(0, pl.lit(s.metric).alias("metric"))
        for s in _explained(last, chosen)
    )


def _explained(last: Answered, chosen: argparse.Namespace) -> list[effects.Sensitivity]:
    results, axes, where = last.store.scan(), list(last.space.varied), _where(last, chosen)
    return [
        effects.sensitivity(results, metric, axes, where=where)
        for metric in chosen.of or last.objectives
    ]


def _idle(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """Axes that change none of the metrics."""
    metrics = chosen.of or list(last.objectives)
    found = effects.idle_axes(last.store.scan(), metrics, list(last.space.varied))
    return pl.DataFrame({"idle_axis": pl.Series(found, dtype=pl.String)})


def _cheapest(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """The designs of least cost that meet the deadlines."""
    cost = chosen.of[0] if chosen.of else _cost_of(last)
    slo = chosen.slo or _where(last, chosen)
    if slo is None:
        raise UserError("cheapest needs --slo, as in --slo 'ttft_p99_s <= 1'")
    best = cheapest(last.store.scan(), cost, slo, count=chosen.rows)
    return _brief(last, best, [cost])


def _cost_of(last: Answered) -> str:
    """Return the objective in dollars, else the first."""
    units = units_of(last.space)
    dear = (name for name in last.objectives if units.get(name) in ("$", "USD"))
    return next(dear, next(iter(last.objectives)))


def _best_per(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """The best design at each level of a column."""
    if not chosen.level:
        raise UserError("best-per needs --level, as in --level gpus")
    objective = chosen.of[0] if chosen.of else next(iter(last.objectives))
    direction: Direction = last.objectives.get(objective, "min")
    best = best_per(
        last.store.scan(), chosen.level, objective, direction,
        where=_where(last, chosen), steps=chosen.steps,
    )  # fmt: skip
    return _brief(last, best, [chosen.level, objective])


def _layers(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """How many designs lie on each of the first fronts, and the best value on each."""
    values, _ = objective_matrix(last.store.scan(), last.objectives, where=_where(last, chosen))
    ranks = rank_layers(values, chosen.layers)
    lines = []
    for layer in range(1, chosen.layers + 1):
        on_it = values[ranks == layer]
        if len(on_it):
            best = {
                n: float(-on_it[:, j].min() if d == "max" else on_it[:, j].min())
                for j, (n, d) in enumerate(last.objectives.items())
            }
            lines.append({"layer": layer, "designs": len(on_it), **best})
    return pl.DataFrame(lines)


def _epsilon(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """The front thinned to designs that differ by more than a relative step somewhere."""
    if not chosen.epsilon > 0:
        raise UserError(f"--epsilon {chosen.epsilon:g}: write a number above zero")
    front = pareto_front(last.store.scan(), last.objectives, where=_where(last, chosen))
    values = minimised(front, last.objectives)
    if not (abs(values) > 0).all():
        raise UserError("an epsilon front steps by shares, so no objective may be zero")
    signs = np.sign(values[0]) if len(values) else np.ones(values.shape[1])
    logs = signs * np.log(np.abs(values))
    kept = epsilon_front(logs, [float(np.log1p(chosen.epsilon))] * values.shape[1])
    return _brief(last, front[kept].drop("equivalents"), list(last.objectives))


def _crowding(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """The front by how alone each design stands on it."""
    front = pareto_front(last.store.scan(), last.objectives, where=_where(last, chosen))
    alone = pl.Series("crowding", crowding(minimised(front, last.objectives)))
    table = _brief(last, front.drop("equivalents"), list(last.objectives))
    return table.with_columns(alone).sort("crowding", descending=True)


def _likely(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """Designs by the probability that they are on the front, given errors of prediction."""
    bands = dict.fromkeys(last.objectives, chosen.band)
    found = probable_front(
        last.store.scan(), last.objectives, bands, where=_where(last, chosen), shared=chosen.shared
    )
    return _brief(last, found, ["p_front", "layer", *last.objectives])


def _hypervolume(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """The share of the box around the qualifying designs that the front dominates."""
    values, _ = objective_matrix(last.store.scan(), last.objectives, where=_where(last, chosen))
    low, high = values.min(axis=0), values.max(axis=0)
    width = high - low
    width[width == 0] = 1.0
    share = hypervolume((values - low) / width, [1.0] * values.shape[1])
    return pl.DataFrame({"designs": [len(values)], "dominated_share": [share]})


def _near(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """The designs one axis step from a design, those that improve on it first."""
    _, row = design(last, chosen.of[0] if chosen.of else KNEE)
    axes = {n: list(dict.fromkeys(last.space.axes[n])) for n in last.space.varied}
    return steps_from(last.store.scan(), row, axes, last.objectives)


def _fleet(last: Answered, chosen: argparse.Namespace) -> pl.DataFrame:
    """Whole replicas hour by hour for a load, of a design that carries `qps`."""
    if not chosen.load:
        raise UserError("fleet needs --load, as in --load 3,5,9,4 or a file of numbers")
    load = _numbers(chosen.load)
    key, row = design(last, chosen.of[0] if chosen.of else KNEE)
    if not row.get("qps"):
        raise UserError("fleet needs designs with `qps`, the requests per second they carry")
    fleet = replicas_for(load, float(row["qps"]), spare=chosen.spare)
    return pl.DataFrame(
        {"key": key, "hour": range(len(load)), "load": load, "replicas": fleet.replicas}
    )


KINDS: dict[str, Callable[[Answered, argparse.Namespace], pl.DataFrame]] = {
    "sensitivity": _sensitivity,
    "effects": _effects,
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


def _where(last: Answered, chosen: argparse.Namespace) -> str | None:
    conditions = [c for c in (last.where, chosen.where) if c]
    return " AND ".join(f"({c})" for c in conditions) or None


def _brief(last: Answered, table: pl.DataFrame, first: list[str]) -> pl.DataFrame:
    """Return the key, what is asked, what was chosen and the objectives, for each design."""
    named = keys(last.store.definition, table)
    wanted = dict.fromkeys([*first, *last.space.varied, *last.objectives])
    return table.select(n for n in wanted if n in table.columns).insert_column(0, named)


def _numbers(text: str) -> list[float]:
    try:
        words = Path(text).read_text(encoding="utf-8") if Path(text).is_file() else text
        return [float(w) for w in words.replace(",", " ").split()]
    except (OSError, ValueError) as error:
        raise UserError(f"--load {text}: write numbers separated by commas: {error}") from error


def _print(table: pl.DataFrame, last: Answered, rows: int) -> None:
    if table.is_empty():
        print("none")
        return
    units = units_of(last.space)
    changes = {c for c in table.columns if c.endswith("_change")}
    lines = [
        [
            f"{v:+.1%}"
            if c in changes and v is not None
            else str(v)[:SHOWN]
            if c == "key"
            else human(v, units.get(row.get("metric", "") if c == "mean" else c, ""))
            for c, v in row.items()
        ]
        for row in table.head(rows).to_dicts()
    ]
    print_table("", table.columns, lines)
    if len(table) > rows:
        print(f"{rows} of {len(table):,} rows")
