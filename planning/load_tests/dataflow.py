"""Profiles of layers beside predictions of an accelerator: a CSV file with one line per layer.

Columns: `layer` (a name of the network), `count` (runs of equal layers, 1 if left out), and of one
run `latency_s` or `cycles`, and `energy_j`. Layers are also compared one by one, each mapped alone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulators.core.errors import UserError
from simulators.core.fields import point_from
from simulators.dataflow.mapping import layers_named
from simulators.dataflow.network import is_onnx, network_graph
from simulators.dataflow.simulator import DataflowPoint, simulate
from sweeper.questions import ComparedPart

METRICS = {
    "latency_s": ("latency_s", "chip_latency_s"),
    "cycles": ("cycles",),
    "energy_j": ("energy_j",),
}
"""Predicted metrics by column; the chip's time includes losses of published chips."""


@dataclass(frozen=True)
class ProfiledLayer:
    """One line of a profile."""

    name: str
    count: int
    measured: Mapping[str, float]  # of one run, by column


class LayerProfiles:
    """Read profiles of layers."""

    def read_log(self, text: str, source: str) -> dict[str, float]:
        """Return the sums over all layers of a profile, keyed by metric.

        Raises:
            UserError: the text is not a profile of layers.
        """
        lines = read_profile(text, source)
        columns = set.intersection(*(set(line.measured) for line in lines))
        return {
            metric: sum(line.count * line.measured[column] for line in lines)
            for column, metrics in METRICS.items()
            if column in columns
            for metric in metrics
        }

    def at_log(
        self, point: Mapping[str, Any], text: str, source: str
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return no changes of the design, and no notes.

        Raises:
            UserError: the profile's layers are not those of the design, or run another number of
                times.
        """
        design = point_from(DataflowPoint, point)
        wanted = _layers(design)
        found = {line.name: line.count for line in read_profile(text, source)}
        if missing := [name for name in wanted if name not in found]:
            raise UserError(
                f"{source} lacks {len(missing)} of {len(wanted)} layers of {design.network}, such "
                f"as {missing[0]}; a profile of one layer is compared with a design of that layer"
            )
        if unknown := [name for name in found if name not in wanted]:
            raise UserError(f"{source}: {design.network} has no layer '{unknown[0]}'")
        for name, count in wanted.items():
            if found[name] != count:
                raise UserError(
                    f"{source}: layer '{name}' runs {count} times in {design.network}; the profile "
                    f"states {found[name]} (column count)"
                )
        return {}, ()

    def parts(self, point: Mapping[str, Any], text: str, source: str) -> Sequence[ComparedPart]:
        """Return measured and predicted times and energies of one run of each layer."""
        design = point_from(DataflowPoint, point)
        found = []
        for line in read_profile(text, source):
            alone = simulate(replace(design, layer=line.name))
            for column, value in line.measured.items():
                metric = METRICS[column][0]
                predicted = float(getattr(alone, metric)) / line.count
                found.append(ComparedPart(line.name, metric, value, predicted))
        return found

    def advice(self, errors: Mapping[str, float]) -> str:
        """Return what tells the two predictions of time apart."""
        if "chip_latency_s" not in errors:
            return ""
        return "latency_s is the mapping's time; chip_latency_s adds losses of published chips."


def read_profile(text: str, source: str) -> list[ProfiledLayer]:
    """Return the lines of a profile.

    Raises:
        UserError: a column is missing or unknown, or a number is not positive.
    """
    rows = list(csv.DictReader(io.StringIO(text)))
    header = set(rows[0]) if rows else set()
    columns = [name for name in METRICS if name in header]
    if "layer" not in header or not columns or header - {"layer", "count", *METRICS}:
        raise UserError(
            f"{source} is not a profile of layers: write a CSV file with the columns layer, "
            f"count (optional), and some of {', '.join(METRICS)}"
        )
    found = []
    for number, row in enumerate(rows, start=2):
        try:
            count, measured = int(row.get("count") or 1), {c: float(row[c]) for c in columns}
        except (TypeError, ValueError) as error:
            raise UserError(f"{source}, line {number}: {error}") from error
        if count < 1 or not all(0.0 < value < math.inf for value in measured.values()):
            raise UserError(f"{source}, line {number}: numbers must be positive")
        found.append(ProfiledLayer(row["layer"], count, measured))
    return found


def _layers(design: DataflowPoint) -> dict[str, int]:
    """Return the layers of a design, each with its number of runs."""
    if is_onnx(design.network):
        nodes = network_graph(design.network, design.batch).nodes
        return {n.layer.name: 1 for n in nodes if design.layer in ("all", n.layer.name)}
    found: dict[str, int] = {}
    for layer, times in layers_named(design.network, design.layer):
        found[layer.name] = found.get(layer.name, 0) + times
    return found


LOAD_TESTS = LayerProfiles()
