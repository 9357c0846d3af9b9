"""Fit the interval of a difference to pairs of measured deployments that differ in one option.

Two predictions have errors in common, so the ratio of both is better known than two independent
predictions. The fit has one number per latency: the 90 % quantile of the error of ln(new / old),
over the combined half-widths of both predictions, on half of the pairs. The pairs of an option
are split by families, which are a model and its GPUs: families alternate between the halves,
largest first.

Where an unexplained difference most likely lies: the mean over pairs of an option, on the same
half, of the groups' parts of the predicted difference. Pairs whose designs are the same to the
simulator tell nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from pathlib import Path

import numpy as np

from lab.fits.deployments import run_cache_without, width_without
from lab.fits.driver import Calibration, declared
from lab.fits.methods import grouped
from lab.tables.deployments import PublicDeployment, database, silicon
from lab.tables.result_blocks import blocks
from lab.tables.rows import Floats, evenly
from simulators.core.errors import Infeasible
from simulators.core.fields import columns_of
from simulators.serving.attribution import OPTIONS, RELEASE, Mixtures, mixtures
from simulators.serving.measured.deployments import point_of
from simulators.serving.measured.intervals import OLDER_RELEASE, Width, fitted_width
from simulators.serving.point import ServingPoint
from simulators.serving.run import RunCache
from sweeper.query.shapley import shapley_values

METRICS = TTFT, TPOT = "ttft_mean_s", "tpot_mean_s"
HALVES = FITTED, HELD_OUT = "first half", "held-out half"
MOST = 10
"""Pairs of an option and a family, so that no family outweighs the others."""


@dataclass(frozen=True)
class Measured:
    """Point, mean latencies and recorded options of a measured deployment."""

    point: ServingPoint
    group: str  # the model on its GPU, left out of the constants
    seconds: Mapping[str, float]  # by metric
    options: Mapping[str, Hashable]
    rest: Hashable  # of the table and the load


@dataclass(frozen=True)
class Pair:
    """Two measured deployments that differ in one recorded option."""

    option: str
    old: Measured
    new: Measured

    @property
    def family(self) -> tuple[str, ...]:
        """The model and the GPUs, whose pairs are in the same half."""
        return (self.old.point.model, *sorted({self.old.point.gpu, self.new.point.gpu}))


def public(row: PublicDeployment) -> Measured:
    """Return a public deployment with its recorded options."""
    return Measured(
        point=point_of(row),
        group=row.group,
        seconds={TTFT: row.ttft_s, TPOT: row.tpot_s},
        options={
            "GPU": row.gpu,
            "precision": (row.dtype, row.kv_dtype),
            RELEASE: (row.family[-1], row.runtime, row.release),
            "tensor parallelism": row.layout.tp,
            "expert parallelism": row.layout.ep,
            "chunk size": row.budget,
        },
        rest=(
            *(row.model, row.framework, row.layout.attention_dp, row.client, row.is_median),
            *(row.clients, row.crowded, row.prompt, row.output),
            *(row.launch.poll_interval, row.launch.memory_fraction),
        ),
    )


OF_BLOCKS = {option: names for option, names in OPTIONS.items() if option != RELEASE}
"""Fields of a point that an option of a printed result sets."""

DERIVED = ("lengths.max_output_tokens", "memory_fraction", "max_batch", "moe.routing_skew")
"""Fields of a point that follow from other options of a printed result, or from its mean length."""


def _printed(reference: Path) -> Iterator[Measured]:
    recorded = {name for names in OF_BLOCKS.values() for name in names}
    names = [column.name for column in columns_of(ServingPoint)]
    rest = [name for name in names if name not in recorded and name not in DERIVED]
    for one in blocks(reference)[0]:
        values = {option: attrgetter(*of)(one.point) for option, of in OF_BLOCKS.items()}
        seconds = {TTFT: one.ttft_s, TPOT: one.tpot_s}
        of_page = (one.framework, *(attrgetter(name)(one.point) for name in rest))
        yield Measured(one.point, one.group, seconds, values, of_page)


def pairs(rows: Sequence[Measured]) -> list[Pair]:
    """Return pairs that differ in one option, at most `MOST` of each option and family, evenly."""
    found = []
    for option in dict.fromkeys(name for row in rows for name in row.options):
        known = [row for row in rows if option in row.options]

        def alike(row: Measured, option: str = option) -> Hashable:
            others = {name: value for name, value in row.options.items() if name != option}
            return (*others.items(), row.rest)

        own: list[Pair] = []
        for members in grouped(known, alike).values():
            by_value: dict[Hashable, list[Measured]] = {}
            for row in members:
                by_value.setdefault(row.options[option], []).append(row)
            own += [
                Pair(option, one[0], other[0]) for one, other in combinations(by_value.values(), 2)
            ]
        for mine in grouped(own, lambda pair: pair.family).values():
            found += [mine[i] for i in evenly(len(mine), MOST)]
    return found


def halved_pairs(reference: Path) -> Iterator[tuple[str, Pair]]:
    """Yield the pairs of measured deployments with their halves."""
    known_rows = [row for row in silicon(reference) if not row.excluded]
    known = [public(row) for row in [*known_rows, *database(reference, "amd")]]
    found = [*pairs(known), *pairs(list(_printed(reference)))]
    for own in grouped(found, lambda pair: pair.option).values():
        families = grouped(own, lambda pair: pair.family)
        largest = sorted(families, key=lambda family: (-len(families[family]), family))
        for place, family in enumerate(largest):
            yield from ((HALVES[(place + 1) // 2 % 2], pair) for pair in families[family])


def mixtures_without(
    pair: Pair, cache_of: Callable[[str, str], RunCache], changed: Collection[str] = ()
) -> Mixtures:
    """Return the mixtures of a pair; `cache_of` returns constants of a runtime without a group.

    The widths of intervals are fitted to deployments on other GPUs. `changed`: options that differ,
    if not the pair's.
    """
    ends = pair.old, pair.new
    caches = [cache_of(one.point.runtime, one.group) for one in ends]
    for one, cache in zip(ends, caches, strict=True):
        cache.width_of = functools.partial(_width, one.point.gpu)
    return mixtures(pair.old.point, pair.new.point, caches, changed or [pair.option])


def _width(gpu: str, engine: str, metric: str) -> Width:
    return (fitted_width if engine == OLDER_RELEASE else functools.partial(width_without, gpu))(
        engine, metric
    )


LEAST_PART = 0.05
"""Mean part of a group below which it is left out."""


def fit_differences(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the error of a ratio of two predictions over their combined half-widths, and parts."""
    cache_of = functools.cache(run_cache_without)
    found: dict[str, list[Floats]] = {half: [] for half in HALVES}
    parts: dict[str, list[Parts]] = {}
    for half, pair in halved_pairs(reference):
        try:
            both = mixtures_without(pair, cache_of)
            found[half].append(_errors(pair, both))
            if half == FITTED:
                parts.setdefault(pair.option, []).extend(_parts(both))
        except Infeasible:
            continue
    errors = {half: np.array(rows) for half, rows in found.items()}  # pair, metric: error, scale
    share = np.quantile(errors[FITTED][..., 0] / errors[FITTED][..., 1], 0.9, axis=0)
    yield declared(
        "differences",
        content={
            "share": dict(zip(METRICS, map(float, share), strict=True)),
            "remainder": {option: _mean(own) for option, own in parts.items() if own},
        },
        rows=len(found[FITTED]),
        errors=errors[HELD_OUT][..., 0],
        provenance={"latencies": {option: len(own) for option, own in parts.items()}},
    )


Parts = Mapping[str, float]
"""Parts of groups in a difference; they add up to 1."""


def _parts(both: Mixtures) -> Iterator[Parts]:
    """Yield the parts of each latency that differs to the simulator."""
    if both.run(()) == both.run(both.groups):
        return
    shares = shapley_values(both.groups, both.run)
    for metric in METRICS:
        sizes = {group: abs(share[metric]) for group, share in shares.items()}
        if whole := math.fsum(sizes.values()):
            yield {group: size / whole for group, size in sizes.items()}


def _mean(parts: Sequence[Parts]) -> dict[str, float]:
    groups = dict.fromkeys(group for one in parts for group in one)
    mean = {g: math.fsum(one.get(g, 0.0) for one in parts) / len(parts) for g in groups}
    kept = {group: part for group, part in mean.items() if part >= LEAST_PART}
    return {group: part / math.fsum(kept.values()) for group, part in kept.items()}


def _errors(pair: Pair, both: Mixtures) -> Floats:
    """Return, by metric, the absolute error of ln(new / old), and the combined half-width."""
    old, new = both.run(()), both.run(both.groups)
    rows = []
    for name in METRICS:
        measured = math.log(pair.new.seconds[name] / pair.old.seconds[name])
        rows.append((abs(measured - math.log(new[name] / old[name])), both.scales[name]))
    return np.array(rows)
