"""Between kernels a replica waits: for the host that schedules, and for kernels to be launched.

A serving engine that replays CUDA graphs pays a gap per layer, and host work per iteration and per
sequence (scheduling, input preparation, sampling). One that launches every kernel pays as much as
the host is slower than the GPU: small layers are bound by their launches, large ones hide them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simulators.catalog.cluster import Cluster
from simulators.core.calibration import read_calibration
from simulators.core.folder import Folder
from simulators.workload.operators import Column

RUNTIMES = Folder("runtime", "composition/calibration/runtimes")
DEFAULT = "graphs"
ANY = "any"


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """What a way of running a model costs besides its kernels."""

    name: str
    layer_s: float  # gaps between the kernels of one layer
    host_s: float  # of one iteration
    sequence_s: float  # of one sequence in an iteration
    launch_layer_s: Mapping[str, float] = field(default_factory=dict)  # host time, by cluster

    def launch_s(self, layers: int, sequences: Column, busy_s: Column, cluster: Cluster) -> Column:
        """Return the seconds that are added to the GPU's own time in one iteration of a stage."""
        gaps = layers * self.layer_s + self.host_s + self.sequence_s * sequences
        launching = layers * self.launching_s(cluster)
        return gaps + np.maximum(0.0, launching - busy_s) if launching else gaps + 0.0 * busy_s

    def launching_s(self, cluster: Cluster) -> float:
        """Return the host's time to launch one layer; 0 where a graph is replayed."""
        return self.launch_layer_s.get(cluster.name, self.launch_layer_s.get(ANY, 0.0))


def load_runtime(name: str = DEFAULT) -> Runtime:
    """Return the runtime of that name.

    Raises:
        UnknownNameError: nothing answers to the name.

    >>> load_runtime("graphs").launch_layer_s
    {}
    """
    path = RUNTIMES.find(name)
    numbers = read_calibration(path)["runtime"]
    return Runtime(name=path.stem, **numbers)


def runtime_file(name: str) -> Path:
    """Return the file behind a runtime's name."""
    return RUNTIMES.find(name)
