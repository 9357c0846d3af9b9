"""Networks, accelerators and mappings that are named by the path of a YAML file.

A network is a list of layers or a Timeloop problem, an accelerator a Timeloop architecture, a
mapping a list of levels or Timeloop's directives.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulators.catalog.accelerator import Accelerator, load_accelerator
from simulators.core.errors import UserError, suggestion
from simulators.core.folder import reader
from simulators.dataflow.mapping.loop_nest import Mapping as LoopNest
from simulators.dataflow.mapping.loop_nest import read_mapping
from simulators.dataflow.mapping.networks import Counted, layer_from, layers_of
from simulators.workload.loop_nest import Layer

TIMELOOP = "timeloop"


def is_file(name: str) -> bool:
    """Whether a name is the path of a YAML file."""
    return name.endswith((".yaml", ".yml"))


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        UserError: it cannot be read, or is not YAML; says where.
    """
    import yaml  # type: ignore[import-untyped]

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # untyped
        """Reads tags such as `!Component` as what they stand before."""

    Loader.add_multi_constructor("!", lambda loader, _, node: loader.construct_mapping(node, True))
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506 - a safe loader
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error


def layers_named(name: str, layer: str) -> tuple[Counted, ...]:
    """Return the layers of a network, or those of a file: a Timeloop problem or a list of layers.

    Raises:
        UserError: the network, the file or the layer is not there or not right.
    """
    if not is_file(name):
        return layers_of(name, layer)
    table = table_of(read_yaml(Path(name)), name)
    if "problem" in table:
        return ((reader(TIMELOOP, "layer_of_problem")(table["problem"], name), 1),)
    if not isinstance(table.get("layers"), list):
        raise UserError(f"{name}: neither a 'problem' of Timeloop nor a list of 'layers'")
    found = tuple(layer_from(table_of(entry, name), name) for entry in table["layers"])
    chosen = tuple(pair for pair in found if layer in ("all", pair[0].name))
    if not chosen:
        names = [one.name for one, _ in found]
        raise UserError(f"{name} has no layer '{layer}'{suggestion(layer, names)}")
    return chosen


def accelerator_named(name: str) -> Accelerator:
    """Return the accelerator of that name, TOML file, or Timeloop architecture.

    Raises:
        UserError: there is none, or it is not right.
    """
    if not is_file(name):
        return load_accelerator(name)
    table = table_of(read_yaml(Path(name)), name)
    if "architecture" not in table:
        raise UserError(f"{name}: no 'architecture' in it")
    read = reader(TIMELOOP, "accelerator_of_architecture")
    accelerator: Accelerator = read(table["architecture"], Path(name))
    return accelerator


def mapping_named(name: str, layer: Layer, accelerator: Accelerator) -> LoopNest:
    """Return the mapping of a file: Timeloop's, or a list of levels with loops.

    Raises:
        UserError: it is not there or not right.
    """
    table = read_yaml(Path(name))
    if isinstance(table, Mapping) and "mapping" in table:
        table = table["mapping"]
    if not isinstance(table, list) or not all(isinstance(entry, Mapping) for entry in table):
        raise UserError(f"{name}: a mapping is a list of levels, or of Timeloop's directives")
    if any("target" in entry for entry in table):
        directed: LoopNest = reader(TIMELOOP, "mapping_of_directives")(
            table, layer, accelerator, name
        )
        return directed
    return read_mapping(table)


def table_of(value: Any, where: str) -> dict[str, Any]:
    """Return a table of keys, or refuse what is none."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: a table of keys is needed, not {value!r}")
    return dict(value)
