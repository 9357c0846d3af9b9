"""Architectures, problems and mappings of Timeloop's reference runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formats.timeloop import layer_of
from simulators.catalog.accelerator import Accelerator, accelerator_of
from simulators.core.errors import UnknownNameError
from simulators.dataflow.evaluation import Evaluation, evaluated
from simulators.dataflow.mapping import read_mapping, read_yaml
from simulators.workload.loop_nest import Layer

PJ_PER_UJ = 1e6
ARCHITECTURES, PROBLEMS = "dataflow/architectures.yaml", "dataflow/problems.yaml"


@dataclass(frozen=True)
class Tables:
    """Architectures and problems of the reference folder, by name."""

    accelerators: Mapping[str, Accelerator]
    problems: Mapping[str, Any]

    def accelerator(self, name: str) -> Accelerator:
        """Return an architecture. Raises UnknownNameError if no architecture has this name."""
        if name not in self.accelerators:
            raise UnknownNameError("architecture", name, self.accelerators)
        return self.accelerators[name]

    def layer(self, name: str) -> Layer:
        """Return the layer of a problem. Raises UnknownNameError if no problem has this name."""
        if name not in self.problems["problems"]:
            raise UnknownNameError("problem", name, self.problems["problems"])
        problem = self.problems["problems"][name]
        shape = self.problems["shapes"][problem["shape"]]
        spaces, bounds = shape["dataspaces"], problem["bounds"]
        return layer_of(name, shape["dims"], spaces, bounds, problem["coef"])


def read_tables(reference: Path) -> Tables:
    """Return the architectures and problems of a reference folder."""
    path = reference / ARCHITECTURES
    found = {name: _accelerator(name, t, path) for name, t in read_yaml(path).items()}
    return Tables(found, read_yaml(reference / PROBLEMS))


def evaluation_of(written: Any, layer: Layer, accelerator: Accelerator) -> Evaluation:
    """Return the cost of a mapping in Timeloop's notation, by exact counts."""
    result = evaluated(read_mapping(written), layer, accelerator)
    assert isinstance(result, Evaluation)
    return result


OPTIONAL = {
    "depth": "depth",
    "read_words_per_cycle": "read_bandwidth",
    "write_words_per_cycle": "write_bandwidth",
    "shared_words_per_cycle": "shared_bandwidth",
}
"""Fields of a level that may be empty, by the names in accelerator files."""


def _accelerator(name: str, table: Mapping[str, Any], path: Path) -> Accelerator:
    """Return an architecture of the reference folder: `levels`, outermost first, and `mac`."""
    levels = [
        {
            "name": level["name"],
            "mesh": list(level["mesh"]),
            "kind": "dram" if level["dram"] else "sram",
            "width_bits": level["width_bits"],
            "word_bits": level["word_bits"],
            "energy_pj": dict(level["energy_pj"]),
            "may_keep": [list(keep) for keep in level["may_keep"]],
            **{ours: level[key] for ours, key in OPTIONAL.items() if level[key] is not None},
        }
        for level in table["levels"]
    ]
    mac = {key: table["mac"][key] for key in ("mesh", "word_bits", "energy_pj")}
    return accelerator_of(
        {"name": name, "source": str(table["origin"]), "levels": levels, "mac": mac}, path
    )
