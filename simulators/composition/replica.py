"""A replica is a model on the GPUs that hold one copy of it, and the way it is run on them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from simulators.catalog.cluster import Cluster
from simulators.catalog.gpu import Gpu
from simulators.catalog.model import LanguageModel
from simulators.composition.effects import EVERYTHING, Effects
from simulators.composition.overhead import Runtime, load_runtime
from simulators.kernels.frameworks import DEFAULT_FRAMEWORK
from simulators.workload.cut import Parallelism


@dataclass(frozen=True)
class Replica:
    """A model on the GPUs that hold one copy of it."""

    model: LanguageModel
    gpu: Gpu
    cluster: Cluster
    cut: Parallelism = dataclasses.field(default_factory=Parallelism)
    dtype: str = "fp16"
    kv_dtype: str = "fp16"
    runtime: Runtime = dataclasses.field(default_factory=load_runtime)
    framework: str = ""  # whose kernels and messages; empty: the runtime's, else the default
    overlap: float = 0.0  # share of the sums over tensor ranks that runs behind products
    effects: Effects = EVERYTHING
    accelerator: str = ""  # what computes in the place of the GPU's kernels, if anything

    @property
    def library(self) -> str:
        """Whose kernels and messages run."""
        return self.framework or self.runtime.framework or DEFAULT_FRAMEWORK
