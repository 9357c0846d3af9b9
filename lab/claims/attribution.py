"""Claims about attributed differences: measured pairs that differ in one recorded option.

A pair is attributed to groups of facts in the simulator (`sweeper compare OLD NEW --explain`), not
to the option. What the shares cannot explain within the interval of the difference remains
unexplained. The groups that an option changes first stand in `attribution.toml`: a judgement, since
no table measures groups. Engine constants are fitted without the model on its GPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.claims.claim import Cells, predict
from lab.fits.deployments import run_cache_without
from lab.fits.differences import METRICS, Pair, halved_pairs, mixtures_without
from sweeper.query.attribution import UNEXPLAINED, attributed

WORDS = dict(zip(METRICS, ("TTFT", "TPOT"), strict=True))


def one_option(reference: Path, groups: Mapping[str, Sequence[str]]) -> Iterator[Cells]:
    """Yield the attributed difference of each pair and latency, in seconds, with its interval.

    `predicted` and `measured` are the times of the new over those of the old. `is_right`: whether
    the largest share is that of a group that the option changes; `is_unexplained`: whether it is
    the rest; `alike`: whether the simulator knows no difference. `groups`: of each option.
    """
    cache_of = functools.cache(run_cache_without)

    def answer(numbered: tuple[str, Pair]) -> list[Cells]:
        half, pair = numbered
        both = mixtures_without(pair, cache_of)
        found: list[Cells] = []
        for one in attributed(both, [pair.old.seconds, pair.new.seconds]):
            if one.metric in WORDS:
                first, ratio = one.ranked[0], one.predicted[1] / one.predicted[0]
                width = math.exp(both.half_widths[one.metric])
                cells = {"option": pair.option, "half": half, "metric": WORDS[one.metric]}
                ends = {"predicted": ratio, "lo": ratio / width, "hi": ratio * width}
                measured = pair.new.seconds[one.metric] / pair.old.seconds[one.metric]
                judged = {
                    "is_right": first in groups[pair.option],
                    "is_unexplained": first == UNEXPLAINED,
                    "alike": one.predicted[0] == one.predicted[1],
                }
                found.append({**cells, **ends, **judged, "measured": measured})
        return found

    yield from predict(halved_pairs(reference), answer)
