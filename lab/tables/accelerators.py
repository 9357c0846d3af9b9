"""Architectures, problems and mappings of Timeloop's reference runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.catalog.accelerator import Accelerator
from simulators.dataflow.energy import Evaluation, evaluated
from simulators.dataflow.mapping import encode, read_mapping
from simulators.dataflow.timeloop import accelerator_from_table, layer_from_table, read_yaml
from simulators.workload.loop_nest import Layer

PJ_PER_UJ = 1e6
ARCHITECTURES, PROBLEMS = "dataflow/architectures.yaml", "dataflow/problems.yaml"


@dataclass(frozen=True)
class Tables:
    """Architectures and problems of the reference folder, which its rows name."""

    accelerators: Mapping[str, Accelerator]
    problems: Mapping[str, Any]

    def layer(self, name: str) -> Layer:
        """Return a problem."""
        return layer_from_table(name, self.problems)


def read_tables(reference: Path) -> Tables:
    """Return what the rows refer to."""
    path = reference / ARCHITECTURES
    found = {name: accelerator_from_table(name, t, path) for name, t in read_yaml(path).items()}
    return Tables(found, read_yaml(reference / PROBLEMS))


def evaluation_of(written: Any, layer: Layer, accelerator: Accelerator) -> Evaluation:
    """Return what a mapping as the peer writes it costs, by exact counts."""
    result = evaluated(*encode(read_mapping(written), layer, accelerator), layer, accelerator)
    assert isinstance(result, Evaluation)
    return result
