"""How often measured forward passes lie in their intervals, device by device.

Coverage on a device is tested on rows outside the fits, with what no kernel's interval explains
found on all other devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb, isnan
from pathlib import Path

import numpy as np

from lab.claims.lines import absent
from lab.fits.intervals.pass_intervals import configurations, shares
from lab.fits.methods.held_out import COVERED_SHARE
from simulators.core.contract import COVERAGE, Check

KIND = COVERAGE
UNLIKELY = 0.025
"""On either side: a count of hits rarer than this is not consistent with the coverage."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield one line for each device: how many held-out configurations are in their intervals."""
    known = configurations(reference)
    tested = [one for one in known if one.case.is_test]
    for board in dict.fromkeys(one.board for one in tested):
        share = shares([one for one in known if one.board != board])
        here = [one for one in tested if one.board == board]
        name = f"composition/interval, {board} left out"
        if any(isnan(share[one.is_known]) for one in here):
            yield absent(name, "absent: measurements of other boards")
            continue
        ends = [one.interval_s(share[one.is_known]) for one in here]
        hits = sum(lo <= one.measured_s <= hi for one, (lo, hi) in zip(here, ends, strict=True))
        widths = [(hi - lo) / one.predicted_s for one, (lo, hi) in zip(here, ends, strict=True)]
        note = f"within a binomial's reach; mean width {100 * np.mean(widths):.0f} %"
        yield Check(
            name,
            round(100.0 * hits / len(here), 1),
            "%",
            100.0 * COVERED_SHARE,
            is_consistent(hits, len(here)),
            len(here),
            note,
        )


def is_consistent(hits: int, trials: int) -> bool:
    """Say whether so many hits are likely enough, neither too few nor too many.

    >>> is_consistent(90, 100), is_consistent(80, 100), is_consistent(100, 100)
    (True, False, False)
    """
    odds = [
        comb(trials, k) * COVERED_SHARE**k * (1.0 - COVERED_SHARE) ** (trials - k)
        for k in range(trials + 1)
    ]
    return sum(odds[: hits + 1]) > UNLIKELY and sum(odds[hits:]) > UNLIKELY
