"""Networks, accelerators and mappings by name or by the path of a file.

A shipped network is a TOML file with a list of layers: ResNet-50, VGG-16, MobileNet, BERT, Llama
blocks. A layer that `feeds_next` is read by the next layer alone; `blocks` is the number of
repetitions of the list. Equal layers appear once, with their count. In YAML, a network is a list of
layers or a Timeloop problem, an accelerator a Timeloop architecture, a mapping a list of levels or
Timeloop's directives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simulators.catalog.accelerator import Accelerator, load_accelerator
from simulators.core.errors import UnknownNameError, UserError, suggestion
from simulators.core.folder import Folder, read_toml, reader
from simulators.dataflow.mapping import Mapping as LoopNest
from simulators.dataflow.mapping import read_mapping
from simulators.workload.loop_nest import Layer, bmm, conv, dwconv, einsum, matmul

Counted = tuple[Layer, int]

NETWORKS = Folder("network", "dataflow/layers")
KINDS: dict[str, Callable[..., Layer]] = {
    "conv": conv,
    "dwconv": dwconv,
    "matmul": matmul,
    "bmm": bmm,
}


def network_names() -> tuple[str, ...]:
    """Return the networks that are shipped."""
    return tuple(sorted(file.stem for file in NETWORKS.shipped.glob("*.toml")))


def network(name: str) -> tuple[Counted, ...]:
    """Return a network's distinct layers, each with how often it occurs.

    Raises:
        UnknownNameError: no network has that name.
        UserError: its file is not right.

    >>> sum(layer.macs * times for layer, times in network("resnet50")) // 10**6
    4089
    """
    distinct: dict[tuple[object, ...], Counted] = {}
    for chain in chains(name):
        for layer in chain:
            key = (layer.dims, layer.bounds, layer.tensors)
            first, times = distinct.get(key, (layer, 0))
            distinct[key] = (first, times + 1)
    return tuple(distinct.values())


def chains(name: str) -> tuple[tuple[Layer, ...], ...]:
    """Return a network's layers in order, cut where an output has other readers than the next one.

    Blocks of ResNet end at the sum with their input, attention and feed-forward are chains of two.

    Raises:
        UnknownNameError: no network has that name.
        UserError: its file is not right.
    """
    return NETWORKS.load(name, _chains)


def _chains(file: Path) -> tuple[tuple[Layer, ...], ...]:
    found: list[list[Layer]] = []
    content, feeds = read_toml(file), False
    if not isinstance(content.get("layers"), list):
        raise UserError(f"{file}: a network is a list of 'layers'")
    for entry in content["layers"]:
        layer, times = layer_from(entry, str(file))
        if not feeds:
            found.append([])
        found[-1] += [layer] * times
        feeds = entry.get("feeds_next", False)
    return tuple(map(tuple, found)) * int(content.get("blocks", 1))


def layers_of(name: str, layer: str) -> tuple[Counted, ...]:
    """Return one layer of a network, or all of them.

    Raises:
        UnknownNameError: the network or the layer is not known.
    """
    layers = network(name)
    if layer == "all":
        return layers
    known = {found.name: found for found, _ in layers}
    if layer not in known:
        raise UnknownNameError(f"layer of {name}", layer, ("all", *known))
    return ((known[layer], 1),)


def layer_from(entry: Mapping[str, Any], where: str) -> Counted:
    """Return a layer of a list and how often it occurs: a kind of `KINDS`, or `einsum`, with sizes.

    Raises:
        UserError: it is none of these, or has other sizes.
    """
    name, times = str(entry.get("name", "layer")), entry.get("times", 1)
    if not isinstance(times, int) or times < 1:
        raise UserError(f"{where}: layer '{name}': times is {times!r}, no positive whole number")
    kinds = [key for key in entry if key in KINDS]
    sizes = entry.get("sizes", {}) if "einsum" in entry else entry.get(kinds[0] if kinds else "")
    if not isinstance(sizes, Mapping) or not all(isinstance(n, int) for n in sizes.values()):
        raise UserError(
            f"{where}: layer '{name}' needs one of {', '.join(KINDS)} with whole sizes, or "
            "einsum with sizes"
        )
    if "einsum" in entry:
        return einsum(name, str(entry["einsum"]), **sizes), times
    try:
        return KINDS[kinds[0]](name, **sizes), times
    except TypeError as error:
        said = re.sub(r"^\w+\(\) ", "", str(error))
        raise UserError(f"{where}: layer '{name}': {kinds[0]}: {said}") from error


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
