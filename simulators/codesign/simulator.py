"""Co-design of hardware and deployment: accelerator or GPU sizes under a serving load.

An accelerator array replaces the compute of a GPU in the serving simulator: memory, links, prices
and engine are those of the GPU, and operators are mapped onto the array. The analytic fidelity has
closed-form mappings, the event-driven one may search for mappings. No such hardware was measured;
evidence shares and intervals reflect this. With `accelerator: nothing` the GPU itself computes, and
its SMs, clock, L2 and bandwidth are the sizes.

Die area of a what-if GPU, from its SMs, L2 and memory channels:

    mm2 = s lanes / density + l cells of L2 + m channels / sqrt(density)

`density` is transistors per mm2, the median of the dies of a node. The lanes of an SM are its fp32
lanes, twice its fp64 lanes, and an eighth of the multiply-adds of its matrix units per clock; a
stack of HBM counts as two channels of GDDR. Analogue circuits shrink less than logic, hence the
square root. Three numbers are fitted to dies with published contents; their number and the weights
of lanes were chosen by leave-one-die-out. A what-if GPU has the area of its own die, times the
ratio of the formula's areas.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.accelerator import (
    CLOSED_FORM,
    MAPPINGS,
    SEARCHED,
    Changes,
    load_accelerator,
    sheet_name,
    what_if_name,
)
from simulators.catalog.gpu import (
    GPU_SCALES,
    Die,
    Gpu,
    base_gpu,
    cell_um2,
    die_of,
    dies,
    load_gpu,
    what_if,
)
from simulators.composition.replica import NOTHING
from simulators.core.columns import evaluate_pointwise, numbers, schema_of, which
from simulators.core.contract import Contribution, choice, fields_of, metric
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import check_batch, columns_of, point_from, values_of
from simulators.core.jit import Floats, Ints
from simulators.dataflow.evaluation import area_mm2
from simulators.dataflow.search.map_space import ANY, dataflows
from simulators.dataflow.simulator import SIMULATOR as DATAFLOW
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.options import ANALYTIC
from simulators.serving.point import ServingPoint
from simulators.serving.row_groups import evaluate_apart, kinds_of
from simulators.serving.simulator import Serving, is_analytic

_sized = partial(choice, part="accelerator")


@dataclass(frozen=True)
class CodesignPoint(ServingPoint):
    """A deployment and the sizes of its accelerator."""

    accelerator: str = _sized(
        "accelerator whose sizes are changed, or the path of its file; nothing: the GPU computes "
        "with its own sizes",
        names="accelerator",
        default="tpu_like",
        otherwise=NOTHING,
    )
    pe_rows: int = _sized("rows of the array; 0 as in the file", at_least=0, default=0)
    pe_cols: int = _sized("columns of the array; 0 as in the file", at_least=0, default=0)
    buffer_scale: float = _sized("depth of shared buffers, relative", above=0.0, default=1.0)
    spad_scale: float = _sized(
        "depth of storage inside the array, relative", above=0.0, default=1.0
    )
    array_clock_hz: float = _sized(
        "clock of the array; 0 as in the file", unit="Hz", at_least=0.0, default=0.0
    )
    node_nm: float = _sized(
        "technology node; 0 as in the file", unit="nm", at_least=0.0, default=0.0
    )
    dram_type: str = _sized(
        "DRAM type: lpddr4, ddr3, gddr5 or hbm2; empty as in the file", default=""
    )
    mapping: str = _sized(
        "mapping of operators to the array: closed_form, or searched (event fidelity only; "
        "minutes per run)",
        known=MAPPINGS,
        default=CLOSED_FORM,
    )
    dataflow: str = _sized(
        "dataflow of the array; any: all that the file allows", known=dataflows(), default=ANY
    )


@dataclass(frozen=True)
class CodesignMetrics(ServingMetrics):
    """Metrics of a deployment, and the silicon area of each device."""

    goodput_per_s: float | None = metric(
        "completed requests that met both SLOs; in the analytic fidelity computed from means",
        unit="1/s",
        better="max",
        page="codesign.md#goodput",
    )
    area_mm2: float = metric(
        "area per device: buffers, registers and multipliers of an array, or the die of a GPU",
        unit="mm2",
        better="min",
        page="codesign.md#area",
    )


OWN = tuple(name for name in fields_of(CodesignPoint, "accelerator") if name != "accelerator")
"""Columns with sizes of the accelerator."""
DEFAULTS = {column.name: column.default for column in columns_of(CodesignPoint)}
DESIGNED = ("accelerator", *OWN, "gpu", *GPU_SCALES)


@dataclass(frozen=True)
class Codesign(Serving):
    """The simulator of hardware designs under a serving workload."""

    name: str = "codesign"
    version: int = 11
    point: type = CodesignPoint
    metrics: type = CodesignMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Evaluate every row with its accelerator; equal accelerators are created once."""
        check_batch(CodesignPoint, batch)
        kinds = kinds_of(batch, DESIGNED)
        first = np.unique(kinds, return_index=True)[1].tolist()
        columns = {name: batch.column(name) for name in DESIGNED}
        names = [array_of({n: c[row].as_py() for n, c in columns.items()}) for row in first]
        deployments = _served(batch, names, kinds)
        is_searched = which(batch, "mapping", SEARCHED.__eq__)
        refused = (is_analytic(batch) & is_searched) | _lacks_die(batch)
        found = evaluate_apart(refused, _refusals, super().evaluate, deployments)
        ok = np.asarray(found.column("status").cast(pa.string()).to_numpy(False)) == "ok"
        column = pa.array(_areas(batch, names, kinds), mask=~ok)
        place = found.schema.get_field_index("status")
        found = found.add_column(place, schema_of(CodesignMetrics).field("area_mm2"), column)
        place = found.schema.get_field_index("goodput_per_s")
        return found.set_column(place, found.schema.field(place), _goodput(batch, found))

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files that a point depends on: of the deployment, and the accelerator."""
        if name == "accelerator" and value != NOTHING:
            return DATAFLOW.reads(name, value)
        return () if name in OWN else super().reads(name, value)

    def cost_hint_s(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return the estimated CPU-seconds of each row, dominated by the tables of an array."""
        arrays = int(kinds_of(batch, (*DESIGNED, "model", "tp")).max()) + 1
        tables_s = np.full(batch.num_rows, ARRAY_S * arrays / batch.num_rows)
        return np.asarray(super().cost_hint_s(batch) + tables_s, np.float64)

    def records(self, point: Mapping[str, Any]) -> Mapping[str, pa.Table]:
        """Return all requests and iterations of a design."""
        return super().records(served(point))

    def weakest(self, point: Mapping[str, Any]) -> Contribution | None:
        """Return the operator with the weakest evidence in a typical batch."""
        return super().weakest(served(point))

    def explain(self, point: Mapping[str, Any]) -> Sequence[Contribution]:
        """Return time and energy of the mean request by operator."""
        return super().explain(served(point))


ARRAY_S = 0.2
"""Typical CPU time of the tables of one array and shard of a model."""

SIMULATOR = Codesign()


def _areas(batch: pa.RecordBatch, names: Sequence[str], kinds: Ints) -> Floats:
    """Return the area of a device per row, in mm2: of its array, or of its GPU's die."""
    first = np.unique(kinds, return_index=True)[1].tolist()
    columns = {name: batch.column(name) for name in ("gpu", *GPU_SCALES)}
    areas = []
    for row, name in zip(first, names, strict=True):
        if name != NOTHING:
            areas.append(area_mm2(load_accelerator(name)))
            continue
        scales = {scale: columns[scale][row].as_py() for scale in GPU_SCALES}
        gpu = what_if(load_gpu(columns["gpu"][row].as_py()), **scales)
        areas.append(gpu_area_mm2(gpu) if has_die(gpu) else np.nan)
    return np.array(areas, np.float64)[kinds]


def _lacks_die(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    itself = which(batch, "accelerator", NOTHING.__eq__)
    if not itself.any():
        return itself
    return itself & which(batch, "gpu", lambda name: not has_die(load_gpu(name)))


def _refusals(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return infeasible rows: unknown die area, or a mapping search in the analytic fidelity."""

    def refuse(point: ServingPoint) -> ServingMetrics:
        if point.accelerator == NOTHING:
            raise Infeasible("die_unknown", f"the die area of {point.gpu} is unknown")
        raise Infeasible("mapping_searched_needs_fidelity_event", "use closed_form")

    return evaluate_pointwise(ServingPoint, ServingMetrics, refuse, batch)


def array_of(design: Mapping[str, Any]) -> str:
    """Return the name of a design's accelerator, with its changed sizes.

    The memory has the bandwidth of the GPU. The bandwidth of shared buffers scales with the rows of
    the array.

    Raises:
        UserError: the sizes are inconsistent.
        UnknownNameError: the accelerator or the GPU is unknown.
    """
    sheet = str(design["accelerator"])
    if sheet == NOTHING:
        if sized := [name for name in OWN if design[name] != DEFAULTS[name]]:
            raise UserError(
                f"{', '.join(sized)}: sizes of an array, and accelerator is {NOTHING}; those of a "
                f"GPU are {', '.join(GPU_SCALES)}"
            )
        return NOTHING
    if scaled := [n for n in GPU_SCALES if n != "bandwidth_scale" and design[n] != DEFAULTS[n]]:
        raise UserError(
            f"{', '.join(scaled)}: sizes of a GPU that computes, and accelerator is {sheet}; set "
            f"accelerator: {NOTHING}, or {', '.join(OWN)}"
        )
    if sheet_name(sheet) != sheet:
        raise UserError(
            f"accelerator '{sheet}': say changes by axes of their own, {', '.join(OWN)}"
        )
    rows = load_accelerator(sheet).mac.mesh[1]
    chosen = {name: design[name] for name in OWN if name not in ("array_clock_hz", "dataflow")}
    changes = Changes(
        **chosen,
        dataflow="" if design["dataflow"] == ANY else design["dataflow"],
        clock_hz=design["array_clock_hz"],
        buffer_rate_scale=(design["pe_rows"] or rows) / rows,
        memory_bytes_per_s=load_gpu(design["gpu"]).hbm_bytes_per_s * design["bandwidth_scale"],
    )
    return what_if_name(sheet, changes)


def served(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the point of the serving simulator, which names the accelerator with its changes."""
    whole = point_from(CodesignPoint, point)
    values = values_of(whole)
    kept = {column.name: values[column.name] for column in columns_of(ServingPoint)}
    return kept | {"accelerator": array_of(values)}


def _goodput(batch: pa.RecordBatch, found: pa.RecordBatch) -> pa.Array:
    """Return goodput in requests per second: counted, or in the analytic fidelity from means.

    The analytic fidelity assumes exponential TTFT (the maximum-entropy distribution of a known
    mean) and equal TPOT of all requests.
    """
    column = {f.name: c for f, c in zip(found.schema, found.columns, strict=True)}
    requests_per_s, ttft_s, tpot_s, counted = (
        column[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
        for name in ("requests_per_s", "ttft_mean_s", "tpot_mean_s", "goodput_per_s")
    )
    in_time = -np.expm1(-numbers(batch, "slo_ttft_s") / ttft_s)  # NaN where load is not served
    met = np.nan_to_num(in_time) * ~(tpot_s > numbers(batch, "slo_tpot_s"))  # NaN: no later token
    is_steady = which(batch, "fidelity", ANALYTIC.__eq__)
    known = column["requests_per_s"].is_valid().to_numpy(zero_copy_only=False)
    return pa.array(np.where(is_steady, requests_per_s * met, counted), mask=~known)


def _served(batch: pa.RecordBatch, names: Sequence[str], kinds: Ints) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array(kinds, pa.int32()), pa.array(names))
    some = batch.select([column.name for column in columns_of(ServingPoint)])
    return some.set_column(some.schema.get_field_index("accelerator"), "accelerator", column)


FP64_LANES, PRODUCTS_PER_LANE, CHANNELS_PER_STACK = 2.0, 8.0, 2.0
"""Weights of an fp64 lane (in fp32 lanes), of matrix-unit products (per fp32 lane) and of an HBM
stack (in GDDR channels)."""

BITS_PER_MIB = 8.0 * 2**20
UM2_PER_MM2 = 1e6
PER_MM2 = 1e6
"""Densities are in millions of transistors per mm2."""


@dataclass(frozen=True)
class AreaModel:
    """Area of lanes, cells and channels, fitted to dies."""

    weights: tuple[float, float, float]
    density: tuple[tuple[str, float], ...]  # of each node, millions of transistors per mm2

    def mm2(self, die: Die) -> float:
        """Return the area of a die by the formula.

        Raises:
            KeyError: no die of the node was fitted.
        """
        return float(_parts(die, dict(self.density)[die.node]) @ np.array(self.weights))


def fitted(known: Sequence[Die]) -> AreaModel:
    """Return the model with the least squares of relative errors over dies."""
    nodes = dict.fromkeys(die.node for die in known)
    density = {
        node: float(
            np.median([die.transistors / die.mm2 / PER_MM2 for die in known if die.node == node])
        )
        for node in nodes
    }
    parts = np.stack([_parts(die, density[die.node]) / die.mm2 for die in known])
    weights = np.linalg.lstsq(parts, np.ones(len(known)), rcond=None)[0]
    lanes, cells, channels = (float(f"{weight:.6g}") for weight in weights)
    return AreaModel((lanes, cells, channels), tuple(density.items()))


def has_die(gpu: Gpu) -> bool:
    """Return whether the die area of a GPU, or of a what-if GPU's base, is known."""
    return die_of(base_gpu(gpu).name) is not None


def gpu_area_mm2(gpu: Gpu) -> float:
    """Return the die area of a GPU or a what-if GPU, in mm2.

    Disabled SMs and L2 scale with the enabled ones, and memory channels with the bandwidth. The
    clock has no effect. The die of the base GPU must be known.
    """
    base = base_gpu(gpu)
    die = die_of(base.name)
    assert die is not None
    wider = gpu.hbm_bytes_per_s / base.hbm_bytes_per_s
    changed = replace(
        die,
        sms=die.sms * gpu.sm_count / base.sm_count,
        l2_mib=die.l2_mib * gpu.l2_bytes / base.l2_bytes,
        hbm=die.hbm * wider,
        gddr=die.gddr * wider,
    )
    model = _of_all()
    return die.mm2 * model.mm2(changed) / model.mm2(die)


@functools.cache
def _of_all() -> AreaModel:
    return fitted(dies())


def _parts(die: Die, density: float) -> Floats:
    """Return the three terms of the formula for a die: lanes, cells and channels."""
    lanes = die.fp32 + FP64_LANES * die.fp64 + die.products / PRODUCTS_PER_LANE
    cells_mm2 = die.l2_mib * BITS_PER_MIB * cell_um2(die.node) / UM2_PER_MM2
    channels = CHANNELS_PER_STACK * die.hbm + die.gddr
    return np.array([die.sms * lanes / density, cells_mm2, channels / np.sqrt(density)])
