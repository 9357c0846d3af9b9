"""Numbers fitted to measured training steps: one set for all models and GPUs.

A pace is the time of a kernel in a training step over its time alone, at the lower clock of a warm
GPU. A share is the part of a message that stays exposed although there is compute to hide it
behind. Messages of tensor and expert ranks are exposed unless the framework pipelines them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from simulators.core.calibration import read_calibration
from simulators.core.folder import once

CALIBRATION = Path(__file__).parent / "calibration" / "steps.toml"


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What a training step adds to kernels and messages timed alone."""

    products: Mapping[str, float] = field(default_factory=dict)  # pace, by architecture
    formats: Mapping[str, float] = field(default_factory=dict)  # of narrow ones, over that
    gpus: Mapping[str, float] = field(default_factory=dict)  # matrix units of one GPU, over that
    attention: Mapping[str, float] = field(default_factory=dict)  # by kernel and architecture
    streams: Mapping[str, float] = field(default_factory=dict)  # pace, by fusion
    experts: Mapping[str, float] = field(default_factory=dict)  # pace, by precision
    step_s: float = 0.0  # that a step waits for its host before the next
    layer_s: float = 0.0  # that a layer waits for launches in a pass
    mixture_s: float = 0.0  # and one with experts, whose host waits for counts of tokens
    launch_s: float = 0.0  # in which a host launches one kernel or message of a layer
    exposed: Mapping[str, float] = field(default_factory=dict)  # share, by what messages serve
    late: float = 0.0  # share of a step by which twice as many data ranks wait longer
    band: tuple[float, float] = (0.5, 2.0)  # measured over predicted, nine of ten within


def load_constants() -> Constants:
    """Return the fitted numbers.

    Raises:
        UserError: the calibration is unreadable or was changed by hand.
    """
    return constants_of(once(read_calibration, CALIBRATION)["step"])


def constants_of(table: Mapping[str, Any]) -> Constants:
    """Return the numbers of a table of a calibration."""
    return Constants(**{f.name: table[f.name] for f in fields(Constants) if f.name in table})
