"""Sums of kernels of convolutional networks against profiled ones; none was fitted as such."""

from __future__ import annotations

from pathlib import Path

from lab.claims.lines import mean_error
from lab.tables.kernel_profiles import FITTED, GPU, TABLE, depthwise_paces, read_profiles
from simulators.core.contract import Check
from simulators.graphs.timeline import Framework

NEEDS = (TABLE,)
LIMIT = 20.0
"""Of the mean error in percent, as of fp32 convolutions one by one."""


def checks(reference: Path, _rows: str) -> list[Check]:
    """Return the mean error over all profiles but the one that sets depthwise kernels' pace."""
    profiles = read_profiles(reference)
    framework = Framework(pace=depthwise_paces(profiles))
    errors = {
        p.name: p.predicted_s(framework) / p.measured_s - 1.0 for p in profiles if p.name != FITTED
    }
    note = ", ".join(f"{name} {100 * error:+.0f}" for name, error in errors.items())
    title = f"composition/graphs: convolutional networks, kernels on {GPU}"
    return [mean_error(title, [*errors.values()], LIMIT, note)]
