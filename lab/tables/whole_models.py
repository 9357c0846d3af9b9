"""Published times of whole models that are not decoders, as points to simulate.

`whole_models.toml` holds single figures with their sources. A figure is seconds of one pass, or of
the denoising loop of a diffusion model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.tables.rows import Record
from simulators.catalog.cluster import AUTO, cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.core.folder import read_toml
from simulators.graphs.price import GraphJob, Pass
from simulators.workload.graphs.families import family_of
from simulators.workload.graphs.graph import Load

FILE = Path(__file__).with_suffix(".toml")
FACTS = Record(read_toml(FILE))

CPU, BY_SHEET = "cpu", "_by_data_sheet"
"""Groups of devices that have no measured kernels, which are judged and not fitted."""
S, MS, PER_S, STEPS_PER_S = "s", "ms", "per_s", "steps_per_s"


@dataclass(frozen=True)
class WholeModel:
    """One published figure: the pass, and what was measured."""

    model: str
    gpu: str
    dtype: str
    batch: int
    length: int
    is_eager: bool
    unit: str
    figure: float
    source: str

    @property
    def group(self) -> str:
        """The group of families that the model belongs to; devices without kernels are apart."""
        family, gpu = family_of(self.model), load_gpu(self.gpu)
        if gpu.vector_bits:
            return CPU
        groups: Mapping[str, list[str]] = FACTS.groups
        name = next(name for name, families in groups.items() if family in families)
        return name if gpu.validated else f"{name}{BY_SHEET}"

    @property
    def measured_s(self) -> float:
        """Seconds of the pass; with `steps_per_s` of one step of the denoising loop."""
        return {
            S: self.figure,
            MS: 1e-3 * self.figure,
            PER_S: self.batch / self.figure,
            STEPS_PER_S: 1.0 / self.figure,
        }[self.unit]

    @property
    def job(self) -> GraphJob:
        """The pass to price."""
        gpu = load_gpu(self.gpu)
        return GraphJob(
            model=self.model,
            gpu=gpu,
            cluster=cluster_for(AUTO, gpu),
            dtype=self.dtype,
            load=Load(batch=self.batch, length=self.length),
            is_compiled=not self.is_eager,
            is_launched=self.is_eager,
        )

    def part_of(self, whole: Pass) -> float:
        """Return the measured share of a priced pass: 1, or that of one denoising step."""
        if self.unit != STEPS_PER_S:
            return 1.0
        repeats = whole.priced.repeats
        steps = float(max(node.repeat for node in self.job.graph.nodes))
        in_loop = np.asarray(repeats % steps == 0.0)
        seconds = whole.priced.seconds
        return float(seconds[in_loop].sum() / seconds.sum()) / steps


def read_whole_models() -> list[WholeModel]:
    """Return all figures."""
    found = []
    for table in FACTS.tables:
        for model, batch, length, figure, *gpu in table["rows"]:
            found.append(
                WholeModel(
                    model=model,
                    gpu=gpu[0] if gpu else table["gpu"],
                    dtype=table["dtype"],
                    batch=batch,
                    length=length,
                    is_eager=table["runtime"] == "eager",
                    unit=table["unit"],
                    figure=figure,
                    source=table["source"],
                )
            )
    return found
