"""Sums of one layer's operators against measured layers, by board and number of tokens.

A board whose clock another could lend is shown with that one's too: what is said of boards without
measured layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, compared
from lab.tables.layers import BOARDS, LINEAR, LayerRows, layer_rows
from simulators.composition.throttling import LENDERS, borrowed_slowdown, slowdown
from simulators.core.contract import Check

NEEDS = (LINEAR,)

RANGES = {
    "decode": (1, 128, 10.0),
    "small prompts": (129, 512, None),
    "prompts": (513, 1 << 20, 10.0),
}
"""Fewest and most tokens of a layer, and the mean error in percent that is allowed."""


def checks(reference: Path, rows: str) -> Iterator[Check]:
    """Yield one line for each range and board; `test`: of models kept out of the fits."""
    layers = [one for one in layer_rows(reference) if one.is_test or rows == "all"]
    for name, (least, most, limit) in RANGES.items():
        for board in BOARDS.values():
            mine = [one for one in layers if one.replica.gpu.name == board]
            title = f"composition/layers, {name}, {board}"
            if not mine:
                yield absent(title, unit="%")
                continue
            gpu = mine[0].replica.gpu
            yield _line(title, mine, (least, most), slowdown(gpu), limit)
            if (lender := LENDERS[gpu.architecture]) != board:
                lent = f"{title}, clock lent by {lender}"
                yield _line(lent, mine, (least, most), borrowed_slowdown(gpu), None)


def _line(
    title: str,
    layers: Sequence[LayerRows],
    tokens: tuple[int, int],
    share: float,
    limit: float | None,
) -> Check:
    """Return the error of layers of so many tokens, with a share of `throttling.slowdown`."""
    predicted, measured, groups = [], [], []
    for one in layers:
        inside = (one.tokens >= tokens[0]) & (one.tokens <= tokens[1])
        predicted.append(one.predicted_s(share)[inside])
        measured.append(one.measured_s[inside])
        groups += [f"{one.model} tp{one.replica.cut.tp}"] * int(inside.sum())
    return compared(title, np.concatenate(predicted), np.concatenate(measured), groups, limit)
