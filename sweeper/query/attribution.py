"""The attribution of a difference to groups of facts, with intervals, constrained to measurements.

Shares are Shapley values of simulated mixtures of two designs. The 90 % interval of the predicted
ratio of new and old gives the interval of the whole difference; it is divided among the groups as
if each share had the same relative error, independent of the others: squares of half-widths add.

Where both sides are measured, an error that both predictions have in common is no difference:
shares are scaled by the geometric mean of measured over predicted. Then they move to meet the
measured difference, each by the square of its half-width (least squares), and together by at most
the interval of the whole difference. The rest is unexplained. Groups are ranked by their shares
with the part of the rest that most likely is theirs, where the simulator knows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.query.shapley import Values, shapley_values
from sweeper.questions import Mixes

UNEXPLAINED = "unexplained"


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Two designs that are mixed by a function."""

    groups: Sequence[str]
    run: Callable[[Collection[str]], Values]
    half_widths: Mapping[str, float] = field(default_factory=dict)
    remainder: Mapping[str, float] = field(default_factory=dict)
    confirmed_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The difference of one metric between an old and a new design."""

    metric: str
    predicted: tuple[float, float]  # of the old and the new
    measured: tuple[float | None, float | None]
    shares: Mapping[str, float]  # of the difference, by group; with a measurement also unexplained
    half_widths: Mapping[str, float]  # of the 90 % intervals of shares; none if unknown
    whole: float  # half-width of the interval of the predicted difference; 0 if unknown
    remainder: Mapping[str, float] = field(default_factory=dict)  # of unexplained, by group

    @property
    def difference(self) -> float:
        """Difference of the new from the old: measured, where the new is, else predicted."""
        return math.fsum(self.shares.values())

    @property
    def likely(self) -> Mapping[str, float]:
        """Shares, with what is unexplained divided among the groups where it most likely lies."""
        left, of = self.shares.get(UNEXPLAINED, 0.0), self.remainder
        if not left or not of:
            return self.shares
        names = dict.fromkeys((*self.shares, *of))
        found = {n: self.shares.get(n, 0.0) + left * of.get(n, 0.0) for n in names}
        return found | {UNEXPLAINED: left * (1.0 - math.fsum(of.values()))}

    @property
    def ranked(self) -> list[str]:
        """Groups, the largest likely share first."""
        likely = self.likely
        return sorted(likely, key=lambda group: -abs(likely[group]))


def attributed(
    mixing: Mixes, measured: Sequence[Mapping[str, float]] = ({}, {})
) -> Iterator[Attribution]:
    """Yield the attributed difference of each metric.

    Args:
        mixing: the two designs.
        measured: measured metrics of the old and of the new; a new alone is compared with its
            prediction.

    >>> mixing = Mixing(groups=["a"], run=lambda taken: {"s": 3.0 if taken else 2.0})
    >>> [one] = attributed(mixing, [{"s": 2.0}, {"s": 6.0}])
    >>> one.difference, {group: round(share, 3) for group, share in one.shares.items()}
    (4.0, {'a': 1.414, 'unexplained': 2.586})
    """
    found = shapley_values(mixing.groups, mixing.run)
    old, new = mixing.run(()), mixing.run(mixing.groups)
    for metric in old:
        before, after = (one.get(metric) for one in measured)
        shares = {group: share[metric] for group, share in found.items()}
        pair = old[metric], new[metric]
        is_ratio = min(pair) > 0.0
        width = mixing.half_widths.get(metric, 0.0) if is_ratio else 0.0
        predicted = math.log(pair[1] / pair[0]) if is_ratio else 0.0
        if before and after and is_ratio:
            scale = math.sqrt(before * after / math.prod(pair))
            shares = {group: scale * share for group, share in shares.items()}
            pair = scale * pair[0], scale * pair[1]
        middle = math.sqrt(abs(math.prod(pair)))
        whole = 2.0 * middle * math.cosh(predicted / 2.0) * math.sinh(width / 2.0)
        squares = math.fsum(share**2 for share in shares.values())
        parts = {n: share**2 / squares for n, share in shares.items()} if squares else {}
        widths = {group: whole * math.sqrt(part) for group, part in parts.items()}
        if after is not None:
            from_old = old[metric] if before is None else before
            missing = after - from_old - math.fsum(shares.values())
            moved = 0.0
            if parts and is_ratio and from_old > 0.0 and after > 0.0:
                ratio = math.log(after / from_old)
                likely = min(max(ratio, predicted - width), predicted + width)
                more = 2.0 * (math.sinh(likely / 2.0) - math.sinh(predicted / 2.0))
                moved = missing if likely == ratio else middle * more
            shares = {n: share + moved * parts.get(n, 0.0) for n, share in shares.items()}
            shares[UNEXPLAINED] = missing - moved
            widths = {n: half * math.sqrt(1.0 - parts[n]) for n, half in widths.items()}
        yield Attribution(
            metric=metric,
            predicted=(old[metric], new[metric]),
            measured=(before, after),
            shares=shares,
            half_widths=widths if width else {},
            whole=whole,
            remainder=mixing.remainder,
        )
