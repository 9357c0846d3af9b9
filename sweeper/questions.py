"""What may be known of a simulator beside its metrics: questions by flags, load tests, bounds.

All of it is optional and found by what the simulator object has. Questions, load tests and
deployments may also be those of a file with the simulator's name, in `planning/` and `deploy/`. The
sweeper asks, sweeps and prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.contract import Simulator
from simulators.core.folder import Folder, load_from

QUESTIONS = Folder("question", "questions", ".py", package="planning")
LOAD_TESTS = Folder("load test", "load_tests", ".py", package="planning")
DEPLOYMENTS = Folder("deployment", "deployments", ".py", package="deploy")
"""Folders of files named after simulators."""


def flag(
    doc: str,
    *,
    least: int | None = None,
    choices: Sequence[Any] = (),
    unit: str = "",
    **default: Any,
) -> Any:
    """Declare a field of a question's flags; one without a default must be given.

    It may be one of the choices, any if there are none, or a whole number that is not below the
    least; with a unit, "s", numbers are read that are written with one, `800ms`.
    """
    metadata = {"doc": doc, "least": least, "choices": tuple(choices), "unit": unit}
    return field(metadata=metadata, **default)


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A metric that must not exceed a limit; `interval` is the metric whose error it shares."""

    metric: str
    limit: float
    interval: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question asked by flags: the space to sweep, and the texts of its answer.

    `amounts` returns the dollars of a design under a price list, by the text that follows them, the
    one to minimise first; empty without a price. `prefilter` returns, by a cheap model, a lower
    bound of the factor by which points miss a deadline. `excluded` are boolean columns that must be
    false, each with the message shown otherwise.
    """

    name: str  # of the space
    asks: str  # the question as a sentence
    space: Mapping[str, Any]  # what a space file would hold
    given: tuple[str, ...]  # axes; each combination of their values has an answer
    device: str  # axis; each of its values has a best design, or a reason why it has none
    amounts: Callable[[Mapping[str, Any], str], Mapping[str, float]]
    prices: tuple[str, ...]  # price lists
    without_price: str  # metric to minimise where nothing has a price
    deadlines: tuple[Deadline, ...]  # what the answer must meet
    shown: tuple[str, ...]  # metrics of the answer
    details: tuple[str, ...]  # axes shown of a design where they vary
    alternatives: tuple[str, ...]  # fields, in one of which the runner-up differs
    described: Callable[[Mapping[str, Any]], str]  # a design in a phrase
    too_large: str  # message if the constraints leave no point
    among: str  # the candidates, as in "on at most 8 of h100_sxm"
    advice: tuple[str, ...]  # lines shown if no design meets the deadlines
    target: Callable[[Mapping[str, Any]], str]  # export target besides the design's own engine
    copies: str = ""  # axis to minimise in each answer; empty: all points are evaluated
    devices: str = ""  # a derived column that grows with it
    budget: float | None = None  # the most that the first amount may be
    prefilter: Callable[[pa.RecordBatch], NDArray[np.float64]] | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)
    asked: Callable[[Mapping[str, Any]], str] = lambda _: ""  # description of its load
    refused: Mapping[str, str] = field(default_factory=dict)  # refused devices and reasons


@runtime_checkable
class Asks(Protocol):
    """Turns flags into a question."""

    flags: type  # frozen dataclass: its fields are the flags

    def question(self, flags: Any) -> Question:
        """Return the question for some flags.

        Raises:
            UserError: a flag has an invalid value.
        """


@runtime_checkable
class ReadsLogs(Protocol):
    """A simulator whose metrics a load test of a deployment measures."""

    def read_log(self, text: str, source: str) -> Mapping[str, float]:
        """Return what a benchmark measured, under the names of the metrics.

        Raises:
            UserError: the text holds no known figure.
        """

    def lesson(self, errors: Mapping[str, float]) -> str:
        """Return advice from the relative errors of predictions; may be empty."""


@runtime_checkable
class Reports(Protocol):
    """A simulator that can print the run of a design as a load test would."""

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the run of a design as text; empty for a design that is not event-driven."""


@runtime_checkable
class Deploys(Protocol):
    """Writes the command or manifest that starts a design."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the text that deploys a design.

        Missing fields of the point have their defaults. The target is an engine or an orchestrator;
        empty: the design's own engine. The name appears in a comment.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: the target is unknown.
            UserError: the design cannot be deployed on the target.
        """


@runtime_checkable
class CarriesLoad(Protocol):
    """A simulator whose designs serve a load, with replicas."""

    load: str  # field: the load
    throughput: str  # metric: the load served
    deadlines: str  # example of an SLO, as an SQL condition
    copies: str  # field: the number of replicas

    def standing(self, row: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the resources of one replica of a design, by unit: GPUs, $ an hour."""


@runtime_checkable
class Bounds(Protocol):
    """A simulator with lower bounds of metrics over boxes of designs."""

    ranged: tuple[str, ...]  # fields in which a box may span several values

    def bounds(self, low: pa.RecordBatch, high: pa.RecordBatch) -> Mapping[str, Any]:
        """Return lower bounds of metrics over each box, as columns; rounding is included.

        Infinite where no design of the box is feasible or has the metric, zero where unknown.
        """


@runtime_checkable
class Ignores(Protocol):
    """A simulator with fields that have no effect in some designs."""

    def ignored(self, batch: pa.RecordBatch) -> Mapping[str, NDArray[np.bool_]]:
        """Return, by field, in which designs its value has no effect on bounded metrics."""


def known_beside(simulator: Simulator, folder: Folder) -> object:
    """Return what a file of the simulator's name knows, else the simulator, which may know itself.

    Such a file defines `QUESTIONS`, `LOAD_TESTS` or `DEPLOYMENTS`, as its folder is called.
    """
    if simulator.name not in folder.names():
        return simulator
    return load_from(folder, simulator.name, folder.path.upper())
