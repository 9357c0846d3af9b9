"""Kernels of convolutional networks as a profiler saw them on a V100, beside those of a graph.

The table is that of Orion's artefact (Strati et al., EuroSys 2024): every kernel of a forward pass,
or of a training step, of ResNet-101 and MobileNetV2 under PyTorch in fp32. They say nothing of gaps
between kernels, so their sum is compared with that of the graph's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.tables.graphs import price_graph
from lab.tables.rows import read_records
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.graphs.forward import DEPTHWISE
from simulators.graphs.timeline import (
    Framework,
    PricedLaunches,
    slowdown,
)
from simulators.workload.graphs.families import draw
from simulators.workload.graphs.graph import Load

TABLE = "colocation/orion_v100_kernel_profiles.parquet"
GPU = "v100_sxm"
"""Orion's authors rented their V100 where only this form is offered."""

PROFILES = {
    "resnet101_4_fwd": ("resnet101", Load(batch=4)),
    "resnet101_32_fb1": ("resnet101", Load(batch=32, training=True)),
    "mobilenetv2_4_fwd": ("mobilenet_v2", Load(batch=4)),
    "mobilenetv2_32_fb1": ("mobilenet_v2", Load(batch=32, training=True)),
    "mobilenetv2_64_fb1": ("mobilenet_v2", Load(batch=64, training=True)),
    "mobilenetv2_96_fb1": ("mobilenet_v2", Load(batch=96, training=True)),
}
"""What the workloads ran. Those that end in `fb0` hold a placeholder for every duration."""

FITTED = "mobilenetv2_32_fb1"
"""Whose depthwise kernels say how they run; all other profiles are held out."""

NAMES = ("forward_kernel", "backward_kernel", "grad_weight_kernel")
"""The ends of PyTorch's names of depthwise kernels, in the order of the paces they set."""


@dataclass(frozen=True)
class Profile:
    """One workload: its kernels by name and duration, and those of its graph."""

    name: str
    kernels: tuple[tuple[str, float], ...]
    priced: PricedLaunches

    @property
    def measured_s(self) -> float:
        """Seconds of all kernels that were seen."""
        return sum(seconds for _, seconds in self.kernels)

    def predicted_s(self, framework: Framework) -> float:
        """Return the seconds of the graph's kernels."""
        return float(np.sum(self.priced.seconds * slowdown(self.priced, load_gpu(GPU), framework)))


def read_profiles(reference: Path) -> list[Profile]:
    """Return the profiles of the table that a graph can be drawn for."""
    seen: dict[str, list[tuple[str, float]]] = {}
    for row in read_records(reference / TABLE, workload=list(PROFILES)):
        seen.setdefault(row["workload"], []).append((row["kernel"], 1e-9 * row["duration_ns"]))
    gpu = load_gpu(GPU)
    return [
        Profile(
            name=name,
            kernels=tuple(seen[name]),
            priced=price_graph(draw(model, load), gpu, dtype="fp32", training=load.training),
        )
        for name, (model, load) in PROFILES.items()
        if name in seen
    ]


def depthwise_paces(profiles: list[Profile]) -> dict[str, float]:
    """Return the time of depthwise kernels over that of streaming what they read and write.

    Raises:
        UserError: the profile that says so is not there.
    """
    one = next((profile for profile in profiles if profile.name == FITTED), None)
    if one is None:
        raise UserError(f"{TABLE} lacks {FITTED}, which says how depthwise kernels run")
    paces = np.array([launch.pace for launch in one.priced.launches])
    return {
        pace: sum(s for kernel, s in one.kernels if f"conv_depthwise2d_{name}" in kernel)
        / float(np.sum(one.priced.seconds[paces == pace]))
        for pace, name in zip(DEPTHWISE, NAMES, strict=True)
    }
