"""The command `prove`, and `verify` of a certificate: no design of a space is better."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from simulators.core.contract import Reprices, load_simulator
from simulators.core.errors import UserError
from sweeper.commands.ask.proof import check_screening, question_again
from sweeper.commands.ask.proof import in_words as screened_words
from sweeper.commands.ask.question import question_of_words
from sweeper.commands.flags import parse
from sweeper.commands.run import RequestedSweep, requested_sweep, sweep
from sweeper.engines import Engine
from sweeper.engines.inline import Inline
from sweeper.engines.process import Process
from sweeper.query.pareto import qualifying
from sweeper.questions import Bounds
from sweeper.report import certificate as certificates
from sweeper.report.certificate import BOUNDS, SCREENED, SIMULATED, Certificate, Choice
from sweeper.report.proof_by_bounds import calls_of, check_bounds, choices_by_bounds
from sweeper.report.tables import write_text
from sweeper.samplers import Goal
from sweeper.samplers.bounds import partition_of
from sweeper.space.design_space import DesignSpace
from sweeper.text import duration, human

MOST = 200_000
"""Largest number of designs that are simulated one by one for a certificate."""
_SAMPLE = 256
"""Designs whose values a certificate by bounds holds."""
_LISTED = 5
"""Alternatives listed for a scenario."""


def prove(words: list[str]) -> int:
    """Find the best design of each scenario, prove it, and write a certificate."""
    chosen, overrides = parse_known(words)
    asked = requested_sweep(overrides)
    space = asked.sweep.priced or asked.sweep.space
    minimise = chosen.minimise or _cost_of(space, asked.sweep.objectives)
    began_s = time.monotonic()
    found = proved(asked, space, minimise, chosen.within)
    write_text(chosen.file, found.to_json())
    for line in in_words(found):
        print(line)
    print(f"Written: {chosen.file}, after {duration(time.monotonic() - began_s)}")
    print(f"Next   python -m sweeper verify {chosen.file}")
    return 0 if any(one.index is not None for one in found.choices) else 1


def parse_known(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the flags of `prove`, and the overrides that describe the space."""
    own = [w for w in words if "=" not in w or w.startswith("--")]
    return parse("prove", own), [w for w in words if w not in own]


def _cost_of(space: DesignSpace, objectives: Mapping[str, str]) -> str:
    """Return the objective that is a cost, or the first that is minimised.

    Raises:
        UserError: no objective is minimised.
    """
    simulator = load_simulator(space.simulator)
    costs = simulator.cost_metrics if isinstance(simulator, Reprices) else ()
    found = [name for name, direction in objectives.items() if direction == "min"]
    for name in (*(n for n in found if n in costs), *found):
        return name
    raise UserError("no objective is minimised; name a metric: --minimise latency_s")


def proved(asked: RequestedSweep, space: DesignSpace, minimise: str, within: float) -> Certificate:
    """Return a certificate by bounds where the simulator states them, else by all designs."""
    one, given = asked.sweep, tuple(asked.sweep.given)
    fields, rates = certificates.prices_of(space)
    goal = Goal({minimise: "min"}, one.where, given)
    simulator, method = load_simulator(space.simulator), SIMULATED
    if isinstance(simulator, Bounds):
        first = space.batch(np.zeros(1, np.int64))
        try:
            method = BOUNDS if minimise in simulator.bounds(first, first) else SIMULATED
        except UserError:  # events have none
            method = SIMULATED
    common: dict[str, Any] = {
        "definition": certificates.definition_of(space),
        "prices": fields,
        "rates": rates,
        "minimise": minimise,
        "where": one.where or "",
        "given": given,
        "designs": space.size - sum(space.removed().values()),
    }
    if method == BOUNDS:
        with calls_of(space, goal, _workers(one.engine)) as calls:
            choices, seen, count, cuts = choices_by_bounds(space, goal, within, calls)
        listed = [
            _with_alternatives(c, _of_scenario(space, c, seen), space, minimise) for c in choices
        ]
        random = np.random.default_rng(0)
        picked = random.choice(len(seen), min(_SAMPLE, len(seen)), replace=False)
        sample = [seen[i] for i in sorted(picked.tolist())]
        return Certificate(
            **common,
            method=BOUNDS,
            within=within,
            evaluated=count,
            choices=listed,
            sample=sample,
            cuts={"parts": partition_of(space, goal).parts, **cuts.to_dict()},
        )
    if common["designs"] > MOST:
        raise UserError(
            f"'{space.simulator}' states no bounds of {minimise} for these designs, and "
            f"{common['designs']:,} are too many to simulate (at most {MOST:,}): fewer values, "
            "space.axes.fidelity=analytic, or `ask --prove`"
        )
    rows = sweep(asked._replace(sweep=dataclasses.replace(one, objectives=goal.objectives)))
    results = rows.answers.results
    good = qualifying(results, where=one.where).select(*space.axes, minimise).collect()
    values = np.full(space.size, np.nan)
    values[space.index_of(good)] = good[minimise].cast(pl.Float64).to_numpy()
    known = [None if np.isnan(v) else v for v in values.tolist()]
    found = certificates.choices_by_values(space, given, known)
    done = [{"index": i, "value": v} for i, v in enumerate(known) if v is not None]
    listed = [_with_alternatives(c, _of_scenario(space, c, done), space, minimise) for c in found]
    return Certificate(
        **common,
        method=SIMULATED,
        within=0.0,
        evaluated=common["designs"],
        choices=listed,
        values=known,
    )


def _workers(engine: Engine) -> int | None:
    """Return the number of processes of an engine; None: one per core."""
    if isinstance(engine, Inline):
        return 0
    return (engine.workers or None) if isinstance(engine, Process) else None


def _of_scenario(
    space: DesignSpace, choice: Choice, seen: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the next best evaluated designs of a scenario."""
    ordered = sorted(seen, key=lambda one: float(one["value"]))
    index = np.array([one["index"] for one in ordered], np.int64)
    if not len(index):
        return []
    points, kept = space.points(index), np.ones(len(index), bool)
    for name, value in choice.scenario.items():
        kept &= points[name].eq_missing(value).to_numpy()
    others = [one for one, ok in zip(ordered, kept, strict=True) if ok]
    return [one for one in others if one["index"] != choice.index][:_LISTED]


def _with_alternatives(
    choice: Choice, others: Sequence[Mapping[str, Any]], space: DesignSpace, minimise: str
) -> Choice:
    """Return a choice with the probabilities that other designs are truly better."""
    index = np.array([choice.index, *(one["index"] for one in others)], np.int64)
    order = np.argsort(index)
    rows = certificates.rows_at(space, index[order]).to_dicts()
    by_number = dict(zip(index[order].tolist(), rows, strict=True))
    best, rest = by_number[choice.index], [by_number[one["index"]] for one in others]
    share = certificates.shares_of(space).get(minimise, 1.0)
    found = []
    for one, (row, better) in zip(
        others, certificates.with_probability(best, rest, minimise, share), strict=True
    ):
        point = {name: row[name] for name in space.varied if row[name] != best[name]}
        found.append({**one, "differs": point, "p_better": round(better, 4)})
    return dataclasses.replace(choice, alternatives=found)


def in_words(certificate: Certificate) -> list[str]:
    """Return the answers of a certificate, a line each, and the proof."""
    lines = []
    for one in certificate.choices:
        load = ", ".join(f"{n} {human(v)}" for n, v in one.scenario.items())
        design = ", ".join(f"{n} {human(v)}" for n, v in one.point.items() if n not in one.scenario)
        value = f"{certificate.minimise} {one.value:.6g}" if one.value is not None else "none"
        likely = max((a["p_better"] for a in one.alternatives), default=0.0)
        also = f"; most likely better: P = {likely:.2f}" if one.alternatives else ""
        lines.append(f"{load + ': ' if load else ''}{design}: {value}{also}")
    how = {
        BOUNDS: f"by bounds, within {100 * certificate.within:g} %",
        SIMULATED: "by simulation of all of them",
    }
    lines.append(
        f"No design of {certificate.designs:,} is better under the model "
        f"({how.get(certificate.method, certificate.method)}; {certificate.evaluated:,} evaluated)."
    )
    return lines


def verify_certificate(file: Path, rows: int, seed: int, *, is_whole: bool = False) -> int:
    """Check a certificate and print what was confirmed; return 1 if it is refused.

    `is_whole`: all boxes of a proof by bounds are bounded again, instead of a sample.
    """
    began_s = time.monotonic()
    try:
        certificate = certificates.read_certificate(file)
        for line in certificates.checks(certificate, rows, seed):
            print(f"ok      {line}")
        if certificate.method == BOUNDS:
            for line in check_bounds(certificate, 0 if is_whole else rows, seed):
                print(f"ok      {line}")
        if certificate.method == SCREENED:
            question = question_again(certificate, question_of_words)
            for line in check_screening(certificate, question):
                print(f"ok      {line}")
    except UserError as refusal:
        print(f"REFUSED {refusal}")
        return 1
    for line in (screened_words if certificate.method == SCREENED else in_words)(certificate):
        print(line)
    print(f"Verified in {duration(time.monotonic() - began_s)}.")
    return 0
