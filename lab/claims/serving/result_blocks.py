"""Results printed in documentation of engines, by what their launch commands say.

To those of older releases a factor was fitted, of which that without a result's model is used; to
others nothing. Of groups that runtimes were fitted to, the numbers without it are used.
Results of one page that differ in one kind of option also tell what the option changes.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.claims.lines import answered, at_most, skipped_lines
from lab.claims.pairs import PLAIN, is_wrong, pair_lines
from lab.fits.left_out import shelf_without
from lab.tables.result_blocks import BLOCKS, Block, blocks
from simulators.composition.replica import FRAMEWORKS
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.serving.simulator import simulate

NEEDS = (BLOCKS,)
TPOT, THROUGHPUT = METRICS = "TPOT", "throughput"
LIMITS = {TPOT: 15.0, THROUGHPUT: 12.0}
"""Of median errors in percent."""

ENGINE = "engine"
"""Pairs of two engines, releases or backends: a choice, no option that is on or off; no limit."""

LENGTHS = "prompt_tokens", "output_tokens", "max_output_tokens"
"""Of a point, which follow from what was printed; the first two are means."""

ALIKE = 0.06
"""By which mean lengths of one load may differ: answers end where they end."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield median errors of each engine, then what becomes of pairs that differ in one option."""
    told, untold = blocks(reference)
    yield from skipped_lines("result blocks", Counter(untold))
    shelf = functools.cache(shelf_without)

    def ratios(block: Block) -> tuple[float, float]:
        metrics = simulate(block.point, shelf(block.point.runtime, block.group, block.decode))
        assert metrics.tpot_mean_s is not None
        return metrics.tpot_mean_s / block.tpot_s, metrics.tokens_per_s / block.tokens_per_s

    found = answered("result blocks", told, ratios)
    yield from found.lines
    ratio = np.array(found.answers, np.float64).reshape(-1, len(METRICS))
    names = np.array([block.framework for block in found.rows])
    every = np.ones(names.size, bool)
    for framework in ("all engines", *FRAMEWORKS):
        which = every if framework == "all engines" else names == framework
        for metric, column in zip(METRICS, ratio.T, strict=True):
            limit = LIMITS[metric] if which is every else None
            yield _median(f"result blocks {metric}, {framework}", column[which], limit)
    yield from _pairs(found.rows, ratio[:, METRICS.index(THROUGHPUT)])


def _median(name: str, ratio: Floats, limit: float | None) -> Check:
    error = 100.0 * np.abs(ratio - 1.0)
    if not error.size:
        return at_most(name, float("nan"), limit)
    note = f"median; mean {error.mean():.1f}, bias {100.0 * (np.median(ratio) - 1.0):+.1f} %"
    return at_most(name, float(np.median(error)), limit, error.size, note)


def _pairs(rows: list[Block], ratio: Floats) -> Iterator[Check]:
    """Yield how often a change of one option is told to help or harm, and how well by how much.

    Args:
        rows: results.
        ratio: our throughput over theirs, of each.
    """
    ours, theirs, kinds = [], [], []
    for a, b in itertools.combinations(range(len(rows)), 2):
        kind = changed(rows[a], rows[b])
        if not kind:
            continue
        theirs.append(rows[b].tokens_per_s / rows[a].tokens_per_s)
        ours.append(theirs[-1] * float(ratio[b] / ratio[a]))
        kinds.append(kind)
    measured, told = np.array(theirs), np.array(ours)
    of_engines = np.array([kind == ENGINE for kind in kinds], bool)
    wrong, plain = is_wrong(told, measured), np.abs(measured - 1.0) > PLAIN
    counts, missed = (Counter(itertools.compress(kinds, which)) for which in (plain, wrong))
    note = ", ".join(
        f"{missed[kind]} of {n} of {kind}" for kind, n in counts.most_common() if kind != ENGINE
    )
    yield from pair_lines("result blocks", told[~of_engines], measured[~of_engines], note)
    others = told[of_engines], measured[of_engines]
    yield from pair_lines("result blocks, engines", *others, limits=(None, None))


def changed(one: Block, other: Block) -> str:
    """Return the one kind of option in which two results of a page under one load differ, if so.

    Not of options that we have no axis for: points that differ in how long answers happened to be
    tell nothing of them.
    """
    a, b = one.point, other.point
    loads = [(p.model, p.gpu, p.arrivals, p.qps, p.clients, p.requests) for p in (a, b)]
    if one.path != other.path or loads[0] != loads[1]:
        return ""
    for name in LENGTHS[:2]:
        if abs(getattr(a, name) / getattr(b, name) - 1.0) > ALIKE:
            return ""
    kinds = [kind for kind, values in one.options.items() if values != other.options[kind]]
    lengths = {name: getattr(a, name) for name in LENGTHS}
    return kinds[0] if len(kinds) == 1 and a != replace(b, **lengths) else ""
