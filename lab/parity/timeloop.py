"""Architectures and problems of Timeloop as the compact YAML tables of the reference folder.

The tables name what Timeloop's own files name: levels outermost first with mesh, width, depth and
bandwidth; shapes with dimensions and projections; coefficients by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulators.catalog.accelerator import Accelerator, accelerator_of
from simulators.dataflow.mapping.timeloop_files import layer_of
from simulators.workload.convolution import Layer


def accelerator_from_table(name: str, table: Mapping[str, Any], path: Path) -> Accelerator:
    """Return an architecture of the compact tables: `levels`, outermost first, and `mac`."""
    levels = []
    for level in table["levels"]:
        energy = dict(level["energy_pj"])
        entry = {
            "name": level["name"],
            "mesh": list(level["mesh"]),
            "kind": "dram" if level["dram"] else "sram",
            "width_bits": level["width_bits"],
            "word_bits": level["word_bits"],
            "energy_pj": energy,
            "may_keep": [list(keep) for keep in level["may_keep"]],
        }
        for ours, theirs in (
            ("depth", "depth"),
            ("read_words_per_cycle", "read_bandwidth"),
            ("write_words_per_cycle", "write_bandwidth"),
            ("shared_words_per_cycle", "shared_bandwidth"),
        ):
            if level[theirs] is not None:
                entry[ours] = level[theirs]
        levels.append(entry)
    mac = {key: table["mac"][key] for key in ("mesh", "word_bits", "energy_pj")}
    return accelerator_of(
        {"name": name, "source": str(table["origin"]), "levels": levels, "mac": mac}, path
    )


def layer_from_table(name: str, tables: Mapping[str, Any]) -> Layer:
    """Return a problem of the compact tables: `shapes` with projections, `problems` with bounds."""
    problem = tables["problems"][name]
    shape = tables["shapes"][problem["shape"]]
    return layer_of(name, shape["dims"], shape["dataspaces"], problem["bounds"], problem["coef"])
