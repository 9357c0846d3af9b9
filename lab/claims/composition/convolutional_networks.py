"""Sums of kernels of convolutional networks against profiled ones; none was fitted as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.claims.lines import at_most
from lab.tables.kernel_profiles import FITTED, GPU, TABLE, depthwise_paces, read_profiles
from simulators.core.contract import Check
from simulators.graphs.timeline import Framework

NEEDS = (TABLE,)


def checks(reference: Path, _rows: str) -> list[Check]:
    """Return the mean error over all profiles but the one that sets depthwise kernels' pace."""
    profiles = read_profiles(reference)
    framework = Framework(pace=depthwise_paces(profiles))
    errors = {
        p.name: p.predicted_s(framework) / p.measured_s - 1.0 for p in profiles if p.name != FITTED
    }
    value = round(100.0 * float(np.mean(np.abs(list(errors.values())))), 2) if errors else np.nan
    note = ", ".join(f"{name} {100 * error:+.0f}" for name, error in errors.items())
    title = f"composition/graphs: convolutional networks, kernels on {GPU}"
    return [at_most(title, value, None, len(errors), note)]
