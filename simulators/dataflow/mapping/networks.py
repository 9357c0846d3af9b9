"""Networks are lists of layers, a TOML file each: ResNet-50, VGG-16, MobileNet, BERT, Llama blocks.

A layer that `feeds_next` is read by the next one alone; `blocks` says how often the list repeats.
Equal layers stand once, with how often they occur.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import Folder, read_toml
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
