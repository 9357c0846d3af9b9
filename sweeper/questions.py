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
from simulators.core.folder import Folder
from simulators.core.modules import load_from

QUESTIONS = Folder("question", "questions", ".py", package="planning")
LOAD_TESTS = Folder("load test", "load_tests", ".py", package="planning")
DEPLOYMENTS = Folder("deployment", "deployments", ".py", package="deploy")
"""What is known of simulators beside their physics, by the name of the simulator."""


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
    """A question that was put in flags: the space to sweep, and the words of its answer.

    `amounts` are dollars of a design in a price list, each with the words behind it, the one that
    is kept lowest first; none without a price. `prefilter` says by what factor points will miss a
    deadline at least, by a model that costs little; `excluded` are columns of truths that must be
    false, each with what is said of it otherwise.
    """

    name: str  # of the space
    asks: str  # the question as a sentence
    space: Mapping[str, Any]  # what a space file would hold
    given: tuple[str, ...]  # asked about: an answer for each combination of their values
    device: str  # the axis by whose values designs are told apart: each has its best, or a reason
    amounts: Callable[[Mapping[str, Any], str], Mapping[str, float]]
    prices: tuple[str, ...]  # the price lists that are asked about
    without_price: str  # the metric that is kept lowest where nothing has a price
    deadlines: tuple[Deadline, ...]  # what the answer must meet
    shown: tuple[str, ...]  # metrics told of the answer
    details: tuple[str, ...]  # axes that are told of a design where they vary
    alternatives: tuple[str, ...]  # fields in one of which the next best design differs
    described: Callable[[Mapping[str, Any]], str]  # a design in a phrase
    too_large: str  # what is said when the constraints leave no point
    among: str  # which designs there were, as in "on at most 8 of h100_sxm"
    advice: tuple[str, ...]  # lines that say what would help when no design meets the deadlines
    target: Callable[[Mapping[str, Any]], str]  # to export it for, besides its own engine
    copies: str = ""  # of this axis each answer wants the least; empty: all points are evaluated
    devices: str = ""  # a derived column that grows with it
    budget: float | None = None  # the most that the first amount may be
    prefilter: Callable[[pa.RecordBatch], NDArray[np.float64]] | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)
    asked: Callable[[Mapping[str, Any]], str] = lambda _: ""  # what is told of its load
    refused: Mapping[str, str] = field(default_factory=dict)  # devices that cannot be, and why


@runtime_checkable
class Asks(Protocol):
    """What can be asked by flags alone."""

    flags: type  # frozen dataclass: its fields are the flags

    def question(self, flags: Any) -> Question:
        """Return the question that some flags put.

        Raises:
            UserError: a flag has a value that means nothing.
        """


@runtime_checkable
class ReadsLogs(Protocol):
    """A simulator whose metrics a load test of the real thing measures."""

    def read_log(self, text: str, source: str) -> Mapping[str, float]:
        """Return what a benchmark measured, under the names of the metrics.

        Raises:
            UserError: the text holds no figure that is known.
        """

    def lesson(self, errors: Mapping[str, float]) -> str:
        """Return what relative errors of predictions teach, or nothing."""


@runtime_checkable
class Reports(Protocol):
    """A simulator that can tell the run of a design as a load test of the real thing would."""

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the run of a design as text; empty for one that was not answered by events."""


@runtime_checkable
class Deploys(Protocol):
    """What writes the command or the manifest that starts a simulator's designs."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the text that deploys a design.

        Fields of the point that are left out have their defaults; the target is an engine or an
        orchestrator, empty for the one that the design itself implies; a comment has the name.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: nothing answers to the target.
            UserError: it cannot be deployed so; says why.
        """


@runtime_checkable
class CarriesLoad(Protocol):
    """A simulator whose designs carry a load, with copies of them where one is too little."""

    load: str  # the field that says how much a design is asked to carry
    throughput: str  # the metric that grows with it
    deadlines: str  # an example of what is promised, as an SQL condition
    copies: str  # the field that says how many copies of a replica share it

    def standing(self, row: Mapping[str, Any]) -> Mapping[str, float]:
        """Return what one replica of a design takes while it stands, by unit: GPUs, $ an hour."""


@runtime_checkable
class Bounds(Protocol):
    """A simulator that can say what no design of a box, between two of them, does better than."""

    ranged: tuple[str, ...]  # the fields in which a box may have several values

    def bounds(self, low: pa.RecordBatch, high: pa.RecordBatch) -> Mapping[str, Any]:
        """Return columns of what metrics are not below for any design of each box, with rounding.

        Infinite where none of its designs can exist or has the metric, zero where nothing is known.
        """


@runtime_checkable
class Ignores(Protocol):
    """A simulator some of whose fields change nothing in some designs."""

    def ignored(self, batch: pa.RecordBatch) -> Mapping[str, NDArray[np.bool_]]:
        """Return by field in which designs its value changes no metric that is bounded."""


def known_beside(simulator: Simulator, folder: Folder) -> object:
    """Return what a file of the simulator's name knows, else the simulator, which may know itself.

    Such a file defines `QUESTIONS`, `LOAD_TESTS` or `DEPLOYMENTS`, as its folder is called.
    """
    if simulator.name not in folder.names():
        return simulator
    return load_from(folder, simulator.name, folder.path.upper())
