"""Read architectures of ZigZag: an array of multipliers below memories, innermost first.

Sizes are in bits, bandwidths in bits per cycle and port, costs in pJ per access of a whole word of
the bandwidth; an access of `min_r_granularity` bits costs its part. `served_dimensions` are the
dimensions of the array along which multipliers share one instance. `dataflows` restricts what the
sides of the array spread. Operands are those of ZigZag's
own mappings: I1 the inputs, I2 the weights, O the outputs. Source: Mei et al., "ZigZag: enlarging
joint architecture-mapping design space exploration for DNN accelerators" (2021), and the files of
its release 3.

Words have 8 bits, since ZigZag states precisions with the workload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulators.catalog.accelerator import Accelerator, accelerator_of
from simulators.core.errors import UserError, suggestion

WORD_BITS = 8
TENSORS = {"I2": "Weights", "I1": "Inputs", "O": "Outputs"}
STATIC = "S"
"""A copy of the outputs' operand in files that serve several kinds of layers."""

PARTS = ("operational_array", "memories")
NUMBERS = ("size", "r_bw", "w_bw")
PORTS = ("r", "w", "rw")
MEMORY_KEYS = (
    *(
        *NUMBERS,
        "r_cost",
        "w_cost",
        "operands",
        "ports",
        "served_dimensions",
        "double_buffering_support",
    ),
    *("r_port", "w_port", "rw_port", "min_r_granularity", "min_w_granularity"),
    *("area", "latency", "mem_type", "auto_cost_extraction"),  # without effect here
)
ARRAY_KEYS = ("dimensions", "sizes", "unit_energy", "unit_area")
KEYS = ("operational_array", "memories", "name", "dataflows")
DIMENSIONS = {"K": "M", "C": "C", "G": "C", "OX": "Q", "OY": "P", "FX": "S", "FY": "R", "B": "N"}
"""Names of loops in ZigZag, and here."""


def accelerator_of_cores(content: Mapping[str, Any], path: Path) -> Accelerator:
    """Return the accelerator of a ZigZag architecture.

    Raises:
        UserError: as `sheet_of_cores`, or the outermost memory does not serve all operands.
    """
    return accelerator_of(sheet_of_cores(content, path), path)


def sheet_of_cores(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the data sheet of a ZigZag architecture: the fields of an `Accelerator`.

    Raises:
        UserError: the array has more than two dimensions, a key is unknown, a number is missing or
            wrong, or the file has no memories.
    """
    array, memories = (
        _table(content.get(k), f"{path}: {k}") for k in ("operational_array", "memories")
    )
    _check_keys(content, KEYS, str(path))
    _check_keys(array, ARRAY_KEYS, f"{path}: operational_array")
    dimensions, sizes = (array.get(k) for k in ("dimensions", "sizes"))
    if not isinstance(dimensions, list) or not isinstance(sizes, list):
        raise UserError(f"{path}: operational_array needs lists of dimensions and sizes")
    if len(dimensions) != len(sizes) or not 1 <= len(sizes) <= 2:
        raise UserError(
            f"{path}: an array of {len(dimensions)} dimensions and {len(sizes)} sizes; arrays of "
            "one or two dimensions are modelled"
        )
    sides = {
        str(name): _count(_number(size, f"{path}: sizes"), f"{path}: sizes")
        for name, size in zip(dimensions, sizes, strict=True)
    }
    levels = [
        _level(str(name), _table(memory, f"{path}: {name}"), sides, path)
        for name, memory in memories.items()
    ]
    energy = array.get("unit_energy")
    mac: dict[str, Any] = {"mesh": _mesh(sides, ()), "word_bits": WORD_BITS}
    if energy is not None:
        mac["energy_pj"] = _number(energy, f"{path}: unit_energy")
    sheet = {
        "name": str(content.get("name", path.stem)),
        "source": f"{path.name}, a ZigZag architecture",
        "mac": mac,
        "levels": levels[::-1],
    }
    if content.get("dataflows"):
        sheet["dataflow"] = _dataflow(content["dataflows"], sides, path)
    return sheet


def _dataflow(listed: Any, sides: Mapping[str, int], path: Path) -> str:
    """Return the dimensions that columns and rows spread, the first choice of a list of them.

    Raises:
        UserError: a side is unrolled in part, or by several dimensions.
    """
    where = f"{path}: dataflows"
    chosen = _table(listed[0] if isinstance(listed, list) else listed, where)
    spread = []
    for side, size in sides.items():
        pair = chosen.get(side)
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] not in DIMENSIONS:
            raise UserError(
                f"{where}: {side} is {pair!r}; a dimension and a size are modelled, as in [K, "
                f"{size}], of {', '.join(DIMENSIONS)}"
            )
        if _count(pair[1], where) < size:
            raise UserError(f"{where}: {side} unrolls {pair[1]} of {size}; a part is not modelled")
        spread.append(DIMENSIONS[pair[0]])
    return "/".join([*spread, ""][:2])


def _level(
    name: str, memory: Mapping[str, Any], sides: Mapping[str, int], path: Path
) -> dict[str, Any]:
    """Return the fields of one storage level of an `Accelerator`."""
    where = f"{path}: {name}"
    _check_keys(memory, MEMORY_KEYS, where)
    size, read_bits, write_bits = (
        _count(_number(memory.get(k), f"{where}: {k}"), f"{where}: {k}") for k in NUMBERS
    )
    least = memory.get("min_r_granularity") or memory.get("min_w_granularity") or read_bits
    width = _count(least, f"{where}: min_r_granularity")
    served = _names(memory, "served_dimensions", where)
    if unknown := [d for d in served if d not in sides]:
        raise UserError(f"{where}: served dimension '{unknown[0]}'{suggestion(unknown[0], sides)}")
    operands = [name for name in _names(memory, "operands", where) if name != STATIC]
    if unknown := [o for o in operands if o not in TENSORS]:
        raise UserError(f"{where}: operand '{unknown[0]}' is not one of {', '.join(TENSORS)}")
    is_dram = "dram" in name.lower()
    mesh = _mesh(sides, served)
    level: dict[str, Any] = {
        "name": name,
        "mesh": mesh,
        "kind": "dram" if is_dram else "sram" if mesh == [1, 1] else "register",
        "width_bits": width,
        "word_bits": WORD_BITS,
        "may_keep": [[t for o, t in TENSORS.items() if o in operands]],
    }
    if not is_dram:
        level["depth"] = max(1, size // width)
    if memory.get("double_buffering_support"):
        level["buffering"] = 2
    ports = {k: _count(memory.get(f"{k}_port") or 0, f"{where}: {k}_port") for k in PORTS}
    reads, writes = ports["r"] * read_bits, ports["w"] * write_bits
    if ports["rw"]:
        level["shared_words_per_cycle"] = (
            ports["rw"] * max(read_bits, write_bits) + reads + writes
        ) / WORD_BITS
    else:
        level["read_words_per_cycle"] = reads / WORD_BITS
        level["write_words_per_cycle"] = writes / WORD_BITS
    costs = {"r_cost": read_bits, "w_cost": write_bits}
    if all(memory.get(key) is not None for key in costs):
        read_pj, write_pj = (
            _number(memory[key], f"{where}: {key}") * width / bits for key, bits in costs.items()
        )
        level["energy_pj"] = {"read": read_pj, "write": write_pj, "update": write_pj}
    return level


def _mesh(sides: Mapping[str, int], served: Any) -> list[int]:
    """Return columns and rows of the instances of a memory that serves some dimensions."""
    found = [1 if name in served else size for name, size in sides.items()]
    return [*found, 1][:2]


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not value:
        raise UserError(f"{where}: a table of keys is needed, not {value!r}")
    return value


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise UserError(f"{where}: '{key}' is not modelled{suggestion(str(key), known)}")


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise UserError(f"{where} is {value!r}, not a whole number")
    return int(value)


def _names(memory: Mapping[str, Any], key: str, where: str) -> list[str]:
    if not isinstance(found := memory.get(key, []), list):
        raise UserError(f"{where}: {key} is {found!r}, not a list")
    return [str(name) for name in found]


def _number(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise UserError(f"{where} is {value!r}, not a number above zero")
    return float(value)
