"""A simulator turns a batch of design points into a batch of metrics, row by row.

That sentence is the whole contract between the physics and the logistics. A simulator's inputs and
metrics are two frozen dataclasses: their fields are the columns of the tables, the names allowed in
a design space and the documentation. Nobody lists them again.

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
    default: Any = MISSING,
    **rule: Any,
) -> Any:
    """Declare a field of a point type: one possible axis.

    Args:
        doc: one sentence for `sweeper show SIMULATOR`.
        unit: the unit of the value, if it has one.
        names: the folder its values name (`gpu`, `model` ...), so that the content of the named
            file becomes part of a point's identity and misspelt values get suggestions.
        otherwise: the word for none of those files, where it is not the default.
        part: the component that the field describes, where fields are grouped by component.
        given: whether it belongs to the question (a model, a load, a size) rather than to what a
            designer chooses; answers are then for each of its values, unless a space says else.
        default: as in `dataclasses.field`.
        **rule: allowed values, as in `ValueRule`: `at_least=1`, `above=0`, `known=(...)`.
    """
    metadata = {"doc": doc, "unit": unit, "names": names, "part": part, "given": given}
    metadata |= {"rule": ValueRule(**rule), "otherwise": otherwise}
    return field(metadata=metadata, default=default)


asked = functools.partial(choice, given=True)
"""Declare a field that belongs to the question."""


def group(kind: type) -> Any:
    """Declare a field with a group of options, a frozen dataclass; its docstring is the text."""
    return field(metadata={"doc": (kind.__doc__ or "").removesuffix(".")}, default=kind())


def given_of(kind: type) -> tuple[str, ...]:
    """Return the names of a point type's columns that belong to the question, not to the design."""
    return tuple(c.name for c in columns_of(kind) if c.metadata.get("given"))


def fields_of(kind: type, part: str) -> tuple[str, ...]:
    """Return the names of a point type's columns that describe a part."""
    return tuple(c.name for c in columns_of(kind) if c.metadata.get("part") == part)


def metric(doc: str, *, unit: str = "", better: Direction | None = None, page: str = "") -> Any:
    """Declare a field of a metrics type: one result column, an objective if `better` is given.

    `page` names the definition: a page of `docs/explanation/` and a heading, `serving.md#rates`.
    """
    return field(metadata={"doc": doc, "unit": unit, "better": better, "page": page})


def fact(doc: str, *, unit: str = "", needs: Sequence[str] = ()) -> Any:
    """Declare a field of a facts type: a column that constraints and derived columns may name.

    It depends on the point's fields that it needs: all of them if empty; the fewer, the cheaper.
    """
    return field(metadata={"doc": doc, "unit": unit, "needs": tuple(needs)})


@runtime_checkable
class Simulator(Protocol):
    """Anything that maps a batch of design points to a batch of metrics, row by row.

    `evaluate` takes the point's fields as columns (strings dictionary-encoded) and returns, in the
    same order, the metrics' fields and the columns of `OUTCOME`. It is pure: the same row gives the
    same bits alone, in any batch, in any order and in any process.
    """

    name: str
    version: int  # raised when results change; a golden run that moves without it fails a test
    point: type  # frozen dataclass: its columns are the possible axes
    metrics: type  # frozen dataclass: its fields are the result columns

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return one row of metrics per row of `batch`."""


@runtime_checkable
class Reads(Protocol):
    """A simulator whose answers depend on files: their content is part of a point's key."""

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files that the value `value` of the field `name` makes a point depend on."""


@runtime_checkable
class Describes(Protocol):
    """A simulator that can state cheap facts about points, for derived columns and constraints."""

    facts: type  # frozen dataclass, like `metrics`

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the fields of `facts` for every row, without simulating anything."""


@runtime_checkable
class WarmsUp(Protocol):
    """A simulator with compiled kernels: the driver compiles them once, before it hires."""

    def warm_up(self) -> None:
        """Compile, or load from the cache, everything `evaluate` will call."""


@runtime_checkable
class Hints(Protocol):
    """A simulator that knows beforehand which points are dear."""

    def cost_hint_s(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return a relative guess of the CPU-seconds each row will take."""


@runtime_checkable
class Shares(Protocol):
    """A simulator that evaluates several points of a batch by one run."""

    shares: tuple[str, ...]  # fields along which points often have the same run


@runtime_checkable
class Approximates(Protocol):
    """A simulator with a cheaper answer to the same points, in other values of a few fields."""

    cheaper: tuple[tuple[str, Any], ...]  # those fields with their values


@runtime_checkable
class Reprices(Protocol):
    """A simulator whose costs follow from its other columns: no price asks for a new simulation.

    Points are simulated at the defaults of `priced`; what results are asked for in other prices is
    computed from the rows that are there.
    """

    priced: tuple[str, ...]  # fields of the point that say prices, and change nothing but costs
    cost_needs: tuple[str, ...]  # the fields and metrics that costs follow from besides
    cost_metrics: tuple[str, ...]  # the metrics that are such costs

    def costs(
        self, rows: pa.RecordBatch, prices: Mapping[str, Any]
    ) -> Mapping[str, NDArray[np.float64]]:
        """Return the costs of rows of `cost_needs` at one value of each priced field.

        NaN where there is no price.
        """


@runtime_checkable
class Notes(Protocol):
    """A simulator with something to add below a table of its results: a date, an assumption."""

    def notes(self, axes: Mapping[str, Sequence[Any]]) -> Sequence[str]:
        """Return footnotes to results over these values of the point's fields."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """Time and energy of an operator, message or wait, with its bound and evidence level.

    Times and energies are those of all its repetitions; those of one design add up to its totals.
    """

    phase: str  # prefill, decode, stage 1 ...: what the rows of a design are grouped by
    name: str
    count: float = 1.0  # repetitions within the totals
    time_s: float = 0.0
    energy_j: float = 0.0
    memory_bytes: float = 0.0  # what it keeps resident on a device: weights, keys and values
    flops: float = 0.0
    moved_bytes: float = 0.0  # over memory or links, at least
    devices: int = 1  # that its FLOPs and bytes are summed over
    bound: str = ""  # compute, memory, latency, link, host ...
    level: str = "fitted"  # one of `core.columns.LEVELS`
    on: str = ""  # the device whose numbers these are
    note: str = ""


@runtime_checkable
class Explains(Protocol):
    """A simulator that can say where the time, the memory and the energy of a design go."""

    def explain(self, point: Mapping[str, Any]) -> Sequence[Contribution]:
        """Return the contributions to one design, named by the fields of the point type.

        Times add up to the latency, energies to the energy of `evaluate`, to the rounding of sums.
        Fields that are left out have their defaults.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value nothing answers to.
        """


@runtime_checkable
class NamesWeakest(Protocol):
    """A simulator that can name the operator of a design whose time is known worst."""

    def weakest(self, point: Mapping[str, Any]) -> Contribution | None:
        """Return the longest contribution on the worst evidence level, without a full simulation.

        Nothing where the design takes no time; a cheap answer may be that of a mean batch.
        """


def weakest_of(rows: Sequence[Contribution]) -> Contribution | None:
    """Return the longest contribution on the worst evidence level; None if nothing takes time."""
    timed = [row for row in rows if row.time_s > 0.0]
    return max(timed, key=lambda row: (LEVELS.index(row.level), row.time_s), default=None)


@runtime_checkable
class Records(Protocol):
    """A simulator of events that can return all events of the run of a design."""

    def records(self, point: Mapping[str, Any]) -> Mapping[str, pa.Table]:
        """Return a table of each kind of event, by its name.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value nothing answers to, or the design was not answered by events.
        """


def objectives_of(simulator: Simulator) -> dict[str, Direction]:
    """Return the metrics that have a direction, in the order of the metrics type."""
    return {
        f.name: f.metadata["better"] for f in fields(simulator.metrics) if f.metadata.get("better")
    }


def load_simulator(name: str) -> Simulator:
    """Return the simulator of that name: a folder with a `simulator.py`, or a file of one's own.

    Raises:
        UnknownNameError: nothing of that name is here.
        UserError: what is here is no simulator.
    """
    simulator: Simulator = _REGISTERED.get(name) or load_from(SIMULATORS, name, "SIMULATOR")
    return simulator


_REGISTERED: dict[str, Simulator] = {}
"""Simulators that are objects of this process, as of a notebook, by name."""


def register(simulator: Simulator) -> str:
    """Register an object by its name in this process, and return the name.

    Raises:
        UserError: it is no simulator, or its name is that of one that is shipped.
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
    """Return whether a name is that of a registered object, unknown to other processes."""
    return name in _REGISTERED
