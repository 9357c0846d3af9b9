"""Export accelerator designs as files of Timeloop (version 4) and AccelForge.

`timeloop`: architecture, and problem and mapping of a single layer. `accelforge`: architecture, and
the workload of networks that consist of products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml  # type: ignore[import-untyped]

from formats.hardware.accelforge import arch_of, workload_of
from formats.hardware.timeloop_files import architecture_of, directives_of, problem_of
from simulators.core.errors import UnknownNameError, UserError
from simulators.dataflow.network import network_graph
from simulators.dataflow.simulator import DataflowPoint, machine_for, plan_of

TIMELOOP, ACCELFORGE = TARGETS = ("timeloop", "accelforge")


class DataflowDeployments:
    """Writes designs for `sweeper export`."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the files of a design as one YAML text; a comment contains `name`.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: unknown target.
            UserError: the target cannot express a layer.
        """
        target = target or TIMELOOP
        if target not in TARGETS:
            raise UnknownNameError("target", target, TARGETS)
        design = DataflowPoint(**point)
        accelerator = machine_for(design)
        lines = [f"# {name}: {design.accelerator}, {design.network}, layer {design.layer}"]
        if target == ACCELFORGE:
            lines.append(_text(arch_of(accelerator)))
            try:
                lines.append(_text(workload_of(network_graph(design.network, design.batch))))
            except UserError as error:
                lines.append(f"# No workload: {error}")
            return "\n".join(lines) + "\n"
        lines.append(_text(architecture_of(accelerator)))
        if design.layer == "all":
            lines.append("# No problem and no mapping: name one layer (`layer=`).")
            return "\n".join(lines) + "\n"
        [run] = [run for part in plan_of(design, accelerator).parts for run in part.runs]
        lines.append(_text(problem_of(run.layer)))
        try:
            lines.append(_text(directives_of(run.found.mapping, run.layer)))
        except UserError as error:
            lines.append(f"# No mapping: {error}")
        return "\n".join(lines) + "\n"


def _text(content: Mapping[str, Any]) -> str:
    """Return YAML whose tables with a `!type` carry that tag."""

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # untyped
        """Dumper that writes tags, and no references."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def table(dumper: Any, data: Mapping[str, Any]) -> Any:
        rest = {key: value for key, value in data.items() if key != "!type"}
        tag = f"!{data['!type']}" if "!type" in data else "tag:yaml.org,2002:map"
        return dumper.represent_mapping(tag, rest.items(), flow_style=None)

    Dumper.add_representer(dict, table)
    written: str = yaml.dump(dict(content), Dumper=Dumper, sort_keys=False, width=120)
    return written.rstrip()


DEPLOYMENTS = DataflowDeployments()
