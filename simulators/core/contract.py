"""A simulator turns a batch of design points into a batch of metrics, row by row.

That sentence is the whole contract between the physics and the logistics. A simulator's inputs and
metrics are two frozen dataclasses: their fields are the columns of the tables, the names allowed in
a design space and the documentation. Nobody lists them again.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.errors import Infeasible
from simulators.core.folder import FOLDERS, SIMULATORS
from simulators.core.modules import load_from
from simulators.core.rules import Rule

Direction = Literal["min", "max"]
STATUSES = ("ok", "infeasible", "error", "timeout", "crash")
"""Every point ends as a row; a simulator itself says `ok` or `infeasible`, the engine the rest."""

P = TypeVar("P")
M = TypeVar("M")


def choice(
    doc: str,
    *,
    unit: str = "",
    names: str = "",
    part: str = "",
    default: Any = MISSING,
    **rule: Any,
) -> Any:
    """Declare a field of a point type: one possible axis.

    Args:
        doc: one sentence for `sweeper show SIMULATOR`.
        unit: the unit of the value, if it has one.
        names: the folder its values name (`gpu`, `model` ...), so that the content of the named
            file becomes part of a point's identity and misspelt values get suggestions.
        part: what the field says something about, where fields are told apart by that.
        default: as in `dataclasses.field`.
        **rule: which values mean something, as in `Rule`: `at_least=1`, `above=0`, `known=(...)`.
    """
    metadata = {"doc": doc, "unit": unit, "names": names, "part": part, "rule": Rule(**rule)}
    return field(metadata=metadata, default=default)


def fields_of(kind: type, part: str) -> tuple[str, ...]:
    """Return the names of a point type's fields that say something about a part."""
    return tuple(f.name for f in fields(kind) if f.metadata.get("part") == part)


def metric(doc: str, *, unit: str = "", better: Direction | None = None, page: str = "") -> Any:
    """Declare a field of a metrics type: one result column, an objective if `better` is given.

    `page` is where it is defined: a page of `docs/` and a heading on it, `serving.md#rates`.
    """
    return field(metadata={"doc": doc, "unit": unit, "better": better, "page": page})


def fact(doc: str, *, unit: str = "", needs: Sequence[str] = ()) -> Any:
    """Declare a field of a facts type: a column that constraints and derived columns may name.

    Args:
        doc: one sentence for `sweeper show SIMULATOR`.
        unit: the unit of the value.
        needs: the point fields it depends on; all of them if empty. The fewer, the cheaper.
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
    point: type  # frozen dataclass: its fields are the possible axes
    metrics: type  # frozen dataclass: its fields are the result columns

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return one row of metrics per row of `batch`."""
        ...


@runtime_checkable
class Reads(Protocol):
    """A simulator whose answers depend on files: their content is part of a point's key."""

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files that the value `value` of the field `name` makes a point depend on."""
        ...


@runtime_checkable
class Describes(Protocol):
    """A simulator that can state cheap facts about points, for derived columns and constraints."""

    facts: type  # frozen dataclass, like `metrics`

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the fields of `facts` for every row, without simulating anything."""
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """A simulator with compiled kernels: the driver compiles them once, before it hires."""

    def warm_up(self) -> None:
        """Compile, or load from the cache, everything `evaluate` will call."""
        ...


@runtime_checkable
class Hints(Protocol):
    """A simulator that knows beforehand which points are dear."""

    def cost_hint_s(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return a relative guess of the CPU-seconds each row will take."""
        ...


@runtime_checkable
class Notes(Protocol):
    """A simulator with something to add below a table of its results: a date, an assumption."""

    def notes(self, axes: Mapping[str, Sequence[Any]]) -> Sequence[str]:
        """Return footnotes to results over these values of the point's fields."""
        ...


LEVELS = ("measured", "fitted", "extrapolated", "unmodelled")
"""What a figure rests on: a table of it, a fit to its like, a fit it has left, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What one operator, message or wait of a design takes, of what bounds it, on what evidence.

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
    level: str = "fitted"  # one of `LEVELS`
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
        ...


@runtime_checkable
class Deploys(Protocol):
    """What writes the command or the manifest that starts a simulator's designs."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the text that deploys a design.

        Args:
            point: values of the point's fields; those left out have their defaults.
            target: an engine or an orchestrator; empty for the one the design itself implies.
            name: what a comment in the text calls the design.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: nothing answers to the target.
            UserError: it cannot be deployed so; says why.
        """
        ...


@runtime_checkable
class Records(Protocol):
    """A simulator of events: it can tell everything that happened in the run of one design."""

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the run of a design as text, as a test of the real thing would print it.

        A design that was not answered by events has none, and an empty text.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value nothing answers to.
        """
        ...

    def records(self, point: Mapping[str, Any]) -> Mapping[str, pa.Table]:
        """Return a table of each kind of event, by its name.

        Raises:
            Infeasible: the design cannot exist.
            UserError: a value nothing answers to, or the design was not answered by events.
        """
        ...


@dataclass(frozen=True)
class Check:
    """One line of `sweeper validate` or of a benchmark: what was measured and what was asked.

    `ok` is None where no limit is set, or where the table behind the check is absent.
    """

    name: str
    value: float | None
    unit: str = ""
    limit: float | None = None
    ok: bool | None = None
    rows: int = 0
    note: str = ""


OUTCOME = pa.schema(
    [
        pa.field("status", pa.dictionary(pa.int8(), pa.string())),
        pa.field("reason", pa.string()),
        pa.field("calibrated", pa.bool_()),
        pa.field("extrapolated", pa.bool_()),
    ]
)


def schema_of(kind: type) -> pa.Schema:
    """Return the Arrow schema of a point, facts or metrics dataclass; units travel as metadata.

    >>> @dataclass(frozen=True)
    ... class Point:
    ...     model: str
    ...     tp: int = 1
    >>> schema_of(Point).types
    [DataType(string), DataType(int64)]
    """
    return _schema_of(kind)


@functools.cache
def _schema_of(kind: Any) -> pa.Schema:
    hints = typing.get_type_hints(kind)
    return pa.schema(
        [
            pa.field(
                f.name, _arrow_type(hints[f.name]), metadata={"unit": f.metadata.get("unit", "")}
            )
            for f in fields(kind)
        ]
    )


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
    simulator: Simulator = load_from(SIMULATORS, name, "SIMULATOR")
    return simulator


def deploys(simulator: Simulator) -> Deploys | None:
    """Return what writes the deployments of a simulator's designs, if anything does.

    That is the simulator itself, or else `DEPLOYMENTS` of the module `deploy.<its name>`: physics
    knows nothing of engines' command lines.
    """
    if isinstance(simulator, Deploys):
        return simulator
    if importlib.util.find_spec(f"deploy.{simulator.name}") is None:
        return None
    return getattr(importlib.import_module(f"deploy.{simulator.name}"), "DEPLOYMENTS", None)


def outcome(
    metrics: type,
    columns: Mapping[str, NDArray[Any]],
    *,
    infeasible: Sequence[str] | None = None,
    calibrated: bool | NDArray[np.bool_] = False,
    extrapolated: bool | NDArray[np.bool_] = False,
) -> pa.RecordBatch:
    """Build what `evaluate` returns from columns of numbers.

    Args:
        metrics: the simulator's metrics type.
        columns: one array per field of `metrics`, all of one length.
        infeasible: per row the reason a point cannot exist, or an empty string; its metrics become
            null. None when every row is feasible.
        calibrated: whether every figure behind a row was fitted to measurements.
        extrapolated: whether a row lies outside the range some calibration was fitted on.
    """
    schema = schema_of(metrics)
    rows = len(next(iter(columns.values())))
    dead = None if infeasible is None else np.array([bool(r) for r in infeasible], dtype=bool)
    arrays = [pa.array(columns[f.name], type=f.type, mask=dead) for f in schema]
    codes = np.zeros(rows, np.int8) if dead is None else dead.astype(np.int8)
    status = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(STATUSES))
    if infeasible is None:
        reason = pa.nulls(rows, pa.string())
    else:
        reason = pa.array([r or None for r in infeasible], pa.string())
    flags = [
        pa.array(np.broadcast_to(np.asarray(x, bool), rows)) for x in (calibrated, extrapolated)
    ]
    return pa.RecordBatch.from_arrays(
        [*arrays, status, reason, *flags], schema=pa.schema([*schema, *OUTCOME])
    )


def numbers(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """Return a numeric or boolean column as an array (nulls become NaN)."""
    column = batch.column(name)
    if pa.types.is_dictionary(column.type) and not column.indices.null_count:
        values: NDArray[Any] = column.dictionary.to_numpy(zero_copy_only=False)
        decoded: NDArray[Any] = values[column.indices.to_numpy(zero_copy_only=False)]
        return decoded
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def categories(batch: pa.RecordBatch, name: str) -> tuple[NDArray[np.int64], list[Any]]:
    """Return a column as codes and the distinct values they stand for."""
    column = batch.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    values = column.dictionary.to_pylist()
    codes = column.indices
    if codes.null_count:
        codes, values = codes.fill_null(len(values)), [*values, None]
    return codes.to_numpy(zero_copy_only=False).astype(np.int64), values


@dataclass(frozen=True)
class Pointwise(Generic[P, M]):
    """Lift `simulate(point) -> metrics` to a `Simulator`; an infeasible point becomes nulls.

    For event-driven models. A model that is a formula implements `evaluate` on columns instead.
    The metrics type may have boolean fields `calibrated` and `extrapolated`; they become the
    columns of those names. What a field `names` is part of a point's identity.
    """

    name: str
    version: int
    point: type[P]
    metrics: type[M]
    simulate: Callable[[P], M]

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Simulate every row on its own."""
        return evaluate_pointwise(self.point, self.metrics, self.simulate, batch)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """A point depends on the files that its fields name."""
        names = {f.name: f.metadata.get("names", "") for f in fields(self.point)}  # type: ignore[arg-type]
        folder = FOLDERS.get(names.get(name, ""))
        return () if folder is None else (folder.find(str(value)),)


def points_of(kind: type[P], batch: pa.RecordBatch) -> list[P]:
    """Return the rows of a batch as points of type `kind`."""
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    return [kind(*row) for row in zip(*(_cells(batch, name) for name in names), strict=True)]


def _cells(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Return a column as Python values; equal ones of an encoded column are one object."""
    if pa.types.is_dictionary(batch.column(name).type):
        codes, values = categories(batch, name)
        return [values[code] for code in codes.tolist()]
    plain: list[Any] = batch.column(name).to_pylist()
    return plain


def evaluate_pointwise(
    point: type[P], metrics: type[M], simulate: Callable[[P], M], batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Return the outcome of `simulate` for each row; an `Infeasible` it raises is a row too."""
    schema = schema_of(metrics)
    rows: list[tuple[Any, ...]] = []
    reasons: list[str] = []
    nothing = tuple(None for _ in schema)
    for design in points_of(point, batch):
        try:
            result = simulate(design)
        except Infeasible as verdict:
            rows.append(nothing)
            reasons.append(str(verdict))
        else:
            rows.append(tuple(getattr(result, name) for name in schema.names))
            reasons.append("")
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = dict(
        zip(
            schema.names,
            (pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)),
            strict=True,
        )
    )
    dead = np.array([bool(r) for r in reasons], dtype=bool)
    status = pa.DictionaryArray.from_arrays(pa.array(dead.astype(np.int8)), pa.array(STATUSES))
    flags = {
        name: arrays.pop(name, pa.array(np.zeros(len(rows), bool))).fill_null(False)
        for name in ("calibrated", "extrapolated")
    }
    kept = [f for f in schema if f.name in arrays]
    return pa.RecordBatch.from_arrays(
        [
            *arrays.values(),
            status,
            pa.array([r or None for r in reasons], pa.string()),
            *flags.values(),
        ],
        schema=pa.schema([*kept, *OUTCOME]),
    )


def default_of(f: dataclasses.Field[Any]) -> Any:
    """Return a field's default, or `dataclasses.MISSING`."""
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def _arrow_type(hint: Any) -> pa.DataType:
    """Return the Arrow type of a field's annotation; `X | None` is a nullable X."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[hint]
