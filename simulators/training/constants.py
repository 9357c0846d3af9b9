"""The few numbers that were fitted to measured training steps, one set for all of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from simulators.core.calibration import read_calibration

CALIBRATION = Path(__file__).parent / "calibration" / "steps.toml"


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What a training step adds to kernels and messages timed alone."""

    products: Mapping[str, float] = field(default_factory=dict)  # pace, by precision
    attention: Mapping[str, float] = field(default_factory=dict)  # pace of fused attention, by pass
    scores: float = 1.0  # pace of what is not fused
    streams: float = 1.0  # pace of norms, activations, the optimiser
    experts: float = 1.0  # pace of grouped products
    layer_s: float = 0.0  # that a layer waits for launches, forward or backward
    exposed: Mapping[str, float] = field(default_factory=dict)  # share of messages, by kind
    band: tuple[float, float] = (0.5, 2.0)  # of measured over predicted, nine of ten


def load_constants() -> Constants:
    """Return the fitted numbers.

    Raises:
        UserError: the calibration is unreadable or was changed by hand.
    """
    return _constants(CALIBRATION) if CALIBRATION.is_file() else Constants()


@functools.cache
def _constants(path: Path) -> Constants:
    table: Mapping[str, Any] = read_calibration(path)["step"]
    return Constants(**{f.name: table[f.name] for f in fields(Constants) if f.name in table})
