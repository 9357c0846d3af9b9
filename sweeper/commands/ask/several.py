"""`ask --models FILE`: deployments of several models under one budget, or on so many devices.

Each model is a question of its own; its answer lists the designs that meet its SLO. An exact search
through the combinations of one design per model finds the cheapest within the limits. If not all
loads fit, each model is also asked for shares of its load, and the combination serves the largest
weighted share of all loads, at the least cost.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Floats
from sweeper.commands.ask.answer import Answer
from sweeper.commands.ask.probability import Row, in_percent, is_measured
from sweeper.commands.ask.verdicts import Verdict
from sweeper.query.combination import Combinations, combinations
from sweeper.report.tables import print_table, print_words, read_text
from sweeper.text import human, number_in

FLAG = "--models"
_REFUSED = ("--model", "--traffic", "--prove", "--min-replicas", "--max-replicas")
_SHARES = "25,50,75"
_OWN = "name", "weight"

Ask = Callable[[list[str]], Answer]


@dataclass(frozen=True)
class Demand:
    """A model with its load and SLO, as words of `ask`."""

    name: str
    weight: float
    words: tuple[str, ...]


@dataclass(frozen=True)
class Option:
    """A design that serves a share of a model's load; no design serves nothing."""

    share: float
    cost: float = 0.0  # dollars per hour
    devices: float = 0.0
    row: Row | None = None


@dataclass(frozen=True)
class BudgetLimits:
    """BudgetLimits of all models together; infinite where not given."""

    usd_per_hour: float
    devices: float

    @property
    def both(self) -> tuple[float, float]:
        """The limits in the order of resources."""
        return self.usd_per_hour, self.devices

    def in_words(self, unit: str) -> str:
        """Return the limits as a phrase; `unit`: name of several devices."""
        said = []
        if math.isfinite(self.usd_per_hour):
            said.append(f"{human(self.usd_per_hour, '$')} an hour")
        if math.isfinite(self.devices):
            said.append(f"{self.devices:,.0f} {unit}")
        return " and ".join(said) or "no limit"


@dataclass(frozen=True)
class SharedPlan:
    """A design for each model, and what other limits would give."""

    demands: Sequence[Demand]
    answers: Sequence[Answer]  # to the whole loads
    options: Sequence[Sequence[Option]]
    limits: BudgetLimits

    @functools.cached_property
    def every(self) -> Combinations:
        """Non-dominated combinations without limits."""
        groups = zip(self.demands, self.options, strict=True)
        return combinations([_arrays(demand, options) for demand, options in groups])

    @functools.cached_property
    def chosen(self) -> list[Option]:
        """The option of each model in the best combination."""
        place = self.every.best(self.limits.both)
        picked = self.every.chosen[place].tolist() if place is not None else []
        return [options[i] for options, i in zip(self.options, picked, strict=bool(picked))]

    @property
    def unit(self) -> str:
        """The name of several devices."""
        return f"{self.answers[0].question.device.upper()}s"

    @property
    def is_whole(self) -> bool:
        """Whether all loads are served."""
        return bool(self.chosen) and all(option.share == 1.0 for option in self.chosen)

    @property
    def _most(self) -> float:
        return math.fsum(demand.weight for demand in self.demands)

    @property
    def served(self) -> float:
        """The weighted share of the loads that is served."""
        pairs = zip(self.demands, self.chosen, strict=True)
        return math.fsum(demand.weight * option.share for demand, option in pairs) / self._most

    @property
    def usd_per_hour(self) -> float:
        """Cost of all chosen designs."""
        return math.fsum(option.cost for option in self.chosen)

    @property
    def devices(self) -> float:
        """Devices of all chosen designs."""
        return math.fsum(option.devices for option in self.chosen)

    def served_without(self, left_out: int) -> float:
        """Return the weighted share of the other loads that is served without one model."""
        rest = [i for i in range(len(self.demands)) if i != left_out]
        groups = [_arrays(self.demands[i], self.options[i]) for i in rest]
        found = combinations(groups, self.limits.both)
        place = found.best(self.limits.both)
        if place is None:
            return 0.0
        return float(found.value[place]) / math.fsum(self.demands[i].weight for i in rest)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for programs."""
        both = zip(self.demands, self.chosen, strict=True)
        return {
            "models": [
                {
                    "name": demand.name,
                    "weight": demand.weight,
                    "served": option.share,
                    "usd_per_hour": option.cost,
                    "devices": option.devices,
                    "design": option.row,
                }
                for demand, option in both
            ],
            "served": self.served,
            "usd_per_hour": self.usd_per_hour,
            "devices": self.devices,
            "limits": {
                "usd_per_hour": _finite(self.limits.usd_per_hour),
                "devices": _finite(self.limits.devices),
            },
            "combinations": self.every.count,
            "least": {
                "usd_per_hour": _finite(self.every.least(0, self._most, self.limits.both)),
                "devices": _finite(self.every.least(1, self._most, self.limits.both)),
            },
        }

    def print(self, *, relax: bool) -> None:
        """Print the plan, the proof, and what binds."""
        header = ["model", "served", "$ an hour", self.unit, "P(meets SLO)", "design"]
        lines = [
            self._line(demand, option, answer)
            for demand, option, answer in zip(self.demands, self.chosen, self.answers, strict=True)
        ]
        print()
        print_table(f"Deployments within {self.limits.in_words(self.unit)}", header, lines)
        cost, size = human(self.usd_per_hour, "$"), f"{self.devices:,.0f} {self.unit}"
        print_words(f"Together {cost} an hour on {size}; {100 * self.served:.0f} % of the loads.")
        better = "is cheaper" if self.is_whole else "serves more, or as much for less"
        print_words(
            f"None of {self.every.count:,} combinations of the designs found {better} within the "
            "limits (exact search)."
        )
        for line in self._bounds_in_words():
            print_words(line)
        if relax and not self.is_whole:
            for demand, option, answer in zip(self.demands, self.chosen, self.answers, strict=True):
                if option.share < 1.0:
                    print(f"\nLeast relaxation of one limit alone, {demand.name}:")
                    for line in answer.relaxations or ["no limit can be relaxed"]:
                        print_words(f"  {line}", "    ")

    def _line(self, demand: Demand, option: Option, answer: Answer) -> list[str]:
        served = f"{100 * option.share:.0f} %"
        if option.row is None:
            found = [v.why for v in answer.verdicts if v.why]
            why = f"none: {found[0]}" if len(found) == len(answer.verdicts) else "none"
            return [demand.name, served, "-", "-", "-", why]
        row = option.row
        cost = human(option.cost, "$") if row["cost"] is not None else "no price"
        probability = in_percent(row["probability"])
        described = answer.question.described(row)
        return [demand.name, served, cost, f"{option.devices:,.0f}", probability, described]

    def _bounds_in_words(self) -> Iterator[str]:
        """Yield what all loads need, and what each limit and model binds."""
        least_usd, least_devices = (
            self.every.least(i, self._most, self.limits.both) for i in range(2)
        )
        free = self.every.least(0, self._most, (math.inf, math.inf))
        if self.is_whole:
            if self.usd_per_hour > free * (1.0 + 1e-9):
                yield f"Without the limit of {self.unit}: {human(free, '$')} an hour."
            return
        if math.isinf(free):
            missing = [
                d.name
                for d, options in zip(self.demands, self.options, strict=True)
                if all(option.share < 1.0 for option in options)
            ]
            yield f"No design serves the whole load of {', '.join(missing)} at any cost."
        else:
            needs = [
                f"{human(least_usd, '$')} an hour" if math.isfinite(least_usd) else "",
                f"{least_devices:,.0f} {self.unit}" if math.isfinite(least_devices) else "",
            ]
            named = zip(needs, self.limits.both, strict=True)
            said = " or ".join(need for need, limit in named if need and math.isfinite(limit))
            both = all(map(math.isfinite, self.limits.both))
            if said:
                yield f"All loads need {said}{', the other limit as it is' if both else ''}."
            else:
                yield f"All loads need {human(free, '$')} an hour, and more than both limits."
        yield from self._next_in_words()
        yield from self._binding_in_words()

    def _next_in_words(self) -> Iterator[str]:
        """Yield the least of each limit that serves more."""
        value = self.served * self._most * (1.0 + 1e-6) + 1e-6
        for resource, limit in enumerate(self.limits.both):
            least = self.every.least(resource, value, self.limits.both)
            if math.isfinite(limit) and math.isfinite(least):
                said = f"{least:,.0f} {self.unit}" if resource else f"{human(least, '$')} an hour"
                yield f"The least larger limit that serves more: {said}."

    def _largest_cost(self, place: int) -> float:
        """Return the least cost of the largest share of a model's load."""
        share = max(option.share for option in self.options[place])
        return min(option.cost for option in self.options[place] if option.share == share)

    def _binding_in_words(self) -> Iterator[str]:
        """Yield the models, the one that binds most first."""
        if len(self.demands) < 2:
            return
        gains = sorted(
            ((self.served_without(i), i) for i in range(len(self.demands))),
            key=lambda gain: (-gain[0], -self._largest_cost(gain[1]), gain[1]),
        )
        for place, (served, i) in enumerate(gains):
            binds = " (binds most)" if not place else ""
            name = self.demands[i].name
            yield f"Without {name}{binds} {100 * served:.0f} % of the other loads are served."


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _arrays(demand: Demand, options: Sequence[Option]) -> tuple[Floats, Floats]:
    """Return the resources and the value of options."""
    resources = np.array([[option.cost, option.devices] for option in options], np.float64)
    return resources, demand.weight * np.array([option.share for option in options], np.float64)


def main(words: Sequence[str], ask: Ask) -> int:
    """Print deployments of the models in a file; the exit code is 1 if not all loads are served."""
    rest, json_asked = [w for w in words if w != "--json"], "--json" in words
    relax = "--relax" in rest
    plan = plan_of([w for w in rest if w != "--relax"], ask)
    if json_asked:
        print(json.dumps(plan.to_dict(), indent=1, default=str))
    else:
        plan.print(relax=relax)
    return 0 if plan.is_whole else 1


def plan_of(words: Sequence[str], ask: Ask) -> SharedPlan:
    """Return deployments of several models within common limits.

    Raises:
        UserError: a flag or the file is not valid, or a model fits on none of the devices.
    """
    rest = list(words)
    file, rest = _popped(rest, FLAG)
    budget, rest = _popped(rest, "--budget")
    devices, rest = _popped(rest, "--gpus")
    shares_text, rest = _popped(rest, "--shares")
    for flag in _REFUSED:
        if any(word == flag or word.startswith(f"{flag}=") for word in rest):
            raise UserError(f"{flag}: not together with {FLAG}; leave it out")
    limits = BudgetLimits(_limit("--budget", budget, "$"), _limit("--gpus", devices, ""))
    shares = _shares(shares_text or _SHARES)
    demands = read_models(Path(file or ""), rest)
    most = [] if devices is None else ["--gpus", devices]
    answers = [_asked(demand, [*most, *demand.words], ask) for demand in demands]
    whole = [options_of(answer, answer.verdicts, 1.0) for answer in answers]
    if all(priced := _priced(whole)):
        plan = SharedPlan(demands, answers, priced, limits)
        if plan.chosen:
            return plan
    options = []
    for demand, known in zip(demands, whole, strict=True):
        traffic = ["--traffic", ",".join(f"{share:g}x" for share in shares)]
        parts = _asked(demand, [*most, *demand.words, *traffic], ask)
        options.append([Option(0.0), *_of_shares(parts, shares), *known])
    return SharedPlan(demands, answers, _priced(options), limits)


def _popped(words: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Return the value of a flag, and the other words."""
    value, rest, is_next = None, [], False
    for word in words:
        if is_next:
            value, is_next = word, False
        elif word == flag:
            is_next = True
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    if is_next:
        raise UserError(f"{flag}: write a value behind it")
    return value, rest


def _limit(flag: str, text: str | None, unit: str) -> float:
    if text is None:
        return math.inf
    number = number_in(text, unit)
    if number is None or not 0.0 < number < math.inf:
        raise UserError(f"{flag} {text}: write a number above 0")
    return number


def _shares(text: str) -> list[float]:
    """Return shares of a load, written in percent."""
    found = []
    for word in text.split(","):
        number = number_in(word.strip().removesuffix("%"))
        if number is None or not 0.0 < number <= 100.0:
            raise UserError(f"--shares {text}: write percents of the loads, as in 25,50,75")
        found.append(number / 100.0)
    return sorted(set(found) - {1.0}) or [0.5]


def read_models(file: Path, common: Sequence[str]) -> list[Demand]:
    """Return the models in a YAML file: a list of flags of `ask`, with `name` and `weight`.

    Args:
        file: the file.
        common: words of all models; those of a model come behind, and so take precedence.

    Raises:
        UserError: the file has no such list.
    """
    import yaml  # type: ignore[import-untyped]  # comes with omegaconf, without stubs

    try:
        written = yaml.safe_load(read_text(file))
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {error}") from None
    entries = written.get("models") if isinstance(written, Mapping) else written
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{file}: write a list of models, as in  - {{model: llama3_1_8b, qps: 4}}")
    demands = [_demand(file, entry, common) for entry in entries]
    names = [demand.name for demand in demands]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"{file}: {', '.join(sorted(twice))} twice; give each a `name`")
    return demands


def _demand(file: Path, entry: object, common: Sequence[str]) -> Demand:
    if not isinstance(entry, Mapping) or "model" not in entry:
        raise UserError(f"{file}: {entry} has no `model`")
    if "," in str(entry["model"]):
        raise UserError(f"{file}: {entry['model']} is several models; write an entry for each")
    weight = entry.get("weight", 1.0)
    if not isinstance(weight, int | float) or not 0.0 < weight < math.inf:
        raise UserError(f"{file}: weight {weight} of {entry['model']}: write a number above 0")
    words = list(common)
    for key, value in entry.items():
        if key in _OWN:
            continue
        flag = f"--{str(key).replace('_', '-')}"
        if flag in ("--budget", *_REFUSED[1:]):
            raise UserError(f"{file}: {key} of {entry['model']}: not for one of several models")
        values = value if isinstance(value, list) else [value]
        words += [flag, ",".join(map(str, values))]
    return Demand(str(entry.get("name", entry["model"])), float(weight), tuple(words))


def _asked(demand: Demand, words: Sequence[str], ask: Ask) -> Answer:
    """Return the answer to the question of one model, whose progress is not printed."""
    print(f"{demand.name} ...", file=sys.stderr)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return ask(list(words))
    except UserError as error:
        raise UserError(f"{demand.name}: {error}") from error


def _of_shares(answer: Answer, shares: Sequence[float]) -> Iterator[Option]:
    """Yield the options of an answer to several loads, which ascend with the shares."""
    loads = [
        list(found)
        for _, found in groupby(answer.verdicts, key=lambda verdict: tuple(verdict.given.items()))
    ]
    if len(loads) != len(shares):
        raise UserError("--shares: some shares of a load are equal numbers of clients")
    for share, verdicts in zip(shares, loads, strict=True):
        yield from options_of(answer, verdicts, share)


def options_of(answer: Answer, verdicts: Sequence[Verdict], share: float) -> list[Option]:
    """Return the designs that meet the SLO with the requested probability.

    Designs without measurements count only where they are clearly cheaper, as in an answer.
    """
    least = answer.chosen.confidence
    rows = [r for v in verdicts if v.meets_slo for r in v.others if r["probability"] >= least]
    measured = [row for row in rows if is_measured(row)]
    if measured:
        first = min(measured, key=answer.price_key)
        rows = [r for r in rows if is_measured(r) or answer.is_clearly_cheaper(r, first)]
    size = answer.question.without_price
    return [
        Option(share, math.nan if r["cost"] is None else r["cost"], float(r[size]), r) for r in rows
    ]


def _priced(options: Sequence[Sequence[Option]]) -> list[list[Option]]:
    """Return the options with a price; at no cost if none has one."""
    is_known = any(o.row is not None and not math.isnan(o.cost) for group in options for o in group)
    if is_known:
        return [[o for o in group if not math.isnan(o.cost)] for group in options]
    return [[Option(o.share, 0.0, o.devices, o.row) for o in group] for group in options]
