"""How sure we are of deployments, the better and the worse the kernels of their GPU are known.

Kernels of the GPU are as measured, taken from others, or from boards of other architectures alone;
the constants of the engine come from deployments without the model on it, the band from other GPUs.
Messages and clocks stay as measured. An interval that knows the hardware holds nine of ten measured
times; and of deadlines of which we say that half, seven or nine in ten are met, so many are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, at_least, error_line, within
from lab.fits.intervals.deployment_bands import HIDDEN, KNOWN, METRICS, Seen, predicted
from lab.fits.left_out import width_without
from lab.tables.deployments import SILICON
from simulators.composition.replica import FRAMEWORKS
from simulators.core.contract import Check

NEEDS = (SILICON,)

SURE = (50, 70, 90)
"""Percent of deadlines that are said to be met, held against what came."""

WORDS = "measured", "unmeasured", "of its architecture unmeasured"
"""What is said of the kernels of the GPU, of which ever less is known."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors, coverage and how often we are right when sure, over all GPUs and of each."""
    seen = list(predicted(reference))
    if not seen:
        yield absent("deployments, kernels of the GPU unmeasured", f"{SILICON} has no row")
    for known, words in zip(KNOWN, WORDS, strict=True):
        some = [one for one in seen if one.known == known]
        for metric in METRICS:
            kinds = ("all", *sorted({one.row.gpu for one in some}), *FRAMEWORKS)
            for kind in kinds:
                found = [o for o in some if kind in ("all", o.row.gpu, o.row.framework)]
                title = f"deployments {metric.upper()}, kernels of the GPU {words}, {kind}"
                yield from _lines(title, metric, found, judged=kind == "all" or known == HIDDEN)


def _lines(title: str, metric: str, found: Sequence[Seen], *, judged: bool) -> Iterator[Check]:
    """Yield the error of some deployments, and what came of what was said of them."""
    if not found:
        return
    ratio = np.array([one.ratio[metric] for one in found])
    widths = [width_without(one.row.gpu, one.row.framework, metric) for one in found]
    bands = [w.band(one.reach[metric]) for w, one in zip(widths, found, strict=True)]
    yield error_line(title, [100.0 * (1.0 / ratio - 1.0)])
    low, high = np.array(bands).T
    held = {"within intervals": (low <= ratio) & (ratio <= high)}
    for chance in SURE:
        limits = np.array([_limit_of(chance / 100.0, *band) for band in bands])
        held[f"deadlines met of those said to be {chance} % sure"] = ratio <= limits
    for words, inside in held.items():
        if judged and f"{SURE[0]} %" not in words and f"{SURE[1]} %" not in words:
            yield from within(f"{title}: {words}", [inside])
        else:
            yield at_least(f"{title}: {words}", 100.0 * float(inside.mean()), None, inside.size)


def _limit_of(chance: float, low: float, high: float) -> float:
    """Return the limit that is met with a chance, as a share of the prediction.

    >>> [round(_limit_of(chance, 0.5, 2.0), 3) for chance in (0.05, 0.5, 0.95)]
    [0.5, 1.0, 2.0]
    """
    end, beyond = (high, 1.0 - chance) if chance >= 0.5 else (low, chance)
    return float(end ** -math.log10(2.0 * beyond))
