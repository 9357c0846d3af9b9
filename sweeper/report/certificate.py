"""Certificates: the best design of a space, and the proof that no design of the space is better.

A certificate is one JSON file. It holds the definition of the space with the digests of all files
that its designs read, the best design of each scenario, the method of the proof, and a sample of
evaluated designs. A digest of the content shows a changed file; a file that was forged with a new
digest fails at the bounds or at the designs that are evaluated again.

Methods:
    bounds      branch and bound over all designs (`sampler=bounds`); the file states which boxes of
                designs were cut, and a sample of the others is bounded again (`proof_by_bounds`)
    simulated   all designs were simulated; their values are in the file, and a sample is repeated
    screened    a cheap model screened the designs and the most promising ones were simulated; with
                a bound of the probability that a better one was screened out
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from simulators.core.contract import RentsDevices, load_simulator
from simulators.core.errors import UserError
from sweeper.engines.task import evaluate
from sweeper.query.scenarios import priced, unpriced
from sweeper.query.uncertainty import half_width, probability_smaller
from sweeper.questions import RelatesErrors
from sweeper.samplers._search_driver import scenario_numbers
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, Span
from sweeper.space.sql import parsed
from sweeper.store.keys import Definition, define
from sweeper.typed import from_json

FORMAT = "sweeper certificate 2"
BOUNDS, SIMULATED, SCREENED = "bounds", "simulated", "screened"
CLOSE = 1e-9
"""Relative difference of values that two machines may have."""
BAND = 0.2
"""Half-width of the 90 % interval of a metric that states none."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best design of a scenario; none if no design meets the condition."""

    scenario: Mapping[str, Any]
    index: int | None = None
    value: float | None = None  # of the objective
    point: Mapping[str, Any] = field(default_factory=dict)
    # Other designs: number, value, and the probability that the design is truly better.
    alternatives: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What a certificate file holds, except its digest."""

    format: str = FORMAT
    definition: Mapping[str, Any]
    prices: Mapping[str, Any]  # values of the price fields
    rates: Mapping[str, float]  # dollars per hour of each device at these prices
    minimise: str
    where: str
    given: Sequence[str]
    method: str
    within: float  # no design is better by more than this share
    designs: int  # that the constraints allow
    evaluated: int
    choices: Sequence[Choice]
    sample: Sequence[Mapping[str, Any]] = ()  # number and value of evaluated designs
    values: Sequence[float | None] = ()  # of all designs, in order; null where not allowed or met
    cuts: Mapping[str, Any] = field(default_factory=dict)  # of the boxes of a proof by bounds
    words: Sequence[str] = ()  # flags of the question
    screening: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the text of the file."""
        content = dataclasses.asdict(self)
        return json.dumps({**content, "digest": _digest(content)}, indent=1) + "\n"

    @property
    def defined(self) -> Definition:
        """The definition of the space when the certificate was written."""
        try:
            return Definition.from_json(json.dumps(self.definition))
        except ValueError as error:
            raise UserError(
                f"the certificate has no valid definition of a space: {error}"
            ) from None

    @property
    def space(self) -> DesignSpace:
        """The space at the prices of the certificate."""
        return priced(self.defined.as_defined_now, self.prices)


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(json.loads(json.dumps(content)), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def is_certificate(file: Path) -> bool:
    """Return whether a file holds a certificate, of whatever version."""
    if file.suffix != ".json" or not file.is_file():
        return False
    with file.open(encoding="utf-8", errors="replace") as stream:
        return '"sweeper certificate' in stream.read(200)


def read_certificate(file: Path) -> Certificate:
    """Return the certificate in a file.

    Raises:
        UserError: the file is damaged, was changed, or is of another format.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    if content.get("format") != FORMAT:
        raise UserError(f"{file} has the format '{content.get('format')}', not '{FORMAT}'")
    stated = content.pop("digest", "")
    if stated != _digest(content):
        raise UserError(f"{file} was changed after it was written: its digest is another")
    try:
        return from_json(json.dumps(content), Certificate)
    except ValueError as error:
        raise UserError(f"{file} is not a certificate: {error}") from None


def definition_of(space: DesignSpace) -> dict[str, Any]:
    """Return the definition of a space as plain values."""
    found: dict[str, Any] = json.loads(define(unpriced(space)).to_json())
    return found


def prices_of(space: DesignSpace) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the values of the price fields, and the dollars per hour of each device."""
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, RentsDevices):
        return {}, {}
    fields = {name: space.axes[name][0] for name in simulator.priced}
    devices = sorted({str(one) for one in space.axes[simulator.rented]})
    rates = simulator.rates(devices, fields)
    known = zip(devices, np.asarray(rates, np.float64).tolist(), strict=True)
    return fields, {name: usd for name, usd in known if math.isfinite(usd)}


def rows_at(space: DesignSpace, index: Index) -> pl.DataFrame:
    """Evaluate designs, and return a row of axes and metrics for each."""
    batch = space.batch(index)
    answers = pl.DataFrame(pl.from_arrow(evaluate(load_simulator(space.simulator), batch)))
    axes = space.points(index)
    return axes.hstack([c for c in answers if c.name not in axes.columns])


def values_at(space: DesignSpace, index: Index, minimise: str, where: str) -> list[float | None]:
    """Evaluate designs, and return their objective; null where they do not meet the condition."""
    if not len(index):
        return []
    rows = rows_at(space, index)
    met = rows["status"].cast(pl.String) == "ok"
    if where:
        met &= rows.select(parsed(where, f"where '{where}'").fill_null(value=False)).to_series()
    value = rows[minimise].cast(pl.Float64)
    kept = met & value.is_not_null() & value.is_finite()
    return [v if ok else None for v, ok in zip(value, kept, strict=True)]


def shares_of(space: DesignSpace) -> Mapping[str, float]:
    """Return, by metric, how far predictions of the simulator err alike; empty if unknown."""
    simulator = load_simulator(space.simulator)
    return simulator.error_shares() if isinstance(simulator, RelatesErrors) else {}


def with_probability(
    best: Mapping[str, Any], others: Sequence[Mapping[str, Any]], metric: str, share: float
) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Yield other rows with the probability of a true value below that of the best row."""
    width = half_width(best, metric, BAND)
    for row in others:
        both = width, half_width(row, metric, BAND)
        yield row, probability_smaller(row[metric] / best[metric], both, share)


def choice_of(space: DesignSpace, given: Sequence[str], number: int, value: float) -> Choice:
    """Return a design as the best of its scenario."""
    point = space.points(np.array([number])).row(0, named=True)
    shown = {name: point[name] for name in space.varied}
    scenario = {name: point[name] for name in given}
    return Choice(scenario=scenario, index=number, value=value, point=shown)


def choices_by_values(
    space: DesignSpace, given: Sequence[str], values: Sequence[float | None]
) -> list[Choice]:
    """Return the best design of each scenario, given the values of all designs in order."""
    known = np.array([math.nan if v is None else v for v in values], np.float64)
    index = np.flatnonzero(np.isfinite(known))
    groups = scenario_numbers(space, given, index)
    found = []
    for group in np.unique(groups).tolist():
        mine = index[groups == group]
        number = int(mine[np.argmin(known[mine])])
        found.append(choice_of(space, given, number, float(known[number])))
    return found


def checks(certificate: Certificate, rows: int, seed: int) -> Iterator[str]:
    """Check a certificate, and yield what was confirmed.

    Args:
        certificate: the certificate.
        rows: designs that are evaluated again.
        seed: seed of their choice, which the author of the file cannot know.

    Raises:
        UserError: a check failed; the message names it.
    """
    yield from check_facts(certificate)
    space = certificate.space
    yield from _check_answers(certificate, space)
    if certificate.method == SIMULATED:
        yield from _check_values(certificate, space)
    random, pool = np.random.default_rng(seed), _pool(certificate)
    picked = random.choice(len(pool), min(rows, len(pool)), replace=False)
    _evaluate_again(certificate, space, [pool[i] for i in picked.tolist()])
    yield f"{len(picked):,} of {len(pool):,} stored values computed again: equal"


def _in_order(choices: Sequence[Choice]) -> list[Choice]:
    return sorted(choices, key=lambda one: json.dumps(one.scenario))


def check_facts(certificate: Certificate) -> Iterator[str]:
    """Check versions, files and prices.

    Raises:
        UserError: the simulator has another version, or a file or a price is another.
    """
    then = certificate.defined
    version = load_simulator(then.simulator).version
    if version != then.version:
        raise UserError(
            f"the certificate is of version {then.version} of '{then.simulator}', and this is "
            f"version {version}: prove the answer again"
        )
    yield f"version {version} of '{then.simulator}'"
    now = define(then.as_defined_now)
    changed = [
        f"{name or 'files of every design'} {json.loads(value) or ''}".strip()
        for name in sorted({*then.contents, *now.contents})
        for value in sorted({*then.contents.get(name, {}), *now.contents.get(name, {})})
        if then.contents.get(name, {}).get(value) != now.contents.get(name, {}).get(value)
    ]
    if changed:
        raise UserError(f"facts have changed since the certificate: {', '.join(changed)}")
    count = sum(map(len, then.contents.values()))
    yield f"{count} facts: the same contents"
    _, rates = prices_of(certificate.space)
    for name, usd in certificate.rates.items():
        if not math.isclose(rates.get(name, math.nan), usd, rel_tol=CLOSE):
            raise UserError(
                f"the price of {name} was ${usd:g} an hour, and is ${rates.get(name, math.nan):g}"
            )
    if rates:
        yield f"prices of {', '.join(rates)}: the same"


def _check_answers(certificate: Certificate, space: DesignSpace) -> Iterator[str]:
    found = [one for one in certificate.choices if one.index is not None]
    if any(not 0 <= int(one.index or 0) < space.size for one in found):
        raise UserError("the certificate names a design outside of its space")
    _evaluate_again(certificate, space, [{"index": c.index, "value": c.value} for c in found])
    yield f"{len(found)} answers computed again: {certificate.minimise} as stated"


def _evaluate_again(
    certificate: Certificate, space: DesignSpace, stored: Sequence[Mapping[str, Any]]
) -> None:
    ordered = sorted(stored, key=lambda one: int(one["index"]))
    index = np.array([one["index"] for one in ordered], np.int64)
    again = values_at(space, index, certificate.minimise, certificate.where)
    for one, value in zip(ordered, again, strict=True):
        if not _is_equal(one["value"], value):
            raise UserError(
                f"design {one['index']} has {certificate.minimise} {value}, and the certificate "
                f"states {one['value']}"
            )


def _is_equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=CLOSE)


def _check_values(certificate: Certificate, space: DesignSpace) -> Iterator[str]:
    """Check that the answers are the smallest of all values."""
    if len(certificate.values) != space.size:
        raise UserError(
            f"the certificate has {len(certificate.values):,} values of {space.size:,} designs"
        )
    again = choices_by_values(space, certificate.given, certificate.values)
    ours = [(one.scenario, one.index) for one in _in_order(again)]
    if ours != [(one.scenario, one.index) for one in _in_order(certificate.choices)]:
        raise UserError("the answers are not the smallest of the values in the certificate")
    yield f"the answers are the smallest of {certificate.evaluated:,} simulated values"


def _pool(certificate: Certificate) -> Sequence[Mapping[str, Any]]:
    if certificate.method != SIMULATED:
        return certificate.sample
    space = certificate.space
    index = Span(0, space.size).index()
    kept = space.kept(index)
    allowed = index if kept is None else index[kept]
    return [{"index": i, "value": certificate.values[i]} for i in allowed.tolist()]
