"""Readings of the GPU's power meter for a kernel in a loop, from settled watts.

Loops of the measured tables aim at 0.3 s for kernels below 0.1 ms and a second above, but stop
after 3,000 launches; the meter is read ten times a second and shows a mean over the second before,
and a row holds the mean of what was read (ai-dynamo/aiconfigurator, `collector/helper.py`). So even
a second's loop shows in good part what the GPU did before: set-up, or the cases whose loops it
ran last. Readings of short kernels say little else; how long the loop was depends also on what the
host did before: new buffers, kernels loaded for the first time. Trees carry the settled watts of
`energy.py` to what the meter shows, by shape and time; they may bend either way. Only comparisons
with such readings need this: bills follow settled watts.
"""

from __future__ import annotations

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.corrections import Correction, corrected, correction_from
from simulators.kernels.energy import measured_power, shape_features
from simulators.kernels.price import flops, moved_bytes
from simulators.workload.operators import Attention, Gemm

SETTLED_S = 1e-4
"""Kernels at least this long are taken as settled. Products, launched by fives, then ran for about
a second, attention for 0.3 s: what is read of it still holds what ran before."""


def reading_w(
    correction: Correction, operator: Gemm | Attention, latency_s: Floats, watts: Floats
) -> Floats:
    """Return what the meter shows of a loop of launches that draw `watts` once settled."""
    shape = latency_s.shape
    shown = corrected(correction, meter_features(operator, latency_s), watts.reshape(-1))
    return shown.reshape(shape)


def meter_of(gpu: Gpu, name: str) -> Correction | None:
    """Return the trees of a GPU for a kernel such as `gemm_bf16` or `decode`, if there are any."""
    table = (measured_power(gpu.name) or {}).get("meter", {}).get(name)
    return None if table is None else correction_from(table)


def meter_features(operator: Gemm | Attention, latency_s: Floats) -> Floats:
    """Return the features of the trees, one row each, also with the sign changed."""
    moved = moved_bytes(operator)
    columns = (latency_s, flops(operator) / latency_s, moved / latency_s, moved)
    flat = np.stack([np.broadcast_to(c, latency_s.shape).reshape(-1) for c in columns])
    return np.concatenate([flat, -flat, shape_features(operator, latency_s.shape)])
