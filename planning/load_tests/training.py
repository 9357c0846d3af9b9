"""Traces of PyTorch's profiler beside predicted training steps: time, and its parts of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planning.measure.run import MAKERS
from planning.measure.shapes import TABLES
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.core.folder import reader

METRICS = {
    "tp": "tp_comm_s",
    "cp": "cp_comm_s",
    "ep": "ep_comm_s",
    "dp": "dp_comm_s",
    "pp": "bubble_s",
}
"""Metric that counts the exposed messages of each kind of ranks; receives wait in a bubble."""
DEGREES = ("tp", "pp", "dp", "cp")
LEAST = 0.01
"""Share of a step without kernels that is mentioned."""


class TrainingTraces:
    """Read traces of training steps."""

    def read_log(self, text: str, source: str) -> dict[str, float]:
        """Return the measured parts of a step, keyed by metric.

        Raises:
            UserError: the text is not a trace of PyTorch's profiler, or has no kernels.
        """
        step = _step(text, source)
        found = {"step_s": step.step_s, "compute_s": step.compute_s}
        found |= {METRICS[kind]: seconds for kind, seconds in step.exposed_s.items()}
        return found if step.optimizer_s is None else found | {"optimizer_s": step.optimizer_s}

    def at_log(
        self, point: Mapping[str, Any], text: str, source: str
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return no changes of the design, and notes on what the trace measures.

        Raises:
            UserError: the trace is of another number of ranks than the design.
        """
        step, notes = _step(text, source), []
        ranks = 1
        for degree in DEGREES:
            ranks *= point[degree]
        if step.ranks and step.ranks != ranks:
            plan = " x ".join(f"{degree} {point[degree]}" for degree in DEGREES)
            raise UserError(f"{source} is of {step.ranks} ranks; the design has {ranks} ({plan})")
        recorded = _known(step.gpu)
        if recorded != load_gpu(point["gpu"]).name:
            said = recorded or step.gpu or "a GPU that it does not name"
            notes.append(f"The trace was recorded on {said}, the design is on {point['gpu']}.")
        if step.idle_s > LEAST * step.step_s:
            notes.append(
                f"No kernel ran for {step.idle_s / step.step_s:.0%} of the measured step: "
                "waits for the host or the data loader. Predicted waits for launches are part of "
                "compute_s."
            )
        if step.optimizer_s is None:
            notes.append(
                "The trace has no range Optimizer.step on the GPU; its measured compute_s includes "
                "the optimizer."
            )
        notes.append(f"Measured: one rank, {step.steps} steps; profilers slow down short kernels.")
        return {}, notes

    def advice(self, errors: Mapping[str, float]) -> str:
        """Return advice from the relative errors of predictions."""
        if "compute_s" not in errors:
            return ""
        return (
            "Kernels of the trace correct fp32 operators of a GPU: "
            "sweeper calibrate GPU --measured TRACE"
        )


def _step(text: str, source: str) -> Any:
    return reader("step_traces", "read_step")(text, source)


def _known(name: str) -> str:
    """Return the catalog's name of a GPU that a driver names; empty for an unknown GPU."""
    for maker in MAKERS:
        name = name.removeprefix(maker)
    return str(TABLES["data_sheets"].get(name, ""))


LOAD_TESTS = TrainingTraces()
