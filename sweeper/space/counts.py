"""How many points constraints remove, counted apart for factors that no constraint couples.

Where two groups of factors share no constraint, the share of a space that both leave is the product
of theirs: a trillion points are counted on two tables of a million. Where a group is too large for
a table, its share is that of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.space.product import Product
from sweeper.space.rules import TABLE, Rule
from sweeper.space.spans import Index, Mask

_LARGEST = 50 * TABLE
"""Combinations that are counted one by one: a bit of memory and a nanosecond each."""
_SAMPLE = 1 << 16
"""Points by which a larger group is judged: a share of a tenth is known to about 1 %."""


@dataclass(frozen=True)
class Counts:
    """Points excluded by each constraint and no earlier constraint; `about`: sampled counts."""

    removed: Mapping[str, int]
    about: frozenset[str] = frozenset()

    @property
    def in_words(self) -> list[str]:
        """A line for each constraint.

        >>> Counts({"tp <= 4": 1200}, frozenset(["tp <= 4"])).in_words
        ['about 1,200 points excluded by constraint tp <= 4']
        """
        return [
            f"{'about ' * (text in self.about)}{count:,} points excluded by constraint {text}"
            for text, count in self.removed.items()
            if count
        ]


def counts_of(space: Product, rules: Sequence[Rule]) -> Counts:
    """Return what the constraints of a space remove, in their order."""
    left = [(1, 1)] * len(rules)  # of each group, filed under its first rule: this many of so many
    alive, removed, about = space.size, dict.fromkeys((r.text for r in rules), 0), set[str]()
    tallies: dict[int, tuple[int, tuple[int, int]]] = {}
    for group in coupled(rules):
        shares, exact = _tally(space, [rules[i] for i in group])
        about |= set() if exact else {rules[i].text for i in group}
        tallies |= {i: (group[0], share) for i, share in zip(group, shares, strict=True)}
    for i, rule in enumerate(rules):
        home, left[home] = tallies[i]
        still = space.size * math.prod(a for a, _ in left) // math.prod(b for _, b in left)
        removed[rule.text] += alive - still
        alive = still
    return Counts(removed, frozenset(about))


def coupled(rules: Sequence[Rule]) -> list[list[int]]:
    """Return the numbers of the rules in groups: those of one group share factors."""
    groups: list[tuple[set[int], list[int]]] = []
    for i, rule in enumerate(rules):
        roots, members = set(rule.roots), [i]
        apart = []
        for group in groups:
            if group[0] & roots:
                roots, members = roots | group[0], [*group[1], *members]
            else:
                apart.append(group)
        groups = [*apart, (roots, members)]
    return [sorted(members) for _, members in groups]


def _tally(space: Product, rules: Sequence[Rule]) -> tuple[list[tuple[int, int]], bool]:
    """Return the share that is left after each rule, and whether it is counted, not sampled."""
    if _countable(space, rules):
        return [(int(np.count_nonzero(a)), a.size) for a in _alive(space, rules)], True
    points = np.random.default_rng(0).integers(space.size, size=_SAMPLE)
    met, shares = np.ones(_SAMPLE, bool), []
    for rule in rules:
        met &= rule.look_up(space, points)
        shares.append((max(int(np.count_nonzero(met)), 1), _SAMPLE))  # none met says not: none is
    return shares, False


def drawn(space: Product, rules: Sequence[Rule], random: np.random.Generator, count: int) -> Index:
    """Return numbers of points at random, as often one as the other, which rules allow.

    Each group of coupled factors is drawn from its allowed combinations, so that a space of which
    hardly anything is allowed costs no more than another; a group too large for that, from all.
    """
    codes = [random.integers(len(factor), size=count) for factor in space.factors]
    for group in coupled(rules):
        judged = [rules[i] for i in group]
        roots = _roots(judged)
        if not roots or not _countable(space, judged):
            continue
        *_, alive = _alive(space, judged)
        if len(places := np.flatnonzero(alive)):
            found = np.unravel_index(places[random.integers(len(places), size=count)], alive.shape)
            for root, column in zip(roots, found, strict=True):
                codes[root] = column
    index = np.zeros(count, np.int64)
    for factor, code in zip(space.factors, codes, strict=True):
        index = index * len(factor) + code
    return index


def _alive(space: Product, rules: Sequence[Rule]) -> Iterator[Mask]:
    """Yield after each rule which combinations of the factors of all of them are left."""
    roots = _roots(rules)
    sizes = [len(space.factors[r]) for r in roots]
    alive = np.ones(sizes, bool)
    for rule in rules:
        shape = [n if r in rule.roots else 1 for r, n in zip(roots, sizes, strict=True)]
        alive &= rule.on(space, rule.roots).reshape(shape)
        yield alive


def _roots(rules: Sequence[Rule]) -> list[int]:
    return sorted({r for rule in rules for r in rule.roots})


def _countable(space: Product, rules: Sequence[Rule]) -> bool:
    """Return whether rules can be tabulated, each and together."""
    whole = math.prod(len(space.factors[r]) for r in _roots(rules))
    tables = (math.prod(len(space.factors[r]) for r in rule.roots) for rule in rules)
    return whole <= _LARGEST and max(tables) <= 8 * TABLE
