"""Read chips of stream: cores in ZigZag's format, and the links between them.

`cores` lists files, relative to the chip's file or to its folder `cores`, or names of accelerators
of the catalog. `offchip_core_id` is the memory behind the DRAM port, with the bandwidth and energy
of its outermost ports. Links are entries of `core_connectivity` (a `link` joins two cores with one
way in each direction, a `bus` is shared), or the older `graph` of type `bus` or `2d_mesh`.
Bandwidths are in bits per cycle, energies (`unit_energy_cost`) in pJ per cycle of a transfer, as
stream charges them. Cores that serve named operators alone, such as pooling or additions, are left
out: those run where a tensor is produced. Symons et al., "Stream" (IEEE Transactions on Computers,
2025), and the files of its repository.

Cores run at 1 GHz, since stream counts cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from formats.hardware.zigzag import sheet_of_cores
from simulators.catalog.accelerator import Accelerator, accelerator_of, load_accelerator
from simulators.core.errors import UserError, suggestion
from simulators.dataflow.mapping import is_file, read_yaml, table_of
from simulators.multicore.chip import BITS, MulticoreChip, NocLink, mesh_of

CLOCK_HZ = 1e9
KEYS = (
    *("name", "cores", "offchip_core_id", "core_connectivity", "unit_energy_cost", "graph"),
    *("core_coordinates", "core_memory_sharing", "kernel_library"),
)
GRAPH_KEYS = (
    *("type", "nb_rows", "nb_cols", "bandwidth", "unit_energy_cost"),
    *("offchip_core_id", "pooling_core_id", "simd_core_id"),
)
LINK_KEYS = ("type", "cores", "bandwidth", "unit_energy_cost")
OPERATORS = "operator_types"
PLAIN = ("Conv", "Gemm", "MatMul")
"""Operators of layers; a core that serves none of them is left out."""


def chip_of_stream(content: Mapping[str, Any], path: Path) -> MulticoreChip:
    """Return the chip of a file of stream.

    Raises:
        UserError: a key is not modelled, a core or a link is invalid, or no core computes.
    """
    _check(content, KEYS, str(path))
    if content.get("core_memory_sharing"):
        raise UserError(f"{path}: cores that share a memory are not modelled")
    files = _cores(content.get("cores"), path)
    graph = content.get("graph")
    links = table_of(graph, f"{path}: graph") if graph is not None else {}
    _check(links, GRAPH_KEYS, f"{path}: graph")
    offchip = content.get("offchip_core_id", links.get("offchip_core_id"))
    if offchip not in files:
        raise UserError(f"{path}: offchip_core_id {offchip!r} is not one of the cores")
    tables = {number: _table(one, path) for number, one in files.items()}
    left_out = {links.get("pooling_core_id"), links.get("simd_core_id")}
    left_out |= {n for n, t in tables.items() if _serves_others(t)}
    computing = [n for n in files if n != offchip and n not in left_out]
    if not computing:
        raise UserError(f"{path}: no core computes")
    rate, picojoules, has_two_ports = _port(tables[offchip], f"{path}: core {offchip}")
    cores = tuple(_core(tables[n], files[n], path, picojoules) for n in computing)
    ends = {number: place for place, number in enumerate(computing)} | {offchip: len(computing)}
    energy = float(content.get("unit_energy_cost", links.get("unit_energy_cost", 0)) or 0)
    if links:
        found = _graph(links, len(computing), energy, path)
    else:
        found = _links(content.get("core_connectivity"), ends, left_out, energy, path)
    return MulticoreChip(
        name=str(content.get("name", path.stem)),
        cores=cores,
        links=found,
        dram_bytes_per_s=rate,
        dram_pj_per_bit=picojoules,
        has_two_ports=has_two_ports,
    )


def _cores(listed: Any, path: Path) -> dict[Any, str]:
    if isinstance(listed, Mapping):
        return {number: str(name) for number, name in listed.items()}
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        return {number: str(name) for number, name in enumerate(listed)}
    raise UserError(f"{path}: cores is {listed!r}, not a list of files")


def _table(name: str, path: Path) -> Mapping[str, Any] | Accelerator:
    """Return the content of a core's file, or an accelerator of the catalog."""
    if not is_file(name):
        return load_accelerator(name)
    places = (path.parent / name, path.parent / "cores" / name)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UserError(f"{path}: no file {name} beside it or in its folder cores")
    return {"file": found, **table_of(read_yaml(found), str(found))}


def _serves_others(core: Mapping[str, Any] | Accelerator) -> bool:
    if isinstance(core, Accelerator):
        return False
    served = core.get(OPERATORS)
    return served is not None and not set(served) & set(PLAIN)


def _core(
    core: Mapping[str, Any] | Accelerator, name: str, path: Path, picojoules: float
) -> Accelerator:
    """Return a core with an outermost level for everything outside of the core."""
    if isinstance(core, Accelerator):
        return core
    kind = str(core.get("type", "compute"))
    if kind.split(".")[0] not in ("zigzag", "compute") or kind.endswith((".memory", ".shim")):
        raise UserError(f"{path}: {name}: cores of type {kind} are not modelled")
    where: Path = core["file"]
    content = {k: v for k, v in core.items() if k not in ("file", "type", OPERATORS)}
    sheet = sheet_of_cores(zigzag_of(content, str(where)), where)
    outside = {
        "name": "outside",
        "kind": "dram",
        "width_bits": int(BITS),
        "word_bits": int(BITS),
        "energy_pj": dict.fromkeys(("read", "write", "update"), BITS * picojoules),
    }
    sheet |= {"clock_hz": CLOCK_HZ, "levels": [outside, *sheet["levels"]]}
    return accelerator_of(sheet, where)


def zigzag_of(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a core's file in the keys of ZigZag's release 3.

    Ports with a bandwidth each become bandwidths and numbers of ports, and `multipliers` the array.
    """
    found = {k: v for k, v in content.items() if k not in ("multipliers", "operand_precision")}
    if "multipliers" in content:
        old = content["multipliers"]
        found["operational_array"] = {
            "dimensions": old.get("dimensions"),
            "sizes": old.get("sizes"),
            "unit_energy": old.get("multiplier_energy"),
        }
    memories = table_of(content.get("memories"), f"{where}: memories")
    found["memories"] = {
        name: _memory(table_of(memory, f"{where}: {name}"), f"{where}: {name}")
        for name, memory in memories.items()
    }
    return found


def _memory(memory: Mapping[str, Any], where: str) -> dict[str, Any]:
    ports = memory.get("ports", ())
    if not any(isinstance(port, Mapping) and "type" in port for port in ports):
        return dict(memory)
    found = {k: v for k, v in memory.items() if k != "ports"}
    kinds = {"read": "r", "write": "w", "read_write": "rw"}
    widest = {"r": 0, "w": 0}
    narrowest = {"r": 0, "w": 0}
    counts = dict.fromkeys(kinds.values(), 0)
    for port in ports:
        name, most = str(port.get("type")), port.get("bandwidth_max")
        if name not in kinds:
            raise UserError(f"{where}: a port of type '{name}', not {', '.join(kinds)}")
        bits = int(_positive(most, f"{where}: bandwidth_max"))
        counts[kinds[name]] += 1
        for way in kinds[name]:
            widest[way] = max(widest[way], bits)
            narrowest[way] = int(_positive(port.get("bandwidth_min", most), f"{where}: a port"))
    for way in ("r", "w"):
        if widest[way]:
            found[f"{way}_bw"] = widest[way]
            found[f"min_{way}_granularity"] = narrowest[way]
    return found | {f"{kind}_port": count for kind, count in counts.items()}


def _port(core: Mapping[str, Any] | Accelerator, where: str) -> tuple[float, float, bool]:
    """Return bytes per second, pJ per bit, and whether DRAM has ports for reads and for writes."""
    if isinstance(core, Accelerator):
        raise UserError(f"{where}: the core behind the DRAM port is a file with one memory")
    memories = zigzag_of(core, where).get("memories", {})
    if len(memories) != 1:
        raise UserError(f"{where}: {len(memories)} memories; one is modelled behind the DRAM port")
    [memory] = memories.values()
    bits = _positive(memory.get("r_bw"), f"{where}: bandwidth of reads")
    picojoules = _positive(memory.get("r_cost"), f"{where}: r_cost")
    return bits * CLOCK_HZ / BITS, picojoules / bits, not memory.get("rw_port")


def _graph(graph: Mapping[str, Any], cores: int, energy: float, path: Path) -> tuple[NocLink, ...]:
    bits = _positive(graph.get("bandwidth"), f"{path}: graph: bandwidth")
    rate, picojoules = bits * CLOCK_HZ / BITS, energy / bits
    if graph.get("type") == "bus":
        return (NocLink(tuple(range(cores)), rate, picojoules),) if cores > 1 else ()
    if graph.get("type") != "2d_mesh":
        raise UserError(f"{path}: graph: type is {graph.get('type')!r}, not bus or 2d_mesh")
    rows = int(_positive(graph.get("nb_rows"), f"{path}: graph: nb_rows"))
    columns = int(_positive(graph.get("nb_cols"), f"{path}: graph: nb_cols"))
    if rows * columns != cores:
        raise UserError(f"{path}: a mesh of {rows} x {columns} for {cores} cores")
    # Cores are numbered down the columns.
    pairs = [(c * rows + r, c * rows + r + 1) for c in range(columns) for r in range(rows - 1)]
    pairs += [(c * rows + r, (c + 1) * rows + r) for c in range(columns - 1) for r in range(rows)]
    return mesh_of(pairs, rate, picojoules)


def _links(
    listed: Any, ends: Mapping[Any, int], left_out: set[Any], energy: float, path: Path
) -> tuple[NocLink, ...]:
    if not isinstance(listed, list):
        raise UserError(f"{path}: core_connectivity is a list of links and buses")
    found: list[NocLink] = []
    for place, entry in enumerate(listed):
        where = f"{path}: core_connectivity[{place}]"
        table = table_of(entry, where)
        _check(table, LINK_KEYS, where)
        named = list(table.get("cores", ()))
        if unknown := [n for n in named if n not in ends and n not in left_out]:
            raise UserError(f"{where}: {unknown[0]!r} is not one of the cores")
        joined = [ends[n] for n in named if n in ends]
        bits = _positive(table.get("bandwidth"), f"{where}: bandwidth")
        rate = bits * CLOCK_HZ / BITS
        picojoules = float(table.get("unit_energy_cost", energy) or 0) / bits
        if len(joined) < 2:
            continue
        if table.get("type", "link") == "bus":
            found.append(NocLink(tuple(joined), rate, picojoules))
        elif table.get("type", "link") == "link" and len(joined) == 2:
            found += mesh_of([(joined[0], joined[1])], rate, picojoules)
        else:
            raise UserError(f"{where}: a link joins two cores, and the type is link or bus")
    return tuple(found)


def _positive(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"{where} is {value!r}, not a number above zero")
    return float(value)


def _check(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise UserError(f"{where}: '{key}' is not modelled{suggestion(str(key), known)}")
