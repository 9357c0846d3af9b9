"""Write architectures, problems and mappings of Timeloop, version 4."""

from __future__ import annotations

from typing import Any

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import UserError
from simulators.dataflow.mapping import Loop, LoopNest
from simulators.workload.loop_nest import Layer

CLASSES = {"dram": "DRAM", "sram": "smartbuffer_SRAM", "register": "regfile"}


def architecture_of(accelerator: Accelerator) -> dict[str, Any]:
    """Return an accelerator as a Timeloop architecture, with tags as `!type`.

    Energies are left to Timeloop's component models.
    """
    attributes = {
        "technology": f"{accelerator.node_nm:g}nm",
        "global_cycle_seconds": 1.0 / accelerator.clock_hz,
    }
    nodes: list[dict[str, Any]] = [
        {"!type": "Container", "name": "system", "attributes": attributes}
    ]
    outer = (1, 1)
    for level in accelerator.levels:
        nodes += _array(level.name, outer, level.mesh)
        outer = (level.mesh[0], level.mesh[1])
        values: dict[str, Any] = {
            "depth": level.depth,
            "width": level.width_bits,
            "datawidth": level.word_bits,
            "n_banks": level.banks,
            "read_bandwidth": level.read_words_per_cycle,
            "write_bandwidth": level.write_words_per_cycle,
            "shared_bandwidth": level.shared_words_per_cycle,
            "type": level.dram_type.upper() or None,
        }
        values = {key: value for key, value in values.items() if value is not None}
        nodes.append(
            {
                "!type": "Component",
                "name": level.name,
                "class": CLASSES[level.kind],
                "attributes": values,
            }
        )
    nodes += _array("mac", outer, accelerator.mac.mesh)
    mac = {"datawidth": accelerator.mac.word_bits}
    nodes.append({"!type": "Component", "name": "mac", "class": "intmac", "attributes": mac})
    return {"architecture": {"version": 0.4, "nodes": nodes}}


def problem_of(layer: Layer) -> dict[str, Any]:
    """Return a layer as a Timeloop problem."""
    coefficients: dict[str, int] = {}
    spaces = []
    for label, tensor in zip(TENSORS, layer.tensors, strict=True):
        projection = []
        for rank in tensor.ranks:
            terms = []
            for dim, coefficient in rank:
                term = [dim]
                if coefficient != 1:
                    coefficients[f"{dim}step"] = coefficient
                    term.append(f"{dim}step")
                terms.append(term)
            projection.append(terms)
        space: dict[str, Any] = {"name": label, "projection": projection}
        spaces.append(space | ({"read_write": True} if tensor.output else {}))
    shape = {
        "name": layer.name,
        "dimensions": list(layer.dims),
        "coefficients": [{"name": name, "default": n} for name, n in coefficients.items()],
        "data_spaces": spaces,
    }
    return {"problem": {"shape": shape, "instance": layer.extents | coefficients}}


def directives_of(mapping: LoopNest, layer: Layer) -> dict[str, Any]:
    """Return a mapping as Timeloop's directives.

    Raises:
        UserError: a level spreads a dimension over rows and columns, which has no directive.
    """
    found: list[dict[str, Any]] = []
    for level in mapping.levels:
        spatial = (*level.spatial_y, *level.spatial_x)
        twice = {dim for dim, _ in level.spatial_x} & {dim for dim, _ in level.spatial_y}
        if twice:
            raise UserError(
                f"{level.level} spreads {min(twice)} over rows and columns, for which Timeloop has "
                "no directive; choose a `dataflow`"
            )
        if spatial:
            inner = [dim for dim, _ in reversed(level.spatial_x)]
            rows = [dim for dim, _ in reversed(level.spatial_y)]
            entry = _entry(level.level, "spatial", spatial, layer, [*inner, *rows])
            found.append(entry | {"split": len(inner)})
        order = [dim for dim, _ in reversed(level.temporal)]
        found.append(_entry(level.level, "temporal", level.temporal, layer, order))
        skipped = [tensor for tensor in TENSORS if tensor not in level.keep]
        found.append(
            {"target": level.level, "type": "bypass", "keep": list(level.keep), "bypass": skipped}
        )
    return {"mapping": found}


def _entry(
    target: str, kind: str, loops: tuple[Loop, ...], layer: Layer, order: list[str]
) -> dict[str, Any]:
    bounds = dict(loops)
    factors = [f"{dim}={bounds.get(dim, 1)}" for dim in layer.dims]
    rest = [dim for dim in layer.dims if dim not in order]
    return {"target": target, "type": kind, "factors": factors, "permutation": [*order, *rest]}


def _array(name: str, outer: tuple[int, ...], inner: tuple[int, ...]) -> list[dict[str, Any]]:
    fans = [b // a for a, b in zip(outer, inner, strict=True)]
    if fans == [1, 1]:
        return []
    spatial = {"meshX": fans[0], "meshY": fans[1]}
    return [{"!type": "Container", "name": f"{name}_array", "spatial": spatial}]
