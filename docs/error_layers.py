"""Shares of a latency interval by error layer: kernels, messages, passes and the engine.

Within a pass, families of kernels and messages add up by squares, and with them what no kernel
explains; what the engine does adds to the logarithm of that by squares (`error_bands.py`). So the
squared logarithm of each end of a band is a sum over layers, and a layer switched off leaves the
rest. With `w` the half-widths of a pass, and `R` what its two ends make of the scale:

    ln(end)^2 = side^2 * ( engine^2 + R^2 * sum over layers of w_layer^2 / w^2 )
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simulators.composition.price import Iteration, pass_interval, pipeline_iterations
from simulators.composition.replica import Replica
from simulators.composition.uncertainty import HalfWidth, added, unexplained_share
from simulators.core.jit import Floats
from simulators.evidence.lookup import has_related_gpu
from simulators.serving.measured_deployments import engines_of, fitted_width, scale
from simulators.serving.prices.iteration_table import Ends
from simulators.workload.llm.step import Step

KERNELS, MESSAGES, MODEL, SERVING = "kernels", "messages", "pass", "engine"
LAYERS = (KERNELS, MESSAGES, MODEL, SERVING)

Squares = Mapping[str, Ends]
"""By layer, its part of the squared logarithms of a band's two ends."""


def error_layers(replica: Replica, step: Step, metric: str) -> Squares:
    """Return what each layer adds to the band of `tpot` or `ttft` that passes of a step make.

    Summed over layers, they are the squared logarithms of the ends of `deployment_bands`.
    """
    stages = pipeline_iterations(replica, step)
    reach = np.array(pass_interval(replica, stages))
    parts, found = _parts(replica, stages), {}
    widths = [fitted_width(engine, metric) for engine in engines_of(replica.runtime)]
    ends = []
    for side in ("below", "above"):
        far = [getattr(w, side) * float(scale(w.engine, reach)) for w in widths]
        widest = widths[int(np.argmax(far))]
        stretch = getattr(widest, side) ** 2
        ends.append((stretch * widest.engine**2, max(far) ** 2 - stretch * widest.engine**2))
    for layer in LAYERS:
        low, high = (
            engine if layer == SERVING else within * parts[layer][end]
            for end, (engine, within) in enumerate(ends)
        )
        found[layer] = low, high
    return found


def band_of(squares: Squares, without: str = "") -> Ends:
    """Return the interval of all error layers, except a named layer."""
    low, high = np.sqrt(
        np.sum([ends for layer, ends in squares.items() if layer != without], axis=0)
    ).tolist()
    return math.exp(-low), math.exp(high)


def _parts(replica: Replica, stages: Sequence[Iteration]) -> Mapping[str, Ends]:
    """Return the part of each layer of a pass in the square of its half-widths, below and above.

    Where no kernel of the architecture was measured all err together, so half-widths add up.
    """
    families = added(stage.half_widths for stage in stages)
    unexplained_s = unexplained_share(replica.runtime, replica.gpu) * sum(
        float(np.asarray(stage.latency_s)) for stage in stages
    )
    own = {name: _ends(one) for name, one in families.items()}
    squares = {name: ends**2 for name, ends in own.items()}
    if not has_related_gpu(replica.gpu, replica.level):
        together = np.sum(list(own.values()), axis=0)
        squares = {name: ends * together for name, ends in own.items()}
    messages = squares.pop("messages", np.zeros(2))
    kernels = np.sum(list(squares.values()), axis=0)
    model = np.full(2, unexplained_s**2)
    whole = kernels + messages + model
    parts = {KERNELS: kernels / whole, MESSAGES: messages / whole, MODEL: model / whole}
    return {layer: (float(part[0]), float(part[1])) for layer, part in parts.items()}


def _ends(one: HalfWidth) -> Floats:
    return np.array([float(np.asarray(one.below_s)), float(np.asarray(one.above_s))])
