"""Read problems, architectures and mappings of Timeloop, versions 3 and 4.

Levels, sizes, meshes, bandwidths and technology are read; energies come from the technology table.
Unsupported input is refused: names of built-in shapes, sums of more than two terms, sizes written
as expressions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulators.catalog.accelerator import TENSORS, Accelerator, accelerator_of
from simulators.core.errors import UserError, suggestion
from simulators.core.folder import read_toml
from simulators.dataflow.mapping import LevelLoops, Loop, LoopNest, table_of
from simulators.workload.loop_nest import Layer, Tensor

STORAGE = ("dram", "sram", "storage", "buffer", "reg", "rf", "memory")
"""Words in the class of a storage level."""
_LEVEL_KEYS: Mapping[str, Sequence[str]] = read_toml(Path(__file__).with_suffix(".toml"))["levels"]


def layer_of_problem(problem: Any, where: str) -> Layer:
    """Return the layer of a Timeloop problem. Data spaces become weights, inputs and outputs.

    Raises:
        UserError: the file called `where` names a built-in shape, or a part is missing or wrong.
    """
    problem = table_of(problem, where)
    shape = problem.get("shape")
    if not isinstance(shape, Mapping):
        raise UserError(f"{where}: the problem's shape must be written out, not named {shape!r}")
    instance = table_of(problem.get("instance", {}), where)
    dims = [str(d) for d in shape.get("dimensions", ())]
    spaces = shape.get("data-spaces", shape.get("data_spaces", ()))
    labels = tensor_labels(spaces, where)
    coefficients = {
        str(c["name"]): int(instance.get(c["name"], c.get("default", 1)))
        for c in shape.get("coefficients", ())
    }
    return layer_of(
        str(shape.get("name", Path(where).stem)),
        dims,
        {labels[space["name"]]: space["projection"] for space in spaces},
        {d: int(_number(instance.get(d, 1), f"{where}: instance: {d}")) for d in dims},
        coefficients,
    )


def layer_of(
    name: str,
    dims: Sequence[str],
    dataspaces: Mapping[str, Any],
    bounds: Mapping[str, int],
    coef: Mapping[str, int],
) -> Layer:
    """Return a layer from projections.

    Args:
        name: name of the layer.
        dims: names of the loop dimensions.
        dataspaces: projection by tensor: terms of a dimension and an optional coefficient, by rank.
        bounds: size of each dimension.
        coef: value of each named coefficient; unknown names count as 1.
    """

    def rank(terms: Any) -> tuple[tuple[str, int], ...]:
        if isinstance(terms[0], str) and len(terms) == 1:
            return ((terms[0], 1),)
        return tuple((str(term[0]), _coef(term, coef)) for term in terms)

    tensors = [
        Tensor(label, tuple(rank(terms) for terms in dataspaces[label]), label == "Outputs")
        for label in TENSORS
    ]
    return Layer(name, tuple(dims), tuple(int(bounds[d]) for d in dims), tuple(tensors))


def tensor_labels(spaces: Any, where: str) -> dict[str, str]:
    """Return the tensor of each data space, by name or else by order.

    Raises:
        UserError: the problem called `where` has not two operands and one output.
    """
    if not isinstance(spaces, Sequence) or len(spaces) != len(TENSORS):
        raise UserError(f"{where}: three data spaces are needed: two operands and one output")
    for space in spaces:
        if not isinstance(space, Mapping) or "name" not in space or "projection" not in space:
            raise UserError(f"{where}: a data space needs a name and a projection")
    marks = ("read-write", "read_write", "writes")
    outputs = [space["name"] for space in spaces if any(space.get(mark) for mark in marks)]
    if len(outputs) != 1:
        raise UserError(f"{where}: one data space must be read-write, not {len(outputs)}")
    operands = [space["name"] for space in spaces if space["name"] != outputs[0]]
    if operands[0] == TENSORS[1] or operands[1] == TENSORS[0]:
        operands.reverse()
    return dict(zip((*operands, *outputs), TENSORS, strict=True))


def accelerator_of_architecture(architecture: Any, path: Path) -> Accelerator:
    """Return the accelerator of a Timeloop architecture.

    Raises:
        UserError: the file has no storage level or no multiplier, or a value is wrong.
    """
    architecture = table_of(architecture, str(path))
    nodes = architecture.get("nodes")
    parts = list(_flat_nodes(nodes, path) if nodes else _flat_subtree(architecture, path, 1, {}))
    levels: list[dict[str, Any]] = []
    mac: dict[str, Any] = {}
    inherited: dict[str, Any] = {}
    for name, kind, attributes, mesh in parts:
        inherited |= attributes
        if "mac" in kind or "compute" in kind:
            bits = _first(attributes, _LEVEL_KEYS["word_bits"], path, name)
            mac = {"mesh": mesh, "word_bits": int(bits or 8)}
        elif any(word in kind for word in STORAGE):
            levels.append(_level(name, kind, attributes, mesh, path))
    if not levels or not mac:
        raise UserError(f"{path}: an architecture needs storage levels and a mac")
    sheet: dict[str, Any] = {"name": path.stem, "source": f"{path.name}, a Timeloop architecture"}
    if node := re.match(r"\s*(\d+)\s*nm", str(inherited.get("technology", ""))):
        sheet["node_nm"] = float(node[1])
    if "global_cycle_seconds" in inherited:
        cycle_s = _number(inherited["global_cycle_seconds"], f"{path}: global_cycle_seconds")
        sheet["clock_hz"] = 1.0 / cycle_s
    return accelerator_of({**sheet, "levels": levels, "mac": mac}, path)


def mapping_of_directives(
    directives: Sequence[Mapping[str, Any]], layer: Layer, accelerator: Accelerator, where: str
) -> LoopNest:
    """Return the mapping that Timeloop directives describe.

    Raises:
        UserError: a target, tensor, factor or type of a directive is unknown.
    """
    names = [level.name for level in accelerator.levels]
    loops: dict[str, dict[str, tuple[Loop, ...]]] = {name: {} for name in names}
    keep: dict[str, tuple[str, ...]] = dict.fromkeys(names, TENSORS)
    for entry in directives:
        target, kind = str(entry.get("target")), str(entry.get("type"))
        if target not in names:
            raise UserError(f"{where}: target '{target}'{suggestion(target, names)}")
        if kind in ("bypass", "datatype", "dataspace"):
            skipped = _words(entry.get("bypass", ()))
            if unknown := [
                t for t in (*skipped, *_words(entry.get("keep", ()))) if t not in TENSORS
            ]:
                raise UserError(
                    f"{where}: {target}: '{unknown[0]}'{suggestion(unknown[0], TENSORS)}"
                )
            keep[target] = tuple(t for t in TENSORS if t not in skipped)
            continue
        if kind not in ("temporal", "spatial"):
            raise UserError(f"{where}: {target}: type '{kind}' is not temporal, spatial or bypass")
        found = _directed(entry, layer, f"{where}: {target}")
        if kind == "temporal":
            loops[target]["temporal"] = found
        else:
            split = int(entry.get("split", len(layer.dims)))
            inner = _permutation(entry, layer)[:split]
            loops[target]["spatial_x"] = tuple(loop for loop in found if loop[0] in inner)
            loops[target]["spatial_y"] = tuple(loop for loop in found if loop[0] not in inner)
    _resolve_zeros(loops, layer, where)
    return LoopNest(tuple(LevelLoops(name, keep[name], **loops[name]) for name in names))


def _flat_subtree(
    node: Mapping[str, Any], path: Path, count: int, attributes: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any], list[int]]]:
    """Yield the components of a version 3 tree: name, class, attributes and mesh."""
    attributes = {**attributes, **node.get("attributes", {})}
    for part in node.get("local", ()):
        own = {**attributes, **part.get("attributes", {})}
        name, copies = _counted(str(part.get("name")))
        total = count * copies
        columns = int(_number(own.get("meshX", total), f"{path}: {name}: meshX"))
        if total % columns:
            raise UserError(f"{path}: {name}: meshX is {columns}, of {total} instances")
        yield name, str(part.get("class", "")).lower(), own, [columns, total // columns]
    for child in node.get("subtree", ()):
        _, copies = _counted(str(child.get("name", "")))
        yield from _flat_subtree(table_of(child, str(path)), path, count * copies, attributes)


def _flat_nodes(nodes: Any, path: Path) -> Iterator[tuple[str, str, dict[str, Any], list[int]]]:
    """Yield the components of a version 4 list; meshes of outer nodes multiply."""
    if not isinstance(nodes, Sequence):
        raise UserError(f"{path}: nodes is not a list")
    mesh = [1, 1]
    attributes: dict[str, Any] = {}
    for node in nodes:
        table = table_of(node, str(path))
        spatial = table_of(table.get("spatial", {}), str(path))
        mesh = [
            side * int(_number(spatial.get(key, 1), f"{path}: {key}"))
            for side, key in zip(mesh, ("meshX", "meshY"), strict=True)
        ]
        own = table_of(table.get("attributes", {}), str(path))
        if "class" in table:
            yield str(table.get("name")), str(table["class"]).lower(), {**attributes, **own}, mesh
        else:
            attributes |= own


def _level(
    name: str, kind: str, attributes: Mapping[str, Any], mesh: list[int], path: Path
) -> dict[str, Any]:
    """Return the fields of one storage level of an `Accelerator`."""
    level: dict[str, Any] = {"name": name, "mesh": mesh}
    level["kind"] = "dram" if "dram" in kind else "sram"
    if level["kind"] == "sram" and ("reg" in kind or kind.endswith("rf")):
        level["kind"] = "register"
    for ours, theirs in _LEVEL_KEYS.items():
        if (value := _first(attributes, theirs, path, name)) is not None:
            level[ours] = value if "per_cycle" in ours else int(value)
    level.setdefault("word_bits", 8)
    blocks = _first(attributes, ("block-size", "block_size"), path, name)
    level.setdefault("width_bits", int(blocks or 1) * level["word_bits"])
    if level["kind"] == "dram":
        level.pop("depth", None)
        if "type" in attributes:
            level["dram_type"] = str(attributes["type"]).lower()
    return level


def _directed(entry: Mapping[str, Any], layer: Layer, where: str) -> tuple[Loop, ...]:
    """Return the loops of one directive, outermost first; factors of 0 stay 0."""
    factors: dict[str, int] = {}
    given = entry.get("factors", "")
    text = " ".join(str(f) for f in given) if isinstance(given, list) else str(given)
    for word in text.split():
        read = re.fullmatch(r"([A-Za-z_]+)\s*=?\s*(\d+)(?:,\d+)?", word)
        if read is None or read[1] not in layer.dims:
            raise UserError(f"{where}: '{word}' is not a factor such as {layer.dims[0]}4")
        factors[read[1]] = int(read[2])
    return tuple(
        (dim, factors[dim])
        for dim in reversed(_permutation(entry, layer))
        if factors.get(dim, 1) != 1
    )


def _permutation(entry: Mapping[str, Any], layer: Layer) -> list[str]:
    """Return all dimensions, innermost first; dimensions that are not named come last."""
    given = entry.get("permutation", "")
    words = list(given) if isinstance(given, list) else re.findall(r"\w+", str(given))
    if len(words) == 1 and words[0] not in layer.dims:
        words = list(words[0])
    return [*words, *(dim for dim in layer.dims if dim not in words)]


def _resolve_zeros(loops: dict[str, dict[str, tuple[Loop, ...]]], layer: Layer, where: str) -> None:
    """Replace each factor of 0 in place by the remainder of the dimension."""
    for dim, bound in layer.extents.items():
        factors = [
            b for rows in loops.values() for row in rows.values() for d, b in row if d == dim
        ]
        if factors.count(0) > 1:
            raise UserError(
                f"{where}: two factors of {dim} are 0; only one factor can take the remainder"
            )
        remainder = -(-bound // math.prod(b for b in factors if b))
        for rows in loops.values():
            for key, row in rows.items():
                rows[key] = tuple((d, remainder if d == dim and b == 0 else b) for d, b in row)


def _counted(name: str) -> tuple[str, int]:
    """Split `PE[0..167]` into name and count."""
    read = re.fullmatch(r"(.*)\[(\d+)\.\.(\d+)\]", name)
    return (read[1], int(read[3]) - int(read[2]) + 1) if read else (name, 1)


def _first(
    attributes: Mapping[str, Any], keys: Sequence[str], path: Path, name: str
) -> float | None:
    for key in keys:
        if key in attributes:
            return _number(attributes[key], f"{path}: {name}: {key}")
    return None


def _number(value: Any, where: str) -> float:
    """Return a number, an integer if whole. Raises UserError, which names `where`."""
    try:
        return int(value) if float(value) == int(float(value)) else float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} is {value!r}, not a number") from error


def _words(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list | tuple) else tuple(str(value).split())


def _coef(term: Sequence[Any], named: Mapping[str, int]) -> int:
    if len(term) == 1:
        return 1
    return int(named.get(term[1], 1)) if isinstance(term[1], str) else int(term[1])
