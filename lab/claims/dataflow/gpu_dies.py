"""Areas of GPUs' dies against what their makers state, with the die left out of the fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import mean_error
from simulators.catalog.die import dies
from simulators.codesign.die_area import fitted
from simulators.core.contract import Check

LIMIT = 25.0
"""Percent of error that is allowed for a die whose contents and node are stated."""


def checks(_reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the error of each die's area, and the mean of those whose node has others."""
    known = dies()
    errors = []
    for die in known:
        others = [one for one in known if one is not die]
        alone = all(one.node != die.node for one in others)
        model = fitted(others) if not alone else fitted([*others, die])
        error = model.mm2(die) / die.mm2 - 1.0
        said = f"{model.mm2(die):.0f} of {die.mm2:.0f} mm2"
        said += "; the only die of its node, in the fit" if alone else ""
        yield mean_error(f"dataflow/silicon, {die.name}, area", [error], LIMIT, said)
        errors += [] if alone else [error]
    yield mean_error("dataflow/silicon, GPU dies left out, area", np.array(errors), LIMIT)
