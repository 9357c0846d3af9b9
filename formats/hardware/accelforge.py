"""Read and write architectures of AccelForge, and write its workloads.

An architecture is a list of memories, containers and compute units, outermost first. Sizes are in
bits, energies in joules per action of `bits_per_action` bits (one if left out), throughputs in bits
or operations per second. `keep` and `may_keep` are expressions of tensors: `input`, `weight`,
`output`, `All`, `Nothing`, `|` and `~`. Values have 8 bits, since AccelForge states them with the
workload. Andrulis et al., "Fast and fusiest" (2026), and the files of release 1.0.467. Templates
and component models are refused.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulators.catalog.accelerator import TENSORS, Accelerator, accelerator_of
from simulators.core.errors import UserError, suggestion
from simulators.dataflow.evaluation import level_energy_pj, mac_energy_pj
from simulators.dataflow.network import OUTSIDE, LayerGraph

WORD_BITS = 8
NAMES = {"weight": "Weights", "input": "Inputs", "output": "Outputs"}
OURS = {tensor: name for name, tensor in NAMES.items()}
MEMORY_KEYS = ("name", "size", "tensors", "actions", "spatial", "leak_power", "area")
ACTION_KEYS = ("name", "energy", "throughput", "bits_per_action")
PJ_PER_J = 1e12
OPERATORS: Mapping[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def accelerator_of_arch(content: Any, path: Path) -> Accelerator:
    """Return the accelerator of an AccelForge architecture: the content of its key `arch`.

    Raises:
        UserError: a node is a template or needs a component model, or a key is not modelled.
    """
    nodes = content.get("nodes") if isinstance(content, Mapping) else None
    if not isinstance(nodes, Sequence) or not nodes:
        raise UserError(f"{path}: arch needs a list of nodes")
    mesh = [1, 1]
    levels: list[dict[str, Any]] = []
    rates: list[dict[str, float]] = []
    mac: dict[str, Any] = {}
    clock_hz = 1e9
    for node in nodes:
        if not isinstance(node, Mapping) or "name" not in node:
            raise UserError(f"{path}: a node of arch is a table with a name, not {node!r}")
        where = f"{path}: {node['name']}"
        mesh = _mesh(mesh, node.get("spatial", ()), where)
        actions = _actions(node, where)
        if "compute" in actions:
            compute = actions["compute"]
            mac = {"mesh": mesh, "word_bits": WORD_BITS}
            if "energy" in compute:
                mac["energy_pj"] = compute["energy"] * PJ_PER_J
            if math.isfinite(compute.get("throughput", math.inf)):
                clock_hz = compute["throughput"]
        elif "size" in node:
            level, rate = _level(node, actions, mesh, where, is_first=not levels)
            levels.append(level)
            rates.append(rate)
        elif "spatial" not in node:
            raise UserError(f"{where} is neither a memory with a size, an array nor a compute unit")
    if not levels or not mac:
        raise UserError(f"{path}: arch needs a memory and a compute unit with its actions")
    for level, rate in zip(levels, rates, strict=True):
        level |= {key: bits / WORD_BITS / clock_hz for key, bits in rate.items()}
    sheet = {
        "name": path.stem,
        "source": f"{path.name}, an AccelForge architecture",
        "clock_hz": clock_hz,
        "levels": levels,
        "mac": mac,
    }
    return accelerator_of(sheet, path)


def arch_of(accelerator: Accelerator) -> dict[str, Any]:
    """Return an accelerator as the nodes of an AccelForge architecture, with tags as `!type`."""
    stated_nm = accelerator.energy_node_nm or accelerator.node_nm
    nodes: list[dict[str, Any]] = []
    outer: Sequence[int] = (1, 1)
    for level in accelerator.levels:
        nodes += _array(level.name, outer, level.mesh)
        outer = level.mesh
        energy = level_energy_pj(level, accelerator.node_nm, stated_nm)
        both = level.shared_words_per_cycle
        speeds = (level.read_words_per_cycle or both, level.write_words_per_cycle or both)
        words = level.capacity_words
        nodes.append(
            {
                "!type": "Memory",
                "name": level.name,
                "size": "inf" if words is None else words * level.word_bits,
                "leak_power": 0,
                "area": 0,
                "tensors": _kept(level.may_keep, is_first=not nodes),
                "actions": [
                    {
                        "name": action,
                        "energy": energy[place] / level.width_bits / PJ_PER_J,
                        "throughput": _rate(speed, level.word_bits, accelerator.clock_hz),
                    }
                    for place, (action, speed) in enumerate(
                        zip(("read", "write"), speeds, strict=True)
                    )
                ],
            }
        )
    nodes += _array("mac", outer, accelerator.mac.mesh)
    nodes.append(
        {
            "!type": "Compute",
            "name": "MAC",
            "leak_power": 0,
            "area": 0,
            "actions": [
                {
                    "name": "compute",
                    "energy": mac_energy_pj(accelerator) / PJ_PER_J,
                    "throughput": accelerator.clock_hz,
                }
            ],
        }
    )
    return {"arch": {"nodes": nodes}}


def workload_of(graph: LayerGraph) -> dict[str, Any]:
    """Return the products of a network as an AccelForge workload.

    Raises:
        UserError: a layer has sliding windows or a residual branch, which are not written.
    """
    sizes: dict[str, int] = {}
    einsums = []
    result: dict[int, tuple[str, list[str]]] = {}
    for k, node in enumerate(graph.nodes):
        layer = node.layer
        if any(len(rank) > 1 for t in layer.tensors for rank in t.ranks) or node.adds:
            raise UserError(
                f"layer '{layer.name}': only products without residual branches are written"
            )
        named = {dim: f"{dim.lower()}{k}" for dim in layer.dims}
        source = node.reads[0]
        if source != OUTSIDE and source >= 0:
            ranks = [rank[0][0] for rank in layer.tensors[1].ranks]
            if len(ranks) != len(result[source][1]):
                raise UserError(f"layer '{layer.name}' reads a tensor of other ranks")
            named |= dict(zip(ranks, result[source][1], strict=True))
        sizes |= {named[d]: b for d, b in zip(layer.dims, layer.bounds, strict=True)}
        ranks_of = [[named[rank[0][0]] for rank in t.ranks] for t in layer.tensors]
        result[k] = (f"T{k}", ranks_of[2])
        first = result[source][0] if source >= 0 else f"I{k}"
        second = result[node.weights_from][0] if node.weights_from >= 0 else f"W{k}"
        names = (second, first, f"T{k}")
        einsums.append(
            {
                "name": f"{layer.name}_{k}",
                "tensor_accesses": [
                    {"name": name, "projection": ranks, **({"output": True} if t == 2 else {})}
                    for t, (name, ranks) in enumerate(zip(names, ranks_of, strict=True))
                ],
                "renames": {"weight": second, "input": first, "output": f"T{k}"},
            }
        )
    shape = {dim: f"0 <= {dim} < {bound}" for dim, bound in sizes.items()}
    return {
        "workload": {
            "iteration_space_shape": shape,
            "bits_per_value": {"All": WORD_BITS},
            "einsums": einsums,
        }
    }


def _mesh(mesh: Sequence[int], spatial: Any, where: str) -> list[int]:
    """Return columns and rows after the fan-outs of a node: the first is along columns."""
    sides = list(mesh)
    if not isinstance(spatial, Sequence) or len(spatial) > 2:
        raise UserError(f"{where}: spatial is a list of one or two fan-outs")
    for side, table in enumerate(spatial):
        if not isinstance(table, Mapping) or "fanout" not in table:
            raise UserError(f"{where}: a fan-out needs its number, `fanout`")
        sides[side] *= round(_value(table["fanout"], f"{where}: fanout"))
    return sides


def _actions(node: Mapping[str, Any], where: str) -> dict[str, dict[str, float]]:
    """Return numbers of actions by name; energies and throughputs are of one bit or operation."""
    if "component_class" in node and node["component_class"] != "Dummy":
        raise UserError(
            f"{where}: component_class {node['component_class']} needs a component model; state "
            "size, energies and throughputs"
        )
    found = {}
    for action in node.get("actions", ()):
        if not isinstance(action, Mapping) or "name" not in action:
            raise UserError(f"{where}: an action is a table with a name, not {action!r}")
        for key in action:
            if key not in ACTION_KEYS:
                raise UserError(f"{where}: '{key}' is not modelled{suggestion(key, ACTION_KEYS)}")
        numbers = {k: _value(v, f"{where}: {k}") for k, v in action.items() if k != "name"}
        bits = numbers.pop("bits_per_action", 1.0)
        if "energy" in numbers:
            numbers["energy"] /= bits
        if "throughput" in numbers:
            numbers["throughput"] *= bits
        found[str(action["name"])] = numbers
    return found


def _level(
    node: Mapping[str, Any],
    actions: Mapping[str, Mapping[str, float]],
    mesh: Sequence[int],
    where: str,
    *,
    is_first: bool,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the fields of a level, and its bits per second by field."""
    for key in node:
        if key not in (*MEMORY_KEYS, "component_class"):
            raise UserError(f"{where}: '{key}' is not modelled{suggestion(key, MEMORY_KEYS)}")
    size = _value(node["size"], f"{where}: size")
    level: dict[str, Any] = {
        "name": str(node["name"]),
        "mesh": list(mesh),
        "width_bits": WORD_BITS,
        "word_bits": WORD_BITS,
        "may_keep": [list(TENSORS)] if is_first else _sets(node.get("tensors", {}), where),
    }
    if math.isfinite(size):
        level["kind"] = "sram" if list(mesh) == [1, 1] else "register"
        level["depth"] = max(1, int(size // WORD_BITS))
    else:
        level["kind"] = "dram"
    pj = {name: numbers.get("energy") for name, numbers in actions.items()}
    if pj.get("read") is not None and pj.get("write") is not None:
        read, write = (float(pj[n] or 0.0) * WORD_BITS * PJ_PER_J for n in ("read", "write"))
        level["energy_pj"] = {"read": read, "write": write, "update": write}
    rate = {
        f"{name}_words_per_cycle": numbers["throughput"]
        for name, numbers in actions.items()
        if name in ("read", "write") and math.isfinite(numbers.get("throughput", math.inf))
    }
    return level, rate


def _sets(tensors: Any, where: str) -> list[list[str]]:
    """Return the sets of tensors that a level may hold: `keep`, with any of `may_keep`."""
    if not isinstance(tensors, Mapping):
        raise UserError(f"{where}: tensors is a table of keep and may_keep")
    keep = _tensors(str(tensors.get("keep", "Nothing")), where)
    may = _tensors(str(tensors.get("may_keep", "Nothing")), where) - keep
    must = keep if "~" not in str(tensors.get("keep", "")) else set()
    free = [t for t in TENSORS if t in (keep | may) - must]
    sets = []
    for choice in range((1 << len(free)) - 1, -1, -1):
        chosen = must | {t for k, t in enumerate(free) if choice >> k & 1}
        if chosen:
            sets.append([t for t in TENSORS if t in chosen])
    if not sets:
        raise UserError(f"{where}: the memory keeps no tensor")
    return sets


def _tensors(expression: str, where: str) -> set[str]:
    """Return tensors of a union; what other memories leave (`~MainMemory`) may be any tensor."""
    found: set[str] = set()
    for term in expression.split("|"):
        name = term.strip()
        if name.startswith("~") or name == "All":
            found |= set(TENSORS)
        elif name in NAMES:
            found.add(NAMES[name])
        elif name != "Nothing":
            raise UserError(
                f"{where}: '{name}' is not one of {', '.join(NAMES)}, All, Nothing or ~ a memory"
            )
    return found


def _value(value: Any, where: str) -> float:
    """Return a number, or the value of an expression such as 1024*8. Raises UserError."""
    try:
        return _evaluated(ast.parse(str(value), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{where} is {value!r}, neither a number nor a product of them") from error


def _evaluated(node: ast.expr) -> float:
    if isinstance(node, ast.Name) and node.id == "inf":
        return math.inf
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _evaluated(node.left), _evaluated(node.right)
        return float(OPERATORS[type(node.op)](left, right))
    raise ValueError(ast.dump(node))


def _array(name: str, outer: Sequence[int], inner: Sequence[int]) -> list[dict[str, Any]]:
    """Return the container between two meshes, if they differ."""
    fans = [b // a for a, b in zip(outer, inner, strict=True)]
    if fans == [1, 1]:
        return []
    spatial = [{"name": f"{name}_{side}", "fanout": n} for side, n in zip("XY", fans, strict=True)]
    return [{"!type": "Container", "name": f"{name}_array", "spatial": spatial}]


def _kept(may_keep: Sequence[Sequence[str]], *, is_first: bool) -> dict[str, str]:
    if is_first:
        return {"keep": "~Intermediates", "may_keep": "All"}
    always = [t for t in TENSORS if all(t in one for one in may_keep)]
    ever = [t for t in TENSORS if any(t in one for one in may_keep)]
    keep, may = (" | ".join(OURS[t] for t in found) or "Nothing" for found in (always, ever))
    return {"keep": keep, "may_keep": may}


def _rate(words_per_cycle: float | None, bits: int, clock_hz: float) -> float | str:
    return "inf" if words_per_cycle is None else words_per_cycle * bits * clock_hz
