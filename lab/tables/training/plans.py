"""Plans of training steps from scalars and columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.training.job import Plans

FLOATS = ("micro_batch", "gradient_bytes", "again", "host_adam_per_s")
USUAL = {"again": 0.0, "offloads": 0, "host_adam_per_s": 1.0}


def plans_of(**fields: Any) -> Plans:
    """Return plans; a scalar holds for all of them."""
    count = max(np.size(value) for value in fields.values())
    columns: dict[str, Any] = {
        name: np.full(count, value, np.float64 if name in FLOATS else np.int64)
        for name, value in (USUAL | fields).items()
    }
    return Plans(**columns)
