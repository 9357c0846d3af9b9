"""Published chips: rows of `chip_runs.toml`, each with the best mapping of its layers.

The mapper runs with a small budget: it reaches its bound on most of these layers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulators.catalog.accelerator import Accelerator, Changes, load_accelerator, resized
from simulators.core.folder import read_toml
from simulators.dataflow.evaluation import TECHNOLOGY, area_mm2
from simulators.dataflow.mapping import layer_from, layers_of
from simulators.dataflow.network import batched
from simulators.dataflow.search.map_space import constraints_of
from simulators.dataflow.search.mapper import find
from simulators.dataflow.silicon import MappedLayer, work_of
from simulators.dataflow.sparsity import Sparsity, density_named, sparse_of
from simulators.workload.loop_nest import Layer

FILE = Path(__file__).with_suffix(".toml")
EVALUATIONS = 2_000
"""Mappings tried per layer."""

TERA, OPERATIONS_PER_MAC = 1e12, 2.0


@dataclass(frozen=True)
class ChipRun:
    """A network on a published chip. Times and energies are of one inference, energy of the chip.

    `plain_mm2` is the area of its buffers, registers and multipliers at the node of its power, and
    `energy_scale` the change of dynamic energy to that node. `is_above_idle`: the energy is that
    above the power of the idle chip, whose clocks run.
    """

    chip: str
    design: str
    network: str
    clock_hz: float
    work: tuple[MappedLayer, ...]
    inferences: int
    latency_s: float
    energy_j: float | None
    plain_mm2: float
    energy_scale: float
    is_above_idle: bool

    @property
    def label(self) -> str:
        """Chip and network."""
        return f"{self.chip} {self.network}"


@dataclass(frozen=True)
class ChipArea:
    """The area of a published chip, and that of its buffers, registers and multipliers."""

    chip: str
    design: str
    mm2: float
    plain_mm2: float


@functools.cache
def published_areas() -> tuple[ChipArea, ...]:
    """Return the areas of all chips of the table."""
    found = []
    for row in read_toml(FILE)["areas"]:
        chip = load_accelerator(row["chip"])
        found.append(ChipArea(row["chip"], chip.design, row["mm2"], area_mm2(chip)))
    return tuple(found)


@functools.cache
def published_runs() -> tuple[ChipRun, ...]:
    """Return all rows of the table with their best mappings, except those that are left out."""
    return tuple(_runs())


def _runs() -> Iterator[ChipRun]:
    table = read_toml(FILE)
    exponent = read_toml(TECHNOLOGY)["energy_exponent"]
    for row in table["rows"]:
        if "left_out" in row:
            continue
        chip = load_accelerator(row["chip"])
        layers, inferences = _layers(row, table["networks"])
        work = tuple(_mapped(layer, times, chip, row) for layer, times in layers)
        macs = sum(layer.macs * times for layer, times in layers) / inferences
        per_s = row.get("fps") or row["tops"] * TERA / OPERATIONS_PER_MAC / macs
        node_nm = row.get("power_nm", chip.node_nm)
        yield ChipRun(
            chip=row["chip"],
            design=chip.design,
            network=row["network"],
            clock_hz=chip.clock_hz,
            work=work,
            inferences=inferences,
            latency_s=1.0 / per_s,
            energy_j=row["power_w"] / per_s if "power_w" in row else None,
            plain_mm2=area_mm2(resized(chip, Changes(node_nm=node_nm))),
            energy_scale=(node_nm / chip.node_nm) ** exponent,
            is_above_idle=row.get("above_idle", False),
        )


def _layers(row: dict[str, Any], networks: dict[str, Any]) -> tuple[list[tuple[Layer, int]], int]:
    """Return a row's layers with their counts, and the inferences that they make."""
    if row["network"] in networks:
        table = networks[row["network"]]
        return [layer_from(entry, str(FILE)) for entry in table["layers"]], table.get(
            "inferences", 1
        )
    chosen, batch = layers_of(row["network"], "all"), row.get("batch", 1)
    found = [(batched(layer, batch), times) for layer, times in chosen]
    return [pair for pair in found if pair[0].name.startswith(row.get("layers", ""))], batch


def _holding(chip: Accelerator, layer: Layer, names: Sequence[str]) -> Accelerator:
    """Return the chip whose outermost buffer holds some tensors of a layer."""
    if not names:
        return chip
    words = sum(t.words(layer.extents) for t in layer.tensors if t.name in names)
    dram, buffer, *inner = chip.levels
    held = replace(buffer, reserved_words=words, holds=tuple(names))
    return replace(chip, levels=(dram, held, *inner))


def _mapped(layer: Layer, times: int, chip: Accelerator, row: dict[str, Any]) -> MappedLayer:
    chip = _holding(chip, layer, row.get("stays", ()))
    rules = constraints_of(chip.dataflow, layer, chip)
    found = find(layer, chip, evaluations=EVALUATIONS, constraints=rules)
    if "input_density" in row:
        density = density_named(str(row["input_density"]))
        zeros = Sparsity(densities={"Inputs": density}, action=row["zeros"], leaders=("Inputs",))
        found = sparse_of(found, layer, chip, zeros)
    return work_of(times, found.evaluation, chip)
