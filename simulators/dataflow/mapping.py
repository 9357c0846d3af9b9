"""Mappings, networks and accelerators: types, names and files.

A mapping states for each level, outermost first: the tensors kept there, the loops that run in
time, and the loops spread over the columns (X) and rows (Y) of the next level's instances. Bounds
over a dimension may multiply to more than its size: the last iteration of each loop then ends where
the dimension ends.

A shipped network is a TOML file with a list of layers: ResNet-50, VGG-16, MobileNet, BERT, Llama
blocks; `blocks` is the number of repetitions of the list. `network` reads how layers are connected.
Equal layers appear once here, with their count. In YAML, a network is a list of layers or a
Timeloop problem, an accelerator a Timeloop architecture, a mapping a list of levels or Timeloop's
directives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Mapping as Table
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator, load_accelerator, sheet_name
from simulators.core.errors import UnknownNameError, UserError, suggestion
from simulators.core.folder import ACCELERATORS, Folder, read_toml, reader
from simulators.core.jit import Ints
from simulators.dataflow import access as at
from simulators.workload.loop_nest import Layer, bmm, conv, dwconv, einsum, matmul

Loop = tuple[str, int]
ROWS = ("temporal", "spatial_x", "spatial_y")
"""Names of a level's loops in files."""
BOUNDS = (at.TEMPORAL, at.SPATIAL_X, at.SPATIAL_Y)
"""Rows of a level's loops in arrays."""
_KEYS = ("level", "keep", *ROWS)


@dataclass(frozen=True)
class LevelLoops:
    """One level of a mapping; loops are outermost first."""

    level: str
    keep: tuple[str, ...] = ()
    temporal: tuple[Loop, ...] = ()
    spatial_x: tuple[Loop, ...] = ()
    spatial_y: tuple[Loop, ...] = ()


@dataclass(frozen=True)
class LoopNest:
    """A whole nest, outermost level first."""

    levels: tuple[LevelLoops, ...]


def read_mapping(levels: Sequence[Table[str, Any]]) -> LoopNest:
    """Return a mapping from tables with `level`, `keep`, `temporal`, `spatial_x`, `spatial_y`.

    Raises:
        UserError: a key is unknown, or a loop is not `[dimension, bound]`.
    """
    read = []
    for table in levels:
        for key in table:
            if key not in _KEYS:
                raise UserError(f"mapping: '{key}' is not known{suggestion(key, _KEYS)}")
        if "level" not in table:
            raise UserError("mapping: each level needs its name, as in level: DRAM")
        read.append(
            LevelLoops(
                str(table["level"]),
                tuple(table.get("keep", ())),
                *(tuple(_loop(loop, table["level"]) for loop in table.get(k, ())) for k in ROWS),
            )
        )
    return LoopNest(tuple(read))


def encode(mapping: LoopNest, layer: Layer, accelerator: Accelerator) -> tuple[Ints, Ints]:
    """Return loops (levels x 4 x dims) and keep masks of a mapping.

    Raises:
        UserError: levels, tensors or dimensions do not match accelerator and layer, a loop occurs
            twice, bounds multiply to less than the layer's, or a loop has superfluous iterations.
    """
    names = [level.name for level in accelerator.levels]
    if (given := [level.level for level in mapping.levels]) != names:
        raise UserError(
            f"mapping has the levels {', '.join(given)}; {accelerator.name} has {', '.join(names)}"
        )
    loops = np.ones((len(names), 4, len(layer.dims)), np.int64)
    keep = np.zeros(len(names), np.int64)
    for k, level in enumerate(mapping.levels):
        for tensor in level.keep:
            if tensor not in TENSORS:
                raise UserError(f"mapping keeps '{tensor}'{suggestion(tensor, TENSORS)}")
            keep[k] |= 1 << TENSORS.index(tensor)
        found = (level.temporal, level.spatial_x, level.spatial_y)
        for row, inner in zip(BOUNDS, found, strict=True):
            _fill(loops[k, row], inner, layer, level.level)
        loops[k, at.ORDER] = ordered([dim for dim, _ in level.temporal], layer)
    if keep[0] != (1 << len(TENSORS)) - 1:
        raise UserError(f"mapping: the outermost level, {names[0]}, keeps every tensor")
    for d, (dim, bound) in enumerate(zip(layer.dims, layer.bounds, strict=True)):
        product = math.prod(int(x) for x in loops[:, BOUNDS, d].ravel())
        if product < bound:
            raise UserError(f"mapping: the loops over {dim} multiply to {product}, not to {bound}")
        reached = loops.copy()
        _stop_at_end(reached, d, bound)
        for runs, needed in zip(loops[loops != reached], reached[loops != reached], strict=True):
            raise UserError(
                f"mapping: the outermost loop over {dim} runs {runs} times; {needed} of "
                f"{product // runs} reach {bound}"
            )
    return loops, keep


def ordered(inner: Sequence[str], layer: Layer) -> list[int]:
    """Return the positions of all dimensions, the given ones last and in order."""
    found = [layer.dims.index(dim) for dim in inner]
    return [d for d in range(len(layer.dims)) if d not in found] + found


def decode(loops: Ints, keep: Ints, layer: Layer, accelerator: Accelerator) -> LoopNest:
    """Return the mapping of loops and keep masks; loops beyond the end of a dimension shrink."""
    loops = loops.copy()
    for d, size in enumerate(layer.bounds):
        _stop_at_end(loops, d, size)

    def found(row: Ints, order: Sequence[int]) -> tuple[Loop, ...]:
        return tuple((layer.dims[d], int(row[d])) for d in order if row[d] > 1)

    plain = range(len(layer.dims))
    return LoopNest(
        tuple(
            LevelLoops(
                level.name,
                tuple(t for b, t in enumerate(TENSORS) if int(mask) >> b & 1),
                found(table[at.TEMPORAL], [int(d) for d in table[at.ORDER]]),
                found(table[at.SPATIAL_X], plain),
                found(table[at.SPATIAL_Y], plain),
            )
            for level, table, mask in zip(accelerator.levels, loops, keep, strict=True)
        )
    )


def _stop_at_end(loops: Ints, dim: int, size: int) -> None:
    inner = math.prod(int(b) for b in loops[:, BOUNDS, dim].ravel())
    for level in range(len(loops)):
        for row in BOUNDS:
            inner //= int(loops[level, row, dim])
            loops[level, row, dim] = min(int(loops[level, row, dim]), -(-size // inner))
            if loops[level, row, dim] > 1:
                return


def _loop(loop: Any, level: str) -> Loop:
    """Read `[dim, bound]`; of `[dim, bound, last]` the last follows from the layer's bound."""
    if not (
        isinstance(loop, list | tuple)
        and len(loop) in (2, 3)
        and all(isinstance(bound, int) for bound in loop[1:])
    ):
        raise UserError(f"mapping: {level}: {loop!r} is not a loop such as [P, 8] or [P, 8, 3]")
    return (str(loop[0]), loop[1])


def _fill(row: Ints, loops: tuple[Loop, ...], layer: Layer, level: str) -> None:
    for dim, bound in loops:
        if dim not in layer.dims:
            raise UserError(f"mapping: {level}: no loop '{dim}'{suggestion(dim, layer.dims)}")
        d = layer.dims.index(dim)
        if bound < 1 or row[d] != 1:
            raise UserError(
                f"mapping: {level}: the loop over {dim} is not positive, or there twice"
            )
        row[d] = bound


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
    """Return a network's distinct layers, each with its count.

    Raises:
        UnknownNameError: the network is unknown.
        UserError: the file is invalid.

    >>> sum(layer.macs * times for layer, times in network("resnet50")) // 10**6
    4089
    """
    distinct: dict[tuple[object, ...], Counted] = {}
    for layer in NETWORKS.load(name, _layers):
        key = (layer.dims, layer.bounds, layer.tensors)
        first, times = distinct.get(key, (layer, 0))
        distinct[key] = (first, times + 1)
    return tuple(distinct.values())


def _layers(file: Path) -> tuple[Layer, ...]:
    content = read_toml(file)
    if not isinstance(content.get("layers"), list):
        raise UserError(f"{file}: a network is a list of 'layers'")
    found: list[Layer] = []
    for entry in content["layers"]:
        layer, times = layer_from(entry, str(file))
        found += [layer] * times
    return tuple(found) * int(content.get("blocks", 1))


def layers_of(name: str, layer: str) -> tuple[Counted, ...]:
    """Return one layer of a network, or all of them.

    Raises:
        UnknownNameError: the network or the layer is unknown.
    """
    layers = network(name)
    if layer == "all":
        return layers
    known = {found.name: found for found, _ in layers}
    if layer not in known:
        raise UnknownNameError(f"layer of {name}", layer, ("all", *known))
    return ((known[layer], 1),)


def layer_from(entry: Mapping[str, Any], where: str) -> Counted:
    """Return a layer and its count from a table: a kind of `KINDS`, or `einsum`, with sizes.

    Raises:
        UserError: the kind or a size is invalid.
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


TIMELOOP, ZIGZAG, ACCELFORGE = "timeloop", "formats.hardware.zigzag", "formats.hardware.accelforge"


def is_file(name: str) -> bool:
    """Return whether a name is the path of a YAML file."""
    return name.endswith((".yaml", ".yml"))


def accelerator_file(name: str) -> Path:
    """Return the file of an accelerator, by name or path."""
    return Path(name) if is_file(name) else ACCELERATORS.find(sheet_name(name))


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        UserError: the file cannot be read, or is not valid YAML.
    """
    import yaml  # type: ignore[import-untyped]

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # untyped
        """Loader that ignores tags such as `!Component`."""

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
        UserError: the network, the file or the layer is missing or invalid.
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
    """Return the accelerator with a name, or of a TOML file, or of Timeloop, AccelForge or ZigZag.

    Raises:
        UserError: the accelerator is missing or invalid.
    """
    if not is_file(name):
        return load_accelerator(name)
    table = table_of(read_yaml(Path(name)), name)
    accelerator: Accelerator
    if "operational_array" in table:
        accelerator = reader(ZIGZAG, "accelerator_of_cores")(table, Path(name))
    elif "architecture" in table:
        read = reader(TIMELOOP, "accelerator_of_architecture")
        accelerator = read(table["architecture"], Path(name))
    elif "arch" in table:
        accelerator = reader(ACCELFORGE, "accelerator_of_arch")(table["arch"], Path(name))
    else:
        raise UserError(
            f"{name}: no 'architecture' of Timeloop, 'arch' of AccelForge or 'operational_array' "
            "of ZigZag in it"
        )
    return accelerator


def mapping_named(name: str, layer: Layer, accelerator: Accelerator) -> LoopNest:
    """Return the mapping of a file: Timeloop's, or a list of levels with loops.

    Raises:
        UserError: the file is missing or invalid.
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
    """Return a value as a table; raise a `UserError` for other values."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: a table of keys is needed, not {value!r}")
    return dict(value)
