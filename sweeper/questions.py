"""Optional interfaces of simulators: questions by flags, load tests, deployments, bounds.

A simulator object may implement them itself. Questions, load tests and deployments may also stand
in a file with the simulator's name, in `planning/` or `deploy/`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from simulators.core.folder import Folder, load_from

if TYPE_CHECKING:  # the help of `ask` reads this module and loads no numerical library
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from simulators.core.contract import Simulator

QUESTIONS = Folder("question", "questions", ".py", package="planning")
ANSWERS = Folder("answer", "answers", ".py", package="planning")
FLAGS = Folder("file of flags", "flags", ".py", package="planning")
LOAD_TESTS = Folder("load test", "load_tests", ".py", package="planning")
DEPLOYMENTS = Folder("deployment", "deployments", ".py", package="deploy")
"""Folders of files named after simulators; those of answers after questions that need no sweep."""


def flag(
    doc: str,
    *,
    least: int | None = None,
    bare: float | None = None,
    choices: Sequence[Any] = (),
    unit: str = "",
    **default: Any,
) -> Any:
    """Declare a field of a question's flags; a field without a default is required.

    Args:
        doc: the help text.
        least: smallest value of a whole number.
        bare: largest number that may be written without a unit.
        choices: allowed values; all values if empty.
        unit: unit of the number; with "s", the flag accepts `800ms`.
        default: the default value, as in `default=1`.
    """
    metadata = {"doc": doc, "least": least, "bare": bare, "choices": tuple(choices), "unit": unit}
    return field(metadata=metadata, **default)


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """An upper limit on a metric.

    `interval` names the metric with a stated prediction interval of the same relative width.
    """

    metric: str
    limit: float
    interval: str


@dataclass(frozen=True, kw_only=True)
class Day:
    """The load of a day, and the limits of autoscaling."""

    axis: str  # of the load
    starts_h: tuple[float, ...]  # hours at which the loads begin, from 0
    loads: tuple[float, ...]
    min_replicas: int
    max_replicas: int  # 0: as many as the peak needs
    startup_s: float  # from the start of a replica to its first request
    cool_down_s: float  # for which a replica stays when the load falls


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question asked by flags: the space to sweep, and the texts of the answer.

    `amounts` returns the costs of a design under a price list in dollars, keyed by unit text such
    as "an hour"; the first cost is minimised, and without a price the mapping is empty. `prefilter`
    returns a lower bound of each point's ratio of latency to deadline, from a cheap model.
    `excluded` maps boolean columns that must be false to the message for a true value.
    """

    name: str  # of the space
    asks: str  # the question as a sentence
    space: Mapping[str, Any]  # what a space file would hold
    given: tuple[str, ...]  # scenario axes; each combination of values has an answer
    device: str  # axis of devices; each device has a best design, or a reason for none
    amounts: Callable[[Mapping[str, Any], str], Mapping[str, float]]
    prices: tuple[str, ...]  # price lists
    without_price: str  # metric to minimise among designs without a price
    deadlines: tuple[Deadline, ...]  # limits that the answer must meet
    shown: tuple[str, ...]  # metrics of the answer
    details: tuple[str, ...]  # axes shown for a design if they vary
    alternatives: tuple[str, ...]  # fields; the next best design differs in one of them
    described: Callable[[Mapping[str, Any]], str]  # returns a design as a phrase
    too_large: str  # message if the constraints leave no point
    among: str  # the candidates, as in "on at most 8 of h100_sxm"
    advice: tuple[str, ...]  # lines shown if no design meets the deadlines
    unfit: str  # advice if every design is infeasible
    target: Callable[[Mapping[str, Any]], str]  # returns a suggested export target
    contrast: tuple[str, str, str] | None = None  # an axis, and names of designs at 0 and above
    copies: str = ""  # axis to minimise in each answer; empty: all points are evaluated
    options: tuple[str, ...] = ()  # axes, the default first, searched behind all others
    devices: str = ""  # derived column that grows with `copies`, such as the number of GPUs
    faster: str = ""  # flags of a faster, less exact search, for an answer that takes long
    budget: float | None = None  # upper limit of the first cost, in dollars
    prefilter: Callable[[pa.RecordBatch], NDArray[np.float64]] | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)
    resolved: Mapping[str, str] = field(default_factory=dict)  # metrics shown for null axes
    asked: Callable[[Mapping[str, Any]], str] = lambda _: ""  # describes a design's load
    refused: Mapping[str, str] = field(default_factory=dict)  # refused devices and reasons
    notes: tuple[str, ...] = ()  # printed with the answer
    day: Day | None = None  # the load of a day, whose peak the question asks about
    most_devices: int = 0  # limit of the devices; 0: none
    larger: Callable[[], Question] | None = None  # the question with twice the devices
    sized: Callable[[int], Question] | None = None  # the question with so many devices
    is_grown: bool = False  # whether the question grows until it has an answer
    # The question with other limits, by metric of a deadline.
    relaxed: Callable[[Mapping[str, float]], Question] | None = None


@runtime_checkable
class BuildsQuestions(Protocol):
    """Turns flags into a question."""

    flags: type  # frozen dataclass: its fields are the flags
    question: Callable[[Any], Question]  # raises UserError for an invalid flag


@runtime_checkable
class ReadsLogs(Protocol):
    """Reads the log of a load test, which measures the simulator's metrics."""

    def read_log(self, text: str, source: str) -> Mapping[str, float]:
        """Return the measured values in the log of a benchmark, keyed by metric.

        Raises:
            UserError: the text contains no known metric.
        """

    def at_log(
        self, point: Mapping[str, Any], text: str, source: str
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return the inputs that give a design the load of a log, and differences in words.

        Raises:
            UserError: the log is of something else than the design.
        """

    def advice(self, errors: Mapping[str, float]) -> str:
        """Return advice from the relative errors of predictions; may be empty."""


@dataclass(frozen=True)
class ComparedPart:
    """A part of a design that a log measured, such as a layer."""

    name: str
    metric: str  # states the unit
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1.0


@runtime_checkable
class ComparesParts(Protocol):
    """Reads logs that measure parts of a design besides its metrics."""

    def parts(self, point: Mapping[str, Any], text: str, source: str) -> Sequence[ComparedPart]:
        """Return measured and predicted values of the parts of a design.

        Raises:
            UserError: the log is of something else than the design.
        """


@runtime_checkable
class Reports(Protocol):
    """Prints the run of a design in the format of a load test."""

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the run of a design as text; empty if the design has an analytic model."""


@runtime_checkable
class Deploys(Protocol):
    """Writes the command or manifest that starts a design."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the command or manifest that deploys a design.

        Missing fields of the point have their defaults. The target is an engine or an orchestrator,
        by default the design's own engine. The name appears in a comment.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: the target is unknown.
            UserError: the design cannot be deployed on the target.
        """


@runtime_checkable
class WritesForwardTimes(Protocol):
    """Writes the forward passes of a design as a table."""

    def forward_times(self, point: Mapping[str, Any], file: Path) -> int:
        """Write the table and its metadata, and return the number of rows.

        Raises:
            Infeasible: the design cannot exist.
            UserError: the design has no such table, or the file cannot be written.
        """


@runtime_checkable
class Benchmarks(Protocol):
    """Writes the benchmark that measures a design."""

    def benchmark(
        self, point: Mapping[str, Any], client: str, trace: str
    ) -> tuple[str, str, Mapping[str, Any]]:
        """Return a command, the content of a trace, and fields.

        The command sends the load of the design and reads the trace from the file `trace`, if the
        content is not empty. With the fields, the simulator counts as the client does. The client
        is by default that of the design's engine, if it can send the load.

        Raises:
            UnknownNameError: the client is unknown.
            UserError: the client cannot send the load.
        """


class Mixes(Protocol):
    """Two designs that can be mixed."""

    @property
    def groups(self) -> Sequence[str]:
        """Groups of facts that differ."""

    @property
    def half_widths(self) -> Mapping[str, float]:
        """Half-widths of the 90 % interval of ln(new / old), by metric; empty if unknown."""

    @property
    def remainder(self) -> Mapping[str, float]:
        """Likely shares of groups in what is unexplained; empty if unknown."""

    @property
    def confirmed_by(self) -> Mapping[str, str]:
        """Measurements that confirm the share of a group."""

    def run(self, taken: Collection[str]) -> Mapping[str, float]:
        """Return the metrics of the mixture whose groups `taken` are those of the new design.

        Raises:
            Infeasible: the mixture cannot exist.
        """


@runtime_checkable
class MixesDesigns(Protocol):
    """A simulator whose designs can be mixed by groups of facts, other than by fields."""

    def mixtures(
        self, old: Mapping[str, Any], new: Mapping[str, Any], changed: Collection[str] = ()
    ) -> Mixes:
        """Return the mixtures of two points, which attribute their difference to groups of facts.

        `changed`: options that differ in ways the points do not show.

        Raises:
            Infeasible: one of the designs cannot exist.
            UserError: the designs cannot be mixed, or a changed option is unknown.
        """


@runtime_checkable
class CarriesLoad(Protocol):
    """A simulator whose designs serve a load, with replicas."""

    load: str  # field of the load
    throughput: str  # metric of the served load
    deadlines: str  # example of an SLO, as an SQL condition
    copies: str  # field of the number of replicas

    def replica_resources(self, row: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the resources of one replica of a design, keyed by unit, such as GPUs."""


@runtime_checkable
class Bounds(Protocol):
    """A simulator with lower bounds of metrics over boxes of designs."""

    ranged: tuple[str, ...]  # fields in which a box may span several values

    def bounds(self, low: pa.RecordBatch, high: pa.RecordBatch) -> Mapping[str, Any]:
        """Return lower bounds of metrics over each box, as columns.

        `low` and `high` are the corners of the boxes. A bound is infinite if no design of the box
        is feasible or has the metric, and zero if unknown. Rounding errors are included.
        """


@runtime_checkable
class RelatesErrors(Protocol):
    """A simulator whose predictions have known errors in common."""

    def error_shares(self) -> Mapping[str, float]:
        """Return, by metric, how far two predictions err alike, as a ratio of half-widths.

        The half-width of the 90 % interval of ln(a / b), over the root of the summed squares of
        the half-widths of ln(a) and ln(b). Errors are independent at 1 and equal at 0.
        """


@runtime_checkable
class Ignores(Protocol):
    """A simulator with fields that have no effect in some designs."""

    def ignored(self, batch: pa.RecordBatch) -> Mapping[str, NDArray[np.bool_]]:
        """Return one mask per field: the designs in which the field has no effect on bounds."""


def plugin_of(simulator: Simulator, folder: Folder) -> object:
    """Return the object in the file with the simulator's name; without a file, the simulator.

    The file defines `QUESTIONS`, `LOAD_TESTS` or `DEPLOYMENTS`, the name of its folder.
    """
    if simulator.name not in folder.names():
        return simulator
    return load_from(folder, simulator.name, folder.path.upper())
