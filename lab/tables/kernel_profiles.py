"""Kernels of convolutional networks as a profiler saw them on a V100, beside those of a graph.

The table is that of Orion's artefact (Strati et al., EuroSys 2024): every kernel of a forward pass,
or of a training step, of ResNet-101 and MobileNetV2 under PyTorch in fp32. Gaps between kernels are
not in it, so their sum is compared with that of the graph's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.tables.graphs import price_graph
from lab.tables.records import declared, file_of, records
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.graphs.forward import DEPTHWISE
from simulators.graphs.timeline import Framework, PricedLaunches, slowdown
from simulators.workload.graphs.families import draw
from simulators.workload.graphs.graph import Load

TABLE = file_of("orion")
GPU = "v100_sxm"
"""Orion's authors rented their V100 where only this form is offered."""

FITTED = "mobilenetv2_32_fb1"
"""The profile whose depthwise kernels are fitted to; all others are held out."""

NAMES = ("forward_kernel", "backward_kernel", "grad_weight_kernel")
"""Endings of PyTorch's names of depthwise kernels, in the order of `DEPTHWISE`."""


@dataclass(frozen=True)
class WorkloadProfile:
    """A profiled workload: measured kernels by name and duration, and kernels of the graph."""

    name: str
    kernels: tuple[tuple[str, float], ...]
    priced: PricedLaunches

    @property
    def measured_s(self) -> float:
        """Seconds of all measured kernels."""
        return sum(seconds for _, seconds in self.kernels)

    def predicted_s(self, framework: Framework) -> float:
        """Return the seconds of the graph's kernels."""
        return float(np.sum(self.priced.seconds * slowdown(self.priced, load_gpu(GPU), framework)))


def read_profiles(reference: Path) -> list[WorkloadProfile]:
    """Return the profiles of the table that a graph can be drawn for."""
    workloads = declared("orion")["workloads"]
    seen: dict[str, list[tuple[str, float]]] = {}
    for row in records(reference, "orion", workload=list(workloads)):
        seen.setdefault(row.workload, []).append((row.kernel, row.seconds))
    found = []
    for name, (model, batch, training) in workloads.items():
        if name in seen:
            graph = draw(model, Load(batch=batch, training=training))
            priced = price_graph(graph, load_gpu(GPU), dtype="fp32", training=training)
            found.append(WorkloadProfile(name, tuple(seen[name]), priced))
    return found


def depthwise_paces(profiles: list[WorkloadProfile]) -> dict[str, float]:
    """Return the time of depthwise kernels over that of streaming their inputs and outputs.

    Raises:
        UserError: the profile that is fitted to is missing.
    """
    one = next((profile for profile in profiles if profile.name == FITTED), None)
    if one is None:
        raise UserError(f"{TABLE} lacks {FITTED}, to which depthwise kernels are fitted")
    paces = np.array([launch.pace for launch in one.priced.launches])
    return {
        pace: sum(s for kernel, s in one.kernels if f"conv_depthwise2d_{name}" in kernel)
        / float(np.sum(one.priced.seconds[paces == pace]))
        for pace, name in zip(DEPTHWISE, NAMES, strict=True)
    }
