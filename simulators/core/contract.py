"""A simulator turns a batch of design points into a batch of metrics, row by row.

This is the whole contract between simulators and the sweeper. A simulator's inputs and metrics are
two frozen dataclasses: their fields are the columns of tables, the axes of a design space and the
documentation.

Related inputs may be grouped: a field of a point type may itself be a frozen dataclass, declared by
`group`. Columns and axes then have dotted names, `speculation.method`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.columns import LEVELS
from simulators.core.errors import UserError
from simulators.core.fields import ValueRule, columns_of
from simulators.core.folder import SIMULATORS, load_from

Direction = Literal["min", "max"]


def choice(
    doc: str,
    *,
    unit: str = "",
    names: str = "",
    otherwise: str | None = None,
    part: str = "",
    given: bool = False,
    acts_if: Mapping[str, Sequence[Any]] | None = None,
    default: Any = MISSING,
    **rule: Any,
) -> Any:
    """Declare a field of a point type: one possible axis.

    Args:
        doc: one sentence for `sweeper show SIMULATOR`.
        unit: unit of the value.
        names: folder of the named files (`gpu`, `model` ...). The content of the file becomes part
            of a point's identity, and misspelt values get suggestions.
        otherwise: value that names no file, if it is not the default.
        part: component that the field describes, such as `accelerator`.
        given: whether the field belongs to the question (a model, a load, a size) and not to the
            design. Results are then compared per value, unless a space says otherwise.
        acts_if: columns, and those of their values with which this field has an effect; one such
            value of one column is enough. No values: any value but the default of that column.
        default: as in `dataclasses.field`.
        **rule: allowed values, as in `ValueRule`: `at_least=1`, `above=0`, `known=(...)`.
    """
    metadata = {"doc": doc, "unit": unit, "names": names, "part": part, "given": given}
    metadata |= {"acts_if": acts_if}
    metadata |= {"rule": ValueRule(**rule), "otherwise": otherwise}
    return field(metadata=metadata, default=default)


asked = functools.partial(choice, given=True)
"""Declare a field that belongs to the question, not to the design."""


def group(kind: type, *, switch: str = "") -> Any:
    """Declare a field with a group of options: a frozen dataclass, documented by its docstring.

    `switch` is an option of the group without which the others have no effect, unless these state
    `acts_if` themselves.
    """
    metadata = {"doc": (kind.__doc__ or "").removesuffix("."), "switch": switch}
    return field(metadata=metadata, default=kind())


def given_of(kind: type) -> tuple[str, ...]:
    """Return the columns of a point type that belong to the question, not to the design."""
    return tuple(c.name for c in columns_of(kind) if c.metadata.get("given"))


def fields_of(kind: type, part: str) -> tuple[str, ...]:
    """Return the columns of a point type that describe a component."""
    return tuple(c.name for c in columns_of(kind) if c.metadata.get("part") == part)


def metric(doc: str, *, unit: str = "", better: Direction | None = None, page: str = "") -> Any:
    """Declare a field of a metrics type: one result column. `better` makes it an objective.

    `page` links the definition: a page of `docs/explanation/` and a heading, `serving.md#rates`.
    """
    return field(metadata={"doc": doc, "unit": unit, "better": better, "page": page})


def fact(doc: str, *, unit: str = "", needs: Sequence[str] = ()) -> Any:
    """Declare a field of a facts type: a column for constraints and derived columns.

    `needs` lists the fields of the point that the fact depends on; empty: all fields.
    """
    return field(metadata={"doc": doc, "unit": unit, "needs": tuple(needs)})


@runtime_checkable
class Simulator(Protocol):
    """An object that maps a batch of design points to a batch of metrics, row by row.

    `evaluate` receives the point's fields as columns (strings are dictionary-encoded) and returns
    the metrics and the columns of `OUTCOME` for the rows in the same order. `evaluate` is pure: a
    row has the same bits alone, in any batch, in any order and in any process.
    """

    name: str
    version: int  # raised when results change
    point: type  # frozen dataclass: its columns are the possible axes
    metrics: type  # frozen dataclass: its fields are the result columns

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return one row of metrics per row of `batch`."""


@runtime_checkable
class Reads(Protocol):
    """A simulator whose results depend on files. Their content is part of a point's key."""

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files on which a point with this value of the field `name` depends."""


@runtime_checkable
class Describes(Protocol):
    """A simulator with cheap facts about points, for derived columns and constraints."""

    facts: type  # frozen dataclass, like `metrics`

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the fields of `facts` for every row, without a simulation."""


@runtime_checkable
class WarmsUp(Protocol):
    """A simulator with compiled kernels. The driver compiles them before it starts workers."""

    def warm_up(self) -> None:
        """Compile all kernels of `evaluate`, or load them from the cache."""


@runtime_checkable
class EstimatesCost(Protocol):
    """A simulator that estimates the cost of points."""

    def cost_hint_s(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return a relative estimate of the CPU-seconds of each row."""


@runtime_checkable
class Shares(Protocol):
    """A simulator that evaluates several points of a batch with one run."""

    shares: tuple[str, ...]  # fields along which points often share a run


@runtime_checkable
class Approximates(Protocol):
    """A simulator with a cheaper approximation, selected by values of a few fields."""

    cheaper: tuple[tuple[str, Any], ...]  # fields and values of the approximation


@runtime_checkable
class Reprices(Protocol):
    """A simulator whose costs are computed from stored rows: new prices need no simulation.

    Points are simulated at the defaults of the fields in `priced`.
    """

    priced: tuple[str, ...]  # price fields of the point, which change only costs
    cost_needs: tuple[str, ...]  # other fields and metrics that costs depend on
    cost_metrics: tuple[str, ...]  # the metrics that are costs

    def costs(
        self, rows: pa.RecordBatch, prices: Mapping[str, Any]
    ) -> Mapping[str, NDArray[np.float64]]:
        """Return the cost metrics of rows at one value of each price field; NaN without a price."""


@runtime_checkable
class RentsDevices(Reprices, Protocol):
    """A simulator whose costs follow from one hourly price per device."""

    rented: str  # field of the point that names the device, one of `cost_needs`

    def rates(self, devices: Sequence[str], prices: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return dollars per hour of devices at values of the price fields; NaN without a price."""

    def priced_at(self, prices: Mapping[str, Any], rates: Mapping[str, float]) -> dict[str, Any]:
        """Return values of the price fields at which devices have these rates."""


@runtime_checkable
class Notes(Protocol):
    """A simulator with footnotes to tables of results, such as dates and assumptions."""

    def notes(self, axes: Mapping[str, Sequence[Any]]) -> Sequence[str]:
        """Return footnotes to results over these values of the point's fields."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """Time and energy of an operator, message or wait, with its bound and evidence level.

    Times and energies include all repetitions; the contributions to a design add up to its totals.
    """

    phase: str  # prefill, decode, stage 1 ...: the group of the row
    name: str
    count: float = 1.0  # repetitions within the totals
    time_s: float = 0.0
    energy_j: float = 0.0
    memory_bytes: float = 0.0  # resident on a device: weights, keys and values
    flops: float = 0.0
    moved_bytes: float = 0.0  # least traffic over memory or links
    devices: int = 1  # number of devices over which FLOPs and bytes are summed
    bound: str = ""  # compute, memory, latency, link, host ...
    level: str = "fitted"  # one of `core.columns.LEVELS`
    on: str = ""  # the device
    note: str = ""


@runtime_checkable
class Explains(Protocol):
    """A simulator that breaks down time, memory and energy of a design."""

    def explain(self, point: Mapping[str, Any]) -> Sequence[Contribution]:
        """Return the contributions to one design; missing fields have their defaults.

        Times add up to the latency and energies to the energy of `evaluate`, up to rounding.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value is invalid.
        """


@runtime_checkable
class NamesWeakest(Protocol):
    """A simulator that names the operator with the weakest evidence of a design."""

    def weakest(self, point: Mapping[str, Any]) -> Contribution | None:
        """Return the longest contribution on the worst evidence level, for example of a mean batch.

        Returns None for a design that takes no time.
        """


@dataclass(frozen=True, kw_only=True)
class ErrorPart:
    """The part of one layer in the 90 % interval of a metric.

    `low` and `high` are parts of the squared logarithms of the interval's ends over the value: the
    sum over layers is the square of the whole, and without a layer the rest remains.
    """

    metric: str
    layer: str
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A measurement that would narrow the intervals of a design.

    `narrows`: by metric, the expected width of the interval (the logarithm of the ratio of its
    ends) after the measurement over the width before.
    """

    what: str
    layer: str
    narrows: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class ErrorBudget:
    """Layers of a design's intervals, the best measurements, and what those do together."""

    parts: Sequence[ErrorPart]
    measurements: Sequence[Measurement]
    together: Mapping[str, float]


@runtime_checkable
class ExplainsErrors(Protocol):
    """A simulator that divides the intervals of a design's metrics among layers."""

    def explain_errors(self, point: Mapping[str, Any]) -> ErrorBudget:
        """Return the error budget of one design; missing fields have their defaults.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value is invalid, or the design has no intervals.
        """


@runtime_checkable
class StatesBasis(Protocol):
    """A simulator that states the measurements behind its constants and intervals."""

    def rests_on(self, point: Mapping[str, Any]) -> str:
        """Return the newest measured day and other bases of a design's figures; may be empty."""


def weakest_of(rows: Sequence[Contribution]) -> Contribution | None:
    """Return the longest contribution on the worst evidence level; None if nothing takes time."""
    timed = [row for row in rows if row.time_s > 0.0]
    return max(timed, key=lambda row: (LEVELS.index(row.level), row.time_s), default=None)


@runtime_checkable
class Records(Protocol):
    """An event-driven simulator that returns all events of a run."""

    def records(self, point: Mapping[str, Any]) -> Mapping[str, pa.Table]:
        """Return a table per kind of event, by name.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value is invalid, or the design is not simulated event by event.
        """


def objectives_of(simulator: Simulator) -> dict[str, Direction]:
    """Return the metrics that have a direction, in the order of the metrics type."""
    return {
        f.name: f.metadata["better"] for f in fields(simulator.metrics) if f.metadata.get("better")
    }


def load_simulator(name: str) -> Simulator:
    """Return a simulator by name: a folder with a `simulator.py`, or a file of the user.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file defines no simulator.
    """
    simulator: Simulator = _REGISTERED.get(name) or load_from(SIMULATORS, name, "SIMULATOR")
    return simulator


_REGISTERED: dict[str, Simulator] = {}
"""Simulators that were registered in this process, for example in a notebook, by name."""


def register(simulator: Simulator) -> str:
    """Register a simulator object in this process and return its name.

    Raises:
        UserError: the object is not a simulator, or a shipped simulator has the same name.
    """
    if not isinstance(simulator, Simulator):
        raise UserError(
            f"{type(simulator).__name__} is no simulator: it needs `name`, `version`, `point`, "
            "`metrics` and `evaluate`"
        )
    if simulator.name in SIMULATORS.names():
        raise UserError(f"there is a simulator '{simulator.name}' already; choose another name")
    _REGISTERED[simulator.name] = simulator
    return simulator.name


def is_registered(name: str) -> bool:
    """Return whether a name belongs to a registered object, which other processes do not know."""
    return name in _REGISTERED
